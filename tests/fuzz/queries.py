"""Random tables, clients and SELECTs: the dialect that analysts write, with a bias towards groups that clients share.

Everything follows from one `random.Random`, so a case is named by its seed.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import pyarrow as pa

AGGREGATES = ("count(*)", "sum({v})", "avg({v})", "min({v})", "max({v})", "count({v})", "count(DISTINCT {v})")
MERGEABLE = ("count(*)", "sum({v})", "avg({v})", "count({v})")
WINDOWS = (
    "row_number() OVER (PARTITION BY k ORDER BY {v})",
    "lag({v}) OVER (PARTITION BY k ORDER BY {v})",
    "sum({v}) OVER (PARTITION BY k)",
    "count(*) OVER (PARTITION BY k, g)",
    "avg({v}) OVER (PARTITION BY g)",
    "{v} / sum({v}) OVER ()",
    "rank() OVER (ORDER BY {v})",
    "sum({v}) OVER (PARTITION BY k ORDER BY {v} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
)
ROW_CONDITIONS = ("{a}g > 1", "{a}g IS NOT NULL", "{a}g <> 2 OR {a}k = 1", "{a}{v} > 0", "{a}{v} IS NULL", "{a}k < 4")
RARELY = 0.15  # what is refused in most cases
VALUE_OF = {"c": "x", "b": "z", "a": "w"}


@dataclass(frozen=True)
class Case:
    """Tables by client, and a query over them in two forms."""

    tables: Mapping[str, list[pa.Table]]
    sql: str
    with_markers: str  # the same, and for each item whether its alias found a partner
    merges: bool  # whether owners let groups be merged

    def __str__(self) -> str:
        shown = [self.sql, f"merge_groups: {self.merges}"]
        for name, parts in self.tables.items():
            shown += [f"{name}[{i}] = {part.to_pydict()}" for i, part in enumerate(parts)]
        return "\n".join(shown)


@dataclass(frozen=True)
class Item:
    """An expression of the SELECT list; `alias`: of a table that may have found no partner."""

    text: str
    alias: str | None


def make_case(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    tables = {name: divide(rng, pooled) for name, pooled in make_tables(rng).items()}
    select = Select.draw(rng)
    merges = rng.random() < 0.3
    return Case(tables, select.text(markers=False), select.text(markers=True), merges)


# -- tables --------------------------------------------------------------------------------


def make_tables(rng: Random) -> dict[str, pa.Table]:
    """Three tables with keys k and g in common, a few of them NULL."""

    def keys(rows: int, most: int) -> pa.Array:
        return pa.array([rng.choice([*range(1, most + 1), None]) for _ in range(rows)], pa.int64())

    def numbers(rows: int, missing: float) -> pa.Array:
        return pa.array([None if rng.random() < missing else round(rng.gauss(0.3, 1), 6) for _ in range(rows)])

    def texts(rows: int) -> pa.Array:
        return pa.array([rng.choice(["red", "blue", "green", None]) for _ in range(rows)], pa.string())

    def days(rows: int) -> pa.Array:
        first = datetime.date(2024, 1, 1)
        return pa.array([first + datetime.timedelta(days=rng.randrange(30)) for _ in range(rows)])

    c, b, a = rng.randrange(4, 24), rng.randrange(0, 16), rng.randrange(1, 12)
    return {
        "c": pa.table(
            {"k": keys(c, 5), "g": keys(c, 3), "x": numbers(c, 0.0), "s": texts(c), "d": days(c), "y": numbers(c, 0.0)}
        ),
        "b": pa.table({"k": keys(b, 6), "g": keys(b, 3), "z": numbers(b, 0.15).cast("double"), "s": texts(b)}),
        "a": pa.table({"k": keys(a, 5), "g": keys(a, 3), "w": numbers(a, 0.0), "d": days(a)}),
    }


def divide(rng: Random, pooled: pa.Table) -> list[pa.Table]:
    """The rows of a table among one to three clients: at random, or by the value of a key."""
    clients = rng.choice([1, 1, 2, 2, 3])
    by = rng.choice(["rows", "rows", "k", "g"])
    rows = range(pooled.num_rows)
    if by == "rows":
        place = [rng.randrange(clients) for _ in rows]
    else:
        place = [(key or 0) % clients for key in pooled[by].to_pylist()]
    return [pooled.take(pa.array([row for row in rows if place[row] == one], pa.int64())) for one in range(clients)]


# -- queries -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Join:
    """One table or subquery of the FROM clause."""

    kind: str
    source: str
    alias: str
    on: str

    def text(self, *, markers: bool) -> str:
        if markers and self.kind in ("JOIN", "LEFT JOIN"):
            inner = self.source if self.source.startswith("(") else f"(SELECT * FROM {self.source})"
            return f"{self.kind} (SELECT *, TRUE AS found FROM {inner}) {self.alias} {self.on}"
        return f"{self.kind} {self.source} {self.alias} {self.on}"


@dataclass(frozen=True)
class Select:
    """WITH …, a SELECT list, joins, and the WHERE of each branch of a UNION ALL."""

    ctes: tuple[str, ...]
    items: tuple[Item, ...]
    joins: tuple[Join, ...]
    wheres: tuple[tuple[str, ...], ...]

    @classmethod
    def draw(cls, rng: Random) -> Select:
        ctes: list[str] = []
        joins = tuple(_join(rng, f"q{i}", ctes) for i in range(rng.choice([0, 1, 1, 1, 2, 2])))
        items = [_own_item(rng) for _ in range(rng.choice([1, 1, 2]))]
        for join in joins:
            if join.kind in ("JOIN", "LEFT JOIN"):
                items += [_partner_item(rng, join) for _ in range(rng.choice([1, 1, 2]))]
        branches = rng.choice([1, 1, 1, 1, 2])
        wheres = tuple(tuple(_where(rng, joins) for _ in range(rng.choice([0, 0, 1, 1, 2]))) for _ in range(branches))
        return cls(tuple(ctes), tuple(items), joins, wheres)

    def text(self, *, markers: bool) -> str:
        items = [f"{item.text} AS i{n}" for n, item in enumerate(self.items)]
        if markers:
            items += [
                f"{f'coalesce({item.alias}.found, FALSE)' if item.alias else 'TRUE'} AS found{n}"
                for n, item in enumerate(self.items)
            ]
        source = " ".join(["FROM c", *(join.text(markers=markers) for join in self.joins)])
        branches = [
            f"SELECT {', '.join([*items, 'c.y'])} {source}" + (f" WHERE {' AND '.join(where)}" if where else "")
            for where in self.wheres
        ]
        return (f"WITH {', '.join(self.ctes)} " if self.ctes else "") + " UNION ALL ".join(branches)


def _join(rng: Random, alias: str, ctes: list[str]) -> Join:
    table = rng.choice(["b", "b", "a"])
    source = table if rng.random() < 0.3 else f"({subquery(rng, table)})"
    if source.startswith("(") and rng.random() < 0.25:
        name = rng.choice([alias + "cte", alias + "cte", table])
        if any(cte.startswith(f"{name} AS") for cte in ctes):
            name = alias + "cte"
        ctes.append(f"{name} AS {source}")
        source = name
    kind = rng.choice(["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN"])
    return Join(kind, source, alias, f"ON c.k = {alias}.k")


def subquery(rng: Random, table: str) -> str:
    """A derived table with the columns k and v."""
    v = VALUE_OF[table]
    where = f" WHERE {_row_condition(rng, table, '')}" if rng.random() < 0.4 else ""
    aggregate = rng.choice(AGGREGATES if rng.random() < 0.5 else MERGEABLE).format(v=v)
    window = rng.choice(WINDOWS).format(v=v)
    many = f"SELECT k FROM {table}{where} GROUP BY k HAVING count(*) > {rng.choice([1, 2])}"
    forms = [
        f"SELECT k, {aggregate} AS v FROM {table}{where} GROUP BY k",
        f"SELECT k, {aggregate} AS v FROM {table}{where} GROUP BY k HAVING {_filter(rng, aggregate)}",
        f"SELECT * FROM (SELECT k, {aggregate} AS v FROM {table}{where} GROUP BY k) t WHERE {_filter(rng, 'v')}",
        f"SELECT k, g, {aggregate} AS v FROM {table}{where} GROUP BY k, g",
        f"SELECT DISTINCT k, g AS v FROM {table}{where}",
        f"SELECT k, {window} AS v FROM {table}{where}",
        # Not by the name v: DuckDB reads it as the column of a table to the left, where that has one.
        f"SELECT k, {window} AS v FROM {table}{where} QUALIFY {_filter(rng, window)}",
        f"SELECT * FROM (SELECT k, {window} AS v FROM {table}) t WHERE v IS NOT NULL",
        f"SELECT k, {v} AS v FROM {table} WHERE {v} > (SELECT avg({v}) FROM {table})",
        f"SELECT k, {v} AS v FROM {table} WHERE k {rng.choice(['IN', 'NOT IN'])} ({many})",
        f"SELECT k, {v} - (SELECT max({v}) FROM {table}) AS v FROM {table}{where}",
        f"SELECT k, {v} AS v FROM {table}{where} ORDER BY {v} LIMIT {rng.choice([1, 3])}",
        f"SELECT k, {v} * 2 AS v FROM {table}{where}",
        f"SELECT t.k, t.v FROM (SELECT k, {aggregate} AS v FROM {table} GROUP BY k) t "
        f"JOIN (SELECT k, count(*) AS n FROM {table} GROUP BY k) u ON t.k = u.k WHERE u.n > 1",
    ]
    return rng.choice(forms)


def _filter(rng: Random, value: str) -> str:
    return rng.choice(["{} > 1", "{} >= 2", "{} IS NOT NULL", "{} < 2", "{} <> 1"]).format(value)


def _row_condition(rng: Random, table: str, alias: str) -> str:
    return "(" + rng.choice(ROW_CONDITIONS).format(a=alias, v=VALUE_OF[table]) + ")"


def _own_item(rng: Random) -> Item:
    table = rng.choice(["a", "b"])
    v = VALUE_OF[table]
    plain = [
        "c.x",
        "c.s",
        "c.g",
        "date_diff('day', DATE '2024-01-01', c.d)",
        "CASE WHEN c.g > 1 THEN c.x ELSE 0 END",
        "coalesce(c.s, 'none')",
    ]
    lookups = [
        "c.x - (SELECT avg(x) FROM c)",
        f"(SELECT count(*) FROM {table})",
        f"(SELECT {rng.choice(AGGREGATES).format(v=v)} FROM {table} WHERE {table}.k = c.k)",
        f"EXISTS (SELECT 1 FROM {table} WHERE {table}.k = c.k)",
        f"c.k IN (SELECT k FROM {table})",
        "c.x > (SELECT avg(x) FROM c)",
        "c.x / sum(c.x) OVER ()",
    ]
    return Item(rng.choice(lookups if rng.random() < RARELY else plain), None)


def _partner_item(rng: Random, join: Join) -> Item:
    value = "v" if join.source.startswith("(") or "cte" in join.source else None
    if value is None and join.source in VALUE_OF:
        value = VALUE_OF[join.source]
    q = join.alias
    texts = [f"{q}.{value}", f"{q}.{value}", f"{q}.k"]
    if join.kind == "LEFT JOIN":
        texts += [
            f"{q}.k IS NULL",
            f"coalesce({q}.{value}, 0)",
            f"CASE WHEN {q}.k IS NULL THEN 'none' ELSE 'some' END",
            f"CASE WHEN {q}.{value} > 0 THEN 1 ELSE 2 END",
        ]
    return Item(rng.choice(texts), q)


def _where(rng: Random, joins: tuple[Join, ...]) -> str:
    table = rng.choice(["a", "b"])
    v = VALUE_OF[table]
    correlated = f"FROM {table} WHERE {table}.k = c.k"
    left = [join.alias for join in joins if join.kind == "LEFT JOIN"]
    common = [
        _row_condition(rng, "c", "c."),
        *(f"{alias}.k IS {is_}" for alias in left for is_ in ("NULL", "NOT NULL")),
        f"c.k {rng.choice(['IN', 'NOT IN'])} (SELECT k FROM {table} WHERE k IS NOT NULL)",
        f"c.k {rng.choice(['IN', 'NOT IN'])} (SELECT k FROM {table} GROUP BY k HAVING count(*) > 1)",
        f"c.k {rng.choice(['IN', 'NOT IN'])} (SELECT k FROM ({subquery(rng, table)}) t)",
        f"{rng.choice(['', 'NOT '])}EXISTS (SELECT 1 {correlated})",
        f"{rng.choice(['', 'NOT '])}EXISTS (SELECT 1 {correlated} LIMIT 1)",
    ]
    rare = [
        f"{rng.choice(['', 'NOT '])}EXISTS (SELECT 1 {correlated} AND {_row_condition(rng, table, table + '.')})",
        f"{rng.choice(['', 'NOT '])}EXISTS (SELECT {rng.choice(AGGREGATES).format(v=v)} {correlated})",
        f"{rng.choice(['', 'NOT '])}EXISTS (SELECT 1 {correlated} {rng.choice(['LIMIT 1', 'LIMIT 0', 'OFFSET 1'])})",
        f"{rng.choice(['', 'NOT '])}EXISTS (SELECT k {correlated} GROUP BY k HAVING count(*) > 1)",
        "c.x > (SELECT avg(x) FROM c)",
        f"c.g < (SELECT count(*) FROM {table})",
    ]
    return rng.choice(rare if rng.random() < RARELY else common)
