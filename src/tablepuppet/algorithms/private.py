"""Gradients under differential privacy.

In: a part's model, a signal per base row, and its owner's clip and noise (privacy/gaussian.py). Out: a sum over base
rows, each clipped once whatever its multiplicity, plus noise. Penalties are added after the noise, and sums are divided
by the mean size of a sample, a constant: neither depends on any row.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import PrivacyError
from tablepuppet.models.neural import Model
from tablepuppet.privacy.gaussian import GradientPrivacy, bounded, noised


class PrivateGradient(msgspec.Struct, eq=False):
    """The guard of a part's rows: everything that depends on them passes it; it counts, and stops at the limit."""

    privacy: GradientPrivacy
    generator: np.random.Generator
    taken: int = 0  # noisy gradients so far
    showings: int = 0  # of noisy predictions

    def gradient(
        self, model: Model, theta: Array, signal: Array, rows: RowNumbers | None, draw: int | None = None
    ) -> Array:
        """Σ_k clip((∂h_k/∂θ)ᵀ Y_k) + N(0, σ²C²)."""
        if not self.privacy.clips:
            return model.gradient(theta, signal, rows, draw)
        self.taken += 1
        if self.taken > self.privacy.limit:
            raise _past("gradients", self.privacy.limit)
        total = model.clipped_gradient(theta, signal, self.privacy.clip, rows, draw, self.privacy.reach)
        noisy = noised(total.astype(np.float64), self.privacy.deviation, self.generator)
        if self.is_shared:  # exactly on the grid of all parts' noise
            return noisy
        return noisy.astype(total.dtype, copy=False)  # a network's numbers may be of 32 bits

    @property
    def is_shared(self) -> bool:
        """Whether the noise of one part alone is not enough: only the masked sum may be seen."""
        return self.privacy.summed_over > 1

    @property
    def remaining(self) -> float:
        """The share of all noisy gradients that is still to come, the latest included."""
        return 1.0 - (self.taken - 1) / self.privacy.limit

    @property
    def counts(self) -> tuple[int, int]:
        """The counts that a checkpoint keeps."""
        return self.taken, self.showings

    @counts.setter
    def counts(self, counts: tuple[int, int]) -> None:
        self.taken, self.showings = counts

    def disclose(self, predictions: Array) -> Array:
        """Predictions as the server may see them."""
        self.showings += self.privacy.hides_predictions
        if self.showings > self.privacy.prediction_limit and self.privacy.hides_predictions:
            raise _past("predictions", self.privacy.prediction_limit)
        return bounded(predictions, self.privacy, self.generator)

    def sample(self, rows: int) -> NDArray[np.int64]:
        """A Poisson sample of base rows, which nobody but this client knows."""
        size = int(self.generator.binomial(rows, self.privacy.rate))
        return np.sort(self.generator.choice(rows, size, replace=False, shuffle=False))


def _past(what: str, limit: int) -> PrivacyError:
    return PrivacyError(f"the job's ε covers {limit:,} noisy {what}, and one more was asked for; nothing is sent")
