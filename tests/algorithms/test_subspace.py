"""What the search knows of F: the intercept to begin with, the Hessian, and metrics that a walk counts on the way."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.cases import many
from msgspec.structs import replace
from numpy.typing import NDArray
from tests.algorithms.test_exactness import with_labels
from tests.join.counted import multiplicities
from tests.scenarios import Scenario, scenarios

import tablepuppet as tp
from tablepuppet.algorithms.base import BlockAnswer, PartSetup, Problem
from tablepuppet.algorithms.newton.client import Newton, NewtonFigures, NewtonUpdate, client_start, client_step
from tablepuppet.algorithms.newton.server import NewtonServer
from tablepuppet.algorithms.numerics.search import best_intercept, derivatives
from tablepuppet.algorithms.numerics.subspace import Tracker
from tablepuppet.errors import TransportError
from tablepuppet.join.joined_rows import JoinedRows, RowIndex
from tablepuppet.models.linear import Features, LinearModel
from tablepuppet.models.losses import Logistic, Loss, Squared
from tablepuppet.models.losses.classes import Softmax
from tablepuppet.protocol.base import Predictions

Array = NDArray[np.float64]
LOSSES: list[Loss] = [Squared(), Logistic(), Softmax(3)]


def problem(loss: Loss, *, is_weighted: bool = False, rows: int = 400) -> Problem:
    """Three blocks: one in order, one shuffled, one that an outer join does not always find."""
    rng = np.random.default_rng(5)
    sizes = (90, 30, 20)
    numbers = [np.sort(rng.integers(0, 90, rows)), rng.integers(0, 30, rows), rng.integers(-1, 20, rows)]
    numbers[0][: sizes[0]] = np.arange(sizes[0])
    indices = tuple(RowIndex.of(np.sort(n) if i == 0 else n, sizes[i]) for i, n in enumerate(numbers))
    labels = rng.normal(size=90) if loss.is_quadratic else rng.integers(0, max(2, loss.outputs), 90).astype(np.float64)
    weights = rng.uniform(0.5, 1.5, 90) if is_weighted else None
    joined = JoinedRows(rows, indices, indices[0], labels, weights=weights)
    multiplicity = tuple(multiplicities(joined))
    return Problem(loss, 1e-3, joined, sizes, (1, 1, 1), multiplicity, epochs=9, batch_size=None, seed=0)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_the_intercept_from_labels_alone_is_that_of_a_walk(loss: Loss, is_weighted: bool) -> None:
    given = problem(loss, is_weighted=is_weighted)
    nearly = [np.full((n, loss.outputs), 1e-300) for n in given.rows]  # predicts something, so all rows are looked at
    np.testing.assert_allclose(best_intercept(given, given.zeros()), best_intercept(given, nearly), atol=1e-12)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_rows_of_the_hessian_are_those_of_the_joined_table(loss: Loss, is_weighted: bool) -> None:
    given = problem(loss, is_weighted=is_weighted)
    rng, tracker = np.random.default_rng(1), Tracker(given, [4, 4, 4])
    tracker.begin(given.zeros(), [True, False, True])
    for _ in range(3):
        answers = [BlockAnswer(rng.normal(size=(n, loss.outputs)), np.zeros(0)) for n in given.rows]
        before, intercept = tracker.predictions, tracker.intercept
        tracker.search(answers)
    expected = hessian(tracker, before, intercept)
    newest = [slots[0] for slots in tracker._earlier]
    first = np.cumsum([0, *tracker._sizes])
    for block, slot in enumerate(newest):
        row = first[block] + slot
        np.testing.assert_allclose(tracker._hessian[row], expected[row], atol=1e-12)
        np.testing.assert_allclose(tracker._hessian[:, row], expected[:, row], atol=1e-12)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("algorithm", ["newton", "admm"])
def test_joins_of_several_shards_reach_the_optimum(algorithm: str) -> None:
    case = many(1 << 19)
    with tp.Federation(case.tables) as federation:
        given: dict[str, Any] = {"label": "y", "model": "logistic", "test_fraction": 0.0}
        found = federation.train(case.query, algorithm=algorithm, epochs=40, **given)
        pooled = federation.train(case.query, algorithm="centralized", **given)
    assert found.converged
    assert found.objective == pytest.approx(pooled.objective, rel=1e-8 if algorithm == "admm" else 1e-10)


def test_the_hessian_of_many_joined_rows_is_that_of_a_sample() -> None:
    given = problem(Logistic(), rows=1 << 19)
    rng, tracker = np.random.default_rng(1), Tracker(given, [4] * given.blocks)
    tracker.begin(given.zeros(), [True, False, True])
    before, intercept = tracker.predictions, tracker.intercept
    tracker.search([BlockAnswer(rng.normal(size=(n, 1)), np.zeros(0)) for n in given.rows])
    expected = hessian(tracker, before, intercept)
    assert 1e-9 < np.abs(tracker._hessian - expected).max() < 0.01 * expected.max()


def hessian(tracker: Tracker, predictions: list[Array], intercept: Array) -> Array:
    """UᵀCU/N with every direction expanded to joined rows."""
    given = tracker.problem
    joined = given.joined
    assert isinstance(joined, JoinedRows)
    outputs = given.loss.outputs
    scores = sum(joined.expand(i, h) for i, h in enumerate(predictions)) + intercept
    expanded = np.zeros((joined.rows, len(tracker._hessian), outputs))
    first = np.cumsum([0, *tracker._sizes])
    for i, slots in enumerate(tracker._slots):
        for slot, vector in slots.items():
            expanded[:, first[i] + slot] = joined.expand(i, np.ascontiguousarray(vector))
    expanded[:, len(tracker._hessian) - outputs :] = np.eye(outputs)
    curved = given.loss.hessian_product(np.asarray(scores), joined.joined_labels(), expanded)
    weights = joined.joined_weights()
    if weights is not None:
        curved = curved * weights[:, None, None]
    return np.asarray(np.einsum("jak,jbk->ab", curved, expanded) / joined.rows)


def test_blocks_of_one_column_keep_one_direction_and_all_give_up_what_training_no_longer_needs() -> None:
    given = replace(problem(Logistic()), widths=(1, 5, 5))
    server = NewtonServer(given, Newton(memory=2))
    server.begin(given.zeros(), [NewtonFigures()] * 3)
    rng = np.random.default_rng(3)
    for kept in (1, 2, 3, 3):
        updates = server.join_step()
        signals = [update.per_row["signal"] for update in updates]
        server.absorb([BlockAnswer(-rng.uniform(0.5, 2.0) * y, np.zeros(0)) for y in signals if y is not None])
        assert [len(slots) for slots in server._tracker._slots] == [1, kept, kept]
    predictions, tally = server._tracker.predictions, server.tally
    server.finish()
    assert server._tracker._slots == [{}, {}, {}]
    assert server.predictions is predictions
    assert server.tally == tally
    again = server.join_step()[0].per_row["signal"]  # what was given up is found again
    np.testing.assert_array_equal(
        again, derivatives(given, predictions, server.intercept, wants_curvature=True).signals[0]
    )


@pytest.mark.one_in(5)
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
@pytest.mark.parametrize("algorithm", ["newton", "admm"])
@pytest.mark.parametrize("scenario", scenarios()[:3], ids=lambda s: s.name)
def test_metrics_counted_on_the_way_are_those_of_the_model(scenario: Scenario, algorithm: str, model: str) -> None:
    scenario = with_labels(scenario, model)
    with tp.Federation(scenario.tables) as federation:
        given: dict[str, Any] = {"label": "y", "model": model, "algorithm": algorithm, "test_fraction": 0.0}
        result = federation.train(scenario.query, epochs=3, **given)
        again = federation.evaluate(result, rows="all")
    assert result.metrics["train"].keys() == again.keys()
    for name, value in again.items():
        assert result.metrics["train"][name] == pytest.approx(value, rel=1e-9), name
    assert result.history[-1].metrics["train"] == result.metrics["train"]


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_figures_of_a_converged_model_are_those_of_the_model(model: str) -> None:
    scenario = with_labels(scenarios()[0], model)
    with tp.Federation(scenario.tables) as federation:
        result = federation.train(scenario.query, label="y", model=model, l2=1e-3, epochs=20, test_fraction=0.0)
        again = federation.evaluate(result, rows="all")
    assert result.converged
    assert len(result.history) < 20
    assert result.metrics["train"] == pytest.approx(again, rel=1e-9)
    mean = again["log_loss"] if model == "logistic" else 0.5 * again["rmse"] ** 2
    penalty = 0.5e-3 * sum(float(np.vdot(block.theta, block.theta)) for block in result.blocks)
    assert result.objective == pytest.approx(mean + penalty, rel=1e-9)


@pytest.mark.parametrize(
    ("decrements", "is_over"),
    [([1e-3, 1e-5], False), ([1e-3, 1e-6, 2e-10], True), ([3e-10, 2e-10], False), ([1e-3, 5e-11], True)],
    ids=["much is left", "the last step left next to nothing", "steps hardly gain", "within the tolerance already"],
)
def test_newton_ends_when_the_next_step_has_nothing_to_gain(decrements: list[float], is_over: bool) -> None:
    server = NewtonServer(replace(problem(Logistic()), widths=(1, 1, 1)), Newton())
    server._value = 1.0
    for decrement in decrements:
        server._before, server._decrement = server._decrement, decrement
    assert server.is_converged() is is_over


@pytest.mark.parametrize(("l2", "seed"), [(1e-4, 5), (1e-6, 1)])
def test_newton_goes_on_where_tables_tell_the_same(l2: float, seed: int) -> None:
    """Each table by itself has little to gain after a round, and both together have."""
    rng = np.random.default_rng(seed)
    same = ["a", *"bbbbbb"]
    facts = {"k": range(7), "g": rng.choice(list("xyz"), 7), "i": same, "y": rng.normal(size=7).round(3)}
    tables = {"t": pa.table(facts), "s": pa.table({"k": range(7), "h": same})}
    with tp.Federation(tables) as federation:
        given: dict[str, Any] = {"label": "y", "model": "linear", "l2": l2, "test_fraction": 0.0}
        query = "SELECT t.g, t.i, s.h, t.y FROM t JOIN s ON s.k = t.k"
        found, least = (federation.train(query, **given, algorithm=name) for name in ("newton", "centralized"))
    assert found.objective == pytest.approx(least.objective, rel=1e-9)


def test_a_client_with_more_or_fewer_inner_products_than_belong_is_named() -> None:
    with pytest.raises(TransportError, match="client north answers a step with 9 inner products where 4 belong"):
        BlockAnswer(np.zeros((1, 1)), np.zeros(9), "north").products_of(4)


@pytest.mark.parametrize("algorithm", ["newton", "admm", "sgd", "elastic", "centralized"])
def test_labels_that_are_all_the_same_are_predicted(algorithm: str) -> None:
    tables = {"t": pa.table({"k": [1, 2, 3], "x": [1.0, 2.0, 4.0], "y": [0.5] * 3}), "s": pa.table({"k": [1, 2, 3]})}
    query = "SELECT t.x, s.k, t.y FROM t JOIN s ON s.k = t.k"
    with tp.Federation(tables) as federation:
        result = federation.train(query, label="y", model="linear", algorithm=algorithm, test_fraction=0.0)
        assert federation.predict(result)["prediction"].to_numpy() == pytest.approx(0.5)


def star(rows: int, *, is_identity: bool = True) -> Problem:
    """A table of facts, with a row for every joined row, and a dimension."""
    rng = np.random.default_rng(2)
    facts = RowIndex(rows, None if is_identity else np.arange(rows, dtype=np.int32), is_sorted=True)
    joined = JoinedRows(
        rows, (facts, RowIndex.of(rng.integers(0, 50, rows), 50)), facts, rng.integers(0, 2, rows).astype(np.float64)
    )
    counts = tuple(multiplicities(joined))
    return Problem(Logistic(), 1e-3, joined, (rows, 50), (1, 1), counts, epochs=9, batch_size=None, seed=0)


def drawn(tracker: Tracker, rng: np.random.Generator) -> list[BlockAnswer]:
    """A direction for every block, of parameters with length 1."""
    kept = [1 + len(earlier) for earlier in tracker._earlier]
    rows = tracker.problem.rows
    return [BlockAnswer(rng.normal(size=(n, 1)), np.eye(1 + own).ravel()) for own, n in zip(kept, rows, strict=True)]


def test_facts_in_order_are_moved_as_facts_in_any_order_are() -> None:
    found = []
    for given in (star(50_000), star(50_000, is_identity=False)):
        rng, tracker = np.random.default_rng(1), Tracker(given, [1, 1])
        tracker.begin(given.zeros(), [False, False])
        for _ in range(3):
            tracker.search(drawn(tracker, rng))
        found.append([*tracker.predictions, *tracker.derivatives().signals])
    for one, same in zip(*found, strict=True):
        np.testing.assert_allclose(one, same, atol=1e-13)


def test_a_search_over_facts_makes_four_arrays_of_them_at_most() -> None:
    rows = 1 << 20
    given = star(rows)
    rng, tracker = np.random.default_rng(1), Tracker(given, [0, 4])
    tracker.begin(given.zeros(), [False, False])
    for _ in range(2):
        tracker.expect()
        answers = drawn(tracker, rng)
        tracemalloc.start()
        try:
            tracker.search(answers)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 34 * rows, (
            peak / rows
        )  # 8 for h, 8 for the slopes, twice as much for what lanes sum, and what shards take
    tracker.expect()
    assert not tracker._slots[0]  # the facts' one direction goes before the next comes


@pytest.mark.parametrize("is_weighted", [False, True])
def test_facts_get_no_curvature_that_follows_from_their_slopes(is_weighted: bool) -> None:
    given = star(2000)
    if is_weighted:
        weights = np.random.default_rng(4).uniform(0.5, 2.0, 2000)
        given = replace(given, joined=replace(given.joined, weights=weights))  # type: ignore[type-var]
    rng = np.random.default_rng(3)
    predictions = [rng.normal(size=(n, 1)) for n in given.rows]
    found = derivatives(given, predictions, np.array([0.3]), wants_curvature=True)
    assert found.curvatures is not None
    assert isinstance(given.joined, JoinedRows)
    scores = np.add(given.joined.expand(0, predictions[0]), given.joined.expand(1, predictions[1])) + 0.3
    expected = Logistic().curvature(scores, np.zeros(0))
    expected *= weights[:, None] if is_weighted else 1.0
    np.testing.assert_allclose(np.asarray(found.curvatures[0]), expected, atol=1e-15)
    server = NewtonServer(replace(given, widths=(1, 3)), Newton())
    server.begin(predictions, [NewtonFigures(), NewtonFigures()])
    facts, others = server.join_step()
    assert (facts.per_row["curvature"] is None) == facts.common["follows"] == (not is_weighted)
    assert others.per_row["curvature"] is not None
    assert not others.common["follows"]


def test_a_client_with_facts_makes_no_array_of_them_but_its_answer() -> None:
    rows = 1 << 20
    rng = np.random.default_rng(6)
    features = Features(rng.normal(size=(rows, 2)), (), np.arange(2), (), 2)
    model = LinearModel(features, features.take(slice(0, 0)), 1)
    setup = PartSetup(model, np.ones(0), np.ones(0), 1, 2, 1, rows, 1e-3)
    state, _ = client_start(setup, Newton())
    signal = rng.uniform(-1, 1, (rows, 1))
    given: dict[str, Any] = {"job": "j", "part": 0, "signal": signal, "bound": 0.25, "coefficients": None}
    tracemalloc.start()
    try:
        _, answer = client_step(setup, Newton(), state, NewtonUpdate(curvature=None, follows=True, **given))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * 8 * rows + (8 << 20)
    told = NewtonUpdate(curvature=np.abs(signal) * (1 - np.abs(signal)), **given)
    _, same = client_step(setup, Newton(), state, told)
    assert isinstance(answer, Predictions)
    assert isinstance(same, Predictions)
    np.testing.assert_allclose(answer.values, same.values, atol=1e-15)


@pytest.mark.parametrize("clients", [1, 3])
def test_columns_far_from_zero_need_no_scaling(clients: int) -> None:
    """Years, and seconds since 1970: they predict nearly the same for all rows, as the intercept does."""
    rng = np.random.default_rng(3)
    years, seconds = 2020.0 + rng.integers(0, 5, 300), 1.7e9 + 4e4 * rng.normal(size=300)
    y = 0.5 * (years - 2022) + 2e-5 * (seconds - 1.7e9) + rng.normal(size=300)
    rows = pa.table({"k": np.arange(300) % 20, "year": years, "t": seconds, "y": y})
    parts = [rows.take(np.arange(i, 300, clients)) for i in range(clients)]
    other = pa.table({"k": np.arange(20), "z": rng.normal(size=20)})
    query = "SELECT a.year, a.t, b.z, a.y FROM a JOIN b USING (k)"
    with tp.Federation({"a": parts, "b": other}) as federation:
        result = federation.train(query, label="y", model="linear", test_fraction=0.0, standardize=False, l2=1e-2)
    features = np.column_stack([years, seconds, other["z"].to_numpy()[np.arange(300) % 20]])
    centred, target = features - features.mean(0), y - y.mean()
    theta = np.linalg.solve(centred.T @ centred / 300 + 1e-2 * np.eye(3), centred.T @ target / 300)
    least = 0.5 * np.mean((centred @ theta - target) ** 2) + 0.5e-2 * theta @ theta
    assert result.objective == pytest.approx(least, rel=1e-6)
