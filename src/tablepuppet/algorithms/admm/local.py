"""ADMM's θ-step by a first-order method on the client's own rows: of a neural model, and of any model under privacy.

    min_θ  (1/N) Σ_k [Y_kᵀ f(θ) + ½ Mρ G_k ‖f(θ)‖²] + ½ pull ‖θ − anchor‖²

Rows pass in batches of the client's own choice, which nobody else learns; the optimiser's memory lives on from one call
to the next. Under feature privacy the gradients of samples are clipped and noised (`LocalStep`), as many as the ledger
counts; the penalty is added after the noise.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tablepuppet.algorithms.admm.options import Admm
from tablepuppet.algorithms.base import PartSetup
from tablepuppet.algorithms.numerics.optimizers import Moments, Optimizer, Rule, descend
from tablepuppet.algorithms.private import PrivateGradient
from tablepuppet.arrays import Array
from tablepuppet.models.modules import one_torch_thread
from tablepuppet.models.neural import Model, NeuralModel

_BATCHES = 64  # an epoch, where the user did not choose their size
_STEPS = 32  # an outer round has at least
_BATCH = (64, 4096)


def local_epochs(rows: int, clients: int, options: Admm) -> tuple[int, int]:
    """The rows of a batch, and the epochs of a call: two in an outer round, more for a small table; the inner rounds of
    a consensus share them."""
    size = options.local_batch_size or min(max(rows // _BATCHES, _BATCH[0]), _BATCH[1])
    batches, shared = -(-rows // size), options.inner_rounds if clients > 1 else 1
    usual = max(1, -(-max(_STEPS, 2 * batches) // (max(1, batches) * shared)))
    return size, options.local_epochs or usual


class BatchStep(msgspec.Struct, frozen=True, eq=False):
    """The step of a network, by batches of all rows."""

    setup: PartSetup
    options: Admm
    signal: Array  # Y
    quadratic: Array  # q = MρG
    pull: float
    anchor: Array

    def solve(self, theta: Array, moments: Moments, learning_rate: float) -> tuple[Array, Moments]:
        """θ after some epochs, starting where it stands."""
        setup, rows = self.setup, len(self.signal)
        assert isinstance(setup.model, NeuralModel)
        size, epochs = local_epochs(rows, setup.clients, self.options)
        rule = Rule(self.options.local_optimizer)
        with one_torch_thread():
            for _ in range(epochs):
                order = np.random.default_rng((setup.seed, moments.step)).permutation(rows)
                signals, squares = self.signal[order], self.quadratic[order]  # at once: a batch has few rows
                for start in range(0, rows, size):
                    here = slice(start, start + size)
                    batch = order[here]
                    slope = setup.model.slope(theta, signals[here], squares[here], batch, moments.step)
                    slope *= rows / (len(batch) * setup.joined_rows)
                    slope += self.pull * (theta - self.anchor)
                    theta, moments = descend(theta, slope, moments, learning_rate, rule, setup.unit)
        return theta, moments


class LocalStep(msgspec.Struct, frozen=True, eq=False):
    """argmin_θ (1/N) Σ_k [Y_kᵀ h_k + ½ q_k ‖h_k‖²] + ½ β ‖θ‖², approached by noisy gradients.

    If a block has several clients, each takes a few steps from the agreed θ, on its own rows' mean loss. The next
    agreed θ is the mean of their results, weighted by each part's share of the joined rows. There is no dual variable:
    it would sum up the noise of all rounds.
    """

    model: Model
    private: PrivateGradient
    signal: Array  # Y
    quadratic: Array  # q = MρG
    joined_rows: float  # N, or the part's share of it
    l2: float
    unit: float = 1.0  # of the label

    def solve(
        self, theta: Array, moments: Moments, learning_rate: float, optimizer: Optimizer, *, fades: bool = False
    ) -> tuple[Array, Moments]:
        """θ after the client's local steps; the optimiser only processes noisy gradients, which costs no privacy.

        `fades`: the learning rate falls to 0 with the noisy gradients that are left of the run's.
        """
        if not self.joined_rows:
            return theta, moments  # no row of the part is trained on
        privacy, rule = self.private.privacy, Rule(optimizer)
        for _ in range(privacy.steps):
            rows = self.private.sample(len(self.signal))
            h = self.model.predict(theta, rows, moments.step)
            slope = self.signal[rows] + self.quadratic[rows, None] * h
            total = self.private.gradient(self.model, theta, slope, rows, moments.step)
            gradient = total / (privacy.rate * self.joined_rows) + self.l2 * theta
            rate = learning_rate * self.private.remaining if fades else learning_rate
            theta, moments = descend(theta, gradient, moments, rate, rule, self.unit)
        return theta, moments
