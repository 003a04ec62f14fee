"""Poisson, gamma, Huber and quantile models over a join: those of scikit-learn and scipy on the materialised join.

And losses that the package does not know: one class, and one line in the list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import scipy.optimize
import sklearn.linear_model as linear
import sklearn.metrics as scores
from sklearn.svm import LinearSVC

import tablepuppet as tp
from tablepuppet.arrays import Array
from tablepuppet.models.losses import LOSSES
from tablepuppet.models.losses.base import Loss, Task
from tablepuppet.network.control import from_frame, to_frame

ROWS, GROUPS = 900, 30
QUERY = "SELECT a.x, a.w, b.z, a.{y} FROM a JOIN b ON a.k = b.k"
RNG = np.random.default_rng(0)
K = RNG.integers(0, GROUPS, ROWS)
A, B = RNG.normal(size=(ROWS, 2)), RNG.normal(size=(GROUPS, 1))
X = np.concatenate([A, B[K]], axis=1)
ETA = X @ [0.4, -0.3, 0.5] + 0.2
LABELS = {
    "count": RNG.poisson(np.exp(ETA)).astype(float),
    "amount": RNG.gamma(2.0, np.exp(ETA) / 2.0),
    "heavy": ETA + 2.0 * RNG.standard_t(1.5, ROWS),
    "flag": (ETA + RNG.logistic(size=ROWS) > 0.3).astype(np.int64),
    "heft": RNG.uniform(0.5, 2.0, ROWS),
}
NONE: dict[str, Any] = {"l2": 0.0, "test_fraction": 0.0}


def federation() -> tp.Federation:
    half = ROWS // 2
    owned = {"k": K, "x": A[:, 0], "w": A[:, 1], **LABELS}
    parts = [pa.table({name: v[place] for name, v in owned.items()}) for place in (slice(half), slice(half, ROWS))]
    return tp.Federation({"a": parts, "b": pa.table({"k": np.arange(GROUPS), "z": B[:, 0]})})


def trained(y: str, **options: Any) -> tp.Result:
    with federation() as owner:
        return owner.train(QUERY.format(y=y), label=y, **options)


def coefficients(result: tp.Result) -> Array:
    return np.append(result.coefficients()["weight"].to_numpy(), result.intercept)


def huber(theta: Array, delta: float = 1.5) -> float:
    size = np.abs(X @ theta[:-1] + theta[-1] - LABELS["heavy"])
    return float(np.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta)).mean())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("algorithm", ["newton", "admm", "centralized"])
@pytest.mark.parametrize("weight", [None, "a.heft"])
@pytest.mark.parametrize(("model", "label"), [("poisson", "count"), ("gamma", "amount")])
def test_models_of_deviance_are_those_of_scikit_learn(
    model: str, label: str, algorithm: str, weight: str | None
) -> None:
    result = trained(label, model=model, algorithm=algorithm, weight=weight, **NONE)
    regressor = linear.PoissonRegressor if model == "poisson" else linear.GammaRegressor
    central = regressor(alpha=0.0, tol=1e-12, max_iter=1000)
    central.fit(X, LABELS[label], None if weight is None else LABELS["heft"])
    np.testing.assert_allclose(coefficients(result), [*central.coef_, central.intercept_], atol=2e-5)
    measure = scores.mean_poisson_deviance if model == "poisson" else scores.mean_gamma_deviance
    deviance = measure(LABELS[label], np.exp(X @ coefficients(result)[:-1] + result.intercept))
    assert result.metrics["train"]["deviance"] == pytest.approx(deviance, abs=1e-9)


@pytest.mark.parametrize("algorithm", ["newton", "admm", "centralized"])
def test_huber_is_the_minimum_of_its_objective(algorithm: str) -> None:
    result = trained("heavy", model="huber", delta=1.5, algorithm=algorithm, **NONE)
    best = scipy.optimize.minimize(huber, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    assert result.objective == pytest.approx(best.fun, rel=1e-9)
    np.testing.assert_allclose(coefficients(result), best.x, atol=1e-4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_quantile_is_that_of_scikit_learn(quantile: float) -> None:
    result = trained("heavy", model="quantile", quantile=quantile, algorithm="admm", **NONE)
    central = linear.QuantileRegressor(quantile=quantile, alpha=0.0).fit(X, LABELS["heavy"])
    best = scores.mean_pinball_loss(LABELS["heavy"], central.predict(X), alpha=quantile)
    assert best <= result.objective <= best * (1 + 1e-4)
    assert result.metrics["train"]["pinball"] == result.objective
    assert result.metrics["train"]["coverage"] == pytest.approx(quantile, abs=0.01)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("y", "options"),
    [("count", {"model": "poisson"}), ("heavy", {"model": "huber"}), ("heavy", {"model": "quantile", "quantile": 0.8})],
)
def test_gradient_descent_comes_close(y: str, options: dict[str, Any]) -> None:
    """Steps that fade out end at the optimum, and steps of one length near it.

    Adam's are in units of the labels' standard deviation, which for heavy labels is four times the distance of their
    quartiles: over seven samples of them the quantile's loss ends 0.1 % to 4.2 % above the optimum.
    """
    best = trained(y, algorithm="admm" if options["model"] == "quantile" else "newton", **options, **NONE).objective
    steps: dict[str, Any] = {"algorithm": "sgd", "epochs": 30, "batch_size": 90}
    assert trained(y, **steps, **options, **NONE).objective <= 1.001 * best
    assert trained(y, **steps, optimizer="adam", **options, **NONE).objective <= 1.05 * best


def test_a_network_is_trained_with_any_loss() -> None:
    pytest.importorskip("torch")
    result = trained("count", model="mlp", loss="poisson", algorithm="sgd", epochs=3, hidden=(4,), **NONE)
    assert result.metrics["train"]["deviance"] < scores.mean_poisson_deviance(
        LABELS["count"], np.full(ROWS, LABELS["count"].mean())
    )


def test_a_model_is_saved_loaded_asked_and_evaluated(tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {"count": {"model": "poisson"}, "heavy": {"model": "huber", "delta": 2.0}}
    for y, options in cases.items():
        with federation() as owner:
            result = owner.train(QUERY.format(y=y), label=y, **options, **NONE)
            result.save(tmp_path / y)
            model = tp.load(tmp_path / y)
            assert model.loss == result.model.loss
            predicted = owner.predict(model)["prediction"].to_numpy()
            fitted = X @ coefficients(result)[:-1] + result.intercept
            expected = np.exp(fitted) if y == "count" else fitted
            np.testing.assert_allclose(np.sort(predicted), np.sort(expected))
            assert owner.evaluate(model, rows="all") == pytest.approx(result.metrics["train"])
            result.report(tmp_path / f"{y}.html")
            page = (tmp_path / f"{y}.html").read_text(encoding="utf-8")
            assert ("Deviance" in page) == (y == "count")
            assert ("delta = 2.0" in page) == (y == "heavy")


def test_a_model_of_an_older_version_has_the_usual_loss(tmp_path: Path) -> None:
    trained("flag", **NONE).save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    older = json.loads(file.read_text())
    del older["loss"], older["loss_options"]
    file.write_text(json.dumps(older))
    assert tp.load(tmp_path / "model").loss.name == "logistic"


def test_plans_and_results_cross_a_network() -> None:
    result = trained("heavy", model="quantile", quantile=0.7, algorithm="admm", epochs=2)
    again = from_frame(to_frame(result))
    assert again.plan.loss == result.plan.loss
    assert "model quantile (quantile 0.7)" in again.explain()


def test_estimators_and_job_files_take_the_options_of_a_loss(tmp_path: Path) -> None:
    with federation() as owner:
        model = tp.RelationalRegressor(model="huber").set_params(delta=3.0).fit(owner, QUERY.format(y="heavy"), "heavy")
        assert model.result_.plan.job.model.loss_options == {"delta": 3.0}
        assert model.score(owner, rows="all") == pytest.approx(model.result_.metrics["train"]["r2"])
    from tablepuppet.cli.train import read_job

    file = tmp_path / "job.toml"
    file.write_text('query = "SELECT 1"\nlabel = "y"\nmodel = "quantile"\nquantile = 0.9\nalgorithm = "admm"\n')
    assert read_job(file).arguments["quantile"] == 0.9


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        ("heavy", {"model": "poisson"}, 'are below 0, and model="poisson" takes counts'),
        ("count", {"model": "gamma"}, 'are not above 0, and model="gamma" takes amounts'),
        ("heavy", {"model": "quantile", "algorithm": "newton"}, "the quantile loss has kinks; train it with"),
        ("heavy", {"model": "quantile", "quantile": 1.5, "algorithm": "admm"}, "quantile must lie between 0 and 1"),
        ("heavy", {"model": "huber", "delta": 0}, "delta must be above 0"),
        ("heavy", {"model": "huber", "delta": "wide"}, "delta of loss_options: expected float, got str"),
        (
            "heavy",
            {"model": "linear", "delta": 1.0},
            'delta is not an option of this model\'s loss; it belongs to loss="huber"',
        ),
        ("heavy", {"model": "linear", "loss": "hubber"}, "unknown loss 'hubber'.*did you mean 'huber'"),
        ("heavy", {"model": "huber", "privacy": {"label": {"epsilon": 1.0, "bounds": [-9, 9]}}}, "no private form"),
        (
            "flag",
            {"model": "logistic", "monitor": "pinball", "validation_fraction": 0.1, "patience": 1},
            "not a metric",
        ),
    ],
)
def test_what_a_loss_cannot_do_is_refused_in_words(y: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tp.TablePuppetError, match=message):
        trained(y, **options)


def test_noise_on_counts_is_taken_out_of_a_poisson_model() -> None:
    privacy = {"label": {"epsilon": 8.0, "bounds": [0, 12], "mechanism": "laplace"}}
    noisy = trained("count", model="poisson", privacy=privacy, **NONE)
    exact = trained("count", model="poisson", **NONE)
    assert "deviance" not in noisy.metrics["train"]
    np.testing.assert_allclose(coefficients(noisy), coefficients(exact), atol=0.35)


# -- losses from outside -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogCosh(Loss):
    """log cosh(a − y)."""

    name: ClassVar[str] = "log_cosh"
    model: ClassVar[str] = "log-cosh"

    @property
    def bound(self) -> float:
        return 1.0

    def value(self, scores: Array, labels: Array) -> Array:
        size = np.abs(scores[:, 0] - labels)
        return np.asarray(size + np.log1p(np.exp(-2.0 * size)) - np.log(2.0))

    def gradient(self, scores: Array, labels: Array) -> Array:
        return np.tanh(scores - labels[:, None])

    def curvature(self, scores: Array, labels: Array) -> Array:
        return np.asarray(1.0 - np.tanh(scores - labels[:, None]) ** 2)


@dataclass(frozen=True, slots=True)
class SquaredHinge(Loss):
    """½ max(0, 1 − ya)² with y = ±1."""

    name: ClassVar[str] = "squared_hinge"
    model: ClassVar[str] = "svm"
    task: ClassVar[Task] = "binary"

    @property
    def bound(self) -> float:
        return 1.0

    def value(self, scores: Array, labels: Array) -> Array:
        return np.asarray(0.5 * np.maximum(0.0, 1.0 - (2.0 * labels - 1.0) * scores[:, 0]) ** 2)

    def gradient(self, scores: Array, labels: Array) -> Array:
        sign = (2.0 * labels - 1.0)[:, None]
        return np.asarray(-sign * np.maximum(0.0, 1.0 - sign * scores))

    def curvature(self, scores: Array, labels: Array) -> Array:
        sign = (2.0 * labels - 1.0)[:, None]
        return (sign * scores < 1.0).astype(np.float64)


@pytest.fixture
def listed() -> Iterator[None]:
    LOSSES.extend((LogCosh, SquaredHinge))
    yield
    del LOSSES[-2:]


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("algorithm", ["newton", "admm", "centralized"])
def test_a_loss_from_outside_is_minimised(algorithm: str) -> None:
    result = trained("heavy", model="log-cosh", algorithm=algorithm, **NONE)

    def objective(theta: Array) -> float:
        return float(LogCosh().value((X @ theta[:-1] + theta[-1])[:, None], LABELS["heavy"]).mean())

    best = scipy.optimize.minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    assert result.objective == pytest.approx(best.fun, rel=1e-8)


@pytest.mark.usefixtures("listed")
def test_a_loss_from_outside_is_explained_saved_loaded_asked_evaluated_and_reported(tmp_path: Path) -> None:
    with federation() as owner:
        given: dict[str, Any] = {"label": "flag", "model": "svm", "validation_fraction": 0.2, "patience": 3}
        assert "model svm" in str(owner.explain(QUERY.format(y="flag"), **given))
        result = owner.train(QUERY.format(y="flag"), **given, monitor="auc")
        result.save(tmp_path / "model")
        model = tp.load(tmp_path / "model")
        assert model.loss == SquaredHinge()
        table = owner.predict(model)
        assert "probability" not in table.column_names
        assert set(table["prediction"].to_pylist()) == {0, 1}
        assert set(owner.evaluate(model, rows="all")) == {"accuracy", "auc", "precision", "recall", "f1", "pr_auc"}
        result.report(tmp_path / "report.html")
        with pytest.raises(tp.TablePuppetError, match="without probabilities"):
            tp.RelationalClassifier(model="svm").fit(owner, QUERY.format(y="flag"), "flag").predict_proba(owner)


@pytest.mark.usefixtures("listed")
def test_a_squared_hinge_from_outside_is_that_of_scikit_learn() -> None:
    result = trained("flag", model="svm", l2=1e-3, test_fraction=0.0, standardize=False)
    strong = 1e6  # scikit-learn penalises the intercept too: a column of large constants makes that vanish
    central = LinearSVC(C=0.5 / (1e-3 * ROWS) * 1.0, tol=1e-10, max_iter=100_000, intercept_scaling=strong, dual=False)
    central.fit(X, LABELS["flag"])
    np.testing.assert_allclose(coefficients(result)[:-1], central.coef_[0], atol=1e-3)


def test_rates_weighted_by_their_exposure_are_counts_with_an_offset() -> None:
    days = np.random.default_rng(1).uniform(10, 365, ROWS)
    claims = np.random.default_rng(2).poisson(days / 100 * np.exp(ETA)).astype(float)
    a = pa.table({"k": K, "x": A[:, 0], "w": A[:, 1], "claims": claims, "days": days})
    query = "SELECT a.x, a.w, b.z, a.claims / a.days AS rate, a.days FROM a JOIN b ON a.k = b.k"
    with tp.Federation({"a": a, "b": pa.table({"k": np.arange(GROUPS), "z": B[:, 0]})}) as federation:
        given: dict[str, Any] = {"model": "poisson", "l2": 0.0, "test_fraction": 0.0}
        result = federation.train(query, label="rate", weight="days", **given)
        counted = "SELECT a.x, a.w, b.z, a.claims FROM a JOIN b ON a.k = b.k"
        same = federation.train(counted, label="claims", exposure="days", **given)
        assert same.objective == pytest.approx(result.objective, rel=1e-12)
        assert federation.evaluate(same, rows="all") == pytest.approx(same.metrics["train"], rel=1e-9)
        with pytest.raises(tp.TablePuppetError, match="leave weight out"):
            federation.train(counted, label="claims", exposure="days", weight="x", **given)
        with pytest.raises(tp.TablePuppetError, match="above 0"):
            federation.train(counted, label="claims", exposure="greatest(days - 100, 0)", **given)

    def unlikely(theta: Array) -> float:
        score = X @ theta[:3] + theta[3] + np.log(days)
        return float((np.exp(score) - claims * score).sum())

    best = scipy.optimize.minimize(unlikely, np.zeros(4), method="BFGS").x
    np.testing.assert_allclose(result.coefficients()["weight"], best[:3], atol=1e-5)
    assert result.intercept == pytest.approx(best[3], abs=1e-5)
