"""What a plan predicts that parties are told is what the meter counts, entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.plan.disclosure import expect_disclosures

import tablepuppet as tp

QUERY = "SELECT o.amount, o.kind, i.price, i.colour, o.{label} FROM orders o JOIN items i ON o.item = i.item"


def shop(owners: int) -> dict[str, Any]:
    """Orders with one owner, items with several."""
    random = np.random.default_rng(3)
    items = pa.table(
        {
            "item": np.arange(24),
            "price": random.normal(size=24),
            "colour": random.choice(["red", "green", "blue"], 24),
        }
    )
    size = -(-24 // owners)
    orders = pa.table(
        {
            "item": random.integers(0, 24, 160),
            "amount": random.normal(size=160),
            "kind": random.choice(["a", "b"], 160),
            "y": random.normal(size=160),
            "c": random.choice([0, 1], 160),
            "w": random.uniform(0.5, 2.0, 160),
        }
    )
    return {"orders": orders, "items": [items[i * size : (i + 1) * size] for i in range(owners)]}


SGD = tp.Sgd(tolerance=0.0)
ALGORITHMS: dict[str, Any] = {
    "newton": tp.Newton(tolerance=0.0),
    "admm": tp.Admm(tolerance=0.0),
    "admm exact": tp.Admm(tolerance=0.0, union="exact"),
    "sgd": SGD,
    "sgd with a rate": tp.Sgd(learning_rate=0.1, tolerance=0.0),
    "adam": tp.Sgd(optimizer="adam", tolerance=0.0),
    "vfl-sgd": "vfl-sgd",
    "vfl-admm": "vfl-admm",
    "centralized": "centralized",
}
PRIVATE = {"epsilon": 5.0, "cap": 20, "bounds": {"price": (-3, 3), "amount": (-3, 3)}}
MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "plain sums": {"secure_aggregation": False},
    "masked": {"secure_aggregation": True},
    "labels": {"label": {"epsilon": 3.0, "bounds": (-3, 3)}},
    "features": {"features": PRIVATE, "allow_reconstruction": True},
    "local": {"predictions": {"mode": "local", "epsilon": 20.0}},
}


@settings(max_examples=settings().max_examples // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    label=st.sampled_from(["y", "c"]),
    model=st.sampled_from(["auto", "mlp"]),
    owners=st.sampled_from([1, 2, 3]),
    batch_size=st.sampled_from([None, 50, 1000]),
    mode=st.sampled_from(sorted(MODES)),
    weight=st.sampled_from([None, "w"]),
    epochs=st.sampled_from([1, 3]),
)
def test_what_is_predicted_is_what_is_counted(
    algorithm: str,
    label: str,
    model: str,
    owners: int,
    batch_size: int | None,
    mode: str,
    weight: str | None,
    epochs: int,
) -> None:
    given: dict[str, Any] = {
        "label": label,
        "model": model,
        "algorithm": ALGORITHMS[algorithm],
        "batch_size": batch_size,
        "privacy": MODES[mode],
        "weight": weight,
        "epochs": epochs,
    }
    if label == "c" and mode == "labels":
        given["model"] = "logistic" if model == "auto" else model
        given["privacy"] = {"label": {"epsilon": 3.0}}
    with tp.Federation(shop(owners)) as federation:
        query = QUERY.format(label=label)
        try:
            plan = federation.explain(query, **given)
        except tp.TablePuppetError as refusal:
            with pytest.raises(type(refusal)):
                federation.train(query, **given)
            return
        result = federation.train(query, **given)
    counted = result.traffic.all_told
    assert counted == expect_disclosures(plan, len(result.history))
    blocks = [part for part in result.plan.mapping.parts if plan.job.algorithm != "centralized"]
    for part in blocks:  # what explain says of a row is at least what crossed the wire of rows in every batch
        shown = sum(
            n for told, n in counted.items() if told.subject == f"part {part.number}" and "predictions" in told.what
        )
        if batch_size is None:
            assert plan.exposures[part.block].numbers == shown or not plan.shape.blocks[part.block].parts[0].is_in_both


def test_explain_counts_the_predictions_of_evaluation() -> None:
    with tp.Federation(shop(1)) as federation:
        plan = federation.explain(QUERY.format(label="y"), label="y", epochs=4)
        result = federation.train(QUERY.format(label="y"), label="y", algorithm=tp.Newton(tolerance=0.0), epochs=4)
    items = next(e for e in plan.exposures if e.block == "i")
    assert items.numbers == 9  # four steps, and five evaluations
    told = result.traffic.all_told
    assert sum(n for t, n in told.items() if t.client == "items" and "predictions" in t.what) == 9


@settings(
    max_examples=settings().max_examples // 4,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
)
@given(
    label=st.sampled_from(["y", "c"]),
    owners=st.sampled_from([1, 2, 3]),
    splits=st.sampled_from(["best", "best", "random"]),
    depth=st.sampled_from([2, 4]),
    leaves=st.sampled_from([None, 5]),
    max_splits=st.sampled_from([None, 4]),
    trees=st.sampled_from([1, 6]),
    weight=st.sampled_from([None, "w"]),
    release=st.sampled_from([True, False]),
)
def test_trees_tell_what_is_predicted_and_of_checks_and_splits_no_more(
    label: str, owners: int, weight: str | None, release: bool, **options: Any
) -> None:
    options |= {"leaves": None} if options["splits"] == "random" else {}
    given: dict[str, Any] = {"label": label, "algorithm": tp.Boosting(**options), "weight": weight}
    given |= {"release": release}
    with tp.Federation(shop(owners)) as federation:
        query = QUERY.format(label=label)
        plan = federation.explain(query, model="boosted", **given)
        result = federation.train(query, model="boosted", **given)
        more = federation.train(query, model="boosted", **given, warm_start=result)
    for run, expected in ((result, expect_disclosures(plan)), (more, expect_disclosures(more.plan))):
        counted = run.traffic.all_told
        assert counted.keys() <= expected.keys()
        for told, most in expected.items():
            if told.what in ("splits", "node sums", "sums", "parameters"):  # no tree may ask one of the tables
                assert counted.get(told, 0) <= most
            else:
                assert counted.get(told, 0) == most, told
    counted = result.traffic.all_told
    for number, exposure in enumerate(plan.exposures):
        for part in (p for p in plan.mapping.parts if p.block == number):
            bits = sum(n for t, n in counted.items() if t.subject == f"part {part.number}" and t.what == "splits")
            assert bits <= exposure.numbers
            assert options["max_splits"] is None or bits <= options["max_splits"]
    assert result.history[-1].residuals["splits"] <= sum(n for t, n in counted.items() if t.what == "splits")
