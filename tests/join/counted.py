"""G_i by counting row numbers, to hold collapse_i(1) and problems made by hand to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.join.joined_rows import JoinedRows


def multiplicities(joined: JoinedRows) -> list[NDArray[np.int64]]:
    """How many joined rows each row of each block is in."""
    counts: list[NDArray[np.int64]] = []
    for p in joined.indices:
        if p.index is None:
            counts.append(np.ones(p.rows, np.int64))
        else:
            found = p.index[p.index >= 0] if p.is_partial else p.index
            counts.append(np.bincount(found, minlength=p.rows).astype(np.int64, copy=False))
    return counts
