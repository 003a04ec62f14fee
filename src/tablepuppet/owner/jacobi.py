"""Jacobi's symbol of many numbers modulo 2²⁵⁵ − 19, compiled (numba): which of them have a root.

In: numbers as four words of 64 bits, the least first. Out: whether each has a root. It is the binary algorithm (Shallit
and Sorenson 1993), of public numbers: how long it takes depends on them. A ninth of the time that Python's integers
take, which blinding.py uses where there are few keys, and the tests as the oracle.
"""

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from tablepuppet.threads import compile_loop

_PRIME = np.frombuffer((2**255 - 19).to_bytes(32, "little"), np.uint64)


@compile_loop
def _halve(number: NDArray[np.uint64]) -> np.uint64:
    """Divides by a power of two, at most 2³²; which one."""
    twos, word = uint64(0), number[0]
    while not word & uint64(1) and twos < 32:
        word >>= uint64(1)
        twos += uint64(1)
    for i in range(3):
        number[i] = (number[i] >> twos) | (number[i + 1] << (uint64(64) - twos))
    number[3] >>= twos
    return twos


@compile_loop
def _is_less(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> bool:
    for i in range(3, -1, -1):
        if one[i] != other[i]:
            return bool(one[i] < other[i])
    return False


@compile_loop
def _subtract(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> None:
    borrow = uint64(0)
    for i in range(4):
        difference = one[i] - other[i]
        next_borrow = uint64(one[i] < other[i]) | uint64(difference < borrow)
        one[i] = difference - borrow
        borrow = next_borrow


@compile_loop
def _find(numbers: NDArray[np.uint64], prime: NDArray[np.uint64], found: NDArray[np.bool_]) -> None:
    for row in range(len(numbers)):
        top, bottom, is_negative = numbers[row], prime.copy(), False
        while top[0] | top[1] | top[2] | top[3]:
            while not top[0] & uint64(1):
                low = bottom[0] & uint64(7)
                if _halve(top) & uint64(1) and (low == 3 or low == 5):
                    is_negative = not is_negative
            if _is_less(top, bottom):
                if top[0] & bottom[0] & uint64(3) == 3:
                    is_negative = not is_negative
                top, bottom = bottom, top
            _subtract(top, bottom)
        found[row] = not is_negative


def have_roots(numbers: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Of (keys, 4) words, a truth a row."""
    found = np.empty(len(numbers), np.bool_)
    _find(numbers.copy(), _PRIME, found)
    return found
