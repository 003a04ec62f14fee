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
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["pack", "unpack", "widths_of", "word_starts"]

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
LONGEST = 1 << 48  # a range that Rice's code is tried for
FEW_BITS = 3  # a width up to which it would save little


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


def _counted_zeros(context: Any, value: Any) -> Any:
    """The place of the lowest bit of a number that is not zero, as an instruction."""

    def written(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), written


_lowest: Any = intrinsic(_counted_zeros)


@exact
def widths_of(values: Integers, chunk: int, least: Sums, widths: Codes, unary: Integers) -> int:
    """How every chunk of values is packed (packing.py); 64-bit words in all."""
    total, here = 0, np.empty(chunk, np.int64)
    for c in range(len(widths)):
        own = values[c * chunk : min(len(values), (c + 1) * chunk)]
        count = len(own)
        low = high = np.int64(own[0])
        for t in range(np.uint64(count)):
            low, high = min(low, np.int64(own[t])), max(high, np.int64(own[t]))
        least[c], unary[c] = low, 0
        span, bits = np.uint64(high - low), 0
        is_long = span >= np.uint64(LONGEST)
        while span:
            span >>= np.uint64(1)
            bits += 1
        widths[c] = bits
        words = (bits * count + 63) // 64
        if bits > FEW_BITS and not is_long:
            above, away = np.int64(0), np.int64(0)
            for t in range(np.uint64(count)):
                here[t] = np.int64(own[t]) - low
                above += here[t]
            middle = (2 * above + count) // (2 * count)
            for t in range(np.uint64(count)):
                here[t] = _folded(here[t] - middle)
                away += here[t]
            mean, few = away // count, 0
            while mean > 1:
                mean >>= 1
                few += 1
            for k in range(max(0, few - 1), few + 1):
                ones = np.int64(count)
                for t in range(np.uint64(count)):
                    ones += here[t] >> k
                upper = (ones + 63) // 64
                whole = (k * count + 63) // 64 + upper
                if whole < words:
                    words, least[c], widths[c], unary[c] = int(whole), low + middle, k, upper
        total += words
    return total


@inlined
def _folded(value: Any) -> Any:
    """0, −1, 1, −2 … as 0, 1, 2, 3 …"""
    return (value << 1) ^ (value >> 63)


@exact
def pack(values: Integers, chunk: int, least: Sums, widths: Codes, unary: Integers, out: Words) -> None:
    """Packs chunks as `widths_of` says; each begins with a word."""
    one, whole = np.uint64(1), np.uint64(64)
    place = np.uint64(0)
    for c in range(len(widths)):
        bits, is_rice, low = np.int64(widths[c]), unary[c] > 0, least[c]
        start, stop = np.uint64(c * chunk), np.uint64(min(len(values), (c + 1) * chunk))
        wide, held, filled = np.uint64(bits), np.uint64(0), np.uint64(0)
        if bits:
            mask = ~np.uint64(0) >> (whole - wide)
            for t in range(start, stop):
                value = np.int64(values[t]) - low
                rest = np.uint64(_folded(value) if is_rice else value) & mask
                held |= rest << filled
                filled += wide
                if filled >= whole:
                    out[place] = held
                    place += one
                    filled -= whole
                    held = (rest >> one) >> (wide - filled - one)
            if filled:
                out[place] = held
                place += one
        if is_rice:
            held, filled = np.uint64(0), np.uint64(0)
            for t in range(start, stop):
                filled += np.uint64(_folded(np.int64(values[t]) - low) >> bits)
                while filled >= whole:
                    out[place] = held
                    place += one
                    held = np.uint64(0)
                    filled -= whole
                held |= one << filled
                filled += one
            if filled:
                out[place] = held
                place += one


@exact
def unpack_chunk(words: Words, place: Any, bits: Any, upper: Any, least: Any, out: Sums, count: int) -> Any:
    """The next values, into `out`; where the words after them begin, or −1 where there are not so many values."""
    base = np.int64(0) if upper else least
    if bits == 0:
        out[:count] = base
    else:
        one, whole = np.uint64(1), np.uint64(63)
        wide, at = np.uint64(bits), np.uint64(place) << np.uint64(6)
        mask = ~np.uint64(0) >> (np.uint64(64) - wide)
        for t in range(np.uint64(count)):
            word, shift = at >> np.uint64(6), at & whole
            after = (shift + wide - one) >> np.uint64(6)  # 1 where a value goes on in the next word
            value = (words[word] >> shift) | ((words[word + after] << one) << (whole - shift))
            out[t] = base + np.int64(value & mask)
            at += wide
    place += (count * bits + 63) // 64
    if upper == 0:
        return place
    found, first = np.uint64(0), np.int64(0)  # values so far, and where the bits of the next one begin
    for w in range(np.uint64(upper)):
        held = words[np.uint64(place) + w]
        while held != np.uint64(0):
            if found == np.uint64(count):
                return np.int64(-1)
            at_bit = np.int64((w << np.uint64(6)) + _lowest(held))
            folded = ((at_bit - first) << bits) | out[found]
            out[found] = least + ((folded >> 1) ^ -(folded & 1))
            first = at_bit + 1
            found += np.uint64(1)
            held &= held - np.uint64(1)
    return place + upper if found == np.uint64(count) else np.int64(-1)


@exact
def word_starts(size: int, chunk: int, widths: Codes, unary: Integers, starts: Sums) -> int:
    """Where the words of each array begin, and how many there are of all; −1 where a chunk cannot be packed so."""
    total = np.int64(0)
    for s in range(widths.shape[0]):
        starts[s] = total
        for c in range(widths.shape[1]):
            bits, upper = np.int64(widths[s, c]), np.int64(unary[s, c])
            if upper < 0 or bits > (62 if upper else 64):
                return -1
            total += (bits * min(chunk, size - c * chunk) + 63) // 64 + upper
    return int(total)


@exact
def unpack(words: Words, chunk: int, least: Sums, widths: Codes, unary: Integers, starts: Sums, out: Sums) -> bool:
    """What `pack` packed: out[stream], whose words begin at starts[stream]; whether all of it is there."""
    for s in range(out.shape[0]):
        place = starts[s]
        for c in range(widths.shape[1]):
            count, bits, upper = min(chunk, out.shape[1] - c * chunk), np.int64(widths[s, c]), np.int64(unary[s, c])
            place = unpack_chunk(words, place, bits, upper, least[s, c], out[s, c * chunk :], count)
            if place < 0:
                return False
    return True
