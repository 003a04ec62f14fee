"""Joined rows by number, and drawn: the same as those that are written down, and all equally likely."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2
from tests.join.test_factorised import many_to_many, trees
from tests.join.test_join import written

from tablepuppet.join.tree_join import TreeJoin, draw_numbers


@given(trees(), st.integers(0, 2**32 - 1))
def test_joined_rows_are_found_by_their_numbers(join: TreeJoin, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for marks in (None, rng.random(join.sizes[join.root]) < 0.6):
        side = join.side(marks)
        joined = rng.permutation(side.rows)
        found = side.look_up(joined)
        for relation, expected in enumerate(written(side)):
            np.testing.assert_array_equal(found[relation], expected[joined])


def test_rows_are_drawn_uniformly() -> None:
    side = many_to_many(20, 5, seed=3).side(np.arange(20) % 3 > 0)
    count = 200_000
    drawn = side.look_up(draw_numbers(side.rows, count, seed=1))
    codes, times = np.unique(np.ravel_multi_index([drawn[i] for i in range(3)], (20, 20, 20)), return_counts=True)
    assert len(codes) == side.rows == 13 * 25
    expected = count / side.rows
    statistic = float(((times - expected) ** 2 / expected).sum())
    assert chi2.ppf(1e-4, side.rows - 1) < statistic < chi2.ppf(1 - 1e-4, side.rows - 1)


def test_rows_of_a_join_that_fits_no_memory_are_drawn_uniformly() -> None:
    rows, partners = 30_000, 3_000
    side = many_to_many(rows, partners).side(None)
    assert side.rows == rows * partners**2
    drawn = side.look_up(draw_numbers(side.rows, 100_000, seed=2))
    for relation in range(3):
        times = np.bincount(drawn[relation] // 300, minlength=100)
        statistic = float(((times - 1000) ** 2 / 1000).sum())
        assert chi2.ppf(1e-4, 99) < statistic < chi2.ppf(1 - 1e-4, 99)


def test_a_seed_gives_the_same_rows() -> None:
    assert (draw_numbers(10**15, 50, seed=4) == draw_numbers(10**15, 50, seed=4)).all()
    assert (draw_numbers(10**15, 50, seed=4) != draw_numbers(10**15, 50, seed=5)).any()
