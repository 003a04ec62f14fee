"""Profile: how the keys of a query's tables meet, before anything is trained.

In: a bound query and its scans' keys (tokens will do). Out: for each join and each side of it the rows, those without
a key, those whose key occurs more than once, and those that find no partner.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import msgspec

from tablepuppet.errors import PolicyError
from tablepuppet.formatting import fragment, table
from tablepuppet.join.duckdb_join import connect
from tablepuppet.join.keys import ScanKeys
from tablepuppet.sql.bound import BoundQuery, Branch, KeyPair

_WORDS = {"inner": "JOIN", "left": "LEFT JOIN", "semi": "SEMI JOIN", "anti": "ANTI JOIN", "not in": "ANTI JOIN"}


class Side(msgspec.Struct, frozen=True):
    alias: str
    table: str
    key: str
    rows: int  # after its filter
    without_key: int  # some column of the key is NULL: such a row matches nothing
    distinct: int  # keys
    duplicates: int  # rows whose key occurs more than once
    orphans: int  # rows that find no partner, those without a key among them

    @property
    def is_unique(self) -> bool:
        return self.duplicates == 0


class JoinProfile(msgspec.Struct, frozen=True):
    kind: str
    left: Side
    right: Side

    @property
    def shape(self) -> str:
        names = {True: "one", False: "many"}
        return f"{names[self.left.is_unique]}-to-{names[self.right.is_unique]}"


class Profile(msgspec.Struct, frozen=True):
    """All joins of a query; `str` is a text for people."""

    joins: tuple[JoinProfile, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"joins": [{**msgspec.to_builtins(join), "shape": join.shape} for join in self.joins]}

    def _repr_html_(self) -> str:
        """A notebook's view: a table with a line for each side of each join."""
        head = ["join", "side", "table", "shape", "rows", "distinct keys", "NULL keys", "shared keys", "no partner"]
        rows = [
            [
                f"{_WORDS[join.kind]} {join.left.key} = {join.right.key}",
                side.alias,
                side.table,
                join.shape,
                *(f"{n:,}" for n in (side.rows, side.distinct, side.without_key, side.duplicates, side.orphans)),
            ]
            for join in self.joins
            for side in (join.left, join.right)
        ]
        return fragment(
            "How the keys meet" if rows else str(self), *([table(head, rows, text_columns=4)] if rows else [])
        )

    def __str__(self) -> str:
        if not self.joins:
            return "The query joins nothing."
        lines = []
        for join in self.joins:
            lines.append(f"{_WORDS[join.kind]} {join.left.key} = {join.right.key}: {join.shape}")
            lines += [f"  {line}" for side in (join.left, join.right) for line in _lines(side)]
        return "\n".join(lines)


def _lines(side: Side) -> Iterator[str]:
    yield f"{side.alias} ({side.table}): {side.rows:,} rows, {side.distinct:,} distinct keys"
    if side.without_key:
        yield f"    {side.without_key:,} rows have no key (NULL) and match nothing"
    if side.duplicates:
        yield f"    {side.duplicates:,} rows share their key with another"
    if side.orphans:
        yield f"    {side.orphans:,} rows find no partner ({side.orphans / side.rows:.1%})"


def profile_keys(bound: BoundQuery, keys: Sequence[ScanKeys]) -> Profile:
    """Counts, by DuckDB, over the keys that the clients sent."""
    with connect(keys) as connection:
        joins = tuple(
            JoinProfile(kind, *(_side(connection, bound, branch, pairs, is_left) for is_left in (True, False)))
            for branch in bound.branches
            for kind, pairs in _conditions(branch)
        )
    return Profile(tuple(dict.fromkeys(joins)))


def check_meetings(found: Profile, least: int) -> None:
    """Refuses to disclose of a few keys whether another owner has them; `least`: the owners' minimum_rows."""
    for join in found.joins if least > 1 else ():
        for side in (join.left, join.right):
            if side.rows - side.orphans < least:
                raise PolicyError(
                    f"fewer than {least:,} rows of {side.table} find a partner, and whether some do would tell who is "
                    "among them; ask about more keys (an owner's rule minimum_rows)"
                )


def _conditions(branch: Branch) -> Iterator[tuple[str, list[KeyPair]]]:
    """The key equalities of each join, apart for each pair of relations."""
    for join in branch.joins:
        pairs: dict[tuple[int, int], list[KeyPair]] = {}
        for pair in join.on:
            pairs.setdefault((pair.left, pair.right), []).append(pair)
        yield from ((join.kind, given) for given in pairs.values())


def _side(
    connection: duckdb.DuckDBPyConnection, bound: BoundQuery, branch: Branch, pairs: Sequence[KeyPair], is_left: bool
) -> Side:
    own = [(p.left, p.left_column) if is_left else (p.right, p.right_column) for p in pairs]
    other = [(p.right, p.right_column) if is_left else (p.left, p.left_column) for p in pairs]
    relation, partner = branch.relations[own[0][0]], branch.relations[other[0][0]]
    columns = ", ".join(f"k{c}" for _, c in own)
    is_null = " OR ".join(f"k{c} IS NULL" for _, c in own)
    on = " AND ".join(f"a.k{x} = b.k{y}" for (_, x), (_, y) in zip(own, other, strict=True))
    sql = f"""
        WITH counted AS (SELECT {columns}, count(*) AS n, {is_null} AS is_null FROM s{relation.scan} GROUP BY {columns})
        SELECT coalesce(sum(n), 0), coalesce(sum(n) FILTER (is_null), 0), count(*) FILTER (NOT is_null),
               coalesce(sum(n) FILTER (NOT is_null AND n > 1), 0),
               coalesce(sum(n) FILTER (NOT EXISTS (SELECT 1 FROM s{partner.scan} b WHERE {on})), 0)
        FROM counted a
    """
    [counts] = connection.execute(sql).fetchall()
    scan = bound.scans[relation.scan]
    names = ", ".join(f"{relation.alias}.{scan.expressions[c].strip(chr(34))}" for _, c in own)
    key = f"({names})" if len(own) > 1 else names
    return Side(relation.alias, scan.table, key, *(int(count) for count in counts))
