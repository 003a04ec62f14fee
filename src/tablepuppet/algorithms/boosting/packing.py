"""Whole numbers in few bits: what pairs of rows and cells travel as.

In: three arrays of integers of one length. Out: words, array after array and chunk by chunk. A chunk is packed in the
shorter of two ways:

    fixed   its least value, a width, and every value less the least at that width; a constant takes no bits at all
    Rice    its mean m, k, and every v − m, folded to 0, 1, 2 … for 0, −1, 1 …: the lower k bits, then of all values the
            upper bits in unary, so many zeros and a one. Few values that lie far away do not make all others wide

h of a joined row of two or more classes is p(1 − p), and g is p or p − 1: in fixed point h is |g|(2ᵃ − |g|) / 2ˢ, give
or take what rounding did. Where that is so, only the rest of h travels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.exchange import Pairs
from tablepuppet.arrays import fixed
from tablepuppet.errors import TransportError

Sums = NDArray[np.int64]
CHUNK = 1024  # a multiple of 64: chunks begin with a word
_MOST = 1 << 34  # values of one array that anybody may claim
_STREAMS = 3
_WIDEST = 30  # bits of |g| that h is derived from
_ONE_CELL = (np.zeros(0, np.uint8), np.zeros(0, np.int64))
_WORTH = 4  # what is left of h must have so much less range than h


def pack(
    size: int,
    streams: Sequence[NDArray[Any] | None],
    unit: tuple[float, float] | None = None,
    paths: tuple[NDArray[np.uint8], Sums] = _ONE_CELL,
) -> Pairs:
    """The packed form of steps, g and h; None: ones. With what a `unit` of g and h is, h may follow from g.

    >>> found = pack(3, [None, np.array([5, 3, 900]), np.array([7, 7, 7])])
    >>> found.widths.ravel().tolist(), unpack(found)[1].tolist()
    ([0, 10, 0], [5, 3, 900])
    """
    chunks = -(-size // CHUNK)
    least, widths = np.ones((_STREAMS, chunks), np.int64), np.zeros((_STREAMS, chunks), np.uint8)
    unary = np.zeros((_STREAMS, chunks), np.int32)
    steps, g, h = streams
    top, shift = (0, 0) if unit is None or g is None or h is None else _curve(g, h, unit)
    if top and g is not None and h is not None:
        rest = np.empty(size, np.int64)
        kernels.less_followed(g, h, top, shift, rest)
        h = rest
    given = [(values, stream) for stream, values in enumerate((steps, g, h)) if values is not None]
    counts = [kernels.widths_of(values, CHUNK, least[s], widths[s], unary[s]) for values, s in given]
    words, at = np.empty(sum(counts), np.int64), 0
    for (values, s), count in zip(given, counts, strict=True):
        if count:
            kernels.pack(values, CHUNK, least[s], widths[s], unary[s], words[at : at + count].view(np.uint64))
            at += count
    return Pairs(size, fixed(least), fixed(widths), fixed(unary), fixed(words), *paths, top, shift)


def _curve(g: NDArray[Any], h: NDArray[Any], unit: tuple[float, float]) -> tuple[int, int]:
    """2ᵃ and s, where h follows from g; else zeros. The first chunk stands for all."""
    bits, finer = (round(-math.log2(u)) for u in unit)
    shift = 2 * bits - finer
    if not (0 <= bits <= _WIDEST and 0 <= shift < 2 * _WIDEST):
        return 0, 0
    rest = h[:CHUNK] - _followed(g[:CHUNK], 1 << bits, shift)
    return (1 << bits, shift) if len(rest) and _WORTH * np.ptp(rest) < np.ptp(h[:CHUNK]) else (0, 0)


def _followed(g: NDArray[Any], top: int, shift: int) -> Sums:
    """|g|(top − |g|) / 2^shift"""
    most = np.abs(g.astype(np.int64))
    return np.asarray((most * (top - most)) >> shift)


def words_of(pairs: Pairs) -> tuple[NDArray[np.uint64], Sums]:
    """The words of a packing, and where those of each array begin; one whose parts do not fit each other is refused."""
    chunks = -(-pairs.size // CHUNK) if 0 <= pairs.size < _MOST else -1
    is_typed = pairs.least.dtype == pairs.words.dtype == np.int64 and pairs.widths.dtype == np.uint8
    is_typed &= pairs.unary.dtype == np.int32 and 0 <= pairs.top <= 1 << _WIDEST and 0 <= pairs.shift < 2 * _WIDEST
    shapes = {pairs.least.shape, pairs.widths.shape, pairs.unary.shape}
    if not is_typed or shapes != {(_STREAMS, chunks)} or pairs.words.ndim != 1:
        raise TransportError("packed integers do not follow the protocol")
    starts, how = np.empty(_STREAMS, np.int64), (kernels.fixed_type(pairs.widths), kernels.fixed_type(pairs.unary))
    if len(pairs.words) != kernels.word_starts(pairs.size, CHUNK, *how, starts):
        raise TransportError("packed integers do not follow the protocol")
    return kernels.fixed_type(pairs.words.view(np.uint64)), starts


def unpack(pairs: Pairs) -> Sums:
    """The three arrays, a line each."""
    words, starts = words_of(pairs)
    out = np.empty((_STREAMS, pairs.size), np.int64)
    least, widths, unary = (kernels.fixed_type(a) for a in (pairs.least, pairs.widths, pairs.unary))
    if not kernels.unpack(words, CHUNK, least, widths, unary, starts, out):
        raise TransportError("packed integers do not follow the protocol")
    if pairs.top:
        out[2] += _followed(out[1], pairs.top, pairs.shift)
    return out
