"""Trees of random splits: drawn from the seed alone, and their leaves those of the materialised join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.algorithms.boosting.joins import Block, Join, book_of, draw_join, splits_by_path, train

from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.fixed_point import Labels, derivatives
from tablepuppet.algorithms.boosting.messages import Tree
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.random_splits import Drawable, Draws
from tablepuppet.algorithms.boosting.rows import sample_rows
from tablepuppet.algorithms.boosting.tree_checks import NUMBER, ONE_HOT, SORTED
from tablepuppet.errors import JobError


def _options(rng: np.random.Generator, **given: Any) -> Boosting:
    drawn: dict[str, Any] = {
        "splits": "random",
        "trees": 5,
        "learning_rate": 0.3,
        "depth": int(rng.integers(1, 6)),
        "bins": int(rng.choice([8, 255])),
        "l2": float(rng.choice([0.0, 1.0])) + 1e-6,
        "min_child_weight": float(rng.choice([0.0, 0.2, 5.0])),
        "categories": None if rng.random() < 0.5 else int(rng.integers(8, 40)),
        "subsample": float(rng.choice([1.0, 0.7])),
        "feature_fraction": float(rng.choice([1.0, 0.6])),
        "forest": bool(rng.random() < 0.3),
        "bits": int(rng.choice([16, 32])),
        "max_splits": None if rng.random() < 0.5 else int(rng.integers(1, 12)),
    }
    return Boosting(**(drawn | given))


def _leaves(tree: Tree, join: Join, blocks: list[Block], side: str) -> np.ndarray:
    """The leaf of every joined row, by walking the codes of the joined table."""
    at = np.zeros(len(getattr(join.tables[0], side)), np.int64)
    for node, left in enumerate(tree.left):
        if left < 0:
            continue
        block, table = blocks[tree.block[node]], join.tables[tree.block[node]]
        key = book_of(block).keys[tree.key[node]]
        codes = block.train if side == "train" else np.vstack([block.held, block.train[-1:]])
        code = codes[getattr(table, side), key.column]
        if block.layout.kinds[key.column] == NUMBER:
            right = np.where(code == 0, not tree.to_left[node], code > key.border)
        else:
            right = ~np.isin(code, key.left)
        at = np.where(at == node, left + right, at)
    return at


@given(st.integers(0, 2**32))
def test_leaves_are_those_of_the_materialised_join(seed: int) -> None:
    rng = np.random.default_rng(seed)
    join, options = draw_join(rng), None
    options = _options(rng)
    server, blocks, rounds = train(join, options, seed=seed % 1000)
    assert rounds == 0
    labels = Labels(join.labels, None, join.weights)
    scores = np.zeros((len(join.labels), join.loss.outputs), order="F")
    held = np.zeros((len(join.tables[0].held), join.loss.outputs))
    first = derivatives(join.loss, scores, labels, options.bits)
    for number, group in enumerate(server.trees):
        given_ = derivatives(join.loss, scores, labels, options.bits)
        rows = sample_rows(labels, np.empty(len(scores), np.int64), options.subsample, seed % 1000, number)
        for output, (tree, own) in enumerate(zip(group, first if options.forest else given_, strict=True)):
            leaf = _leaves(tree, join, blocks, "train")
            size = len(tree.left)
            g = np.bincount(leaf[rows], (own.both >> 32)[rows].astype(np.float64), size) * own.unit[0]
            h = np.bincount(leaf[rows], (own.both & 0xFFFFFFFF)[rows].astype(np.float64), size) * own.unit[1]
            for node, left in enumerate(tree.left):
                if left < 0:
                    assert tree.value[node] == -options.rate * g[node] / (h[node] + options.penalty)
                    assert tree.cover[node] == h[node]
                else:
                    assert min(tree.cover[left], tree.cover[left + 1]) >= options.least_weight
            value = np.array(tree.value)
            scores[:, output] += value[leaf]
            held[:, output] += value[_leaves(tree, join, blocks, "held")]
    np.testing.assert_array_equal(server.scores, scores)
    np.testing.assert_array_equal(server.held[0].scores, held)
    if options.max_splits is not None:
        assert max(block.revealed for block in server.blocks) <= options.max_splits


@given(st.integers(0, 2**32))
def test_splits_follow_from_the_seed_and_neither_from_labels_nor_from_owners(seed: int) -> None:
    rng = np.random.default_rng(seed)
    join = draw_join(rng)
    options = _options(rng, subsample=1.0, min_child_weight=0.0, max_splits=None)
    found = [splits_by_path(*train(join, options)[:2])]
    for table in join.tables:
        table.parts = 3
    same, blocks, _ = train(join, options)
    assert splits_by_path(same, blocks) == found[0]
    more, blocks, _ = train(join, replace(options, trees=8, forest=False))
    kept = splits_by_path(more, blocks)[:5]
    assert options.forest or kept == found[0]
    join.labels = rng.permutation(join.labels)
    other, blocks, _ = train(join, options)
    for mine, theirs in zip(splits_by_path(other, blocks), found[0], strict=True):
        for one, another in zip(mine, theirs, strict=True):
            both = one.keys() & another.keys()  # weights of classes may make a side too light
            assert all(one[path][:3] == another[path][:3] for path in both)


def test_columns_keys_and_sides_are_drawn_evenly() -> None:
    layout = Columns.of([NUMBER, ONE_HOT, SORTED], [12, 3, 9])
    missing = np.array([True, False, False])
    draws = Draws([Drawable(layout, missing)], Boosting(splits="random", trees=2_000, depth=4), 3, range(2_000))
    trees = [draws.splits(number) for number in range(2_000)]
    keys = [draws.keys[0][split.key] for tree in trees for split in tree]
    shares = np.bincount([key.column for key in keys]) / len(keys)
    np.testing.assert_allclose(shares, 1 / 3, atol=0.02)
    borders = np.bincount([key.border for key in keys if key.column == 0], minlength=12)[1:]
    np.testing.assert_allclose(borders / borders.sum(), 1 / 11, atol=0.02)  # ten borders, and what is missing
    assert len({key for key in keys if key.column == 1}) == 1  # two categories have one border
    sets = {key.left for key in keys if key.column == 2}
    assert len(sets) == 8
    assert all(0 < len(own) < 8 for own in sets)
    sides = [split.to_left for tree in trees for split in tree]
    assert abs(np.mean(sides) - 0.5) < 0.02
    assert len(draws.keys[0]) == 11 + 1 + 8


@pytest.mark.parametrize("given_", [{"leaves": 8}, {"monotone": {"i.price": 1}}])
def test_what_needs_a_search_is_refused(given_: dict[str, Any]) -> None:
    with pytest.raises(JobError, match="random"):
        Boosting(splits="random", **given_)
