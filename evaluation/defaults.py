"""Defaults of sgd beside the same networks, tuned: test R² (or accuracy) on tables of different sizes and labels.

    python -m evaluation.defaults [--data FOLDER]

Each table is cut into two owners' by columns. The reference is torch on the pooled columns, the sum of one network per
owner, over a grid of learning rates and epochs, each judged by the test rows: a little flattered.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from sklearn import datasets

import tablepuppet as tp
from tablepuppet.arrays import Array

GRID = tuple(product((0.003, 0.01, 0.03), (10, 30)))  # learning rate, epochs
BATCHES = 40  # an epoch
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Case:
    """Numeric columns, cut into two owners' at half of them, and a label."""

    name: str
    features: Array
    label: Any
    is_class: bool = False


def generated() -> Iterator[Case]:
    """From scikit-learn, in awkward units."""
    x, y = datasets.load_diabetes(return_X_y=True)
    yield Case("diabetes", x, y)
    x, y = datasets.make_friedman1(600, noise=1.0, random_state=1)
    yield Case("Friedman 1, in millions", x, 1e6 * y)
    x, y = datasets.make_friedman1(20_000, noise=1.0, random_state=2)
    yield Case("Friedman 1, in thousandths, far from 0", x, 1e-3 * (y + 1000.0))
    random = np.random.default_rng(0)
    x = random.normal(size=(5000, 8))
    yield Case("log-normal label", x, np.exp(x[:, 0] + 0.5 * x[:, 1] + 0.3 * random.normal(size=5000)))
    codes = random.integers(0, 60, (3000, 3))
    effects = random.normal(size=(3, 60))
    hot = np.concatenate([np.eye(60)[codes[:, j]] for j in range(3)], axis=1)
    yield Case(
        "180 one-hot columns", hot, sum(effects[j][codes[:, j]] for j in range(3)) + 0.5 * random.normal(size=3000)
    )
    x, y = datasets.load_breast_cancer(return_X_y=True)
    yield Case("breast cancer", x, y, is_class=True)
    x, y = datasets.load_digits(return_X_y=True)
    yield Case("digits, 10 classes", x, y, is_class=True)


def walmart(data: Path) -> Case:
    """Weekly sales in dollars, of a tenth of the weeks."""
    table = (
        duckdb.connect()
        .execute(f"""
        SELECT t.Dept, f.Temperature, f.Fuel_Price, TRY_CAST(f.CPI AS DOUBLE) AS cpi, s."Size" AS size, t.Weekly_Sales
        FROM '{data}/walmart/train.parquet' t JOIN '{data}/walmart/features.parquet' f USING (Store, Date)
        JOIN '{data}/walmart/stores.parquet' s USING (Store) WHERE hash(t.Store, t.Date) % 10 = 0 ORDER BY ALL
    """)
        .fetchnumpy()
    )
    columns = [np.ma.filled(np.ma.asarray(v).astype(float), np.nan) for v in table.values()]
    x = np.stack(columns[:-1], axis=1)
    return Case("Walmart, in dollars", np.where(np.isnan(x), np.nanmean(x, axis=0), x), columns[-1])


def federated(case: Case, model: str) -> tuple[tp.Result, Mask, Mask]:
    """A run at its defaults, and which rows were trained on and tested."""
    n, d = case.features.shape
    test = np.asarray(np.random.default_rng(7).random(n) < 0.2)
    label = [f"c{k}" for k in case.label] if case.is_class else case.label
    left = {"id": np.arange(n), "y": label, "is_test": test} | {f"x{j}": case.features[:, j] for j in range(d // 2)}
    right = {"id": np.arange(n)} | {f"x{j}": case.features[:, j] for j in range(d // 2, d)}
    names = [f"l.x{j}" for j in range(d // 2)] + [f"r.x{j}" for j in range(d // 2, d)]
    query = f"SELECT l.y, {', '.join(names)} FROM l JOIN r ON l.id = r.id"
    with tp.Federation({"l": pa.table(left), "r": pa.table(right)}) as owners:
        result = owners.train(query, label="y", model=model, algorithm="sgd", test_where="is_test")
    return result, ~test, test


def tuned(case: Case, train: Mask, test: Mask) -> float:
    """The best of the grid."""
    x = (case.features - case.features[train].mean(axis=0)) / np.maximum(case.features[train].std(axis=0), 1e-9)
    y = np.asarray(case.label, dtype=np.float64)
    if not case.is_class:
        y = (y - y[train].mean()) / y[train].std()
    inputs = torch.tensor(x, dtype=torch.float32)
    target = torch.tensor(y, dtype=torch.int64 if case.is_class else torch.float32)
    return max(_fitted(inputs, target, train, test, *setting, is_class=case.is_class) for setting in GRID)


def _fitted(x: Any, y: Any, train: Mask, test: Mask, rate: float, epochs: int, *, is_class: bool) -> float:
    torch.manual_seed(0)
    cut, outputs = x.shape[1] // 2, int(y.max()) + 1 if is_class else 1
    parts = [
        torch.nn.Sequential(torch.nn.Linear(w, 16), torch.nn.ReLU(), torch.nn.Linear(16, outputs))
        for w in (cut, x.shape[1] - cut)
    ]
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=rate)
    rows = torch.tensor(np.flatnonzero(train))
    size = max(16, math.ceil(len(rows) / BATCHES))
    steps = epochs * math.ceil(len(rows) / size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss = torch.nn.functional.cross_entropy if is_class else lambda a, b: 0.5 * ((a[:, 0] - b) ** 2).mean()
    for _ in range(epochs):
        for batch in torch.split(rows[torch.randperm(len(rows))], size):
            optimizer.zero_grad()
            value = loss(parts[0](x[batch, :cut]) + parts[1](x[batch, cut:]), y[batch])
            (value + 5e-5 * sum((p * p).sum() for p in parameters)).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        scores = (parts[0](x[:, :cut]) + parts[1](x[:, cut:]))[test]
    if is_class:
        return float((scores.argmax(1) == y[test]).float().mean())
    return 1.0 - float(((scores[:, 0] - y[test]) ** 2).sum() / ((y[test] - y[test].mean()) ** 2).sum())


def figures(case: Case) -> tuple[float, float, float]:
    """Test R² or accuracy: of the network at its defaults, of the network tuned, of a linear model at its defaults."""
    name = "accuracy" if case.is_class else "r2"
    network, train, test = federated(case, "mlp")
    linear, _, _ = federated(case, "auto")
    return network.metrics["test"][name], tuned(case, train, test), linear.metrics["test"][name]


def main() -> None:
    """Prints one line per table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the original data, for the real tables")
    given = parser.parse_args()
    print("| table | rows | mlp at its defaults | tuned | linear sgd at its defaults |\n|---|---:|---:|---:|---:|")
    for case in [*generated(), *([] if given.data is None else [walmart(given.data)])]:
        found = figures(case)
        print(f"| {case.name} | {len(case.label):,} | " + " | ".join(f"{v:.3f}" for v in found) + " |", flush=True)


if __name__ == "__main__":
    main()
