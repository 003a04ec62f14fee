"""What a model predicts, drawn and beside a constant: equal to what scikit-learn says of the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import accuracy_score, log_loss, r2_score, root_mean_squared_error
from tests.report.runs import QUERY, tables, trained

import tablepuppet as tp
from tablepuppet.errors import JobError
from tablepuppet.report.page import render
from tablepuppet.report.recording import record_of

STARS = QUERY.replace("o.returned, o.stars", "o.stars + 0.5 * o.quantity AS stars")


@pytest.fixture(scope="module")
def of_number() -> tuple[tp.Result, list[float], list[float], list[float]]:
    """A result, and the labels of its training and test rows with predictions of the latter."""
    with tp.Federation(tables()) as federation:
        result = federation.train(STARS, label="stars")
        found = federation.predict(result, STARS, split=True, key=None).to_pandas()
        label = federation.predict(result, STARS, split=True, key=["item_id", "stars", "quantity"]).to_pandas()
    found["label"] = label["stars"] + 0.5 * label["quantity"]
    test = found[found["split"] == "test"]
    return (
        result,
        found[found["split"] == "train"]["label"].tolist(),
        test["label"].tolist(),
        test["prediction"].tolist(),
    )


def test_the_baseline_of_a_number_is_the_mean_of_training_rows_on_test_rows(
    of_number: tuple[tp.Result, list[float], list[float], list[float]],
) -> None:
    result, train, test, _ = of_number
    alone = DummyRegressor().fit(np.zeros((len(train), 1)), train).predict(np.zeros((len(test), 1)))
    assert result.baseline_name == "mean"
    assert result.baseline["rmse"] == pytest.approx(root_mean_squared_error(test, alone))
    assert result.baseline["r2"] == pytest.approx(r2_score(test, alone))
    assert "(mean: rmse" in repr(result)


def test_the_baseline_of_classes_is_the_majority() -> None:
    result = trained()[0]
    (negatives, positives), train = result.curves["test"].confusion.sum(axis=1), result.curves["train"].confusion
    test = np.repeat([0, 1], [negatives, positives])
    seen = np.repeat([0, 1], train.sum(axis=1))
    alone = DummyClassifier(strategy="prior").fit(np.zeros((len(seen), 1)), seen)
    nothing = np.zeros((len(test), 1))
    assert result.baseline["accuracy"] == pytest.approx(accuracy_score(test, alone.predict(nothing)))
    assert result.baseline["log_loss"] == pytest.approx(log_loss(test, alone.predict_proba(nothing)))
    assert result.baseline["auc"] == 0.5


def test_residuals_and_cells_count_every_test_row(
    of_number: tuple[tp.Result, list[float], list[float], list[float]],
) -> None:
    result, _, test, predicted = of_number
    curves = result.curves["test"]
    table = curves.residuals()
    width = table["residual"][1] - table["residual"][0]
    edges = [-np.inf, *(table["residual"][1:] - width / 2), np.inf]
    assert table["rows"].tolist() == np.histogram(np.subtract(test, predicted), edges)[0].tolist()
    assert curves.predicted_actual().to_numpy().sum() == len(test)
    with pytest.raises(JobError, match="needs classes"):
        curves.confusion_matrix()


def test_a_classifier_has_a_roc_curve_under_which_the_area_is_its_auc() -> None:
    result = trained()[0]
    curves = result.curves["test"]
    roc = curves.roc()
    x, y = [*roc["false_positive_rate"], 0.0][::-1], [*roc["true_positive_rate"], 0.0][::-1]
    assert np.trapezoid(y, x) == pytest.approx(result.metrics["test"]["auc"])
    with pytest.raises(JobError, match="predicts a number"):
        curves.residuals()


def test_curves_are_shown_as_charts_and_never_as_arrays(
    of_number: tuple[tp.Result, list[float], list[float], list[float]],
) -> None:
    for result, charts in (
        (trained()[0], ("ROC", "Precision and recall", "Calibration")),
        (of_number[0], ("Residuals",)),
    ):
        curves = result.curves["test"]
        shown = curves.plot()._repr_html_()
        assert all(f"<title>{title}</title>" in shown for title in charts)
        assert "array(" not in repr(curves)


def test_the_page_shows_importance_signs_and_a_constant(
    of_number: tuple[tp.Result, list[float], list[float], list[float]],
) -> None:
    page = render([record_of(of_number[0])])
    results = page.partition('id="results"')[2].partition("</section>")[0]
    assert '<th class="number">mean</th>' in results
    assert results.count(">RMSE<") == 1
    assert "<h3>Importance</h3>" in page
    assert 'class="bar signed"' in page
    assert "<title>Predicted and actual</title>" in page


def test_what_a_notebook_shows_by_itself_has_no_arrays() -> None:
    with tp.Federation(tables()) as federation:
        linear = trained()[0]
        trees = federation.train(QUERY, label="returned", model="boosted", trees=1)
        compared = federation.compare(linear, trees)
        shown = [
            linear.model,
            linear.blocks,
            trees.trees,
            trees.blocks,
            federation.drift(linear),
            linear.curves,
            compared,
        ]
    assert not any("array(" in repr(one) or "[" in repr(one) for one in shown)
    assert repr(compared).startswith("The second model is ")
    assert "The second model is " in compared._repr_html_()
    assert "majority" in trees._repr_html_()
