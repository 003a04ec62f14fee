"""What compiled loops of boosted trees share, and whole numbers in few bits.

What is summed is whole numbers, so no order of summation can change a bit.

Σg and Σh are added up as the upper and the lower half of one 64-bit number where neither can leave its half (`FEW` rows
of 16 bits), and unfolded from there.

Numbers of rows and places are unsigned: of signed ones every access would look whether they count from the end.
A signed and an unsigned number together would become a floating-point one, so they are never mixed.

Gains are the only floating-point numbers here; they are rounded as written (no fused products), so that a client and
the server that see the same sums find the same split whatever their processors are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["pack", "unpack", "widths_of"]

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


def inlined(function: F) -> F:
    """What loops call for every row; a call of its own would take longer than what it does."""
    return cast(F, njit(function, nogil=True, cache=True, error_model="numpy", inline="always"))


@inlined
def row_of(index: Integers, j: Any, base: int, missed: int) -> Any:
    """The row of codes that a joined row has."""
    r = np.int64(index[j]) if len(index) else np.int64(j)
    return np.uint64(r + base if r >= 0 else missed)


@inlined
def folded_of(both: Integers, j: Any) -> Any:
    """g and h of a joined row as the halves of a 64-bit number."""
    x = np.int64(both[j])
    return ((x >> 16) << 32) + (x & 0xFFFF) if both.itemsize == 4 else x


@exact
def unfold(folded: Sums, out: Sums) -> None:
    """Adds folded sums to plain ones; they are zero again afterwards."""
    for p in range(len(folded)):
        low = folded[p] & LOW
        out[p, 0] += (folded[p] - low) >> 32
        out[p, 1] += low
        folded[p] = 0


@exact
def widths_of(values: Integers, chunk: int, least: Sums, widths: Codes) -> int:
    """Of every chunk of values the least one and the bits that hold the rest; 64-bit words in all."""
    total = 0
    for c in range(len(widths)):
        low = high = np.int64(values[c * chunk])
        stop = min(len(values), (c + 1) * chunk)
        for t in range(c * chunk, stop):
            value = np.int64(values[t])
            low = value if value < low else low
            high = value if value > high else high
        least[c] = low
        span, bits = np.uint64(high - low), 0
        while span:
            span >>= np.uint64(1)
            bits += 1
        widths[c] = bits
        total += (bits * (stop - c * chunk) + 63) // 64
    return total


@exact
def pack(values: Integers, chunk: int, least: Sums, widths: Codes, out: Words) -> None:
    """Values less the least of their chunk, as so many bits each; a chunk begins with a word."""
    place = 0
    for c in range(len(widths)):
        bits = np.int64(widths[c])
        if bits == 0:
            continue
        held, filled = np.uint64(0), np.int64(0)
        for t in range(c * chunk, min(len(values), (c + 1) * chunk)):
            rest = np.uint64(np.int64(values[t]) - least[c])
            held |= rest << np.uint64(filled)
            filled += bits
            if filled >= 64:
                out[place] = held
                place += 1
                filled -= 64
                held = rest >> np.uint64(bits - filled) if filled else np.uint64(0)
        if filled:
            out[place] = held
            place += 1


@exact
def unpack_chunk(words: Words, place: Any, bits: Any, least: Any, out: Sums, count: int) -> Any:
    """The next values, into `out`; where the words after them begin."""
    if bits == 0:
        out[:count] = least
        return place
    one, whole = np.uint64(1), np.uint64(63)
    wide, at = np.uint64(bits), np.uint64(place) << np.uint64(6)
    mask = ~np.uint64(0) >> (np.uint64(64) - wide)
    for t in range(np.uint64(count)):
        word, shift = at >> np.uint64(6), at & whole
        after = (shift + wide - one) >> np.uint64(6)  # 1 where a value goes on in the next word
        value = (words[word] >> shift) | ((words[word + after] << one) << (whole - shift))
        out[t] = least + np.int64(value & mask)
        at += wide
    return place + (count * bits + 63) // 64


@exact
def unpack(words: Words, chunk: int, least: Sums, widths: Codes, starts: Sums, out: Sums) -> None:
    """What `pack` packed: out[stream], whose words begin at starts[stream]."""
    for s in range(out.shape[0]):
        place = starts[s]
        for c in range(widths.shape[1]):
            count = min(chunk, out.shape[1] - c * chunk)
            place = unpack_chunk(words, place, np.int64(widths[s, c]), least[s, c], out[s, c * chunk :], count)
