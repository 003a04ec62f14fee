"""Joins of keys: counting out a tree and DuckDB give the same rows in the same order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablepuppet.catalog.bound import Branch, Join, KeyPair, Relation
from tablepuppet.mapping import duck_join, tree_join
from tablepuppet.mapping.duck_join import DuckJoin, connected
from tablepuppet.mapping.scan_keys import ScanKeys
from tablepuppet.mapping.tree_join import TreeJoin


@st.composite
def scans(draw: st.DrawFn) -> ScanKeys:
    rows = draw(st.integers(0, 12))
    key = st.one_of(st.none(), st.integers(0, draw(st.integers(0, 5))))
    columns = {f"k{c}": draw(st.lists(key, min_size=rows, max_size=rows)) for c in range(2)}
    place = draw(st.none() | st.permutations(range(rows)).map(np.array))
    table = pa.table({name: pa.chunked_array([pa.array(values, pa.int32())]) for name, values in columns.items()})
    return ScanKeys(rows, table, place, is_numbered=True)


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
    return Branch(aliases, tuple(joins), label, 0), [draw(scans()) for _ in range(relations)]


@settings(max_examples=60, deadline=None)
@given(branches())
def test_counting_and_duckdb_agree_row_for_row(given: tuple[Branch, list[ScanKeys]]) -> None:
    branch, keys = given
    by_duckdb = DuckJoin(branch, keys)
    counted = TreeJoin.of(branch, keys)
    if counted is None:
        return
    assert counted.count() == by_duckdb.count()
    for found, expected in zip(counted.rows(), by_duckdb.rows(), strict=True):
        np.testing.assert_array_equal(found, expected)


def _many_to_many(rows: int) -> tuple[Branch, list[ScanKeys]]:
    rng = np.random.default_rng(0)
    keys = [ScanKeys(rows, pa.table({"k0": rng.integers(0, 7, rows).astype(np.int32)}), None, True) for _ in range(2)]
    return Branch((Relation("a", 0), Relation("b", 1)), (Join("inner", 1, (KeyPair(0, 0, 1, 0),)),), 0, 0), keys


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    branch, keys = _many_to_many(60)
    whole = DuckJoin(branch, keys).rows()
    monkeypatch.setattr(duck_join, "_SLICE", 1)
    monkeypatch.setattr(tree_join, "_SLICE", 5)
    counted = TreeJoin.of(branch, keys)
    assert counted is not None
    for sliced in (DuckJoin(branch, keys).rows(), counted.rows()):
        for found, expected in zip(sliced, whole, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_join_that_is_no_tree_is_left_to_duckdb() -> None:
    branch, keys = _many_to_many(5)
    cyclic = Branch(branch.relations, branch.joins, 0, 0, where=(KeyPair(0, 0, 1, 0),))
    assert TreeJoin.of(cyclic, keys) is None
    assert DuckJoin(cyclic, keys).count() == DuckJoin(branch, keys).count()


def test_keys_that_were_not_numbered_are_left_to_duckdb() -> None:
    branch, keys = _many_to_many(5)
    assert TreeJoin.of(branch, [ScanKeys(k.rows, k.table) for k in keys]) is None


def test_duckdb_spills_to_a_folder_that_is_gone_afterwards() -> None:
    _, keys = _many_to_many(5)
    with connected(keys) as connection:
        (folder,) = connection.execute("SELECT current_setting('temp_directory')").fetchall()[0]
        (limit,) = connection.execute("SELECT current_setting('memory_limit')").fetchall()[0]
        assert Path(folder).is_dir()
        assert Path(folder).parent == Path(tempfile.gettempdir())
        assert "iB" in limit
    assert not Path(folder).exists()
