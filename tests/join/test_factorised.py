"""Factorised walks: sums over a tree's joined rows equal those over the joined rows, written down."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.join.test_join import scans, written

from tablepuppet.arrays import Array, RowNumbers, floats
from tablepuppet.join.factorised import series
from tablepuppet.join.factorised.tree import Tree
from tablepuppet.join.factorised.walk import TreeLoss
from tablepuppet.join.keys import ScanKeys
from tablepuppet.join.tree_join import TreeJoin
from tablepuppet.models.losses import Logistic, Loss, Squared
from tablepuppet.models.losses.base import Analytic, Exponential, Separable
from tablepuppet.models.losses.numbers import Gamma, Poisson
from tablepuppet.sql.bound import Branch, Join, KeyPair, Relation
from tablepuppet.sql.ucq import JoinKind
from tablepuppet.threads import Pool


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A tree, all of its joined rows, and numbers for its rows."""

    join: TreeJoin
    joined: list[RowNumbers]  # of each relation
    scores: list[Array]  # the last is that of no row
    labels: Array
    weights: Array

    @property
    def totals(self) -> Array:
        return np.asarray(sum((h[rows] for h, rows in zip(self.scores, self.joined, strict=True)), start=0.0))

    def collapse(self, per_joined: Array) -> list[Array]:
        """Sums of weighted values per row of each relation."""
        weighted = per_joined * self.weights[self.joined[self.join.root]]
        sizes = self.join.sizes
        return [
            floats(np.bincount(rows % (n + 1), weighted, n + 1)) for rows, n in zip(self.joined, sizes, strict=True)
        ]


KINDS: list[JoinKind] = ["inner", "inner", "left", "left", "semi", "anti", "not in"]


@st.composite
def trees(draw: st.DrawFn) -> TreeJoin:
    """Chains, stars and trees of up to four relations; a scan may be met twice."""
    while True:
        relations = draw(st.integers(1, 4))
        found = [draw(scans()) for _ in range(relations)]
        joins, looked_up = [], set()
        for relation in range(1, relations):
            other = draw(st.sampled_from([i for i in range(relation) if i not in looked_up]))
            kind = draw(st.sampled_from(KINDS))
            looked_up |= {relation} if kind in ("semi", "anti", "not in") else set()
            pairs = [KeyPair(other, draw(st.integers(0, 1)), relation, draw(st.integers(0, 1)))]
            joins.append(Join(kind, relation, tuple(pairs)))
        left = {join.relation for join in joins if join.kind != "inner"}
        label = draw(st.sampled_from([i for i in range(relations) if i not in left]))
        aliases = tuple(Relation(f"t{i}", draw(st.integers(0, i))) for i in range(relations))
        join = TreeJoin.of(Branch(aliases, tuple(joins), label), found, in_any_order=True)
        if join is not None:
            return join


@st.composite
def cases(draw: st.DrawFn) -> Case:
    join = draw(trees())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = join.sizes[join.root]
    joined = written(join.side(None)) or [np.zeros(0, np.int64) for _ in join.sizes]
    size = draw(st.sampled_from([0.0, 0.3, 2.0]))
    scores = [size * rng.normal(size=n + 1) for n in join.sizes]
    labels, weights = floats(rng.integers(0, 2, rows)), floats(rng.integers(0, 3, rows)) / 2.0
    return Case(join, joined, scores, labels, weights)


def log_cosh(a: Array) -> Array:
    return np.asarray(np.logaddexp(a, -a) - np.log(2.0))


LOG_COSH = Analytic(log_cosh, np.tanh, lambda a: 1.0 / np.cosh(a) ** 2, strip=np.pi / 2)


def assert_equal_sums(case: Case, found: TreeLoss, loss: Array, slope: Array, curvature: Array) -> None:
    derivatives = found.differentiate(case.scores)
    rows = max(1.0, float(np.abs(loss).sum()))
    assert derivatives.loss == pytest.approx(case.weights[case.joined[case.join.root]] @ loss, abs=1e-10 * rows)
    for sums, expected in ((derivatives.slopes, slope), (derivatives.curvatures, curvature)):
        for own, other, size in zip(sums, case.collapse(expected), case.collapse(np.abs(expected) + 1), strict=True):
            np.testing.assert_allclose(own, other, rtol=0.0, atol=2e-10 * size.max(initial=0.0))


@given(cases(), st.sampled_from([Squared(), Logistic(), Poisson(), Gamma()]))
def test_sums_of_losses_are_those_of_the_joined_rows(case: Case, loss: Loss) -> None:
    case = dataclasses.replace(case, labels=case.labels + isinstance(loss, Gamma))
    separable = loss.separate(case.labels)
    assert separable is not None
    found = TreeLoss(Tree.of(case.join), separable, case.weights)
    scores, labels = case.totals[:, None], case.labels[case.joined[case.join.root]]
    of_rows = (f(scores, labels) for f in (loss.value, loss.gradient, loss.curvature))
    assert_equal_sums(case, found, *(values.reshape(len(labels)) for values in of_rows))
    for own, expected in zip(found.count(), case.collapse(np.ones(len(labels))), strict=True):
        np.testing.assert_array_equal(own, expected)


@given(cases())
def test_a_loss_may_have_scales_shifts_and_constants(case: Case) -> None:
    y = case.labels[case.joined[case.join.root]]
    a = case.totals
    gamma = Separable(Exponential(-1.0), scale=case.labels, linear=np.ones_like(case.labels), constant=case.labels)
    growth = y * np.exp(-a)
    found = TreeLoss(Tree.of(case.join), gamma, case.weights)
    assert_equal_sums(case, found, growth + a + y, 1.0 - growth, growth)
    shifted = TreeLoss(Tree.of(case.join), Separable(LOG_COSH, shift=3.0 * case.labels), case.weights)
    away = a - 3.0 * y
    assert_equal_sums(case, shifted, log_cosh(away), np.tanh(away), 1.0 / np.cosh(away) ** 2)


@given(cases())
def test_the_range_of_scores_is_exact(case: Case) -> None:
    tree = Tree.of(case.join)
    found = TreeLoss(tree, Separable(LOG_COSH), case.weights).find_range(tree.order_rows(case.scores))
    totals = case.totals[case.weights[case.joined[case.join.root]] > 0]
    expected = totals.min(initial=np.inf), totals.max(initial=-np.inf)
    assert found == pytest.approx(expected, abs=1e-12)


def many_to_many(rows: int, partners: int, seed: int = 0) -> TreeJoin:
    """a (the label's) ⋈ b ⋈ c, with so many partners for each key."""
    rng, keys = np.random.default_rng(seed), max(rows // partners, 1)

    def scan() -> ScanKeys:
        columns = {f"k{c}": rng.permutation(np.arange(rows) % keys).astype(np.int32) for c in range(2)}
        return ScanKeys(rows, pa.table(columns))

    relations = tuple(Relation(name, i) for i, name in enumerate("abc"))
    joins = tuple(Join("inner", i, (KeyPair(i - 1, 1, i, 0),)) for i in (1, 2))
    join = TreeJoin.of(Branch(relations, joins, 0), [scan() for _ in range(3)])
    assert join is not None
    return join


def test_joins_of_quadrillions_are_counted_exactly() -> None:
    join = many_to_many(60_000, 30_000)
    found = TreeLoss(Tree.of(join), Separable(LOG_COSH), np.ones(60_000)).count()
    assert [int(own[:-1].sum()) for own in found] == [60_000 * 30_000**2] * 3
    assert all((own[:-1] == 30_000**2).all() for own in found)


def test_large_scores_that_cancel_leave_no_rounding_in_squares() -> None:
    join = many_to_many(40, 4)
    scores = [np.full(41, 1e6), np.full(41, -1e6), np.zeros(41)]
    found = TreeLoss(Tree.of(join), Squared().separate(np.zeros(40)), np.ones(40))
    assert found.differentiate(scores).loss == 0.0


def test_exponentials_of_large_scores_neither_overflow_nor_vanish() -> None:
    join = many_to_many(40, 4)
    scores = [np.full(41, 2000.0), np.full(41, -1500.0), np.full(41, -501.0)]
    found = TreeLoss(Tree.of(join), Separable(Exponential()), np.ones(40)).differentiate(scores)
    assert found.loss == pytest.approx(join.count() * np.exp(-1.0), rel=1e-12)
    scores[0] += 1e4
    assert TreeLoss(Tree.of(join), Separable(Exponential()), np.ones(40)).differentiate(scores).loss == np.inf


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    join = many_to_many(600, 20)
    rng = np.random.default_rng(0)
    scores = [4.0 * rng.normal(size=n + 1) for n in join.sizes]
    separable = Logistic().separate(floats(rng.integers(0, 2, 600)))
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(series, "pool", lambda threads=threads: Pool(threads))
        loss = TreeLoss(Tree.of(join), separable, np.ones(600))
        walk = loss.start_walk(loss.tree.order_rows(scores))
        assert walk is not None
        assert len(walk.share_tiles()) > 1
        found.append(loss.differentiate(scores))
    assert found[0].loss == found[1].loss
    for own, other in zip(found[0].slopes + found[0].curvatures, found[1].slopes + found[1].curvatures, strict=True):
        np.testing.assert_array_equal(own, other)


def test_weights_of_zero_count_nothing() -> None:
    join = many_to_many(40, 4)
    found = TreeLoss(Tree.of(join), Logistic().separate(np.zeros(40)), np.zeros(40))
    for some in (found, replace(found, weights=np.eye(40)[0])):
        derivatives = some.differentiate([np.ones(n + 1) for n in join.sizes])
        joined = some.weights.sum() * 16
        assert derivatives.loss == pytest.approx(joined * np.logaddexp(0.0, 3.0), rel=1e-10)
        assert all(own.sum() == pytest.approx(joined / (1 + np.exp(-3.0)), rel=1e-9) for own in derivatives.slopes)
