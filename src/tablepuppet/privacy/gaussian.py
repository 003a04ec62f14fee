"""Clip and noise: a sum over rows of which no row can move more than C, plus Gaussian noise of σC.

    s_k = min(1, C / (‖Y_k‖ ‖x_k‖)),   gradient = Xᵀ(s∘Y) + N(0, σ²C²)

A row is a base row: what it sends through all its joined rows is already summed in Y_k, so that it is clipped once,
whatever its multiplicity. The norm of a linear model's gradient is the product of two norms: no per-row tensor exists.
"""

from __future__ import annotations

import secrets

import msgspec
import numpy as np

from tablepuppet.arrays import Array


class GradientPrivacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a client does to every gradient of its part before anything depends on it."""

    clip: float  # C; 0: gradients are neither clipped nor noised
    noise: float  # σ, in units of C
    steps: int = 1  # local steps in a row, of algorithms that sample at the clients
    rate: float = 1.0  # Poisson rate of base rows in a local step
    learning_rate: float = 0.0  # of a local step
    prediction_bound: float = 0.0  # H: predictions are clipped to it; 0: they are sent as they are
    prediction_noise: float = 0.0  # standard deviation of what is added to each
    limit: int = 0  # noisy gradients in all; a client gives no more
    prediction_limit: int = 0  # how often predictions are shown under noise; a client shows them no more often
    batch_rate: float = 1.0  # Poisson rate of joined rows in a batch

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped and noised; otherwise only predictions are."""
        return self.clip > 0


def clip_scale(signal: Array, row_norms: Array, clip: float) -> Array:
    """s: what brings each row's gradient, of norm ‖Y_k‖‖x_k‖, to at most C."""
    norms = np.sqrt(np.einsum("kc,kc->k", signal, signal)) * row_norms
    return np.asarray(clip / np.maximum(norms, clip))


def secure_generator() -> np.random.Generator:
    """A generator that nobody can seed: 256 bits of the operating system's."""
    return np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256)))


def gaussian(shape: tuple[int, ...], deviation: float, generator: np.random.Generator) -> Array:
    """Independent normal numbers."""
    return generator.normal(0.0, deviation, shape)


def bounded(predictions: Array, privacy: GradientPrivacy, generator: np.random.Generator) -> Array:
    """Predictions as the server may see them: each row within H, and under noise."""
    if privacy.prediction_bound <= 0:
        return predictions
    norms = np.sqrt(np.einsum("kc,kc->k", predictions, predictions))
    within = predictions * (privacy.prediction_bound / np.maximum(norms, privacy.prediction_bound))[:, None]
    return np.asarray(within + gaussian(within.shape, privacy.prediction_noise, generator))
