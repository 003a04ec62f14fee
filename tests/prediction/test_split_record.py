"""Predictions say on which side of the split a row was, and the sides are those that training drew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.prediction.shop import QUERY, federation, tables

import tablepuppet as tp
from tablepuppet.errors import ModelError, PolicyError
from tablepuppet.owner.policy import Policy

SPENT = QUERY.format(label="spent")
UNION = f"{SPENT} WHERE o.quantity > 4 UNION ALL {SPENT} WHERE o.quantity <= 4"


def squared_errors(answer: pa.Table, given: dict[str, pa.Table]) -> dict[str, float]:
    """The root of the mean squared error on each side, by the orders' own labels."""
    spent = dict(zip(given["orders"]["order_id"].to_pylist(), given["orders"]["spent"].to_pylist(), strict=True))
    frame = answer.to_pandas()
    error = (frame["prediction"] - frame["order_id"].map(spent)) ** 2
    return {str(side): float(np.sqrt(error[frame["split"] == side].mean())) for side in frame["split"].unique()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("query", "options"),
    [
        (SPENT, {"seed": 3, "validation_fraction": 0.2}),
        (SPENT, {"test_where": "o.quantity > 6", "validation_where": "o.channel = 'web'"}),
        (SPENT, {"test_where": "o.quantity > 6", "validation_fraction": 0.2}),
        (UNION, {"seed": 5, "validation_fraction": 0.1}),
        (f"{SPENT} WHERE o.channel <> 'shop'", {"algorithm": "boosting", "trees": 4, "validation_fraction": 0.2}),
    ],
)
def test_the_rows_of_each_side_have_its_metrics(query: str, options: dict[str, Any], tmp_path: Path) -> None:
    given = tables()
    with federation(given) as shop:
        result = shop.train(query, label="spent", **options)
        result.save(tmp_path / "model")
        answer = shop.predict(tp.load(tmp_path / "model"), key="order_id", split=True)
    found = squared_errors(answer, given)
    mapping = result.plan.mapping
    counts = [np.count_nonzero(answer["split"].to_numpy() == side) for side in ("train", "validation", "test")]
    assert counts == [mapping.train_rows, mapping.validation_rows, mapping.test_rows]
    assert found == pytest.approx({side: metrics["rmse"] for side, metrics in result.metrics.items()}, rel=1e-9)


def test_without_a_split_every_row_was_for_training() -> None:
    with federation(tables()) as shop:
        result = shop.train(SPENT, label="spent", test_fraction=0.0)
        assert set(shop.predict(result, split=True)["split"].to_pylist()) == {"train"}
        assert "split" not in shop.predict(result).column_names


def test_a_condition_goes_for_any_rows_and_a_draw_for_those_of_training() -> None:
    new, given = tables(seed=1), tables()
    with federation(given) as shop:
        drawn = shop.train(SPENT, label="spent")
        chosen = shop.train(SPENT, label="spent", test_where="quantity > 6")
        with pytest.raises(ModelError, match="this query reads others"):
            shop.predict(drawn, f"{SPENT} WHERE o.quantity > 2", split=True)
        with pytest.raises(ModelError, match="without keys"):
            shop.predict(drawn, key="order_id", keys=[3], split=True)
    with federation({**new, "orders": new["orders"].drop_columns(["spent"])[:400]}) as shop:
        answer = shop.predict(chosen, key=["order_id", "quantity"], keys=[(1007, 1), (1008, 7)], split=True)
        assert answer["split"].to_pylist() == [
            {True: "test", False: "train"}[q > 6] for q in answer["quantity"].to_pylist()
        ]
        whole = shop.predict(chosen, f"{SPENT} WHERE o.channel = 'web'", key="quantity", split=True).to_pandas()
        assert ((whole["quantity"] > 6) == (whole["split"] == "test")).all()
        with pytest.raises(ModelError, match="does not have as many rows"):
            shop.predict(drawn, split=True)


def test_a_model_of_an_earlier_release_says_that_it_does_not_know() -> None:
    with federation(tables()) as shop:
        model = shop.train(SPENT, label="spent").model
        model.metadata.pop("split")
        with pytest.raises(ModelError, match="saved by an earlier release"):
            shop.predict(model, split=True)
        model.metadata["split"] = {"seed": "many"}
        with pytest.raises(ModelError, match="cannot be read"):
            shop.predict(model, split=True)


def test_sides_are_in_the_contract_and_by_a_condition_only_where_values_may_be_told() -> None:
    given = tables()
    with federation(given) as shop:
        drawn = shop.train(SPENT, label="spent")
        chosen = shop.train(SPENT, label="spent", test_where="spent > 9")
    owned = {name: given[name] for name in ("orders", "items", "cards")}
    for rule in ({"minimum_rows": 5, "identifiers": True}, {"labels": {"epsilon": 1.0}}, {"labels": {"leave": False}}):
        with tp.Federation(owned, policies={"orders": msgspec.convert(rule, Policy)}) as strict:
            with pytest.raises(PolicyError, match="not on column spent"):
                strict.predict(chosen, split=True)
            assert strict.predict(chosen).num_rows == len(given["orders"])
    drawn.model.metadata["split"]["branches"][0]["rows"] = {"orders": len(given["orders"])}
    with tp.Federation(owned) as shop:
        shop.predict(drawn, split=True)
        log = [entry for entry in shop._clients["orders"].log.entries if entry.event == "disclosed"]
        assert log[-1].detail["split"] == 1
