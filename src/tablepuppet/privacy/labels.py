"""Label mechanisms: how an owner randomises its labels before they leave, and how the server removes the bias.

In: class numbers or numbers, and uniform numbers that follow from the owner's secret. A row's noise is therefore drawn
once, however often and by whomever it is asked for. Out: noisy labels, and the `Channel` that made them. All
mechanisms on classes are k-ary randomised response, with probability p of the truth and q of each other class.
"""

import hmac
import math
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.options import LabelPrivacy

RowIds = NDArray[np.uint64]  # (rows, 2): a row's identity at its owner, whoever asks in which order
_GRID_BITS = 30


class Channel(msgspec.Struct, frozen=True):
    """The noise on labels: randomised response on classes (or bins, at `points`), or noise on numbers."""

    truth: float  # p
    other: float  # q
    points: tuple[float, ...] = ()  # of bins; none: classes
    scale: float = 0.0  # of Laplace noise on numbers

    @property
    def is_additive(self) -> bool:
        return self.scale > 0

    def unbiased(self, labels: Array) -> Array:
        """Unbiased estimates of the truth: of two classes (0, 1), or of bins."""
        if self.is_additive:
            return labels
        points = np.asarray(self.points or (0.0, 1.0))
        return np.asarray((points[labels.astype(np.intp)] - self.other * points.sum()) / (self.truth - self.other))

    def unbiased_square(self, unbiased: Array) -> Array:
        """Unbiased estimates of the truth's square, from the output of `unbiased`."""
        if self.is_additive:
            return np.asarray(unbiased * unbiased - 2.0 * self.scale**2)
        points = np.asarray(self.points or (0.0, 1.0))
        seen = unbiased * (self.truth - self.other) + self.other * points.sum()
        return np.asarray((seen * seen - self.other * (points * points).sum()) / (self.truth - self.other))

    def targets(self, classes: int) -> Array:
        """ỹ = (onehot − q)/(p − q), a row for each class that may be seen."""
        return np.asarray((np.eye(classes) - self.other) / (self.truth - self.other))

    def accuracy(self, agreement: float) -> float:
        return min(max((agreement - self.other) / (self.truth - self.other), 0.0), 1.0)

    def auc(self, area: float, positives: float) -> float:
        """The area under the curve on true labels, from that on noisy ones and the share of noisy positives.

        Menon et al. (2015): noise in both classes shrinks the area towards ½ by 1 − P(0|noisy 1) − P(1|noisy 0).
        """
        share = min(max((positives - self.other) / (self.truth - self.other), 0.0), 1.0)
        if not 0.0 < positives < 1.0:
            return area
        shrink = 1.0 - (1.0 - share) * self.other / positives - share * self.other / (1.0 - positives)
        return min(max(0.5 + (area - 0.5) / shrink, 0.0), 1.0) if shrink > 0 else area


def channel_of(privacy: LabelPrivacy, classes: int | None) -> Channel:
    """The channel of a mechanism on so many classes, or (None) on numbers."""
    if classes is None:
        if privacy.bounds is None:
            raise PrivacyError(
                "a label that is a number needs public bounds to be made private: privacy = "
                '{"label": {"epsilon": …, "bounds": [low, high]}}, known without looking at the data. Are its numbers '
                'classes? Then say so: model="logistic" or model="softmax"'
            )
        low, high = privacy.bounds
        if privacy.mechanism == "laplace":
            return Channel(1.0, 0.0, scale=(high - low) / privacy.epsilon)
        points = tuple(np.linspace(low, high, privacy.bins).tolist())
        return Channel(*_response(privacy.epsilon, privacy.bins), points)
    if privacy.mechanism == "laplace":
        truth = argmax_truth(privacy.epsilon, classes)
        return Channel(truth, (1.0 - truth) / (classes - 1))
    return Channel(*_response(privacy.epsilon, classes))


def privatise(values: Array, privacy: LabelPrivacy, classes: int | None, uniform: Array) -> Array:
    """Noisy class numbers, bin numbers or numbers. `uniform`: (rows, 3) in [0, 1).

    A row without a label (NaN) leaves with one, too: of any class alike, or as the middle of the bounds. A missing
    label is as private as any other: NULLIF(y, 1) would reveal every 1.
    """
    channel = channel_of(privacy, classes)
    missing = np.isnan(values)
    if privacy.bounds is not None and classes is None:
        low, high = privacy.bounds
        values = np.where(missing, 0.5 * (low + high), values)
    if channel.is_additive:
        centred = uniform[:, 0] - 0.5
        noise = -channel.scale * np.sign(centred) * np.log1p(-2.0 * np.abs(centred))
        grid = 2.0 ** (math.floor(math.log2(channel.scale)) - _GRID_BITS)  # no digits below it that reveal the label
        return np.asarray((np.rint(np.clip(values, low, high) / grid) + np.rint(noise / grid)) * grid)
    if channel.points:
        size = len(channel.points)
        low, high = channel.points[0], channel.points[-1]
        place = (np.clip(values, low, high) - low) / (high - low) * (size - 1)
        down = np.minimum(np.floor(place), size - 2)
        codes = down + (uniform[:, 2] < place - down)  # to either neighbour, so that the mean is the number
    else:
        size = classes or 0
        codes = np.where(missing, np.minimum(np.floor(uniform[:, 2] * size), size - 1), values)
    keeps = uniform[:, 0] < channel.truth - channel.other
    drawn = np.minimum(np.floor(uniform[:, 1] * size), size - 1)
    return np.where(keeps, codes, drawn)


def uniform_numbers(secret: bytes, release: str, rows: RowIds, labels: Array) -> Array:
    """(rows, 3) uniform numbers: a pseudo-random function of the owner's secret, the mechanism, the row and its label.

    The same row with the same label gets the same draw under any filter, in any branch and in any job. A label that
    changes gets another draw; no other row does. The function is keyed BLAKE2b (RFC 7693; Aumasson et al., ACNS
    2013), whose 24 bytes are three numbers.
    """
    key = hmac.digest(secret, b"tablepuppet label noise " + release.encode(), "sha256")
    named = np.column_stack([rows, np.ascontiguousarray(labels, np.float64).view(np.uint64)]).astype("<u8").tobytes()
    size = 3 * 8
    hashed = [blake2b(named[at : at + size], digest_size=size, key=key).digest() for at in range(0, len(named), size)]
    bits = np.frombuffer(b"".join(hashed), "<u8").reshape(-1, 3)
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def argmax_truth(epsilon: float, classes: int) -> float:
    """P(argmax is the true class) of a one-hot vector under Laplace noise of scale 2/ε, the paper's mechanism.

    >>> round(argmax_truth(4 / 2**0.5 / 0.5, 2), 3), round(argmax_truth(4 / 2**0.5 / 0.5, 5), 2)
    (0.929, 0.81)
    """
    from scipy.integrate import quad

    rate = 0.5 * epsilon

    def below(x: float) -> float:
        return 0.5 * math.exp(rate * x) if x < 0 else 1.0 - 0.5 * math.exp(-rate * x)

    def winning(x: float) -> float:
        return float(0.5 * rate * math.exp(-rate * abs(x - 1.0)) * below(x) ** (classes - 1))

    value, _ = quad(winning, -80.0 / epsilon, 1.0 + 80.0 / epsilon, points=[0.0, 1.0], limit=200)
    return float(value)


def true_epsilon(channel: Channel) -> float:
    """ε of randomised response itself: for an argmax, less than the ε of its noisy vector."""
    return math.log(channel.truth / channel.other)


def _response(epsilon: float, classes: int) -> tuple[float, float]:
    """p and q of k-ary randomised response."""
    odds = math.exp(epsilon)
    return odds / (odds + classes - 1), 1.0 / (odds + classes - 1)
