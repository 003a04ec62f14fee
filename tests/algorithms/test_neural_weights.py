"""Weighted SGD of a network equals torch with a weighted loss, batch for batch."""

from __future__ import annotations

from typing import Any

import pytest
from tests.algorithms.test_neural_sgd import assert_same, fresh, trained

from tablepuppet.models.spec import l2_of

torch = pytest.importorskip("torch")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize(
    ("label", "given"),
    [("number", {"weight": "1 + t * t"}), ("class", {"weight": "1 + t * t"}), ("class", {"class_weight": "balanced"})],
)
def test_parameters_equal_those_of_torch_with_weights(label: str, given: dict[str, Any], clients: int) -> None:
    result, joined = trained("many-to-many", label, clients, batch_size=64, **given)
    job, weights = result.plan.job, torch.tensor(joined.weights)
    if "class_weight" in given:
        classes = joined.labels.long()
        assert torch.allclose(weights, len(classes) / 4 / torch.bincount(classes)[classes].double())
    assert weights.mean().item() == pytest.approx(1.0)
    modules = fresh(result)
    steps = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
    for rows in joined.batches(job.epochs, 64, job.seed):
        steps.zero_grad()
        a, y = joined.scores(modules, rows), joined.labels[rows]
        losses = 0.5 * (a[:, 0] - y) ** 2
        if label == "class":
            losses = torch.nn.functional.cross_entropy(a, y.long(), reduction="none")
        penalty = sum(p.square().sum() for m in modules for p in m.parameters())
        torch.autograd.backward((weights[rows] * losses).mean() + 0.5 * l2_of(job.model.l2, "", "") * penalty)
        steps.step()
    assert_same(result, modules, 1e-9)
