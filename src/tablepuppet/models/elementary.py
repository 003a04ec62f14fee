"""eˣ and log(1 + eˣ) as branch-free polynomials, which compile to vector instructions.

numba calls the C library once per element otherwise, four to ten times slower. eˣ = 2ⁿ eʳ with
|r| ≤ ½ log 2 and a Taylor polynomial for eʳ; log(1 + e) = 2 artanh(e / (2 + e)) as a series in the
square of that. Relative error below 4e-16 (tests/models/test_compiled.py), and 3e-7 in single precision.
"""

from __future__ import annotations

from math import factorial

import numpy as np

from tablepuppet.models.jit import inlined

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
