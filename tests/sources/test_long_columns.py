"""Long columns hold what their batches held, in any order, and take less room."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.owner.tables import ClientTables
from tablepuppet.sources.columns import MIN_LONG_ROWS as LONG
from tablepuppet.sources.columns import decode, in_another_order, put_together, strings
from tablepuppet.sources.duckdb_source import from_arrow

ROWS = 1000
KINDS = {
    "whole": pa.array(range(ROWS), pa.int64()),
    "small": pa.array([k % 7 for k in range(ROWS)], pa.int8()),
    "real": pa.array([k / 3 for k in range(ROWS)]),
    "truth": pa.array([k % 3 == 0 for k in range(ROWS)]),
    "day": pa.array([datetime.date(2020, 1, 1 + k % 28) for k in range(ROWS)]),
    "price": pa.array([Decimal(k) / 4 for k in range(ROWS)], pa.decimal128(15, 2)),
    "wide": pa.array([Decimal(k) * 10**25 for k in range(ROWS)], pa.decimal128(38, 0)),
    "repeated": pa.array([f"name {k % 5}" for k in range(ROWS)]),
    "repeated or none": pa.array([None if k % 11 == 0 else f"name {k % 5}" for k in range(ROWS)]),
    "own": pa.array([f"name {k}" for k in range(ROWS)]),
    "at first repeated": pa.array(["same" if k < 500 else f"name {k}" for k in range(ROWS)]),
    "some": pa.array([None if k % 10 == 0 else k for k in range(ROWS)]),
    "all, then none": pa.array([k if k < 730 else None for k in range(ROWS)]),
    "wide or none": pa.array([None if k % 3 else Decimal(k) * 10**25 for k in range(ROWS)], pa.decimal128(38, 0)),
    "lists": pa.array([[float(k)] * (k % 4) for k in range(ROWS)]),
}


def long_table() -> pa.Table:
    """The columns again and again, until columns are copied together; "own" and its like differ in every row."""
    table = pa.concat_tables([pa.table(KINDS)] * (2 + LONG // ROWS))
    numbers = pc.cast(pa.array(np.arange(len(table))), pa.string())
    own = pc.binary_join_element_wise("name", numbers, " ")
    later = pc.if_else(pa.array(np.arange(len(table)) < LONG - 1000), "same", own)
    for name, texts in (("own", own), ("at first repeated", later)):
        table = table.set_column(table.column_names.index(name), name, texts)
    return table


def batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=8192)


def test_rows_are_those_of_the_batches_in_their_order_and_in_any_other() -> None:
    table = long_table()
    found = put_together(batches(table), table.schema)
    order = np.random.default_rng(0).permutation(len(table)).astype(np.int32)
    moved = list(in_another_order(found.columns, order))
    some = pa.array(order[::997])
    for name, column, other in zip(table.column_names, found.columns, moved, strict=True):
        assert decode(column).equals(decode(table[name])), name
        assert decode(other).take(pa.array(np.arange(0, len(table), 997))).equals(decode(table[name]).take(some)), name


def test_what_lies_under_a_missing_value_does_not_show() -> None:
    order = np.random.default_rng(0).permutation(ROWS).astype(np.int32)
    bits = pa.py_buffer(np.packbits(np.arange(ROWS) % 3 > 0, bitorder="little"))
    held = [np.arange(ROWS) * (np.arange(ROWS) % 3 > 0) + rest * (np.arange(ROWS) % 3 == 0) for rest in (5, 7)]
    given = [pa.Array.from_buffers(pa.int64(), ROWS, [bits, pa.py_buffer(values)]) for values in held]
    moved = [next(in_another_order([pa.chunked_array([array])], order)).chunk(0) for array in given]
    assert moved[0].buffers()[1].equals(moved[1].buffers()[1])
    assert moved[0].equals(given[0].take(pa.array(order)))


def test_texts_are_codes_while_they_repeat() -> None:
    table = long_table().select(["repeated", "repeated or none", "own", "at first repeated"])
    kinds = put_together(batches(table), table.schema).schema
    coded = [name for name in table.column_names if pa.types.is_dictionary(kinds.field(name).type)]
    assert coded == ["repeated", "repeated or none"]


def test_a_short_table_is_left_as_it_is() -> None:
    table = pa.table(KINDS)
    assert put_together(batches(table), table.schema).schema == table.schema


def test_the_strings_of_codes_are_those_that_rows_have() -> None:
    names = pa.DictionaryArray.from_arrays(pa.array([3, 1, None, 3, 0]), pa.array(["a", "b", "unused", "a"]))
    distinct, codes = strings(pa.chunked_array([names]))
    assert distinct.to_pylist() == ["a", "b"]
    assert codes.tolist() == [0, 1, -1, 0, 0]


def test_a_long_scan_takes_the_room_of_its_values_and_says_the_same_when_read_again() -> None:
    table = long_table().select(["whole", "price", "repeated or none", "some"])
    tables = ClientTables({"t": from_arrow("t", table)})
    asked = [f'"{name}"' for name in table.column_names]
    tables.open_scan(OpenScan(job="j", scan=0, table="t", columns=asked))
    tables.scan("j", 0).shuffle(bytes(32), 0, 0, wants_bits=False)
    first, before = tables.scan("j", 0).rows(), tables.fingerprints("j")
    assert first.column(asked.index('"price"')).nbytes == 8 * len(table)  # as 128 bits: twice as much
    tables.scan("j", 0).release()
    assert tables.fingerprints("j") == before
    again = tables.scan("j", 0).rows()
    assert again is not first
    assert again.equals(first)
    assert tables.find_changed("j", before) == []
    tables.shutdown()
