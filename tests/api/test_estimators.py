"""The estimators keep scikit-learn's conventions and say what the federation says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.neural_join import JOINS, federation

import tablepuppet as tp

QUERY = JOINS["one-to-many"]


def test_a_classifier_scores_what_training_measured() -> None:
    with federation(2) as owner:
        model = tp.RelationalClassifier().fit(owner, QUERY.format(y="class"), label="class")
        assert model.score(owner, rows="all") == pytest.approx(model.result_.metrics["train"]["accuracy"])
        shares = model.predict_proba(owner)
        assert shares.shape == (300, 4)
        assert np.allclose(shares.sum(axis=1), 1.0)
        assert np.array_equal(model.classes_[shares.argmax(axis=1)], model.predict(owner))


def test_two_classes_have_two_columns_of_probability() -> None:
    with federation() as owner:
        model = tp.RelationalClassifier(algorithm="admm", epochs=5).fit(owner, QUERY.format(y="flag"), label="flag")
        assert model.predict(owner).dtype == np.bool_
        assert np.array_equal(model.predict_proba(owner)[:, 1] > 0.5, model.predict(owner))
        assert model.score(owner, rows="all") == pytest.approx(model.result_.metrics["train"]["accuracy"])


def test_a_regressor_scores_r_squared() -> None:
    with federation() as owner:
        model = tp.RelationalRegressor(l2=0.0).fit(owner, QUERY.format(y="number"), label="number")
        assert model.score(owner, rows="all") == pytest.approx(model.result_.metrics["train"]["r2"])


def test_a_neural_estimator_fits_and_scores() -> None:
    pytest.importorskip("torch")
    with federation(2) as owner:
        model = tp.RelationalClassifier(model="mlp", algorithm="sgd", epochs=2, hidden=(4,))
        model.fit(owner, QUERY.format(y="flag"), label="flag")
        assert model.score(owner, rows="all") == pytest.approx(model.result_.metrics["train"]["accuracy"])


def test_scikit_learn_clones_it_and_sets_its_parameters() -> None:
    clone: Any = pytest.importorskip("sklearn.base").clone
    model = tp.RelationalClassifier(algorithm=tp.Admm(rho=0.5), l2=0.1, max_categories=5)
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == model.get_params()
    assert copy.set_params(l2=1.0, hidden=(3,)).get_params()["hidden"] == (3,)
    assert model.get_params()["l2"] == 0.1
    assert repr(copy).startswith("RelationalClassifier(algorithm=Admm(")


def test_parameters_are_attributes() -> None:
    with federation() as owner:
        model: Any = tp.RelationalRegressor(l2=0.5)
        model.l2, model.seed = 2 * model.l2, 3  # as users of scikit-learn write it
        model.fit(owner, QUERY.format(y="number"), label="number")
        assert (model.result_.plan.job.model.l2, model.result_.plan.job.seed) == (1.0, 3)
        assert set(model.get_params()) == {"model", "algorithm", "test_fraction", "progress", "l2", "seed"}
    with federation() as owner, pytest.raises(tp.TablePuppetError, match="l2_"):
        tp.RelationalRegressor(l2_=0.5).fit(owner, QUERY.format(y="number"), label="number")


def test_scikit_learn_knows_what_it_is() -> None:
    base: Any = pytest.importorskip("sklearn.base")
    classifier, regressor = tp.RelationalClassifier(), tp.RelationalRegressor()
    assert base.is_classifier(classifier)
    assert not base.is_regressor(classifier)
    assert base.is_regressor(regressor)
    assert not base.is_classifier(regressor)


@pytest.mark.parametrize("tool", ["cross_val_score", "GridSearchCV"])
def test_what_cuts_arrays_into_folds_is_told_why_it_cannot(tool: str) -> None:
    selection: Any = pytest.importorskip("sklearn.model_selection")
    tools: dict[str, Callable[..., Any]] = {
        "cross_val_score": partial(selection.cross_val_score, tp.RelationalRegressor()),
        "GridSearchCV": selection.GridSearchCV(tp.RelationalRegressor(), {"l2": [0.1, 1.0]}).fit,
    }
    with federation() as owner, pytest.raises(tp.TablePuppetError, match="cannot cut it into folds"):
        tools[tool](owner)


def test_a_fitted_estimator_saves_the_model_that_it_has(tmp_path: Path) -> None:
    with federation() as owner:
        model = tp.RelationalClassifier().fit(owner, QUERY.format(y="class"), label="class")
        model.save(tmp_path / "model")
        loaded = tp.load(tmp_path / "model")
        assert np.array_equal(owner.predict(loaded)["prediction"].to_numpy(), model.predict(owner))
    assert loaded.coefficients().equals(model.result_.coefficients())


def test_an_estimator_that_was_not_fitted_saves_nothing(tmp_path: Path) -> None:
    with pytest.raises(tp.TablePuppetError, match="is not fitted yet"):
        tp.RelationalClassifier().save(tmp_path / "model")


def test_a_parameter_search_by_hand_finds_the_best() -> None:
    clone: Any = pytest.importorskip("sklearn.base").clone
    base = tp.RelationalRegressor(test_fraction=0.3)
    with federation() as owner:
        scores = {}
        for l2 in (1e-4, 10.0):
            model = clone(base).set_params(l2=l2).fit(owner, QUERY.format(y="number"), label="number")
            scores[l2] = model.result_.metrics["test"]["r2"]
    assert scores[1e-4] > scores[10.0]


@pytest.mark.parametrize("error", [tp.TablePuppetError, ValueError, AttributeError])
def test_use_before_fit_is_refused_as_scikit_learn_does(error: type[Exception]) -> None:
    with federation() as owner, pytest.raises(error, match="is not fitted yet"):
        tp.RelationalClassifier().predict(owner)


def test_fit_on_arrays_says_what_it_takes() -> None:
    with pytest.raises(tp.TablePuppetError, match="must be a Federation"):
        tp.RelationalClassifier().fit(np.zeros((3, 2)), np.zeros(3), label="y")  # type: ignore[arg-type]


def test_a_notebook_shows_metrics_and_convergence() -> None:
    with federation() as owner:
        model = tp.RelationalRegressor(test_fraction=0.2).fit(owner, QUERY.format(y="number"), label="number")
    shown = model._repr_html_()
    assert "<table>" in shown
    assert "rmse" in shown
    assert "Objective by epoch" in shown
    assert "RelationalRegressor(" in shown


def test_a_linear_classifier_takes_a_text_label() -> None:
    with federation(2) as owner:
        model = tp.RelationalClassifier(model="linear").fit(owner, QUERY.format(y="class"), label="class")
        assert model.classes_.tolist() == ["0", "1", "2", "3"]
        assert set(model.predict(owner)) <= set(model.classes_)
        with pytest.raises(tp.TablePuppetError, match="is text, and"):
            tp.RelationalRegressor().fit(owner, QUERY.format(y="class"), label="class")


def test_arguments_of_scikit_learn_are_answered_with_ours() -> None:
    anything: Any = tp.RelationalClassifier()
    with pytest.raises(tp.TablePuppetError, match="must be a Federation"):
        anything.fit(np.zeros((3, 2)), np.zeros(3))
    with federation() as owner:
        with pytest.raises(tp.TablePuppetError, match='give weight="column"'):
            anything.fit(owner, QUERY, label="class", sample_weight=np.ones(3))
        with pytest.raises(tp.TablePuppetError, match="fit needs the query"):
            anything.fit(owner)
        with pytest.raises(tp.TablePuppetError, match="label must be"):
            anything.fit(owner, QUERY.format(y="class"))


def test_an_unknown_parameter_is_a_value_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match="Invalid parameter 'alpha' for estimator RelationalRegressor") as refused:
        tp.RelationalRegressor().set_params(alpha=1.0)
    assert isinstance(refused.value, tp.TablePuppetError)
    assert "'l2'" in str(refused.value)
    assert "'learning_rate'" in str(refused.value)
