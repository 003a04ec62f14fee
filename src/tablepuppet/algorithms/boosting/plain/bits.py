"""What loops of boosted trees by NumPy share, and whole numbers in few bits: for machines without the compiler.

The same arguments as in compiled/, the same integers, the same gains; more slowly.

Sums are `bincount`s, whose floating-point numbers are exact for whole numbers below 2⁵³: numbers wider than 16 bits are
added up in two halves. Nothing loops over rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["pack", "unpack", "widths_of", "word_starts"]

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


def parted(both: Integers) -> tuple[Integers, Integers]:
    """g and h, from the numbers that hold both."""
    return (both >> 16, both & 0xFFFF) if both.itemsize == 4 else (both >> 32, both & 0xFFFFFFFF)


_TOGETHER = 256  # chunks that are packed at a time
_LONGEST = 1 << 48
_FEW_BITS = 3


def widths_of(values: Integers, chunk: int, least: Sums, widths: Codes, unary: Integers) -> int:
    starts = np.arange(0, len(values), chunk)
    if not len(starts):
        return 0
    wide = values.astype(np.int64)
    low = np.minimum.reduceat(wide, starts)
    span = (np.maximum.reduceat(wide, starts) - low).astype(np.uint64)
    bits = np.zeros(len(starts), np.int64)
    for bit in range(64):
        bits += span >> np.uint64(bit) != 0
    counts = _counts(len(starts), chunk, len(values))
    words = (bits * counts + 63) // 64
    is_long = span >= np.uint64(_LONGEST)
    least[:], widths[:], unary[:] = low, bits, 0
    above = np.where(np.repeat(is_long, counts), 0, wide - np.repeat(low, counts))
    middle = (2 * np.add.reduceat(above, starts) + counts) // (2 * counts)
    folded = _folded(above - np.repeat(middle, counts))
    mean = np.add.reduceat(folded, starts) // counts
    few = np.zeros(len(starts), np.int64)
    for bit in range(1, 64):
        few += mean >> bit != 0
    for k in (np.maximum(few - 1, 0), few):
        upper = (np.add.reduceat(folded >> np.repeat(k, counts), starts) + counts + 63) // 64
        whole = (k * counts + 63) // 64 + upper
        better = (bits > _FEW_BITS) & ~is_long & (whole < words)
        words[better], least[better], widths[better] = whole[better], (low + middle)[better], k[better]
        unary[better] = upper[better]
    return int(words.sum())


def _folded(values: Sums) -> Sums:
    """0, −1, 1, −2 … as 0, 1, 2, 3 …"""
    return (values << 1) ^ (values >> 63)


def _counts(chunks: int, chunk: int, size: int) -> Sums:
    """The values of every chunk."""
    counts = np.full(chunks, chunk, np.int64)
    counts[-1:] = size - (chunks - 1) * chunk
    return counts


def pack(values: Integers, chunk: int, least: Sums, widths: Codes, unary: Integers, out: Words) -> None:
    chunks, bits = len(widths), widths.astype(np.int64)
    counts = _counts(chunks, chunk, len(values))
    words = (bits * counts + 63) // 64
    ends = np.cumsum(words + unary) - unary  # of what has a fixed width
    padded = np.zeros((chunks, chunk), np.int64)
    rest = values.astype(np.int64) - np.repeat(least, counts)
    padded.ravel()[: len(values)] = np.where(np.repeat(unary > 0, counts), _folded(rest), rest)
    for width in np.unique(bits[bits > 0]).tolist():
        own = np.flatnonzero(bits == width)
        for some in np.split(own, range(_TOGETHER, len(own), _TOGETHER)):
            low = padded[some].astype("<u8")
            every = np.unpackbits(low.view(np.uint8).reshape(len(some), chunk, 8), axis=2, bitorder="little")
            packed = np.packbits(every[:, :, :width].reshape(len(some), -1), axis=1, bitorder="little").view("<u8")
            for place, c in enumerate(some.tolist()):
                out[ends[c] - words[c] : ends[c]] = packed[place, : words[c]]
    for c in np.flatnonzero(unary).tolist():
        ones = np.zeros(64 * int(unary[c]), np.uint8)
        ones[np.cumsum((padded[c, : counts[c]] >> bits[c]) + 1) - 1] = 1
        out[ends[c] : ends[c] + unary[c]] = np.packbits(ones, bitorder="little").view("<u8")


def word_starts(size: int, chunk: int, widths: Codes, unary: Integers, starts: Sums) -> int:
    if unary.min(initial=0) < 0 or (widths > np.where(unary > 0, 62, 64)).any():
        return -1
    ends = np.cumsum(((widths * _counts(widths.shape[1], chunk, size) + 63) // 64 + unary).sum(axis=1))
    starts[:] = np.append(0, ends[:-1])
    return int(ends[-1])


def unpack(words: Words, chunk: int, least: Sums, widths: Codes, unary: Integers, starts: Sums, out: Sums) -> bool:
    counts = _counts(widths.shape[1], chunk, out.shape[1])
    for s in range(out.shape[0]):
        bits = widths[s].astype(np.int64)
        count = (bits * counts + 63) // 64
        ends = starts[s] + np.cumsum(count + unary[s]) - unary[s]
        found = np.repeat(np.where(unary[s] > 0, 0, least[s])[:, None], chunk, axis=1)
        for width in np.unique(bits[bits > 0]).tolist():
            own = np.flatnonzero(bits == width)
            for some in np.split(own, range(_TOGETHER, len(own), _TOGETHER)):
                packed = np.zeros((len(some), chunk * width // 64), np.uint64)
                for place, c in enumerate(some.tolist()):
                    packed[place, : count[c]] = words[ends[c] - count[c] : ends[c]]
                every = np.zeros((len(some), chunk, 64), np.uint8)
                flat = np.unpackbits(packed.astype("<u8").view(np.uint8), axis=1, bitorder="little")
                every[:, :, :width] = flat.reshape(len(some), chunk, width)
                found[some] += np.packbits(every, axis=2, bitorder="little").view("<i8")[:, :, 0]
        for c in np.flatnonzero(unary[s]).tolist():
            held = words[ends[c] : ends[c] + unary[s, c]].astype("<u8")
            ones = np.flatnonzero(np.unpackbits(held.view(np.uint8), bitorder="little"))
            if len(ones) != counts[c]:
                return False
            folded = ((np.diff(ones, prepend=-1) - 1) << bits[c]) | found[c, : counts[c]]
            found[c, : counts[c]] = least[s, c] + ((folded >> 1) ^ -(folded & 1))
        out[s] = found.ravel()[: out.shape[1]]
    return True
