"""Clip and noise: a sum over rows of which no row can move more than C, plus Gaussian noise of σC.

    s_k = min(1, C / (‖Y_k‖ ‖x_k‖)),   gradient = Xᵀ(s∘Y) + N(0, σ²C²)

A row is a base row: what it sends through all its joined rows is already summed in Y_k, so that it is clipped once,
whatever its multiplicity. The norm of a linear model's gradient is the product of two norms: no per-row tensor exists.
"""

from __future__ import annotations

import math
import secrets

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from tablepuppet.arrays import Array

_GRID_BITS = 30  # of the noise's deviation; rounding a sum of d numbers moves it by less than √d·2⁻³⁰ deviations


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


class SecureGenerator(np.random.Generator):
    """Chance that nobody can seed or foretell: bytes of ChaCha20 under a key of the operating system's."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64DXSM(secrets.randbits(256)))  # of samples; noise is made from `bytes`
        self._stream = Cipher(ChaCha20(secrets.token_bytes(32), secrets.token_bytes(16)), mode=None).encryptor()

    def bytes(self, length: int) -> bytes:
        return self._stream.update(bytes(length))


def secure_generator() -> np.random.Generator:
    """A generator that nobody can seed."""
    return SecureGenerator()


def noised(values: Array, deviation: float, generator: np.random.Generator) -> Array:
    """Values plus Gaussian noise, all of it whole multiples of one step.

    Floating-point noise betrays a value by its last digits. Here the value is rounded to a grid and so is the noise:
    their sum is what rounding makes of exact Gaussian noise on a rounded value, and has no further digits.
    """
    if deviation <= 0:
        return values
    grid = 2.0 ** (math.floor(math.log2(deviation)) - _GRID_BITS)
    drawn = normal(values.size, generator).reshape(values.shape)
    return np.asarray((np.rint(values / grid) + np.rint(drawn * (deviation / grid))) * grid)


def normal(count: int, generator: np.random.Generator) -> Array:
    """Standard normal numbers from 64 random bits each, by the inverse of their distribution."""
    from scipy.special import ndtri

    bits = np.frombuffer(generator.bytes(8 * count), np.uint64)
    return np.asarray(ndtri(((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53))


def bounded(predictions: Array, privacy: GradientPrivacy, generator: np.random.Generator) -> Array:
    """Predictions as the server may see them: each row within H, and under noise."""
    if privacy.prediction_bound <= 0:
        return predictions
    norms = np.sqrt(np.einsum("kc,kc->k", predictions, predictions))
    within = predictions * (privacy.prediction_bound / np.maximum(norms, privacy.prediction_bound))[:, None]
    return noised(within, privacy.prediction_noise, generator)
