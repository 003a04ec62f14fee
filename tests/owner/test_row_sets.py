"""Sets of rows are told apart by the very number of rows that they differ by; rows, by every value that they have."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.errors import PolicyError
from tablepuppet.owner import row_sets
from tablepuppet.owner.row_sets import (
    RowSet,
    RowSets,
    Sketch,
    count_equal_before,
    joined_keys,
    row_ids,
    row_keys,
    smallest_group,
)

KEYS = np.random.default_rng(1).integers(0, 2**63, 4000).astype(np.uint64)


@pytest.mark.parametrize("limit", [2, 5, 20, 64, 100])
def test_two_sets_differ_by_as_many_rows_as_one_alone_has(limit: int) -> None:
    sets, every = RowSets(), KEYS[:1500]
    whole = sets.sketch(every, limit)
    for gone, come in ((0, 0), (1, 0), (0, 1), (limit - 1, 0), (0, limit - 1), (limit // 2, (limit - 1) // 2)):
        other = sets.sketch(np.concatenate([every[gone:], KEYS[2000 : 2000 + come]])[::-1], limit)
        for first, second in ((whole, other), (other, whole)):
            assert first.difference(second, limit) == gone + come
    for gone, come in ((limit, 0), (0, limit), (limit, limit), (700, 0), (0, 700)):
        other = sets.sketch(np.concatenate([every[gone:], KEYS[2000 : 2000 + come]]), limit)
        assert whole.difference(other, limit) is None


def test_rows_that_share_their_cells_are_few_and_not_many() -> None:
    nothing = Sketch.of(KEYS[:0], 1)
    for rows in (2, 3, 7):
        assert Sketch.of(KEYS[:rows], 1).difference(nothing, 9) in range(1, 9)
        assert nothing.difference(Sketch.of(KEYS[:rows], 1), 2) == 1


def test_the_nearest_earlier_set_is_of_the_same_table_and_kind_and_is_another_one(tmp_path: Path) -> None:
    for sets in (RowSets(), RowSets(tmp_path / "sets.db")):
        every = KEYS[:300]

        def kept(keys: Any, table: str = "t", kind: Any = "rows", sets: RowSets = sets) -> None:
            sets.keep([RowSet(table, kind, sets.sketch(keys, 20))])

        assert sets.nearest("t", "rows", every, 20) is None
        kept(every)
        kept(every[1:], "u")
        kept(every[2:], kind="part")
        assert sets.nearest("t", "rows", every, 20) is None  # the same again
        assert sets.nearest("t", "rows", every[7:], 20) == 7
        assert sets.nearest("t", "rows", every[19:], 20) == 19
        assert sets.nearest("t", "rows", every[20:], 20) is None
        assert sets.nearest("t", "rows", np.append(every, KEYS[400:403]), 20) == 3
        assert sets.nearest("u", "rows", every, 20) == 1
        assert sets.nearest("t", "part", every, 20) == 2
        kept(every[5:])
        assert sets.nearest("t", "rows", every[7:], 20) == 2
        kept(every[8:])
        assert sets.nearest("t", "rows", every[7:], 20) == 1
    assert RowSets(tmp_path / "sets.db").nearest("t", "rows", KEYS[7:300], 20) == 1


def test_so_many_sets_are_kept_of_a_table_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sets, "MOST_SETS", 3)
    sets = RowSets()
    for start in range(3):
        sets.keep([RowSet("t", "rows", sets.sketch(KEYS[start:300], 5))])
    with pytest.raises(PolicyError, match=r"3 different sets of rows of t .*\(rule minimum_difference\)"):
        sets.keep([RowSet("t", "rows", sets.sketch(KEYS[9:300], 5))])
    sets.keep([RowSet("u", "rows", sets.sketch(KEYS[9:300], 5))])


def test_rows_before_the_end_of_each_period_are_those_of_all_periods_until_then() -> None:
    sets, keys, period = RowSets(), KEYS[:40], np.arange(40)[::-1] // 7
    found = list(sets.prefixes(keys, period, 5))
    assert [len(rows) for rows, _ in found] == [7, 14, 21, 28, 35]
    for number, (rows, sketch) in enumerate(found):
        expected = keys[period <= number]
        assert sorted(rows) == sorted(expected)
        assert sketch.name == sets.sketch(expected, 5).name
        assert sketch.rows == len(expected)


@pytest.mark.parametrize("conditions", [1, 2, 3, 70])
def test_the_smallest_group_is_that_of_the_fewest_rows_or_subjects_that_answer_alike(conditions: int) -> None:
    random = np.random.default_rng(conditions)
    for rows in (0, 1, 30, 200):
        holds: list[Any] = [random.random(rows) < 0.5 for _ in range(conditions)]
        if conditions == 70:
            holds = [holds[0] if n % 2 else ~holds[0] for n in range(69)] + holds[-1:]
        holds.append(random.integers(0, 3, rows))  # periods
        subjects = random.integers(0, max(1, rows // 3), rows).astype(np.uint64)
        groups: dict[Any, set[int]] = defaultdict(set)
        for answers, subject in zip(zip(*holds, strict=True), subjects.tolist(), strict=True):
            groups[tuple(map(int, answers))].add(subject)
        alike = Counter(tuple(map(int, answers)) for answers in zip(*holds, strict=True))
        assert smallest_group(holds) == min(alike.values(), default=0)
        assert smallest_group(holds, subjects) == min(map(len, groups.values()), default=0)
    assert smallest_group([]) == 0


DIFFERENT: list[tuple[Any, Any]] = [
    ([None, 1], [0, 1]),
    ([None, "a"], ["", "a"]),
    ([None, 1.5], [0.0, 1.5]),
    ([None, True], [False, True]),
    (["a", "b"], ["b", "b"]),
]


@pytest.mark.parametrize("given", DIFFERENT, ids=str)
def test_a_row_is_known_by_each_of_its_values_and_a_missing_one_is_none_of_them(given: tuple[Any, Any]) -> None:
    for is_key in (False, True):
        first, second = (row_keys(pa.table({"k": [1, 2], "v": values}), is_key=is_key) for values in given)
        assert first[0] != second[0]
        assert first[1] == second[1]
        twice = row_keys(pa.table({"k": [1, 1], "v": [given[1][1]] * 2}), is_key=is_key)
        assert (twice[0] == twice[1]) == is_key
    ordered = row_keys(pa.table({"k": [1, 2, 1], "v": ["x", "y", "x"]}))
    assert sorted(ordered) == sorted(row_keys(pa.table({"k": [2, 1, 1], "v": ["y", "x", "x"]})))
    narrow, wide = (row_keys(pa.table({"k": pa.array([1, 7], kind)})) for kind in (pa.int32(), pa.int64()))
    assert (narrow == wide).all()


def test_no_row_has_the_identity_of_one_with_other_texts() -> None:
    texts = ["", "a", "1", "-", "|", "1:a", "a|1:b", "-|-", "0:", "|0:", None]
    rows = [(a, b) for a in texts for b in texts]
    table = pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows]})
    for is_key in (False, True):
        assert len(np.unique(row_ids(table, is_key=is_key), axis=0)) == len(rows)
    twice = pa.concat_tables([table, table])
    assert len(np.unique(row_ids(twice), axis=0)) == 2 * len(rows)
    assert len(np.unique(row_ids(twice, is_key=True), axis=0)) == len(rows)
    assert count_equal_before(np.array([[7], [3], [7], [7], [3]], np.uint64)).tolist() == [0, 0, 1, 2, 1]


def test_how_often_a_row_is_joined_counts_in_proportion_to_what_is_usual() -> None:
    keys, times = KEYS[:5], np.array([2, 2, 2, 6, 2])
    base = joined_keys(keys, times)
    assert (joined_keys(keys, 3 * times) == base).all()
    assert (joined_keys(keys, np.full(5, 9)) == base).tolist() == [True, True, True, False, True]
    assert (joined_keys(keys, np.array([2, 2, 2, 4, 2])) == base).tolist() == [True, True, True, False, True]
    assert not (joined_keys(KEYS[5:10], times) == base).any()
    assert len(joined_keys(keys[:0], times[:0])) == 0


def test_keys_and_orders_of_rows_follow_from_their_values_alone() -> None:
    ids = row_sets.row_ids(pa.table({"a": ["x", "y", "x"]}))
    assert (ids[0] != ids[2]).any()  # the second of two equal rows is another one
    assert (row_sets.row_ids(pa.table({"a": ["y"]})) == ids[1]).all()
    keys = row_sets.row_keys(pa.table({"a": [1.0, 2.0, 1.0], "b": ["x", None, "x"]}))
    other = row_sets.row_keys(pa.table({"a": [2.0], "b": pa.array([None], pa.string())}))
    assert len(set(keys.tolist())) == 3
    assert other[0] == keys[1]
    five = np.arange(5, dtype=np.uint64)
    once = row_sets.joined_keys(five, np.array([1, 1, 1, 1, 3]))
    twice = row_sets.joined_keys(five, np.array([2, 2, 2, 2, 2]))
    assert (once == twice).tolist() == [True, True, True, True, False]
    bits = row_sets.order_bits(b"k", "t", 7, 0, 30)
    assert (bits[11:] == row_sets.order_bits(b"k", "t", 7, 11, 19)).all()
    assert row_sets.in_order(np.array([5, 1, 5, 0], np.uint64)).tolist() == [3, 1, 0, 2]
    assert smallest_group([np.array([True, True, False, True]), np.array([True, True, False, False])]) == 1
