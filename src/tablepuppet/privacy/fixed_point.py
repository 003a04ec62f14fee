"""Fixed point: arrays of floats as 64-bit integers that add up exactly, at a scale that all parties share.

    r = round(v · 2^(F − E)),   |v| < 2^E,   F = 62 − ⌈log₂ Q⌉

Q parties' integers add up to less than 2^62: sums never wrap, and wrap-around is left to the masks (masks.py). The
exponent E is all that a party tells of its array's size; the resolution is 2^(E − F), finer than a float's own.
"""

from __future__ import annotations

import math

import numpy as np

from tablepuppet.arrays import Array, Integers

SMALLEST = -960  # an array of zeros, or of numbers that are as good as zero
LARGEST = 1024  # of a finite float


def exponent_of(values: Array) -> int:
    """The least E with |v| < 2^E for all v; the values must be finite.

    >>> exponent_of(np.array([0.5, -3.0])), exponent_of(np.zeros(2))
    (2, -960)
    """
    largest = float(np.abs(values).max(initial=0.0))
    return max(SMALLEST, math.frexp(largest)[1]) if largest > 0 else SMALLEST


def fraction_bits(parties: int) -> int:
    """F."""
    return 62 - (parties - 1).bit_length()


def to_integers(values: Array, exponent: int, parties: int) -> Integers:
    """r of every value; none of them may reach 2^E.

    >>> to_integers(np.array([0.5, -0.25]), 0, 4)
    array([ 576460752303423488, -288230376151711744])
    """
    if exponent_of(values) > exponent:
        raise OverflowError("a value does not fit its scale")
    # in two steps, for 2^(F − E) itself may be beyond what a float can hold
    scaled = np.ldexp(np.ldexp(np.asarray(values, np.float64), -exponent), fraction_bits(parties))
    return np.rint(scaled).astype(np.int64)


def from_integers(total: Integers, exponent: int, parties: int) -> Array:
    """The values of a sum."""
    return np.asarray(np.ldexp(np.ldexp(total.astype(np.float64), -fraction_bits(parties)), exponent))
