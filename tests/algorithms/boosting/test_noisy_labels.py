"""Boosted trees under privacy.label: unbiased labels average, in few rows, to what no labels can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.algorithms.boosting.fixed_point import LabelNoise, Labels
from tablepuppet.models.losses import Logistic, Squared
from tablepuppet.privacy.labels import Channel, channel_of
from tablepuppet.privacy.options import LabelPrivacy

LABELS: dict[str, dict[str, Any]] = {
    "y": {"model": "boosted", "loss": "logistic"},
    "k": {"model": "boosted", "loss": "softmax"},
    "z": {"model": "boosted", "loss": "squared"},
}


def table(rows: int) -> pa.Table:
    random = np.random.default_rng(2)
    x = random.normal(size=(2, rows))
    score = x.sum(axis=0) + 0.5 * random.normal(size=rows)
    y, k = (score > 0).astype(int), np.digitize(score, [-0.8, 0.8])
    return pa.table({"a": x[0], "b": x[1], "y": y, "k": k, "z": np.clip(score, -4, 4)})


def train(rows: int, label: str, epsilon: float) -> tuple[tp.Result, tp.Federation]:
    owners = tp.Federation({"t": table(rows)})
    privacy = {"label": {"epsilon": epsilon, **({"bounds": (-4, 4)} if label == "z" else {})}}
    query = f"SELECT t.a, t.b, t.{label} AS label FROM t"
    return owners.train(query, label="label", **LABELS[label], test_fraction=0.0, privacy=privacy), owners


@pytest.mark.parametrize("label", LABELS)
def test_few_rows_with_noisy_labels_give_no_absurd_model_and_a_note(label: str) -> None:
    result, owners = train(300, label, 0.3)
    with owners:
        exact = owners.evaluate(result, rows="all")
    loss = 0.5 * exact["rmse"] ** 2 if label == "z" else exact["log_loss"]
    assert abs(result.objective) < 1000.0
    assert loss < (0.5 * 8.0**2 if label == "z" else 4.0)  # no worse than the worst label there may be
    assert any("the worth of" in note and "may be worse than a constant" in note for note in result.notes)


@pytest.mark.parametrize("label", LABELS)
def test_with_enough_rows_trees_are_better_than_a_constant_and_nothing_is_noted(label: str) -> None:
    result, owners = train(4000, label, 3.0)
    with owners:
        exact = owners.evaluate(result, rows="all")
    metric = "rmse" if label == "z" else "log_loss"
    assert exact[metric] < 0.75 * exact.baseline[metric]
    assert not any("the worth of" in note for note in result.notes)


def test_the_labels_of_a_leaf_sum_up_to_what_labels_can() -> None:
    channel = channel_of(LabelPrivacy(epsilon=1.0), 2)
    values = channel.unbiased(np.array([1.0, 1.0, 1.0, 0.0]))
    noise = LabelNoise.of(Logistic(), channel, values, None)
    assert noise is not None
    assert noise.excess == pytest.approx(1 / np.tanh(0.5) ** 2)
    labels = Labels(values, None, None, noise)
    assert labels.excess(0, np.array([0, 1, 2])) == pytest.approx(values[:3].sum() - 2.5)
    assert labels.excess(0, np.array([3])) == pytest.approx(values[3] - 0.5)
    assert labels.excess(0, np.array([0, 3])) == pytest.approx(0.0)
    numbers = LabelNoise.of(Squared(), Channel(1.0, 0.0, scale=3.0), np.array([-9.0, 1.0]), (-1.0, 2.0))
    assert Labels(np.array([-9.0, 1.0]), None, None, numbers).excess(0, np.array([0, 1])) == pytest.approx(-8.0 + 2.0)
    assert LabelNoise.of(Logistic(), None, values, None) is None
