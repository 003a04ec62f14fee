"""What compiled loops share: how they are compiled, eˣ and log(1 + eˣ), and passes over a view of joined rows.

Compiled code is kept beside the source (or in the user's cache where that cannot be written), so
that a machine compiles each kernel once, at its first use.

eˣ and log(1 + eˣ) are branch-free polynomials, which compile to vector instructions: numba calls the C library once per
element otherwise, four to ten times slower. eˣ = 2ⁿ eʳ with |r| ≤ ½ log 2 and a Taylor polynomial for eʳ;
log(1 + e) = 2 artanh(e / (2 + e)) as a series in the square of that. Relative error below 4e-16
(tests/models/test_compiled.py), and 3e-7 in single precision.

A pass takes a chunk of joined rows from `expand`, computes on it in the first-level cache, and gives the outcome to
`collapse`: each joined row is fetched once, and nothing as long as the view is made. Sums are added in an order that
depends on the view alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

from tablepuppet.arrays import Array, RowNumbers

F = TypeVar("F", bound=Callable[..., Any])

# Sums keep their order (no "reassoc"): the same bits on every run. Products may fuse with sums, and no kernel
# depends on the sign of zero or meets a NaN that it did not receive.
_FAST = {"contract", "nsz", "nnan"}


def kernel(function: F) -> F:
    """A compiled loop that releases the interpreter lock."""
    return cast(F, njit(function, nogil=True, cache=True, error_model="numpy", fastmath=_FAST))


def summing(function: F) -> F:
    """A compiled loop whose sums may be added up side by side: the same bits again on the same kind of processor.

    Not for loops that round by adding a large number: the compiler would see through that.
    """
    return cast(F, njit(function, nogil=True, cache=True, error_model="numpy", fastmath={*_FAST, "reassoc"}))


def inlined(function: F) -> F:
    """A function of one element, compiled into the kernels that call it."""
    return cast(F, njit(function, inline="always"))


_C = tuple(1.0 / factorial(k) for k in range(14))
_A = tuple(2.0 / (2 * k + 1) for k in range(18))
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5·2⁵²: adding it rounds to a whole number, which lands in the low bits
_FARTHEST = 708.0  # e⁷⁰⁸ is still finite
_S_C = tuple(np.float32(c) for c in _C[:7])
_S_LOG2_E = np.float32(_LOG2_E)
_S_LN2_HIGH, _S_LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_S_ROUND = np.float32(12582912.0)  # 1.5·2²³
_S_FARTHEST = np.float32(87.0)


@inlined
def exp(x: float) -> float:
    """eˣ, with x clipped to ±708."""
    x = min(max(x, -_FARTHEST), _FARTHEST)
    shifted = x * _LOG2_E + _ROUND
    whole = shifted - _ROUND
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    p = _C[13] * r + _C[12]
    p = p * r + _C[11]
    p = p * r + _C[10]
    p = p * r + _C[9]
    p = p * r + _C[8]
    p = p * r + _C[7]
    p = p * r + _C[6]
    p = p * r + _C[5]
    p = p * r + _C[4]
    p = p * r + _C[3]
    p = p * r + _C[2]
    p = p * r + 1.0
    p = p * r + 1.0
    bits = np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << np.int64(52))
    return np.int64(bits).view(np.float64)


@inlined
def exp_single(x: np.float32) -> np.float32:
    """eˣ in single precision, with x clipped to ±87: half the terms, and twice as many in a vector."""
    x = min(max(x, -_S_FARTHEST), _S_FARTHEST)
    shifted = x * _S_LOG2_E + _S_ROUND
    whole = shifted - _S_ROUND
    r = (x - whole * _S_LN2_HIGH) - whole * _S_LN2_LOW
    p = _S_C[6] * r + _S_C[5]
    p = p * r + _S_C[4]
    p = p * r + _S_C[3]
    p = p * r + _S_C[2]
    p = p * r + _S_C[1]
    p = p * r + _S_C[0]
    bits = np.float32(p).view(np.int32) + (np.float32(shifted).view(np.int32) << np.int32(23))
    return np.int32(bits).view(np.float32)


@inlined
def log1p_exp(x: float) -> float:
    """log(1 + eˣ)."""
    e = exp(-abs(x))
    s = e / (2.0 + e)
    q = s * s
    p = _A[17] * q + _A[16]
    p = p * q + _A[15]
    p = p * q + _A[14]
    p = p * q + _A[13]
    p = p * q + _A[12]
    p = p * q + _A[11]
    p = p * q + _A[10]
    p = p * q + _A[9]
    p = p * q + _A[8]
    p = p * q + _A[7]
    p = p * q + _A[6]
    p = p * q + _A[5]
    p = p * q + _A[4]
    p = p * q + _A[3]
    p = p * q + _A[2]
    p = p * q + _A[1]
    p = p * q + _A[0]
    return max(x, 0.0) + s * p


CHUNK = 512  # joined rows at a time


@kernel
def expand(first: int, source: tuple[Any, ...], blocks: Array, scores: Array, labels: Array) -> None:
    """Each block's values, their sum, and the labels, of as many joined rows as `scores` has room for."""
    values, indices, per_label, label_index = source
    rows = len(scores)
    for i in range(len(values)):
        _gather(first, values[i], indices[i], blocks[i, :rows])
    scores[:] = blocks[0, :rows]
    for i in range(1, len(values)):
        scores += blocks[i, :rows]
    _gather(first, per_label, label_index, labels)


@kernel
def collapse(first: int, target: tuple[Any, ...], blocks: Array, signal: Array) -> None:
    """Adds the signal, less a block's own values, to that block's rows; `blocks` is spent afterwards."""
    indices, out, base, shared, edge, own = target
    rows = len(signal)
    for i in range(len(out)):
        values = blocks[i, :rows]
        for j in range(rows):
            values[j] = signal[j] - own * values[j]
        if len(indices[i]) == 0:
            out[i][first : first + rows] = values
        elif shared[i] >= 0:
            here, head = indices[i][first : first + rows], min(max(shared[i] - first, 0), rows)
            edge[i] += _total(values[:head])
            _add_runs(here[head:], base[i], values[head:], out[i])
        else:
            _scatter(indices[i][first : first + rows], values, out[i])


@kernel
def _gather(first: int, values: Array, index: RowNumbers, out: Array) -> None:
    rows, limit = len(out), len(values)
    if len(index) == 0:
        out[:] = values[first : first + rows]
        return
    here = index[first : first + rows]
    for j in range(rows):
        out[j] = values[here[j]] if here[j] < limit else 0.0


@kernel
def _scatter(here: RowNumbers, values: Array, out: Array) -> None:
    limit = len(out)
    for j in range(len(here)):
        if here[j] < limit:
            out[here[j]] += values[j]


@kernel
def _add_runs(here: RowNumbers, base: int, values: Array, out: Array) -> None:
    """Row numbers in order: a run of the same one is summed in a register."""
    first = 0
    while first < len(here):
        row, stop, total = here[first], first, 0.0
        while stop < len(here) and here[stop] == row:
            total += values[stop]
            stop += 1
        out[np.int64(row) - base] += total
        first = stop


@kernel
def _total(values: Array) -> float:
    total = 0.0
    for j in range(len(values)):
        total += values[j]
    return total
