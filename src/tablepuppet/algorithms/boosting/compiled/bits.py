"""Whole numbers in few bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet.algorithms.boosting.compiled.common import Codes, Integers, Sums, Words, exact

__all__ = ["pack", "unpack", "widths_of"]


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
        for t in range(count):
            out[t] = least
        return place
    mask = ~np.uint64(0) if bits == 64 else (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    word, shift = place, np.int64(0)
    for t in range(count):
        value = words[word] >> np.uint64(shift)
        if shift + bits > 64:
            value |= words[word + 1] << np.uint64(64 - shift)
        out[t] = least + np.int64(value & mask)
        shift += bits
        if shift >= 64:
            shift -= 64
            word += 1
    return place + (count * bits + 63) // 64


@exact
def unpack(words: Words, chunk: int, least: Sums, widths: Codes, starts: Sums, out: Sums) -> None:
    """What `pack` packed: out[stream], whose words begin at starts[stream]."""
    for s in range(out.shape[0]):
        place = starts[s]
        for c in range(widths.shape[1]):
            count = min(chunk, out.shape[1] - c * chunk)
            place = unpack_chunk(words, place, np.int64(widths[s, c]), least[s, c], out[s, c * chunk :], count)
