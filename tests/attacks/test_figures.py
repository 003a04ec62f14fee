"""Metrics and curves: exact ones count labels, and two tell one row's; what an owner's rule lets leave does not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.owner.policy import Policy
from tablepuppet.privacy.options import Rounding

ROWS, LEAST = 600, 20
QUERY = "SELECT p.x, p.z, p.y FROM people p"


def people() -> pa.Table:
    random = np.random.default_rng(0)
    x, z = random.normal(size=(2, ROWS))
    y = (x + 0.5 * z + random.normal(size=ROWS) > 0).astype(int)
    return pa.table({"id": np.arange(ROWS), "x": x, "z": z, "y": y, "pay": 3 * x + random.normal(size=ROWS)})


def federation(least: int) -> tp.Federation:
    owners = tp.Federation({"people": people()}, policies={"people": Policy(minimum_rows=least)})
    owners._clients["people"].secret = bytes(31) + b"7"  # of all that an owner may have
    return owners


def train(owners: tp.Federation, **options: Any) -> tp.Result:
    given: dict[str, Any] = {"label": "y", "epochs": 10, "test_fraction": 0.0} | options
    return owners.train(QUERY, **given)


def ranked(owners: tp.Federation, result: tp.Result) -> tuple[Any, Any]:
    """The rows by their score, lowest first, and the scores: what any prediction tells."""
    found = owners.predict(result, key="id")
    odds = np.asarray(found["probability"])
    order = np.argsort(odds)
    return np.asarray(found["id"])[order], np.log(odds / (1 - odds))[order]


def moved(result: tp.Result, by: float) -> Any:
    model = result.model
    return replace(model, encoded_intercept=model.encoded_intercept - by)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("least", "read"), [(LEAST, False), (1, True)])
def test_two_accuracies_of_models_that_differ_in_one_row_do_not_tell_its_label(least: int, read: bool) -> None:
    """The intercept is the server's: moved past a row's score, it moves that row's prediction and no other."""
    with federation(least) as owners:
        result = train(owners)
        ids, scores = ranked(owners, result)
        right, places = 0, range(100, 500, 10)
        for place in places:
            below, above = (scores[k : k + 2].mean() for k in (place - 1, place))
            first, second = (owners.evaluate(moved(result, by), rows="all")["accuracy"] for by in (below, above))
            right += int(second < first) == people()["y"][ids[place].item()].as_py()
        assert (right == len(places)) == read
        assert read or right < 0.75 * len(places)  # guessing by the score alone would find as many


@pytest.mark.parametrize(("least", "read"), [(1, True), (LEAST, False)])
def test_neighbouring_points_of_a_curve_do_not_tell_a_label(least: int, read: bool) -> None:
    with federation(least) as owners:
        result = train(owners)
        curve = result.curves["train"]
        assert curve.predicted is not None
        assert curve.true_positives is not None
        steps = -np.diff(curve.predicted)
        assert (steps.min() == 1) == read
        if read:
            ids, _ = ranked(owners, result)
            labels = np.asarray(people()["y"])[ids]
            np.testing.assert_array_equal(-np.diff(curve.true_positives), labels[: len(steps)])
        else:
            assert min(steps.min(), curve.predicted[-1]) >= least
            assert curve.calibration is not None
            assert curve.calibration[0][curve.calibration[0] > 0].min() >= least
            assert curve.threshold("f1") == pytest.approx(0.4, abs=0.2)  # and it is still of use


def test_a_share_of_one_row_is_not_shown() -> None:
    """With all rows but one on one side, precision is that row's label."""
    for least in (1, LEAST):
        with federation(least) as owners:
            result = train(owners)
            ids, scores = ranked(owners, result)
            found = owners.evaluate(moved(result, scores[-2:].mean()), rows="all")
            if least == 1:
                assert found["precision"] == people()["y"][ids[-1].item()].as_py()
            else:
                assert not {"precision", "f1", "recall"} & set(found)


def test_comparing_models_that_differ_in_one_row_tells_nothing_of_it() -> None:
    """A quantile's loss differs where the two disagree: its sign is the row's label."""
    for least in (1, LEAST):
        with federation(least) as owners:
            result = train(owners)
            _, scores = ranked(owners, result)
            models = [moved(result, scores[k : k + 2].mean()) for k in range(292, 308)]
            for first, second in itertools.pairwise(models):
                found = owners.compare(first, second, rows="all")
                assert (found.difference == 0 or abs(found.difference) > 1e-4) == (least > 1)
                assert not (found.is_worse or found.is_better) or least == 1
            wide = owners.compare(moved(result, 3.0), result.model, rows="all")
            assert wide.is_better


def test_figures_of_every_epoch_are_rounded_too() -> None:
    """Two trainings of five and six epochs are two models that differ in few rows."""
    told: list[Any] = []
    with federation(LEAST) as owners:
        result = train(owners, validation_fraction=0.2, algorithm="sgd", epochs=3, on_round=told.append)
    with federation(1) as owners:
        exact = train(owners, validation_fraction=0.2, algorithm="sgd", epochs=3)
    records = [event.record for event in told if event.record is not None]
    for shown, true in zip([*records, *result.history], [*exact.history] * 2, strict=True):
        assert shown.objective != true.objective
        rows = exact.plan.mapping.train_rows
        step = round(shown.metrics["train"]["accuracy"] * rows) / 12  # √508 / 2 rows
        assert step == pytest.approx(round(step), abs=1e-9) or shown.metrics["train"]["accuracy"] == 1.0
        for side in ("train", "validation"):
            metrics = shown.metrics[side]
            assert not {"precision", "recall", "f1"} & set(metrics) or shown is result.history[-1]
            assert metrics["log_loss"] == pytest.approx(true.metrics[side]["log_loss"], rel=0.3)
    assert "metrics" in result.model.metadata
    assert result.model.metadata["metrics"] == result.metrics


@pytest.mark.parametrize("label", ["y", "pay"])
def test_honest_figures_are_within_their_standard_error_and_the_same_when_asked_again(label: str) -> None:
    query = f"SELECT p.x, p.z, p.{label} FROM people p"
    with federation(1) as owners:
        exact = owners.evaluate(owners.train(query, label=label), rows="all")
    with federation(LEAST) as owners:
        result = owners.train(query, label=label)
        shown = owners.evaluate(result, rows="all")
        assert shown == owners.evaluate(result, rows="all")
        assert set(shown) == set(exact)
        for name, value in exact.items():
            assert shown[name] == pytest.approx(value, abs=0.06 * max(1.0, abs(value)))
        again = owners.compare(result, result, rows="all")
        assert not again.is_worse
        assert not again.is_better
        assert owners.importance(result, rows="all")["feature"].iloc[0] == "p.x"
        table = tp.search(owners, query, {"l2": [1e-3, 1e3]}, folds=3, label=label, epochs=3).table
        assert table["l2"][0] == 1e-3


def test_no_verb_shows_an_exact_figure() -> None:
    shown: list[dict[str, float]] = []
    for least in (1, LEAST):
        with federation(least) as owners:
            result, other = train(owners), train(owners, l2=1.0)
            compared, measured = owners.compare(result, other, rows="all"), owners.evaluate(result, rows="all")
            table = tp.search(owners, QUERY, {"l2": [0.1, 1.0]}, folds=2, label="y", epochs=3).table
            rises = owners.importance(result, rows="all")["importance"].tolist()
        figures = {
            "result": result.baseline,
            "before": compared.first,
            "after": compared.second,
            "constant": measured.baseline,
        }
        found = {f"{of} {name}": value for of, own in figures.items() for name, value in own.items()}
        losses = {f"search {n}": value for n, value in enumerate(table["log_loss"].tolist())}
        shown.append(found | losses | {"objective": result.objective, "difference": compared.difference})
    exact, rounded = shown
    assert len(rounded) > 12
    assert not [name for name, value in rounded.items() if value == exact[name]]
    assert all(rise * 2**20 == round(rise * 2**20) for rise in rises)  # whole steps of a power of two


def test_a_figure_is_moved_before_it_is_rounded_by_chance_that_only_its_owner_knows() -> None:
    """By up to one step, in a triangle: a multiple of the step stays where it is three times in four."""
    own, other = Rounding(20, b"secret"), Rounding(20, b"another")
    names = [f"figure {number}" for number in range(4000)]
    for value, shares in ((0.0, [0.125, 0.75, 0.125]), (0.5, [0.0, 0.5, 0.5])):
        drawn = np.array([own.number(name, value, 1.0) for name in names])
        assert [np.mean(drawn == step) for step in (-1.0, 0.0, 1.0)] == [pytest.approx(s, abs=0.04) for s in shares]
        assert (drawn != np.array([other.number(name, value, 1.0) for name in names])).mean() > 0.3
        assert drawn.tolist() == [own.number(name, value, 1.0) for name in names]
    assert {own.number("one", value, 1.0) for value in np.linspace(0, 1e-9, 50)} == {-1.0, 0.0, 1.0}
