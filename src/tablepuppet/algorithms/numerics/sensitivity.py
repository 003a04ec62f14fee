"""How strongly a block's predictions depend on its parameters, for models without a Gram matrix."""

from __future__ import annotations

import numpy as np

from tablepuppet.algorithms.base import PartSetup


def sensitivity(setup: PartSetup) -> float:
    """An estimate of (1/N) Σ_k w_k ‖∂h_k/∂θ‖², the trace of the block's Gauss–Newton matrix.

    With random signs ε, E‖Σ_k ε_k √w_k ∂h_k/∂θ‖² is just that sum (Hutchinson's estimator): one
    back-propagation instead of one per row.
    """
    theta = setup.model.initial()
    rows = len(setup.weights)
    total = 0.0
    for output in range(setup.outputs):
        signs = np.random.default_rng((setup.seed, output)).choice([-1.0, 1.0], rows)
        signal = np.zeros((rows, setup.outputs))
        signal[:, output] = signs * np.sqrt(setup.weights)
        gradient = setup.model.gradient(theta, signal)
        total += float(np.vdot(gradient, gradient))
    return total / setup.outputs / setup.joined_rows
