"""Trees over a join that is never made equal those of a centralised booster on the materialised join."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.algorithms.boosting.joins import (
    Join,
    Table,
    bind_signs,
    book_of,
    central,
    draw_join,
    draw_plain_join,
    splits_by_path,
    train,
)

from tablepuppet.algorithms.boosting import client, kernels
from tablepuppet.algorithms.boosting import tree as growing
from tablepuppet.algorithms.boosting.exchange import NUMBER, SORTED, Complete, NewKey
from tablepuppet.algorithms.boosting.known import KnownBlock
from tablepuppet.algorithms.boosting.model import compact
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.rows import allowed_columns, sampled_rows
from tablepuppet.algorithms.boosting.server import BoostingServer
from tablepuppet.errors import TransportError
from tablepuppet.models.losses import Squared


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
            "bits": int(rng.choice([4, 8, 16, 32])),
            "min_gain": float(rng.choice([1e-12, 0.5])),
            "leaves": None if rng.random() < 0.5 else int(rng.integers(2, 12)),
            "tells": ["columns", "splits"][rng.integers(0, 2)],
            **given,
        }
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_strict_trees_equal_the_centralised_ones_split_for_split(seed: int) -> None:
    rng = np.random.default_rng(seed)
    join = draw_join(rng)
    options = _options(rng)
    if rng.random() < 0.4:
        bind_signs(rng, join)
    if options.subsample < 1 and rng.random() < 0.4:
        options = replace(options, forest=True)
    with pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.5:  # as if there were many joined rows
            patch.setattr(growing, "_FAR", 0)
            patch.setattr(growing, "_SEVERAL", 1)
        _assert_exact(join, options, seed % 1000)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_trees_are_the_same_where_clients_have_nothing_more_to_tell(seed: int) -> None:
    rng = np.random.default_rng(seed)
    join = draw_plain_join(rng)
    given = {"min_child_weight": 1.0, "min_category_weight": 0.0, "subsample": 1.0, "min_gain": 1e-12, "leaves": None}
    server = _assert_exact(join, _options(rng, trees=12, depth=4, bits=16, **given), seed % 1000)
    assert any(block.complete for block in server.blocks)


def test_an_order_of_categories_that_no_split_tells_is_refused() -> None:
    known = KnownBlock(0, np.array([SORTED, NUMBER], np.uint8), rows=6, held=0)
    known.learn(
        [NewKey(0, False, np.packbits([0, 0, 1, 1, 1, 1, 1])), NewKey(0, False, np.packbits([0, 1, 0, 1, 1, 1, 1]))]
    )
    right = np.packbits(np.array([[1, 1], [0, 1], [1, 0], [0, 0]]), axis=1)
    for wrong, says in (
        (right[[0, 1, 1, 3]], "one twice"),
        (np.concatenate([right, right], axis=1), "do not have"),
        (right[:3], "leaves out"),
        (right[:0], "leaves out"),
    ):
        with pytest.raises(TransportError, match=rf"its client tells an order .*: Complete\.order .*{says}"):
            known.close([Complete(0, wrong)])
    with pytest.raises(TransportError, match=r"Complete\.order is of a column that has none"):
        known.close([Complete(1, right)])
    assert not known.is_complete(np.ones(2, np.bool_))
    known.close([Complete(0, right)])
    assert known.codes[:, 0].tolist() == [3, 1, 2, 0, 0, 0, 0]


def _assert_exact(join: Join, options: Boosting, seed: int) -> BoostingServer:
    """The trees and scores are those of the materialised join."""
    server, blocks, _ = train(join, options, seed)
    widths = [len(b.bins) for b in blocks]
    oracle = central(join, blocks, options)
    columns = [allowed_columns(widths, options.feature_fraction, seed, t) for t in range(options.trees)]
    rows = [
        sampled_rows(server.labels, np.empty(len(join.labels), np.int64), options.subsample, seed, t)
        for t in range(options.trees)
    ]
    oracle.fit(columns, rows, seed)
    assert splits_by_path(server, blocks) == oracle.trees
    assert np.array_equal(server.scores, oracle.scores)
    return server


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["strict", "lazy"]))
def test_held_out_rows_follow_the_trees_by_their_own_bits(seed: int, checks: str) -> None:
    rng = np.random.default_rng(seed)
    join = draw_join(rng)
    server, blocks, _ = train(join, _options(rng, checks=checks, every=2))
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


def test_lazy_trees_take_one_round_in_every_few() -> None:
    rng = np.random.default_rng(5)
    join = draw_join(rng)
    first = train(join, _options(rng, trees=1, depth=3))[2]
    _, _, rounds = train(join, _options(np.random.default_rng(5), trees=21, depth=3, checks="lazy", every=5))
    assert rounds <= max(first, 3) + 4


@pytest.mark.parametrize("checks", ["strict", "lazy"])
def test_no_client_tells_more_keys_than_max_splits(checks: str) -> None:
    rng = np.random.default_rng(11)
    join = draw_join(rng)
    server, _, _ = train(join, _options(rng, trees=12, depth=4, checks=checks, every=2, max_splits=3))
    assert max(known.told for known in server.blocks) <= 3
    assert any(tree.splits for group in server.trees for tree in group)
    unlimited, _, _ = train(join, _options(np.random.default_rng(11), trees=12, depth=4, checks=checks, every=2))
    assert max(known.told for known in unlimited.blocks) > 3


@settings(max_examples=20, deadline=None)
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


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([8, 16, 32]))
def test_columns_counted_a_few_at_a_time_give_the_same_trees(seed: int, bits: Any) -> None:
    join, options = draw_join(np.random.default_rng(seed)), _options(np.random.default_rng(seed), bits=bits)
    server, _, _ = train(join, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_FEW_BINS", 40)
        patch.setattr(client, "_DENSE", 10**6)
        other, _, _ = train(join, options)
    assert _named(server) == _named(other)
    assert np.array_equal(other.scores, server.scores)


def test_a_table_that_has_most_splits_tells_the_next_ones_before_it_is_asked() -> None:
    rng = np.random.default_rng(7)
    rows = [(rng.normal(size=210), False) for _ in range(8)]
    wide = Table(rng.integers(0, 200, 2000).astype(np.int32), np.zeros(1, np.int32), 200, rows)
    few = Table(rng.integers(0, 9, 2000).astype(np.int32), np.zeros(1, np.int32), 9, [(rng.normal(size=10), False)])
    join = Join([wide, few], rng.normal(size=200)[wide.train], None, Squared())
    options = Boosting(trees=8, depth=5, tells="splits")
    server, _, rounds = train(join, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "is_worth_it", lambda *_: False)
        before, _, more_rounds = train(join, options)
    assert _named(server) == _named(before)
    assert rounds < 0.75 * more_rounds
    assert server.blocks[0].told < before.blocks[0].told


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["strict", "lazy"]))
def test_numpy_grows_the_trees_of_the_compiled_loops(seed: int, checks: str) -> None:
    join, options = draw_join(np.random.default_rng(seed)), _options(np.random.default_rng(seed), checks=checks)
    bind_signs(np.random.default_rng(seed), join)
    server, _, rounds = train(join, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "_FAR", 0)
        for place in ("bits", "columns", "nodes", "pairs", "splits"):
            loops = import_module(f"tablepuppet.algorithms.boosting.plain.{place}")
            for name in loops.__all__:
                patch.setattr(kernels, name, getattr(loops, name))
        other, _, other_rounds = train(join, options)
    assert other.trees == server.trees
    assert np.array_equal(other.scores, server.scores)
    assert np.array_equal(other.held[0].scores, server.held[0].scores)
    assert other_rounds == rounds
