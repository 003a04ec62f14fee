"""Factorised rows answer as the same rows do when they are written down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.join.test_factorised import trees

from tablepuppet.arrays import Array, floats
from tablepuppet.errors import MappingError
from tablepuppet.join.factorised.rows import FactorisedRows
from tablepuppet.join.factorised.tree import Tree
from tablepuppet.join.join import Column, JoinedSide, Span
from tablepuppet.join.joined_rows import JoinedRows, Shard
from tablepuppet.join.materialize import materialize
from tablepuppet.models.losses import Logistic, Loss, Squared
from tablepuppet.models.losses.numbers import Huber, Poisson

Pair = tuple[FactorisedRows, JoinedRows]


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """One or two branches with two blocks, whose rows lie one after the other; a side of them."""
    joins = [draw(trees()) for _ in range(draw(st.integers(1, 2)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sides = [join.side(rng.random(join.sizes[join.root]) < draw(st.sampled_from([0.6, 1.0]))) for join in joins]
    spans: list[Span] = []
    for chosen in ([len(join.sizes) - 1 for join in joins], [0 for _ in joins], [join.root for join in joins]):
        has_absent = tuple(draw(st.booleans()) for _ in joins) if len(spans) < 2 else ()
        sizes = [join.sizes[own] for join, own in zip(joins, chosen, strict=True)]
        sizes = [n + extra for n, extra in zip(sizes, has_absent or [0] * len(sizes), strict=True)]
        offsets = np.cumsum([0, *sizes]).tolist()
        spans.append(Span(tuple(chosen), tuple(offsets[:-1]), offsets[-1], has_absent))
    counts = [side.counts() for side in sides]
    columns = [Column.of(span, span.occurring(counts), [join.sizes for join in joins]) for span in spans]
    side = JoinedSide(tuple(sides), tuple(columns), 2, 2)
    labels = floats(rng.integers(0, 2, columns[2].rows))
    weights = draw(st.sampled_from([None, floats(rng.integers(0, 3, columns[2].rows)) / 2.0]))
    found = FactorisedRows(side, tuple(Tree.of(join) for join in joins), labels, weights)
    return found, materialize(side, labels, weights)


def scores_of(rows: JoinedRows) -> list[Array]:
    rng = np.random.default_rng(rows.rows)
    return [rng.normal(size=(p.rows, 1)) for p in rows.indices]


def derivative_step(shard: Shard, *, loss: Loss) -> tuple[list[Array], dict[str, float]]:
    total, gradient, curvature = loss.derivatives(shard.scores + 0.3, shard.labels, wants_curvature=True)
    assert curvature is not None
    return [gradient, curvature], {"loss": total}


@given(pairs(), st.sampled_from([Squared(), Logistic(), Poisson()]))
def test_derivatives_are_those_of_a_walk(pair: Pair, loss: Loss) -> None:
    factorised, written = pair
    scores = scores_of(written)
    found = factorised.differentiate(loss, scores, 0.3)
    done = written.run(derivative_step, scores, signals=2, loss=loss)
    room = 1e-10 * max(1, written.rows)
    assert found.loss == pytest.approx(done.sums.get("loss", 0.0), abs=10 * room)
    for own, expected in zip((found.slopes, found.curvatures), done.signals, strict=True):
        for a, b in zip(own, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=10 * room)


def column_step(shard: Shard, *, loss: Loss) -> tuple[list[Array], dict[str, float]]:
    return [loss.curvature(shard.scores, shard.labels) * shard.columns[0]], {}


@given(pairs())
def test_counts_weights_and_products_are_those_of_a_walk(pair: Pair) -> None:
    factorised, written = pair
    assert factorised.rows == written.rows
    np.testing.assert_array_equal(factorised.label_counts(), written.label_counts())
    for own, expected in zip(factorised.indices, written.indices, strict=True):
        assert (own.rows, own.is_partial) == (expected.rows, expected.is_partial)
    weights = factorised.collapsed_weights(), written.collapsed_weights()
    assert (weights[0] is None) == (weights[1] is None)
    for a, b in zip(weights[0] or [], weights[1] or [], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    columns = scores_of(written)
    zeros = [np.zeros_like(h) for h in columns]
    done = written.run(column_step, zeros, columns=columns, signals=1, loss=Squared())
    for a, b in zip(factorised.multiply(0, columns[0]), done.signals[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@given(pairs(), st.integers(0, 2**32 - 1))
def test_some_rows_are_the_same_rows(pair: Pair, seed: int) -> None:
    factorised, written = pair
    joined = np.random.default_rng(seed).permutation(written.rows)
    found, expected = factorised.look_up(joined), written.look_up(joined)
    for a, b in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[2], expected[2])
    assert factorised.sample.rows == written.rows


@given(pairs())
def test_a_loss_with_kinks_is_refused_with_what_to_do(pair: Pair) -> None:
    with pytest.raises(MappingError, match='huber loss has no sums over a join tree; train with walk="materialised"'):
        pair[0].differentiate(Huber(), scores_of(pair[1]), 0.0)
