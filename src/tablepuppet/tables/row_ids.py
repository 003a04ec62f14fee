"""What a row is at its owner: a fingerprint of all its columns, the same under any filter, order and job.

In: a source, then the text of a scan's whole rows. Out: 128 bits a row. Rows that are equal in every column are told
apart by a number, as many as there are: a filter keeps all of them or none. Fingerprints never leave the owner.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.tables.guard import check_expression
from tablepuppet.tables.source import Source

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNCLEAR = ("other", "vector")  # whose text differs between databases, or does not exist


def identity_expressions(source: Source) -> tuple[str, ...]:
    """Every column of a table as text."""
    columns = source.describe()
    names = [column.name for column in columns]
    quoted = ['"' + column.name.replace('"', '""') + '"' for column in columns if column.kind not in _UNCLEAR]
    return tuple(check_expression(f"CAST({name} AS VARCHAR)", names) for name in quoted)


def whole_rows(source: Source) -> tuple[str, ...]:
    """Every column of a table as it is."""
    columns = source.describe()
    names = [column.name for column in columns]
    quoted = ['"' + column.name.replace('"', '""') + '"' for column in columns if column.kind not in _UNCLEAR]
    return tuple(check_expression(name, names) for name in quoted)


def row_ids(texts: pa.Table) -> NDArray[np.uint64]:
    """(rows, 2): two halves of a hash over a row's columns, with a number for each of several equal rows.

    >>> ids = row_ids(pa.table({"a": ["x", "y", "x"]}))
    >>> bool((ids[0] != ids[2]).any()), bool((row_ids(pa.table({"a": ["y"]})) == ids[1]).all())
    (True, True)
    """
    rows = texts.num_rows
    if not rows or not texts.num_columns:
        return np.stack([np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint64)], axis=1)
    named = texts.rename_columns([f"c{i}" for i in range(texts.num_columns)])
    parts = ", ".join(f"coalesce(length(c{i})::VARCHAR || ':' || c{i}, '-')" for i in range(texts.num_columns))
    with duckdb.connect() as connection:
        connection.register("whole_rows", named)
        hashed: pa.Table = connection.sql(
            f"SELECT md5_number_lower(t) AS l, md5_number_upper(t) AS u FROM (SELECT concat_ws('|', {parts}) AS t "
            "FROM whole_rows)"
        ).to_arrow_table()
    ids = np.stack([hashed.column("l").to_numpy(), hashed.column("u").to_numpy()], axis=1).astype(np.uint64)
    ids[:, 1] ^= _numbered(ids)
    return ids


def _numbered(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """How many equal rows come before each."""
    order = np.lexsort((np.arange(len(ids)), ids[:, 1], ids[:, 0]))
    ordered = ids[order]
    is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    starts = np.flatnonzero(is_new)
    number = np.arange(len(ids)) - starts[np.cumsum(is_new) - 1]
    found = np.empty(len(ids), np.uint64)
    found[order] = number
    return found


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64, a bijection of 64 bits; products wrap around."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
