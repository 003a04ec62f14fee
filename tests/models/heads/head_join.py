"""One torch model with a head on the materialised join: the oracle of heads over tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from tests.algorithms.neural_join import JOINS, Joined, federation

import tablepuppet as tp
from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.numerics.search import best_intercept
from tablepuppet.models.heads.kinds import SUM_BY_ROWS
from tablepuppet.models.spec import l2_of

SEED = 3


def trained(join: str, label: str, clients: int = 1, **given: Any) -> tuple[tp.Result, Joined]:
    query = JOINS[join].format(y=label)
    options = {"learning_rate": 0.05, "epochs": 2, "batch_size": 64, "seed": SEED} | given
    with federation(clients) as owner:
        result = owner.train(query, label=label, algorithm="sgd", **options)
        return result, Joined(owner, query, label, result, torch.float64)


class Oracle:
    """Linear blocks and a head, trained by torch's optimisers."""

    def __init__(self, result: tp.Result, joined: Joined, head: torch.nn.Module | None = None) -> None:
        assert result.head is not None
        self.joined, self.job, self.spec = joined, result.plan.job, result.head.spec
        self.head = None if head is None else head.double()
        self.unit = 1.0  # of the label, in which the model computes
        self.thetas = [self._initial(number, block) for number, block in enumerate(result.blocks)]
        self.intercept = torch.zeros(self.spec.outputs, dtype=torch.float64, requires_grad=self.job.model.has_intercept)

    def _initial(self, number: int, block: Any) -> torch.Tensor:
        drawn = np.random.default_rng((SEED, number)).standard_normal(block.theta.shape)
        classes = self.spec.outputs if self.spec.kind == "factor" else 0
        spread = np.full(drawn.shape[1], 0.1 if self.spec.kind == "factor" else 1.0)
        spread[:classes] = 0.0
        return torch.tensor(drawn * spread / np.sqrt(len(block.features)), requires_grad=True)

    def outputs(self, rows: Any) -> list[torch.Tensor]:
        return [x[rows] @ t for x, t in zip(self.joined.features, self.thetas, strict=True)]

    def scores(self, h: list[torch.Tensor]) -> torch.Tensor:
        if self.head is not None:
            out: torch.Tensor = self.head(torch.cat(h, dim=1))
            return out + self.intercept
        c = self.spec.outputs
        score = self.intercept + sum(v[:, :c] for v in h)
        for i, left in enumerate(h):
            for right in h[:i]:
                both = left[:, c:].reshape(len(left), c, -1) * right[:, c:].reshape(len(left), c, -1)
                score = score + both.sum(dim=2)
        return score

    def objective(self, rows: Any) -> torch.Tensor:
        F = torch.nn.functional
        h = self.outputs(rows)
        a, y = self.scores(h), self.joined.labels[rows]
        if self.joined.loss == "squared":
            loss = 0.5 * F.mse_loss(a[:, 0], y)
        elif self.joined.loss == "logistic":
            loss = F.binary_cross_entropy_with_logits(a[:, 0], y)
        else:
            loss = F.cross_entropy(a, y.long())
        own = [] if self.head is None else list(self.head.parameters())
        loss = loss + 0.5 * l2_of(self.job.model.l2, "", "") * sum(p.square().sum() for p in (*self.thetas, *own))
        return loss + 0.5 * (self.spec.shrinkage or 0.0) * sum(v.square().sum(dim=1).mean() for v in h)

    def train(self, optimizer: Any) -> Oracle:
        own = [] if self.head is None else list(self.head.parameters())
        free = [self.intercept] if self.job.model.has_intercept else []
        steps = optimizer([{"params": [*self.thetas, *own]}, {"params": free, "weight_decay": 0.0}])
        for rows in self.joined.batches(self.job.epochs, self.job.batch(len(self.joined.labels)), SEED):
            steps.zero_grad()
            torch.autograd.backward(self.objective(rows))
            steps.step()
        return self

    def agrees(self, result: tp.Result, tolerance: float = 1e-9) -> None:
        for block, theta in zip(result.blocks, self.thetas, strict=True):
            np.testing.assert_allclose(block.theta, theta.detach().numpy(), rtol=0, atol=tolerance)
        intercept = self.unit * self.intercept.detach().numpy()
        np.testing.assert_allclose(result.encoded_intercept, intercept, rtol=0, atol=tolerance)
        if self.head is not None:
            assert result.head is not None
            own = torch.cat([p.detach().reshape(-1) for p in self.head.parameters()]).numpy()
            np.testing.assert_allclose(result.head.own, own, rtol=0, atol=tolerance)
        objective = self.unit**2 * float(self.objective(slice(None)).detach())
        np.testing.assert_allclose(result.objective, objective, rtol=0, atol=tolerance)


class BesideSum(Oracle):
    """A perceptron beside the sum of tables, at defaults: Adam under a cosine schedule, from the best constant."""

    def __init__(self, result: tp.Result, joined: Joined, head: torch.nn.Module) -> None:
        super().__init__(result, joined, head)
        labels, model, self.unit = joined.labels.numpy(), self.job.model, self.spec.unit
        problem = Problem(result.plan.loss, 0.0, joined.rows, (), (), (), epochs=1, batch_size=None, seed=SEED)
        start = best_intercept(problem, [])
        self.intercept = torch.tensor(start / self.unit, requires_grad=model.has_intercept)
        self.l2 = l2_of(model.l2, "", "")
        few = max(500, 5 * sum(len(theta) for theta in self.thetas))
        seen = SUM_BY_ROWS + min(1.0, max(0.25, few / len(labels))) * (model.l2_by_rows - SUM_BY_ROWS)
        by_rows = [SUM_BY_ROWS] * self.spec.outputs + [seen] * (self.spec.widths[0] - self.spec.outputs)
        self.ridge = self.l2 + torch.tensor(by_rows, dtype=torch.float64) / len(labels)

    def _initial(self, number: int, block: Any) -> torch.Tensor:
        theta = super()._initial(number, block).detach()
        theta[:, : self.spec.outputs] = 0.0
        return theta.requires_grad_()

    def scores(self, h: list[torch.Tensor]) -> torch.Tensor:
        assert self.head is not None
        c = self.spec.outputs
        out: torch.Tensor = 0.3 * self.head(torch.cat([v[:, c:] for v in h], dim=1)) + self.intercept
        return out + self.spec.sum_weight * sum(v[:, :c] for v in h)

    def objective(self, rows: Any) -> torch.Tensor:
        assert self.head is not None
        F, a, y = torch.nn.functional, self.unit * self.scores(self.outputs(rows)), self.joined.labels[rows]
        loss = 0.5 * F.mse_loss(a[:, 0], y) if self.joined.loss == "squared" else F.cross_entropy(a, y.long())
        squares = self.l2 * sum(p.square().sum() for p in self.head.parameters())
        return loss / self.unit**2 + 0.5 * (squares + sum((self.ridge * theta.square()).sum() for theta in self.thetas))

    def descend(self, peak: float = 0.02) -> Oracle:
        assert self.head is not None
        adam = torch.optim.Adam([*self.thetas, *self.head.parameters(), self.intercept])
        batches = list(self.joined.batches(self.job.epochs, self.job.batch(len(self.joined.labels)), SEED))
        for step, rows in enumerate(batches):
            adam.param_groups[0]["lr"] = 0.5 * peak * (1.0 + math.cos(math.pi * step / len(batches)))
            adam.zero_grad()
            torch.autograd.backward(self.objective(rows))
            adam.step()
        return self
