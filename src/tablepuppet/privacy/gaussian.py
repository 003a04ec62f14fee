"""Clip and noise: a sum over rows of which no row can move more than C, plus Gaussian noise of σC.

    s_k = min(1, C / (‖Y_k‖ ‖x_k‖), R / ‖x_k‖),   gradient = Xᵀ(s∘Y) + N(0, σ²C²)

A row is a base row. Y_k already sums the contributions of all its joined rows, so that it is clipped once,
whatever its multiplicity. The norm of a linear model's gradient is the product of two norms: no per-row tensor exists.
R bounds how far a row's share moves with its signal. Another table's row, whose prediction lies within ±H, can move the
signal by a bounded amount, and so the sum.

The clip and the step size follow from public quantities:

    t = r √F g                           a base row whose g joined rows in a sample all pull one way, with the slope r
    e = L² F (Σ_t η_t²) (σC / (r D))²    the most that noise adds to the loss, as a share of its start

In, of each block: F (‖x‖² is at most F), g, σ, the number of steps, the divisor D of its sums and the largest stable
rate. In, of the loss: its slope r and curvature L before training, which follow from labels alone. Out: C and η.

A tight clip bends gradients, and the tables of a join then pull against each other; a loose one brings more noise. So C
is as loose as a small share e allows, between t and 3t, and η makes up for the rest. Fewer rows in a table and
more epochs mean smaller steps (docs/decisions/0025).
"""

import math
import secrets
from collections.abc import Sequence

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from tablepuppet.arrays import Array

_GRID_BITS = 30  # of the noise's deviation; rounding a sum of d numbers moves it by less than √d·2⁻³⁰ deviations


class GradientPrivacy(msgspec.Struct, frozen=True, kw_only=True):
    """The clipping and noise of every gradient of a client's part, before anything depends on it."""

    clip: float  # C; 0: gradients are neither clipped nor noised
    noise: float  # σ of a sum, in units of C
    summed_over: int = 1  # parts of a masked sum that each add a share of this noise
    steps: int = 1  # local steps in a row, of algorithms that sample at the clients
    rate: float = 1.0  # Poisson rate of base rows in a local step
    learning_rate: float = 0.0  # of a local step
    reach: float = math.inf  # R: how far a row's share of a sum may move, for each unit of its signal
    prediction_bound: float = 0.0  # H: predictions are clipped to it; 0: they are sent as they are
    prediction_noise: float = 0.0  # standard deviation of the noise on each; 0: they are clipped only
    limit: int = 0  # noisy gradients in all; a client gives no more
    prediction_limit: int = 0  # how often predictions are shown under noise; a client shows them no more often
    batch_rate: float = 1.0  # Poisson rate of joined rows in a batch

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped and noised; otherwise only predictions are."""
        return self.clip > 0

    @property
    def deviation(self) -> float:
        """The deviation of this part's noise: shares are independent, and their squares add up."""
        return self.noise * self.clip / math.sqrt(self.summed_over)

    @property
    def hides_predictions(self) -> bool:
        return self.prediction_noise > 0


def clip_scale(signal: Array, row_norms: Array, clip: float, reach: float = math.inf) -> Array:
    """s: the factor that limits each row's gradient, of norm ‖Y_k‖‖x_k‖, to at most C and R‖Y_k‖."""
    signals = np.sqrt(np.einsum("kc,kc->k", signal, signal))
    norms = signals * row_norms
    most = np.minimum(clip, reach * signals) if math.isfinite(reach) else np.full_like(norms, clip)
    return np.asarray(np.divide(most, norms, out=np.ones_like(norms), where=norms > most))


class SecureGenerator(np.random.Generator):
    """Randomness that nobody can seed or predict: bytes of ChaCha20 under a key from the operating system."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64DXSM(secrets.randbits(256)))  # of samples; noise is made from `bytes`
        self._stream = Cipher(ChaCha20(secrets.token_bytes(32), secrets.token_bytes(16)), mode=None).encryptor()

    def bytes(self, length: int) -> bytes:
        return self._stream.update(bytes(length))


def secure_generator() -> np.random.Generator:
    return SecureGenerator()


def noised(values: Array, deviation: float, generator: np.random.Generator) -> Array:
    """Values plus Gaussian noise, all of it whole multiples of one step.

    Floating-point noise betrays a value by its last digits. Here the value is rounded to a grid and so is the noise.
    Their sum is exact Gaussian noise on a rounded value, rounded to the grid: it has no further digits.
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


_SHARE = 0.01  # of the first loss, that all blocks' noise may cost
_LOOSEST = 3.0  # clip, in units of t


class NoisySteps(msgspec.Struct, frozen=True):
    """One block's noisy descent; its rate falls to zero linearly, so that Σ_t η_t² is a third of steps · η²."""

    features: float  # F
    rows: float  # g
    noise: float  # σ
    steps: int
    divisor: float  # D
    rate: float  # the largest stable η
    momentum: float = 0.0

    def cost(self, clip: float, slope: float, curvature: float) -> float:
        """e."""
        deviation = self.noise * clip / (slope * self.divisor)
        length = self.rate / (1.0 - self.momentum)
        return float(curvature**2 * self.features * self.steps / 3.0 * (length * deviation) ** 2)

    def typical(self, slope: float) -> float:
        """t."""
        return slope * math.sqrt(self.features) * self.rows

    def clip(self, slope: float, curvature: float, share: float) -> float:
        """C."""
        typical = self.typical(slope)
        affordable = math.sqrt(share / self.cost(1.0, slope, curvature))
        return min(max(affordable, typical), _LOOSEST * typical)


def tuned(
    blocks: Sequence[NoisySteps], slope: float, curvature: float, clips: Sequence[float] | None
) -> list[tuple[float, float]]:
    """C and η of every block, each within its part of the share; clips that are given stay.

    >>> steps = NoisySteps(features=2.0, rows=1.0, noise=1.0, steps=100, divisor=1e6, rate=0.1)
    >>> [(round(c, 3), rate) for c, rate in tuned([steps], 1.0, 1.0, None)]
    [(4.243, 0.1)]
    """
    share = _SHARE / max(1, len(blocks))
    found = []
    for number, block in enumerate(blocks):
        chosen = block.clip(slope, curvature, share) if clips is None else clips[number]
        cost = block.cost(chosen, slope, curvature)
        found.append((chosen, block.rate * min(1.0, math.sqrt(share / cost))))
    return found
