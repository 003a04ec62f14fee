"""The centralised answers that exactness tests compare with: plain NumPy on the pooled join."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def gradient_descent(
    x: Array, y: Array, model: str, *, steps: int, rate: float, l2: float, momentum: float = 0.0
) -> tuple[Array, Array, float]:
    """θ, intercept and F after full-batch steps from zero; the intercept is not penalised."""
    outputs = 1 if model != "softmax" else int(y.max()) + 1
    theta, intercept = np.zeros((x.shape[1], outputs)), np.zeros(outputs)
    memory = [np.zeros_like(theta), np.zeros_like(intercept)]
    for _ in range(steps):
        residual = _residual(x @ theta + intercept, y, model) / len(y)
        memory = [
            momentum * memory[0] + x.T @ residual + l2 * theta,
            momentum * memory[1] + residual.sum(axis=0),
        ]
        theta, intercept = theta - rate * memory[0], intercept - rate * memory[1]
    return theta, intercept, objective(x, y, model, theta, intercept, l2)


def objective(x: Array, y: Array, model: str, theta: Array, intercept: Array, l2: float) -> float:
    """F of docs/algorithms.md."""
    a = x @ theta + intercept
    if model == "linear":
        losses = 0.5 * (a[:, 0] - y) ** 2
    elif model == "logistic":
        losses = np.logaddexp(0.0, a[:, 0]) - y * a[:, 0]
    else:
        top = a.max(axis=1, keepdims=True)
        losses = (top[:, 0] + np.log(np.exp(a - top).sum(axis=1))) - a[np.arange(len(y)), y.astype(int)]
    return float(losses.mean() + 0.5 * l2 * (theta**2).sum())


def _residual(a: Array, y: Array, model: str) -> Array:
    if model == "linear":
        return a - y[:, None]
    if model == "logistic":
        return 1.0 / (1.0 + np.exp(-a)) - y[:, None]
    p = np.exp(a - a.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y.astype(int)] -= 1.0
    return np.asarray(p)
