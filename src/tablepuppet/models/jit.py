"""How kernels are compiled: one decorator for loops over arrays, one for functions inlined into them.

Compiled code is kept beside the source (or in the user's cache where that cannot be written), so
that a machine compiles each kernel once, at its first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

# Sums keep their order (no "reassoc"): the same bits on every run. Products may fuse with sums, and no kernel
# depends on the sign of zero or meets a NaN that it did not receive.
_FAST = {"contract", "nsz", "nnan"}


def kernel(function: F) -> F:
    """A compiled loop that releases the interpreter lock."""
    return cast(F, njit(function, nogil=True, cache=True, error_model="numpy", fastmath=_FAST))


def summing(function: F) -> F:
    """A compiled loop whose sums may be added up side by side: the same bits again on the same kind of processor.

    Not for loops that round by adding a large number (elementary.py): the compiler would see through that.
    """
    return cast(F, njit(function, nogil=True, cache=True, error_model="numpy", fastmath={*_FAST, "reassoc"}))


def inlined(function: F) -> F:
    """A function of one element, compiled into the kernels that call it."""
    return cast(F, njit(function, inline="always"))
