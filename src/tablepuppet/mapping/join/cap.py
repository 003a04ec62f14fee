"""The cap on multiplicity: at most κ joined rows per base row take part in training.

In: the rows of each block that the joined training rows come from. Out: which joined rows stay. Of a base row with
more than κ joined rows, a seeded choice stays; the blocks are capped one after the other, and dropping a joined row
never raises another row's multiplicity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers

_STREAM = 0x6B61707061


def within_cap(blocks: Sequence[RowNumbers], caps: Sequence[int | None], seed: int) -> NDArray[np.int64]:
    """The joined rows that stay, ascending; `blocks[i]` is p_i, −1 where there is no row.

    >>> within_cap([np.array([0, 0, 0, 1, -1, -1])], [2], seed=0).tolist()
    [0, 1, 3, 4, 5]
    """
    kept: NDArray[np.int64] = np.random.default_rng((seed, _STREAM)).permutation(len(blocks[0]))
    for rows, cap in zip(blocks, caps, strict=True):
        if cap is None:
            continue
        base = rows[kept]
        order = np.argsort(base, kind="stable")
        grouped = base[order]
        first = np.flatnonzero(np.concatenate([[True], grouped[1:] != grouped[:-1]])) if len(grouped) else grouped
        rank = np.arange(len(grouped)) - np.repeat(first, np.diff(np.append(first, len(grouped))))
        stays = np.zeros(len(kept), np.bool_)
        stays[order[(rank < cap) | (grouped < 0)]] = True
        kept = kept[stays]
    return np.sort(kept)
