"""Joins of keys: counting out a tree and DuckDB give the same rows in the same order."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet.arrays import JOINED_ROWS_PER_PIECE, RowNumbers
from tablepuppet.errors import MappingError
from tablepuppet.join.duckdb_join import ListedRows, connect, count_joined, list_joined
from tablepuppet.join.keys import ScanKeys
from tablepuppet.join.tree_join import BranchSide, TreeJoin
from tablepuppet.sql.bound import Branch, Join, KeyPair, Relation


@st.composite
def scans(draw: st.DrawFn) -> ScanKeys:
    rows = draw(st.integers(0, 12))
    key = st.one_of(st.none(), st.integers(0, draw(st.integers(0, 5))))
    columns = {f"k{c}": draw(st.lists(key, min_size=rows, max_size=rows)) for c in range(2)}
    place = draw(st.none() | st.permutations(range(rows)).map(np.array))
    table = pa.table({name: pa.chunked_array([pa.array(values, pa.int32())]) for name, values in columns.items()})
    return ScanKeys(rows, table, place)


@st.composite
def branches(draw: st.DrawFn) -> tuple[Branch, list[ScanKeys]]:
    relations = draw(st.integers(1, 4))
    columns = st.integers(0, 1)
    joins = []
    for relation in range(1, relations):
        other = draw(st.integers(0, relation - 1))
        pairs = [KeyPair(other, draw(columns), relation, draw(columns)) for _ in range(draw(st.integers(1, 2)))]
        joins.append(Join(draw(st.sampled_from(["inner", "left"])), relation, tuple(pairs)))
    optional = {join.relation for join in joins if join.kind == "left"}
    label = draw(st.sampled_from([i for i in range(relations) if i not in optional]))
    aliases = tuple(Relation(f"t{i}", i) for i in range(relations))
    return Branch(aliases, tuple(joins), label), [draw(scans()) for _ in range(relations)]


def written(side: BranchSide, start: int = 0, stop: int | None = None) -> list[RowNumbers]:
    """Row numbers of some joined rows, in each relation."""
    slices: dict[int, Mapping[int, RowNumbers]] = {}
    side.each(start, side.rows if stop is None else stop, slices.__setitem__)
    ordered = [slices[place] for place in sorted(slices)]
    assert sorted(slices) == [0, *np.cumsum([len(found[0]) for found in ordered])[:-1]] if slices else True
    return [np.concatenate([found[i] for found in ordered]) for i in sorted(ordered[0])] if ordered else []


@given(branches(), st.randoms(use_true_random=False))
def test_counting_and_duckdb_agree_row_for_row(given: tuple[Branch, list[ScanKeys]], random: Random) -> None:
    branch, keys = given
    counted = TreeJoin.of(branch, keys)
    if counted is None:
        return
    assert counted.count() == count_joined(branch, keys)
    listed = ListedRows(counted.sizes, branch.label_relation, list_joined(branch, keys, counted.count()))
    drawn = np.array([random.random() < 0.6 for _ in range(counted.sizes[branch.label_relation])], np.bool_)
    for marks in (None, drawn):
        one, other = counted.side(marks), listed.side(marks)
        assert one.rows == other.rows
        start, stop = sorted(random.randint(0, one.rows) for _ in range(2))
        for borders in ((0, one.rows), (start, stop)):
            for found, expected in zip(written(one, *borders), written(other, *borders), strict=True):
                np.testing.assert_array_equal(found, expected)
        for found, expected in zip(one.counts(), other.counts(), strict=True):
            np.testing.assert_array_equal(found, expected)


@given(branches())
def test_a_tree_is_walked_from_any_relation_where_the_order_is_free(given: tuple[Branch, list[ScanKeys]]) -> None:
    branch, keys = given
    counted = TreeJoin.of(branch, keys, in_any_order=True)
    if counted is None:
        assert TreeJoin.of(branch, keys) is None
        return
    expected = list(zip(*(rows.tolist() for rows in list_joined(branch, keys, counted.count())), strict=True))
    found = list(zip(*(rows.tolist() for rows in written(counted.side(None))), strict=True))
    assert sorted(found) == sorted(expected)


def test_a_chain_may_have_its_label_at_the_end() -> None:
    _, (first, second) = _many_to_many(30)
    joins = tuple(Join("inner", i, (KeyPair(i - 1, 0, i, 0),)) for i in (1, 2))
    chain = Branch(tuple(Relation(name, 0) for name in "abc"), joins, 2), [first, second]
    assert TreeJoin.of(*chain) is None
    counted = TreeJoin.of(*chain, in_any_order=True)
    assert counted is not None
    assert counted.count() == count_joined(*chain)


def _many_to_many(rows: int) -> tuple[Branch, list[ScanKeys]]:
    rng = np.random.default_rng(0)
    keys = [ScanKeys(rows, pa.table({"k0": rng.integers(0, 7, rows).astype(np.int32)})) for _ in range(2)]
    return Branch((Relation("a", 0), Relation("b", 1)), (Join("inner", 1, (KeyPair(0, 0, 1, 0),)),), 0), keys


def test_slices_change_nothing() -> None:
    branch, keys = _many_to_many(2200)  # 690,000 joined rows: three pieces
    counted = TreeJoin.of(branch, keys)
    assert counted is not None
    whole = list_joined(branch, keys, counted.count())
    listed = ListedRows(counted.sizes, 0, whole)
    assert len(whole[0]) > 2 * JOINED_ROWS_PER_PIECE
    for side in (counted.side(None), listed.side(None)):
        last = side.rows - 11
        for start, stop in ((0, side.rows), (3, 4), (JOINED_ROWS_PER_PIECE - 1, last), (9, 9)):
            for found, expected in zip(written(side, start, stop), whole, strict=start < stop):
                np.testing.assert_array_equal(found, expected[start:stop])


def test_duckdb_joins_millions_of_rows_in_order() -> None:
    branch, keys = _many_to_many(8000)
    counted = TreeJoin.of(branch, keys)
    assert counted is not None
    assert counted.count() > 9_000_000
    for found, expected in zip(list_joined(branch, keys, counted.count()), written(counted.side(None)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_row_in_one_joined_row_stays_next_to_one_in_very_many() -> None:
    both, many = (pa.table({"k0": np.repeat(np.array([0, 1], np.int32), [rows, 1])}) for rows in (1, 300_000))
    keys = [ScanKeys(table.num_rows, table) for table in (both, both, many, many, many)]
    joins = tuple(Join("inner", i, (KeyPair(min(i - 1, 1), 0, i, 0),)) for i in range(1, 5))
    join = TreeJoin.of(Branch(tuple(Relation(f"t{i}", i) for i in range(5)), joins, 0), keys)
    assert join is not None
    assert join.side(None).rows == 300_000**3 + 1
    assert [int(counts[-1]) for counts in join.side(None).counts()] == [1] * 5


def test_a_join_that_is_no_tree_is_left_to_duckdb() -> None:
    branch, keys = _many_to_many(30)
    both = Join("inner", 2, (KeyPair(0, 0, 2, 0), KeyPair(1, 0, 2, 0)))
    cyclic = Branch((*branch.relations, Relation("c", 1)), (*branch.joins, both), 0)
    assert TreeJoin.of(cyclic, keys) is None
    first, second = (np.bincount(k.table["k0"].to_numpy(), minlength=7) for k in keys)
    assert count_joined(cyclic, keys) == int((first * second * second).sum())


@pytest.mark.parametrize("keys", ["plain", "hmac"])
def test_keys_of_tables_without_rows_never_meet(keys: str) -> None:
    left, right = pa.table({"k": [1, 2], "x": [0.5, 1.5], "y": [0, 1]}), pa.table({"k": [1, 2], "z": [2.5, 3.5]})
    with tp.Federation({"a": left, "b": right}) as federation, pytest.raises(MappingError, match="has no rows after"):
        federation.train(
            "SELECT a.x, b.z, a.y FROM a JOIN b ON a.k = b.k WHERE a.x > 9 AND b.z > 9",
            label="y",
            privacy={"keys": keys},
        )


def test_duckdb_spills_to_a_folder_that_is_gone_afterwards() -> None:
    _, keys = _many_to_many(5)
    with connect(keys) as connection:
        (folder,) = connection.execute("SELECT current_setting('temp_directory')").fetchall()[0]
        (limit,) = connection.execute("SELECT current_setting('memory_limit')").fetchall()[0]
        assert Path(folder).is_dir()
        assert Path(folder).parent == Path(tempfile.gettempdir())
        assert "iB" in limit
    assert not Path(folder).exists()
