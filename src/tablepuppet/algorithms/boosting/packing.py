"""Whole numbers in as few bits as their range needs: what pairs of rows and cells travel as.

In: four arrays of integers of one length. Out: words, array after array and chunk by chunk: the least value of a chunk,
a width, and every value less the least at that width. A constant takes no bits at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.exchange import Pairs
from tablepuppet.errors import TransportError

Sums = NDArray[np.int64]
CHUNK = 1024  # a multiple of 64: chunks begin with a word
_MOST = 1 << 34  # values of one array that anybody may claim
_STREAMS = 4


def pack(size: int, streams: Sequence[NDArray[Any] | None]) -> Pairs:
    """The packed form of steps, cells, g and h; None: ones.

    >>> found = pack(3, [None, np.array([5, 3, 900]), np.array([7, 7, 7]), np.array([-1, 0, 1])])
    >>> found.widths.ravel().tolist(), unpack(found)[1].tolist()
    ([0, 10, 0, 2], [5, 3, 900])
    """
    chunks = -(-size // CHUNK)
    least, widths = np.ones((_STREAMS, chunks), np.int64), np.zeros((_STREAMS, chunks), np.uint8)
    words = []
    for stream, values in enumerate(streams):
        if values is None:
            continue
        count = kernels.widths_of(values, CHUNK, least[stream], widths[stream])
        if count:
            words.append(np.empty(count, np.uint64))
            kernels.pack(values, CHUNK, least[stream], widths[stream], words[-1])
    joined = np.concatenate(words) if words else np.zeros(0, np.uint64)
    return Pairs(size, least, widths, joined.view(np.int64))


def words_of(pairs: Pairs) -> tuple[NDArray[np.uint64], Sums]:
    """The words of a packing, and where those of each array begin; one whose parts do not fit each other is refused."""
    chunks = -(-pairs.size // CHUNK) if 0 <= pairs.size < _MOST else -1
    is_typed = pairs.least.dtype == pairs.words.dtype == np.int64 and pairs.widths.dtype == np.uint8
    shape = (_STREAMS, chunks)
    if not is_typed or pairs.least.shape != shape or pairs.widths.shape != shape or pairs.words.ndim != 1:
        raise TransportError("packed integers do not follow the protocol")
    counts = np.full(chunks, CHUNK, np.int64)
    if chunks:
        counts[-1] = pairs.size - (chunks - 1) * CHUNK
    ends = np.cumsum(((pairs.widths * counts + 63) // 64).sum(axis=1))
    if len(pairs.words) != ends[-1] or pairs.widths.max(initial=0) > 64:
        raise TransportError("packed integers do not follow the protocol")
    return kernels.fixed_type(pairs.words.view(np.uint64)), np.append(0, ends[:-1])


def unpack(pairs: Pairs) -> Sums:
    """The four arrays, a line each."""
    words, starts = words_of(pairs)
    out = np.empty((_STREAMS, pairs.size), np.int64)
    kernels.unpack(words, CHUNK, kernels.fixed_type(pairs.least), kernels.fixed_type(pairs.widths), starts, out)
    return out
