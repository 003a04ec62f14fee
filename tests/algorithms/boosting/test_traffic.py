"""What trees are said to cost, from shapes alone; tests/plan/test_costs.py compares it with what runs count."""

from __future__ import annotations

import tablepuppet as tp
from tablepuppet.algorithms.boosting.traffic import tree_rounds, tree_seconds
from tablepuppet.algorithms.shape import BlockShape, FanOutHistogram, PartShape, Shape


def _block(name: str, rows: int, joined: int, *, numbers: int, strings: int = 0, booleans: int = 0) -> BlockShape:
    part = PartShape(name, rows, 0, joined, FanOutHistogram((joined // rows,), (rows,)))
    width = numbers + strings
    given = (name, name, width, numbers, strings, width, width, joined == rows, 0, (part,))
    return BlockShape(*given, outputs=1, booleans=booleans)


def _shape(*blocks: BlockShape) -> Shape:
    return Shape(10_000, 0, 0, 1, blocks, is_linear=False, curvature_varies=False, has_widths=False)


_FLOATS = _shape(_block("f", 10_000, 10_000, numbers=3), _block("d", 100, 10_000, numbers=2))
_ONE = _block("f", 10_000, 10_000, numbers=1)
_FEW = _shape(_block("f", 10_000, 10_000, numbers=1, booleans=1), _block("d", 100, 10_000, numbers=0, strings=2))


def _bytes(shape: Shape, options: tp.Boosting, tree: int) -> float:
    return sum(one.times * (one.down + one.up) for one in tree_rounds(shape, options, tree))


def test_tables_of_few_values_have_told_all_after_some_trees_and_others_have_not() -> None:
    options = tp.Boosting(trees=500, reveal="splits")
    assert all(tree_rounds(_FEW, options, tree) for tree in (0, 5))
    assert not any(tree_rounds(_FEW, options, tree) for tree in range(450, 500))
    assert _bytes(_FLOATS, options, 100) > 10_000


def test_columns_that_are_told_whole_are_asked_for_longer_where_some_may_say_little() -> None:
    options = tp.Boosting(trees=100)
    floats, few = ([bool(tree_rounds(shape, options, tree)) for tree in range(100)] for shape in (_FLOATS, _FEW))
    assert floats[0]
    assert few[0]
    assert sum(floats) < 5 < sum(few)
    assert not any(floats[60:])
    assert not any(few[60:])


def test_shallow_trees_take_longer_to_split_every_column() -> None:
    rounds = [sum(bool(tree_rounds(_FLOATS, tp.Boosting(depth=d), tree)) for tree in range(100)) for d in (2, 4, 8)]
    assert rounds == sorted(rounds, reverse=True)
    assert rounds[0] > 2 * rounds[2]


def test_a_block_of_one_column_has_told_it_at_the_first_root() -> None:
    rounds = [one for tree in range(50) for one in tree_rounds(_shape(_ONE), tp.Boosting(trees=50), tree)]
    assert sum(one.times for one in rounds if one.down > 0) == 1


def test_cpu_time_of_a_tree_grows_with_rows_columns_depth_and_checks() -> None:
    usual = tp.Boosting()
    base = tree_seconds(_FLOATS, usual, 50)
    wide = _shape(_block("f", 10_000, 10_000, numbers=30), _FLOATS.blocks[1])
    assert tree_seconds(wide, usual, 50) > base
    assert tree_seconds(_FLOATS, tp.Boosting(depth=9), 50) > 1.3 * base
    assert tree_seconds(_FLOATS, tp.Boosting(reveal="splits"), 50) > 1.3 * base
    assert tree_seconds(_FLOATS, tp.Boosting(splits="random"), 50) < 0.5 * base
    assert tree_seconds(_FLOATS, usual, 0) > base  # bins are made once


def test_early_trees_cost_more_than_late_ones_and_samples_less_than_all_rows() -> None:
    options = tp.Boosting(reveal="splits")
    costs = [sum(_bytes(_FLOATS, options, k) for k in range(t, t + 10)) for t in (1, 11, 31, 71)]
    assert costs == sorted(costs, reverse=True)
    assert _bytes(_FLOATS, tp.Boosting(subsample=0.25, reveal="splits"), 20) < _bytes(_FLOATS, options, 20)


def test_a_cap_of_splits_bounds_what_is_told() -> None:
    shape = _shape(_FLOATS.blocks[0])
    free, capped = tp.Boosting(trees=50, reveal="splits"), tp.Boosting(trees=50, max_splits=10)
    up = [sum(w.times * w.up for t in range(50) for w in tree_rounds(shape, o, t)) for o in (free, capped)]
    told = 10 * (10_000 + 1) / 8
    assert up[0] > up[1] > told
