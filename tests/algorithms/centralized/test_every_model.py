"""The baseline trains every model under every head, or says why not."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.models.losses import LOSSES

pytest.importorskip("torch")
_LABELS = {"number": "amount", "binary": "flag", "classes": "kind"}


def tables(rows: int = 120) -> dict[str, Any]:
    random = np.random.default_rng(0)
    facts: dict[str, Any] = {"a": random.integers(0, 12, rows), "x": random.standard_normal(rows)}
    facts["amount"] = random.integers(1, 9, rows)
    facts["flag"] = random.random(rows) < 0.5
    facts["kind"] = random.choice(["p", "q", "r"], rows)
    other = {"id": np.arange(12), "z": random.standard_normal(12), "name": [f"n{i}" for i in range(12)]}
    return {"f": pa.table(facts), "a": pa.table(other)}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_every_loss_is_trained_under_every_head_or_refused_with_the_reason(loss: Any) -> None:
    query = f"SELECT f.x, a.z, a.name, f.{_LABELS[loss.task]} AS y FROM f JOIN a ON f.a = a.id"
    outcomes = set()
    with tp.Federation(tables()) as owners:
        for model, head in itertools.product(("linear", "mlp"), ("sum", "factor", "mlp")):
            given: dict[str, Any] = {"model": model, "head": head, "loss": loss.name, "epochs": 1}
            try:
                result = owners.train(query, label="y", algorithm="centralized", **given)
            except tp.TablePuppetError as error:
                outcomes.add("has kinks" in str(error))
            else:
                outcomes.add(math.isfinite(result.objective) and loss.is_smooth)
    assert outcomes == {True}
