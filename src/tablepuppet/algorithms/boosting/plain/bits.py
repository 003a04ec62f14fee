"""What loops of boosted trees by NumPy share, and whole numbers in few bits: for machines without the compiler.

The same arguments as in compiled/, the same integers, the same gains; more slowly.

Sums are `bincount`s, whose floating-point numbers are exact for whole numbers below 2⁵³: numbers wider than 16 bits are
added up in two halves. Nothing loops over rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["pack", "unpack", "widths_of"]

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


def widths_of(values: Integers, chunk: int, least: Sums, widths: Codes) -> int:
    starts = np.arange(0, len(values), chunk)
    if not len(starts):
        return 0
    low = np.minimum.reduceat(values, starts).astype(np.int64)
    span = (np.maximum.reduceat(values, starts).astype(np.int64) - low).astype(np.uint64)
    bits = np.zeros(len(starts), np.int64)
    for bit in range(64):
        bits += span >> np.uint64(bit) != 0
    least[:], widths[:] = low, bits
    return int(_words(bits, chunk, len(values)).sum())


def _words(bits: Sums, chunk: int, size: int) -> Sums:
    """The words of every chunk."""
    counts = np.full(len(bits), chunk, np.int64)
    counts[-1:] = size - (len(bits) - 1) * chunk
    return (bits * counts + 63) // 64


def pack(values: Integers, chunk: int, least: Sums, widths: Codes, out: Words) -> None:
    chunks, bits = len(widths), widths.astype(np.int64)
    words = _words(bits, chunk, len(values))
    ends = np.cumsum(words)
    padded = np.zeros((chunks, chunk), np.int64)
    padded.ravel()[: len(values)] = values
    for width in np.unique(bits[bits > 0]).tolist():
        own = np.flatnonzero(bits == width)
        for some in np.split(own, range(_TOGETHER, len(own), _TOGETHER)):
            rest = (padded[some] - least[some, None]).astype("<u8")
            every = np.unpackbits(rest.view(np.uint8).reshape(len(some), chunk, 8), axis=2, bitorder="little")
            packed = np.packbits(every[:, :, :width].reshape(len(some), -1), axis=1, bitorder="little").view("<u8")
            for place, c in enumerate(some.tolist()):
                out[ends[c] - words[c] : ends[c]] = packed[place, : words[c]]
    if len(values) % chunk and bits[-1]:  # what pads the last chunk is no value
        used = int(bits[-1]) * (len(values) % chunk) % 64
        if used:
            out[ends[-1] - 1] &= np.uint64((1 << used) - 1)


def unpack(words: Words, chunk: int, least: Sums, widths: Codes, starts: Sums, out: Sums) -> None:
    for s in range(out.shape[0]):
        bits = widths[s].astype(np.int64)
        count = _words(bits, chunk, out.shape[1])
        ends = starts[s] + np.cumsum(count)
        found = np.repeat(least[s][:, None], chunk, axis=1)
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
        out[s] = found.ravel()[: out.shape[1]]
