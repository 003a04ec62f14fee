"""Whole numbers in as few bits as their range needs: what pairs of rows and cells travel as.

In: an array of integers. Out: bits, chunk by chunk: the least value of a chunk, a width, and every value less the
least at that width. A constant takes no bits at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.exchange import Packed
from tablepuppet.errors import TransportError

_CHUNK = 1024
_MOST = 1 << 34  # values of one array that anybody may claim


def pack(values: NDArray[np.int64]) -> Packed:
    """The packed form of some integers.

    >>> pack(np.array([7, 7, 7])).bits.size, unpack(pack(np.array([5, -3, 900]))).tolist()
    (0, [5, -3, 900])
    """
    chunks = -(-len(values) // _CHUNK)
    least, widths = np.zeros(chunks, np.int64), np.zeros(chunks, np.uint8)
    held = np.ascontiguousarray(values, np.int64)
    bits = kernels.widths_of(held, _CHUNK, least, widths)
    out = np.zeros((bits + 7) // 8, np.uint8)
    kernels.pack(held, _CHUNK, least, widths, out)
    return Packed(len(held), least, widths, out)


def unpack(packed: Packed) -> NDArray[np.int64]:
    """The integers; a packing whose parts do not fit each other is refused."""
    chunks = -(-packed.size // _CHUNK) if 0 <= packed.size < _MOST else -1
    is_typed = packed.least.dtype == np.int64 and packed.widths.dtype == packed.bits.dtype == np.uint8
    if not is_typed or len(packed.least) != chunks or len(packed.widths) != chunks or packed.widths.max(initial=0) > 64:
        raise TransportError("packed integers do not follow the protocol")
    counts = np.full(chunks, _CHUNK, np.int64)
    if chunks:
        counts[-1] = packed.size - (chunks - 1) * _CHUNK
    if len(packed.bits) != (int(counts @ packed.widths.astype(np.int64)) + 7) // 8:
        raise TransportError("packed integers do not follow the protocol")
    out = np.empty(packed.size, np.int64)
    bits, least, widths = (kernels.fixed_type(a) for a in (packed.bits, packed.least, packed.widths))
    kernels.unpack(bits, _CHUNK, least, widths, out)
    return out
