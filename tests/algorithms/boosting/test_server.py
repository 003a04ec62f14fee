"""Trees over a join that is never made equal those of a centralised booster on the materialised join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.algorithms.boosting.joins import (
    Join,
    bind_signs,
    book_of,
    central,
    draw_join,
    draw_plain_join,
    splits_by_path,
    train,
)

from tablepuppet.algorithms.boosting.known_blocks import KnownBlock
from tablepuppet.algorithms.boosting.messages import compact
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.rows import sample_columns, sample_rows
from tablepuppet.algorithms.boosting.server import BoostingServer
from tablepuppet.algorithms.boosting.tree_checks import NUMBER, ONE_HOT, SORTED, NewColumn, NewKey
from tablepuppet.errors import TransportError


def _options(rng: np.random.Generator, **given: Any) -> Boosting:
    return Boosting(
        **{
            "trees": 4,
            "learning_rate": 0.3,
            "depth": int(rng.integers(1, 6)),
            "bins": int(rng.choice([8, 255])),
            "min_bin_rows": int(rng.choice([1, 3])),
            "l2": float(rng.choice([0.0, 1.0])) + 1e-6,
            "min_child_weight": float(rng.choice([0.2, 1.0, 5.0])),
            "min_category_weight": [None, None, 0.0, 2.0, 6.0][rng.integers(0, 5)],
            "categories": None if rng.random() < 0.5 else int(rng.integers(8, 40)),
            "subsample": float(rng.choice([1.0, 0.7])),
            "feature_fraction": float(rng.choice([1.0, 0.6])),
            "bits": int(rng.choice([16, 32])),
            "min_gain": float(rng.choice([1e-12, 0.5])),
            "leaves": None if rng.random() < 0.5 else int(rng.integers(2, 12)),
            "reveal": ["columns", "splits"][rng.integers(0, 2)],
            **given,
        }
    )


@given(st.integers(0, 2**32))
def test_strict_trees_equal_the_centralised_ones_split_for_split(seed: int) -> None:
    rng = np.random.default_rng(seed)
    join = draw_join(rng)
    options = _options(rng)
    if rng.random() < 0.4:
        bind_signs(rng, join)
    if options.subsample < 1 and rng.random() < 0.4:
        options = replace(options, forest=True)
    _assert_exact(join, options, seed % 1000)


@given(st.integers(0, 2**32))
def test_trees_are_the_same_where_clients_have_nothing_more_to_tell(seed: int) -> None:
    rng = np.random.default_rng(seed)
    join = draw_plain_join(rng)
    given = {"min_child_weight": 1.0, "min_category_weight": 0.0, "subsample": 1.0, "min_gain": 1e-12, "leaves": None}
    server = _assert_exact(join, _options(rng, trees=12, depth=4, bits=16, **given), seed % 1000)
    assert any(block.complete for block in server.blocks)


def test_a_column_that_was_told_whole_has_its_clients_codes_and_is_told_once() -> None:
    known = KnownBlock(0, np.array([SORTED, ONE_HOT, NUMBER], np.uint8), rows=5, held=1)
    codes = np.array([2, 1, 2, 3, 1, 0, 255], np.uint8)  # the last two: a row that does not exist, one held out
    whole = NewColumn.of(0, SORTED, 4, True, codes)
    known.learn([whole])
    assert known.codes[:, 0].tolist() == [2, 1, 2, 3, 1, 0, 7]
    assert known.is_complete(np.array([True, False, False]))
    assert not known.is_complete(np.ones(3, np.bool_))
    known.learn([NewKey(0, False, np.packbits([0, 1, 0, 1, 1, 1, 1]))])
    assert np.flatnonzero(~known.sets[0]).tolist() == [2]
    for wrong, says in (
        (whole, "was told before"),
        (NewColumn.of(1, SORTED, 4, True, codes), "another kind"),
        (NewColumn.of(1, ONE_HOT, 3, True, codes), "holds a bin that there is not"),
        (NewKey(0, False, np.packbits([0, 1, 1, 1, 1, 1, 1])), "parts rows of one category"),
    ):
        with pytest.raises(TransportError, match=says):
            known.learn([wrong])
    known.learn([NewColumn.of(2, NUMBER, 5, True, np.minimum(codes, 4))])
    with pytest.raises(TransportError, match="told whole before"):
        known.learn([NewKey(2, False, np.packbits([0, 0, 0, 1, 0, 1, 1]))])


def _assert_exact(join: Join, options: Boosting, seed: int) -> BoostingServer:
    """The trees and scores are those of the materialised join."""
    server, blocks, _ = train(join, options, seed)
    widths = [len(b.bins) for b in blocks]
    oracle = central(join, blocks, options)
    columns = [sample_columns(widths, options.feature_fraction, seed, t) for t in range(options.trees)]
    rows = [
        sample_rows(server.labels, np.empty(len(join.labels), np.int64), options.subsample, seed, t)
        for t in range(options.trees)
    ]
    oracle.fit(columns, rows)
    assert splits_by_path(server, blocks) == oracle.trees
    assert np.array_equal(server.scores, oracle.scores)
    return server


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(st.integers(0, 2**32))
def test_held_out_rows_follow_the_trees_by_their_own_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    join = draw_join(rng)
    server, blocks, _ = train(join, _options(rng))
    expected = np.zeros_like(server.held[0].scores)
    codes = [np.vstack([b.held, b.train[-1:]])[t.held] for b, t in zip(blocks, join.tables, strict=True)]
    for group, splits in zip(server.trees, splits_by_path(server, blocks), strict=True):
        for output, (tree, by_path) in enumerate(zip(group, splits, strict=True)):
            for row in range(len(expected)):
                node = 0
                path: tuple[int, ...] = ()
                while tree.left[node] >= 0:
                    block, column, right, _ = by_path[path]
                    code = codes[block][row, column]
                    unseen = blocks[block].layout.right(book_of(blocks[block]).keys[tree.key[node]])
                    side = right[code] if code < len(right) else int(unseen[code])
                    node, path = tree.left[node] + side, (*path, side)
                expected[row, output] += tree.value[node]
    assert np.array_equal(server.held[0].scores, expected)


def test_no_client_tells_more_keys_than_max_splits() -> None:
    rng = np.random.default_rng(11)
    join = draw_join(rng)
    server, _, _ = train(join, _options(rng, trees=12, depth=4, max_splits=3))
    assert max(known.revealed for known in server.blocks) <= 3
    assert any(tree.splits for group in server.trees for tree in group)
    unlimited, _, _ = train(join, _options(np.random.default_rng(11), trees=12, depth=4))
    assert max(known.revealed for known in unlimited.blocks) > 3


@given(st.integers(0, 2**32))
def test_clients_of_a_table_give_the_trees_of_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    join, options = draw_join(rng), _options(np.random.default_rng(seed))
    found = []
    for parts in (1, 2, 5):
        for table in join.tables:
            table.parts = parts
        server, _, _ = train(join, options)
        found.append((_named(server), server.scores.tolist()))
    assert found[0] == found[1] == found[2]


def _named(server: BoostingServer) -> Any:
    """Trees whose keys are numbered as they occur."""
    return compact(server.trees, lambda b, k: server.blocks[b].missing_key(k), len(server.blocks))[0]
