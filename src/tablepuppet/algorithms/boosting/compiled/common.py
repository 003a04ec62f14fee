"""Loops of boosted trees, compiled. What is summed is whole numbers, so no order of summation can change a bit.

Σg and Σh are added up as the upper and the lower half of one 64-bit number where neither can leave its half (`FEW` rows
of 16 bits), and unfolded from there.

Gains are the only floating-point numbers here; they are rounded as written (no fused products), so that a client and
the server that see the same sums find the same split whatever their processors are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
Array = NDArray[np.float64]
Cells = NDArray[np.uint16]
Codes = NDArray[np.uint8]
Integers = NDArray[np.signedinteger[Any]]
Sums = NDArray[np.int64]
Words = NDArray[np.uint64]
FEW = 1 << 16  # joined rows whose 16-bit numbers add up to less than half of 32 bits
HALF = 1 << 30
LOW = 0xFFFFFFFF


def exact(function: F) -> F:
    """A compiled loop that releases the interpreter lock and rounds as it is written."""
    return cast(F, njit(function, nogil=True, cache=True, error_model="numpy"))


@exact
def row_of(index: Integers, j: Any, base: int, missed: int) -> Any:
    """The row of codes that a joined row has."""
    r = np.int64(index[j]) if len(index) else np.int64(j)
    return r + base if r >= 0 else np.int64(missed)


@exact
def unfold(folded: Sums, out: Sums) -> None:
    """Adds folded sums to plain ones; they are zero again afterwards."""
    for p in range(len(folded)):
        low = folded[p] & LOW
        out[p, 0] += (folded[p] - low) >> 32
        out[p, 1] += low
        folded[p] = 0
