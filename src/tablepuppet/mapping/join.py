"""Keys → row numbers: DuckDB joins what the clients sent of their key columns.

In: one table of keys per scan, a row per row number. Out: for each relation of a branch the row
number of every joined row, ordered by the label's row first, so that the same keys always give
the same order, whatever DuckDB's threads did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.catalog.bound import BoundQuery, Branch, KeyPair
from tablepuppet.errors import MappingError
from tablepuppet.transport.messages import RowNumbers

BYTES_PER_JOINED_ROW = 40
_ROW = "row"
_PLACE = "place"


@dataclass(frozen=True, slots=True)
class ScanKeys:
    """The keys of one scan: column `k<expression number>` for each key expression, `row`, and its `place` in order."""

    rows: int
    table: pa.Table

    @classmethod
    def of(cls, rows: int, table: pa.Table, place: NDArray[np.int64] | None = None) -> ScanKeys:
        dtype = np.int32 if rows < 2**31 else np.int64
        numbers = pa.array(np.arange(rows, dtype=dtype))
        places = numbers if place is None else pa.array(place.astype(dtype))
        columns = dict(zip(table.column_names, table.columns, strict=True))
        return cls(rows, pa.table({**columns, _ROW: numbers, _PLACE: places}))


def join_branch(
    bound: BoundQuery, branch: Branch, keys: Sequence[ScanKeys], max_rows: int, *, may_be_empty: bool = False
) -> list[RowNumbers]:
    """The row number of each joined row in each relation of the branch; −1 where there is none."""
    with duckdb.connect(":memory:") as connection:
        for number, scan_keys in enumerate(keys):
            connection.register(f"s{number}", scan_keys.table)
        names = [f"s{r.scan}" for r in branch.relations]
        count = _count(connection, bound, branch)
        if count == 0 and not may_be_empty:
            raise MappingError(_why_empty(connection, bound, branch))
        if count > max_rows:
            raise MappingError(
                f"the query joins to {count:,} rows, more than the limit of {max_rows:,}; "
                "add a WHERE, join on more keys, or raise max_joined_rows"
            )
        columns = ", ".join(f"coalesce(r{i}.{_ROW}, -1) AS r{i}" for i in range(len(names)))
        order = [branch.label_relation, *(i for i in range(len(names)) if i != branch.label_relation)]
        body = _from(branch, names)
        sql = f"SELECT {columns} FROM {body} ORDER BY {', '.join(f'r{i}.{_PLACE}' for i in order)} NULLS FIRST"
        joined = connection.sql(sql).to_arrow_table()
    return [joined.column(i).to_numpy() for i in range(len(names))]


def _from(branch: Branch, names: Sequence[str]) -> str:
    parts = [f"{names[0]} r0"]
    for join in branch.joins:
        name = f"{names[join.relation]} r{join.relation}"
        if join.on:
            word = "LEFT JOIN" if join.kind == "left" else "JOIN"
            parts.append(f"{word} {name} ON {' AND '.join(map(_equality, join.on))}")
        else:
            parts.append(f"CROSS JOIN {name}")
    where = f" WHERE {' AND '.join(map(_equality, branch.where))}" if branch.where else ""
    return " ".join(parts) + where


def _equality(pair: KeyPair) -> str:
    return f"r{pair.left}.k{pair.left_column} = r{pair.right}.k{pair.right_column}"


def _count(connection: duckdb.DuckDBPyConnection, bound: BoundQuery, branch: Branch) -> int:
    """N without the join: each relation is first reduced to its distinct keys and their counts."""
    used = _key_columns(branch)
    names = []
    for i, relation in enumerate(branch.relations):
        columns = ", ".join(f"k{c}" for c in sorted(used[i]))
        group = (
            f"{columns}, count(*) AS n FROM s{relation.scan} GROUP BY {columns}"
            if columns
            else (f"count(*) AS n FROM s{relation.scan}")
        )
        names.append(f"(SELECT {group})")
    product = " * ".join(f"coalesce(r{i}.n, 1)::HUGEINT" for i in range(len(names)))
    sql = f"SELECT coalesce(sum({product}), 0)::VARCHAR FROM {_from(branch, names)}"
    ((count,),) = connection.execute(sql).fetchall()
    return int(count)


def _key_columns(branch: Branch) -> list[set[int]]:
    used: list[set[int]] = [set() for _ in branch.relations]
    for pair in (*(p for join in branch.joins for p in join.on), *branch.where):
        used[pair.left].add(pair.left_column)
        used[pair.right].add(pair.right_column)
    return used


def _why_empty(connection: duckdb.DuckDBPyConnection, bound: BoundQuery, branch: Branch) -> str:
    """Which relation has no rows, or which pair of keys has no value in common."""
    for relation in branch.relations:
        scan = bound.scans[relation.scan]
        if not connection.execute(f"SELECT 1 FROM s{relation.scan} LIMIT 1").fetchall():
            after = f" after the filter {scan.filter}" if scan.filter else ""
            return f"the join is empty: table {scan.table} ({relation.alias}) has no rows{after}"
    for pair in (*(p for join in branch.joins for p in join.on), *branch.where):
        left, right = branch.relations[pair.left], branch.relations[pair.right]
        on = f"l.k{pair.left_column} = r.k{pair.right_column}"
        sql = f"SELECT 1 FROM s{left.scan} l JOIN s{right.scan} r ON {on} LIMIT 1"
        if not connection.execute(sql).fetchall():
            return (
                f"the join is empty: {_key_name(bound, left.alias, left.scan, pair.left_column)} and "
                f"{_key_name(bound, right.alias, right.scan, pair.right_column)} have no value in common; "
                "check that both hold the same kind of id, written the same way"
            )
    return "the join is empty: no combination of rows satisfies all join conditions at once"


def _key_name(bound: BoundQuery, alias: str, scan: int, column: int) -> str:
    return f"{alias}.{bound.scans[scan].expressions[column]}"
