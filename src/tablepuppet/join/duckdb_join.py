"""The join of keys by DuckDB: any equalities, any mix of inner, outer and cross joins.

In: numbered keys. Out: the row number of every joined row in each relation, in order. DuckDB works within a limit
of memory and spills to a folder of its own, which is gone afterwards. Row numbers stream straight into compact arrays.

A process holds a lock on its folder, which the system takes away when the process dies, however it dies. So a folder
whose lock nobody holds belongs to the dead; it may lie in a /tmp that several containers share.

`ListedRows`: joined rows that were all written down, by DuckDB or because a cap has chosen from them, to be counted and
read.
"""

import fcntl
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import JOINED_ROWS_PER_PIECE, ROWS_PER_ARROW_BATCH, RowNumbers
from tablepuppet.join.keys import ScanKeys
from tablepuppet.join.row_index import count_rows
from tablepuppet.memory import free_memory
from tablepuppet.sources.columns import arrow_of
from tablepuppet.sources.duckdb_source import silence
from tablepuppet.sources.history_queries import name_for_people
from tablepuppet.sql.bound import BoundQuery, Branch, KeyPair

if TYPE_CHECKING:
    from tablepuppet.join.tree_join import BranchSide

log = logging.getLogger(__name__)
_PREFIX = "tablepuppet-join-"
_YOUNG = 60.0  # seconds in which a folder may not have its lock yet


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, once those of the dead are removed."""
    remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, (Path(name) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def remove_abandoned() -> None:
    """Removes folders of processes that were killed; those of other users stay theirs."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _YOUNG:
                continue
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError as error:
            log.debug("%s stays: %s", folder, error.strerror)
        else:
            log.info("removed %s, which a process that was killed had left", folder)


_MIN_DUCKDB_BYTES = 1 << 30  # bytes of memory that DuckDB may always take


def count_joined(branch: Branch, keys: Sequence[ScanKeys]) -> int:
    """N, without the join where the joins form a tree: each relation is reduced to its keys and their counts."""
    used: list[set[int]] = [set() for _ in branch.relations]
    for pair in branch.pairs:
        used[pair.left].add(pair.left_column)
        used[pair.right].add(pair.right_column)
    names = []
    for relation, own in zip(branch.relations, used, strict=True):
        columns = ", ".join(f"k{c}" for c in sorted(own))
        group = f" GROUP BY {columns}" if columns else ""
        names.append(f"(SELECT {columns}{', ' if columns else ''}count(*) AS n FROM s{relation.scan}{group})")
    product = " * ".join(f"coalesce(r{i}.n, 1)::HUGEINT" for i in range(len(names)))
    with connect(keys) as connection:
        sql = f"SELECT coalesce(sum({product}), 0)::VARCHAR FROM {_from(branch, names, 'n')}"
        ((count,),) = connection.execute(sql).fetchall()
    return int(count)


def list_joined(branch: Branch, keys: Sequence[ScanKeys], total: int) -> list[RowNumbers]:
    """The row number of each of `total` joined rows in each relation; −1 where there is none."""
    relations, label = branch.relations, branch.label_relation
    out: list[RowNumbers] = [np.empty(total, keys[r.scan].numbers.dtype) for r in relations]
    columns = ", ".join(f"coalesce(r{i}.row, -1)" for i in range(len(relations)))
    places = [f"r{i}.place" for i in (label, *(i for i in range(len(relations)) if i != label))]
    written = 0
    names = [f"s{relation.scan}" for relation in relations]
    with connect(keys) as connection:
        order = f"ORDER BY {', '.join(places)} NULLS FIRST"
        sql = f"SELECT {columns} FROM {_from(branch, names, 'row')} {order}"
        for batch in connection.sql(sql).to_arrow_reader(ROWS_PER_ARROW_BATCH):
            for i, column in enumerate(batch.columns):
                out[i][written : written + len(batch)] = column.to_numpy()
            written += len(batch)
    return out


@contextmanager
def connect(keys: Sequence[ScanKeys]) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the keys of scan i as s<i>, within half of the free memory; what it spills is deleted."""
    with scratch_folder() as folder:
        config: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": str(folder),
            "memory_limit": f"{max(_MIN_DUCKDB_BYTES, free_memory() // 2)}B",
        }
        with duckdb.connect(":memory:", config=config) as connection:
            silence(connection)
            for number, scan in enumerate(keys):
                columns = dict(zip(scan.table.column_names, scan.table.columns, strict=True))
                rows = arrow_of(scan.numbers)
                place = rows if scan.place is None else arrow_of(scan.place)
                connection.register(f"s{number}", pa.table({**columns, "row": rows, "place": place}))
            yield connection


def why_empty(bound: BoundQuery, branch: Branch, keys: Sequence[ScanKeys]) -> str:
    """Which relation has no rows, or which pair of keys has no value in common."""
    anti = {join.relation: join for join in branch.joins if join.is_anti}
    for number, relation in enumerate(branch.relations):
        scan = bound.scans[relation.scan]
        if not keys[relation.scan].rows and number not in anti:
            after = f" after the filter {scan.filter}" if scan.filter else ""
            is_null = any(f"{sign} NULL" in after for sign in ("=", "<>"))
            advice = "; nothing equals NULL or differs from it: write IS NULL or IS NOT NULL" if is_null else ""
            return f"the join is empty: table {scan.table} ({relation.alias}) has no rows{after}{advice}"
    for join in anti.values():
        listed = branch.relations[join.relation].scan
        if join.kind == "not in" and bool((keys[listed].column(join.on[0].right_column) < 0).any()):
            return (
                f"the join is empty: the list of NOT IN, from table {bound.scans[listed].table}, has a NULL, and "
                "SQL then lets no row pass; add WHERE … IS NOT NULL inside it, or write NOT EXISTS"
            )
    for pair in (p for join in branch.joins if not join.is_anti for p in join.on):
        ends = ((branch.relations[pair.left], pair.left_column), (branch.relations[pair.right], pair.right_column))
        left, right = (keys[relation.scan].column(column) for relation, column in ends)
        if not np.isin(left[left >= 0], right).any():
            names = [f"{r.alias}.{name_for_people(bound.scans[r.scan].expressions[column])}" for r, column in ends]
            return (
                f"the join is empty: {' and '.join(names)} have no value in common; "
                "check that both hold the same kind of id, written the same way: spaces, case, leading zeros"
            )
    if anti:
        tables = ", ".join(bound.scans[branch.relations[number].scan].table for number in anti)
        return f"the join is empty: no row is left once those with a match in {tables} are out"
    return "the join is empty: no combination of rows satisfies all join conditions at once"


def _from(branch: Branch, names: Sequence[str], present: str) -> str:
    """The FROM clause; `present`: a column that no row of any relation lacks."""
    parts, conditions = [f"{names[0]} r0"], list[str]()
    for join in branch.joins:
        name, equal = f"{names[join.relation]} r{join.relation}", " AND ".join(map(_equality, join.on))
        if join.kind == "semi":
            parts.append(f"LEFT JOIN {name} ON FALSE")
            looked_up = equal.replace(f"r{join.relation}.", "x.")
            conditions.append(f"EXISTS (SELECT 1 FROM {names[join.relation]} x WHERE {looked_up})")
        elif join.on:
            parts.append(f"{'JOIN' if join.kind == 'inner' else 'LEFT JOIN'} {name} ON {equal}")
        else:
            parts.append(f"CROSS JOIN {name}")
        if join.is_anti:
            conditions.append(f"r{join.relation}.{present} IS NULL")
        if join.kind == "not in":
            [pair] = join.on
            scan = f"s{branch.relations[join.relation].scan}"
            conditions.append(f"NOT EXISTS (SELECT 1 FROM {scan} WHERE k{pair.right_column} IS NULL)")
            known = f"r{pair.left}.k{pair.left_column} IS NOT NULL"
            conditions.append(f"({known} OR NOT EXISTS (SELECT 1 FROM {scan}))")
    return " ".join(parts) + (f" WHERE {' AND '.join(conditions)}" if conditions else "")


def _equality(pair: KeyPair) -> str:
    return f"r{pair.left}.k{pair.left_column} = r{pair.right}.k{pair.right_column}"


Marks = NDArray[np.bool_]  # rows of the label's relation
Counts = NDArray[np.signedinteger[Any]]  # joined rows, per row of a relation

Use = Callable[[int, Mapping[int, RowNumbers]], None]


class ListedRows(msgspec.Struct, frozen=True, eq=False):
    """Joined rows of a branch that are written down, all of them or some."""

    sizes: tuple[int, ...]  # rows of each relation
    label: int  # the label's relation
    listed: Sequence[RowNumbers]  # in each relation, of all
    chosen: RowNumbers | None = None  # None: all

    @classmethod
    def of(cls, side: "BranchSide", sizes: tuple[int, ...]) -> "ListedRows":
        numbers: list[RowNumbers] = [np.empty(side.rows, np.int32 if n < 2**31 else np.int64) for n in sizes]

        def write(begin: int, found: Mapping[int, RowNumbers]) -> None:
            for relation, rows in found.items():
                numbers[relation][begin : begin + len(rows)] = rows

        side.each(0, side.rows, write)
        return cls(sizes, 0, numbers)

    @property
    def rows(self) -> int:
        return len(self.listed[0] if self.chosen is None else self.chosen)

    def count(self) -> int:
        return self.rows

    def side(self, marks: Marks | None) -> "ListedRows":
        if marks is None or bool(marks.all()):
            return self
        return self.only(np.flatnonzero(marks[self.numbers(self.label)]))

    def counts(self) -> list[Counts]:
        """For each relation: how many of these joined rows each of its rows is in."""
        return [count_rows(self.numbers(relation), size) for relation, size in enumerate(self.sizes)]

    def each(self, start: int, stop: int, use: Use) -> None:
        """Row numbers in each relation of joined rows start ≤ j < stop, a slice at a time; −1 where there is none.

        `use` gets each slice, and how many joined rows come before it; in no order, and by several threads at once."""
        for first in range(start, stop, JOINED_ROWS_PER_PIECE):
            inside = slice(first, min(first + JOINED_ROWS_PER_PIECE, stop))
            these = inside if self.chosen is None else self.chosen[inside]
            use(first - start, {relation: rows[these] for relation, rows in enumerate(self.listed)})

    def numbers(self, relation: int) -> RowNumbers:
        rows = self.listed[relation]
        return rows if self.chosen is None else rows[self.chosen]

    def only(self, kept: NDArray[np.int64]) -> "ListedRows":
        """Some of these joined rows, by their numbers here."""
        chosen: RowNumbers = kept if self.chosen is None else self.chosen[kept]
        is_small = len(chosen) == 0 or chosen[-1] < 2**31
        return replace(self, chosen=chosen.astype(np.int32) if is_small else chosen)
