"""The loops of compiled/ by NumPy, for machines without the compiler: the same arguments, the same integers, the same
gains; more slowly.

Sums are `bincount`s, whose floating-point numbers are exact for whole numbers below 2⁵³: numbers wider than 16 bits are
added up in two halves. Nothing loops over rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Cells = NDArray[np.uint16]
Codes = NDArray[np.uint8]
Integers = NDArray[np.signedinteger[Any]]
Sums = NDArray[np.int64]
Words = NDArray[np.uint64]


def add_up(places: NDArray[Any], values: Integers, out: Sums) -> None:
    """out[place] += value; floating-point sums of whole numbers are exact."""
    wide = values.astype(np.int64)
    for part, shift in ((wide & 0xFFFF, 0), (wide >> 16 & 0xFFFF, 16), (wide >> 32 & 0xFFFF, 32), (wide >> 48, 48)):
        if part.any():
            out += np.bincount(places, part, minlength=len(out)).astype(np.int64) << shift
