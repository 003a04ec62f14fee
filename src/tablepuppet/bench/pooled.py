"""What a user would do instead: pool the tables, materialise the join, fit scikit-learn or torch.

In: a case. Out: Figures, with the time and the memory of the materialised join in them. Encoding is
that of docs/algorithms.md (numbers standardised, strings one-hot), so that objectives compare.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.bench.cases import Case
from tablepuppet.bench.figures import L2, Figures, copy_seconds, peak
from tablepuppet.errors import JobError
from tablepuppet.tables.duck import silence

Fit = Callable[[Array, Array, str], tuple[Array, float]]


def pooled(case: Case, name: str, model: str) -> Figures:
    """Materialises and fits; an "epoch" is the whole fit."""
    fit = FITS[name]
    began, cpu = time.perf_counter(), time.process_time()
    features, labels = _materialise(case)
    materialised = time.perf_counter() - began
    theta, intercept = fit(features, labels, model)
    total, cpu = time.perf_counter() - began, time.process_time() - cpu
    highest = peak()
    scores = features @ theta + intercept
    loss = 0.5 * (scores - labels) ** 2 if model == "linear" else np.logaddexp(0.0, scores) - labels * scores
    return Figures(
        case=case.name,
        algorithm=name,
        joined_rows=len(labels),
        mapping=materialised,
        epoch=total - materialised,
        server=total - materialised,
        clients=0.0,
        cpu=cpu,
        total=total,
        epochs=1,
        objective=float(loss.mean()) + 0.5 * L2 * float(theta @ theta),
        bytes=0,
        peak=highest,
        limit=copy_seconds(features.nbytes),
    )


def _materialise(case: Case) -> tuple[Array, Array]:
    """The encoded features of the joined rows, and their labels."""
    import pandas as pd

    with duckdb.connect(":memory:") as connection:
        silence(connection)
        for name, table in case.tables.items():
            if isinstance(table, Path):
                connection.read_parquet(str(table)).create_view(name)
            else:
                connection.register(name, table)
        joined = connection.sql(case.query).df()
    labels = joined.pop(case.label).to_numpy(np.float64)
    numbers = joined.select_dtypes("number").to_numpy(np.float64, copy=True)
    strings = joined.select_dtypes(exclude="number").fillna("")  # missing is a category of its own
    one_hot = [pd.get_dummies(strings).to_numpy(np.float64)] if strings.shape[1] else []
    numbers -= np.nanmean(numbers, axis=0)
    missing = np.isnan(numbers)
    numbers[missing] = 0.0
    numbers /= np.maximum(numbers.std(axis=0), 1e-300)
    indicators = missing[:, missing.any(axis=0)]
    return np.hstack([numbers, indicators, *one_hot]), labels


def _scikit_learn(solver: str) -> Fit:
    def fit(features: Array, labels: Array, model: str) -> tuple[Array, float]:
        try:
            from sklearn.linear_model import LogisticRegression, Ridge
        except ImportError:
            raise JobError("this baseline needs scikit-learn: pip install scikit-learn, or leave it out") from None
        strength = L2 * len(labels)
        fitted: Any = (
            Ridge(alpha=strength).fit(features, labels)
            if model == "linear"
            else LogisticRegression(C=1.0 / strength, max_iter=1000, tol=1e-6, solver=solver).fit(features, labels)
        )
        return np.ravel(fitted.coef_), float(np.ravel(fitted.intercept_)[0])

    return fit


def _torch(features: Array, labels: Array, model: str) -> tuple[Array, float]:
    """Full-batch L-BFGS with a line search."""
    try:
        import torch
    except ImportError:
        raise JobError('this baseline needs torch: pip install "tablepuppet[torch]", or leave it out') from None
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    theta = torch.zeros(x.shape[1], dtype=x.dtype, requires_grad=True)
    intercept = torch.zeros(1, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [theta, intercept],
        max_iter=1000,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def objective() -> torch.Tensor:
        optimizer.zero_grad()
        scores = x @ theta + intercept
        if model == "linear":
            loss = 0.5 * ((scores - y) ** 2).mean()
        else:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, y)
        value: torch.Tensor = loss + 0.5 * L2 * theta.dot(theta)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(objective)  # type: ignore[no-untyped-call]
    return theta.detach().numpy(), float(intercept.detach()[0])


FITS: dict[str, Fit] = {
    "sklearn": _scikit_learn("lbfgs"),
    "sklearn-newton": _scikit_learn("newton-cholesky"),
    "torch": _torch,
}
