"""The θ-step of a neural model: a few epochs of a first-order method on the client's own rows.

    min_θ  (1/N) Σ_k [Y_kᵀ f(θ) + ½ Mρ G_k ‖f(θ)‖²] + ½ pull ‖θ − anchor‖²

The anchor is 0 with pull β (the penalty), or w − u_q with pull ρ_u in a consensus round. Rows pass in
batches of the client's own choice, which nobody else learns; the optimiser's memory lives on from
one call to the next.
"""

from __future__ import annotations

import numpy as np

from tablepuppet.algorithms.base import PartSetup
from tablepuppet.algorithms.numerics.optimizers import Moments, descend
from tablepuppet.algorithms.options import Admm, Sgd
from tablepuppet.arrays import Array
from tablepuppet.models.neural import NeuralModel

_BATCHES = 64  # an epoch, where the user did not choose their size
_STEPS = 32  # an outer round has at least
_BATCH = (64, 4096)


def solve(
    setup: PartSetup,
    options: Admm,
    theta: Array,
    moments: Moments,
    signal: Array,
    factor: float,
    *,
    learning_rate: float,
    pull: float,
    anchor: Array,
) -> tuple[Array, Moments]:
    """θ after some epochs, starting where it stands."""
    model, rows = setup.model, len(setup.multiplicity)
    assert isinstance(model, NeuralModel)
    size = options.local_batch_size or min(max(rows // _BATCHES, _BATCH[0]), _BATCH[1])
    descent = Sgd(optimizer=options.local_optimizer)
    quadratic = factor * setup.multiplicity
    for _ in range(options.local_epochs or _epochs(setup, options, -(-rows // size))):
        order = np.random.default_rng((setup.seed, moments.step)).permutation(rows)
        for start in range(0, rows, size):
            batch = order[start : start + size]
            slope = model.slope(theta, signal[batch], quadratic[batch], batch, moments.step)
            slope *= rows / (len(batch) * setup.joined_rows)
            slope += pull * (theta - anchor)
            theta, moments = descend(theta, slope, moments, learning_rate, descent, setup.unit)
    return theta, moments


def _epochs(setup: PartSetup, options: Admm, batches: int) -> int:
    """Two epochs in an outer round, more for a small table; the inner rounds of a consensus share them."""
    shared = options.inner_rounds if setup.clients > 1 else 1
    return max(1, -(-max(_STEPS, 2 * batches) // (batches * shared)))
