"""Rounding of figures that are shown: to steps, at random, and the same again for the same figure.

In: how many rows a figure must not tell apart, and a key that the owners of a job give the server. Out: multiples of a
step. A number is first moved by up to one step (triangular dither): the error has mean 0 and one spread, whatever the
number is, and follows from the number and the key, so that asking again tells nothing new.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array


@dataclass(frozen=True, slots=True)
class Rounding:
    """What the owners of a job ask for: for the one that asks for most; `least` of 1 leaves figures as they are."""

    least: int = 1
    key: bytes = b""

    @property
    def is_on(self) -> bool:
        return self.least > 1

    def number(self, name: str, value: float, unit: float) -> float:
        """A multiple of `unit` near the value.

        >>> rounding = Rounding(20, b"secret")
        >>> rounding.number("accuracy", 0.8125, 0.05) == rounding.number("accuracy", 0.8125, 0.05)
        True
        """
        if not (math.isfinite(value) and unit > 0):
            return value
        digest = hmac.digest(self.key, f"{name} {value!r}".encode(), hashlib.sha256)
        first, second = (int.from_bytes(digest[k : k + 8], "big") / 2**64 for k in (0, 8))
        return unit * round(value / unit + first + second - 1.0)

    def counts(self, name: str, values: Array, unit: float) -> Array:
        """Each of some counts."""
        found = np.array([self.number(f"{name} {place}", float(v), unit) for place, v in enumerate(values.ravel())])
        return np.asarray(np.maximum(found.reshape(values.shape), 0.0))
