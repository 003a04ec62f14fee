"""Partial dependence is the mean prediction over rows whose owner holds one value of the feature in all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.inspection import partial_dependence
from tests.prediction.oracle import joined
from tests.prediction.shop import NEW, QUERY, federation, tables

import tablepuppet as tp
from tablepuppet.errors import JobError, ModelError
from tablepuppet.exchanges.prediction import ScoreRows
from tablepuppet.owner.policy import Policy
from tablepuppet.protocol.base import Failure, Message

GIVEN = tables()


def held_at(table: str, feature: str, value: Any) -> tp.Federation:
    """The shop, but with one value of a column in every row."""
    own, place = GIVEN[table], GIVEN[table].column_names.index(feature)
    kind = pa.string() if isinstance(value, str) else pa.float64()
    return federation({**GIVEN, table: own.set_column(place, feature, pa.repeat(pa.scalar(value, kind), len(own)))})


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("label", "options"),
    [
        ("spent", {}),
        ("mood", {}),
        ("returned", {"model": "mlp", "epochs": 1}),
        ("spent", {"head": "factor", "rank": 2, "algorithm": "sgd", "epochs": 1}),
        ("returned", {"algorithm": "boosting", "trees": 30, "depth": 4}),
    ],
)
def test_it_is_the_mean_prediction_where_the_owner_has_one_value(label: str, options: dict[str, Any]) -> None:
    with federation(GIVEN) as shop:
        model = shop.train(QUERY.format(label=label), label=label, **options).model
        features = {"price": "items", "category": "items", "credit": "cards"}
        found = {feature: shop.partial_dependence(model, None, feature, points=2, rows="all") for feature in features}
    for feature, curve in found.items():
        assert curve.iloc[0, 1] != curve.iloc[1, 1]
        for _, row in curve.iterrows():
            with held_at(features[feature], feature, row["value"]) as shop:
                answer = shop.predict(model).to_pandas()
            for column in curve.columns[1:]:
                assert row[column] == pytest.approx(answer[column].mean(), rel=1e-9)


def test_it_is_that_of_scikit_learn() -> None:
    with federation(GIVEN) as shop:
        model = shop.train(QUERY.format(label="returned"), label="returned").model
        rows = joined(NEW, GIVEN)
        names = ["o.quantity", "o.channel", "i.price", "i.category", "c.credit"]
        rows = rows.set_axis(names, axis=1).dropna(subset=["c.credit"]).astype({"o.quantity": float})
        inner = QUERY.format(label="returned").replace("LEFT JOIN", "JOIN")
        estimator = model.to_sklearn()
        expected = partial_dependence(estimator, rows, ["o.quantity"], grid_resolution=4, percentiles=(0, 1))
        found = shop.partial_dependence(model, inner, "quantity", values=expected["grid_values"][0], rows="all")
    np.testing.assert_allclose(found["probability"], expected["average"][0], rtol=1e-9)


def test_what_cannot_be_varied_is_said() -> None:
    with federation(GIVEN) as shop:
        model = shop.train(QUERY.format(label="spent"), label="spent").model
        plain = shop.train(QUERY.format(label="spent"), label="spent", standardize=False).model
        held = shop.train(QUERY.format(label="spent"), label="spent", release=False).model
        with pytest.raises(ModelError, match=r"is no feature.*i\.price"):
            shop.partial_dependence(model, feature="i.prise", rows="all")
        with pytest.raises(JobError, match="name some: values"):
            shop.partial_dependence(plain, feature="price", rows="all")
        with pytest.raises(ModelError, match="would tell its parameters"):
            shop.partial_dependence(held, feature="price", rows="all")
        with pytest.raises(tp.TablePuppetError, match="give numbers, or None"):
            shop.partial_dependence(model, feature="price", values=["cheap"], rows="all")
        with pytest.raises(JobError, match="finite numbers"):
            shop.partial_dependence(model, feature="price", values=[float("nan")], rows="all")


def test_owners_count_every_value_as_one_more_model() -> None:
    with federation(GIVEN) as shop:
        model = shop.train(QUERY.format(label="spent"), label="spent", test_fraction=0.0).model
    strict = {"items": Policy(allow_reconstruction=False)}
    with (
        tp.Federation(GIVEN, policies=strict) as shop,
        pytest.raises(tp.TablePuppetError, match="allow_reconstruction"),
    ):
        shop.partial_dependence(model, feature="price", values=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], rows="all")


def test_a_feature_is_set_to_values_where_the_contract_says_so() -> None:
    with tp.Federation(GIVEN) as shop:
        model = shop.train(QUERY.format(label="spent"), label="spent").model
        told: list[Message] = []
        owner = shop._clients["items"]
        answer = owner.answer

        def meddled(message: Any) -> Message:
            if isinstance(message, ScoreRows) and message.fixed < 0:
                changed: list[dict[str, Any]] = [{"fixed": 0, "value": 1.0}, {"fixed": 1, "value": "book"}]
                for change in changed:
                    with pytest.raises(tp.TablePuppetError) as error:
                        answer(ScoreRows(**{f: getattr(message, f) for f in message.__struct_fields__} | change))
                    told.append(Failure(error="", message=str(error.value)))
            return answer(message)

        owner.answer = meddled  # type: ignore[method-assign]
        shop.evaluate(model, rows="all")
        assert ["not set to any value" in t.message for t in told] == [True, True]  # type: ignore[attr-defined]
