"""A view of joined rows, laid open: the arrays that a compiled pass (compiled_lane.py) takes from and adds to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array

Counts = NDArray[np.int64]
RowNumbers = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class LaneView:
    """Some consecutive joined rows; arrays over joined rows begin with the first of them. One output."""

    rows: int
    values: tuple[Array, ...]  # of each block: per row; per joined row where it has no row numbers
    indices: tuple[RowNumbers, ...]  # of each block; a number that is too large is no row; empty: 0, 1, 2, …
    labels: Array
    label_index: RowNumbers
    state: Mapping[str, NDArray[np.floating[Any]]]  # the algorithm's own joined values, to read and to write
    own: float  # a block's rows get the signal less `own` times their own values
    out: tuple[Array, ...]  # what is collapsed to a block's rows, from row `base` on
    base: Counts
    shared: Counts  # of a block in order: how many joined rows at the start go to `edge` instead; −1: not in order
    edge: Array

    @property
    def source(self) -> tuple[Any, ...]:
        """What `expand` takes from."""
        return self.values, self.indices, self.labels, self.label_index

    @property
    def target(self) -> tuple[Any, ...]:
        """What `collapse` adds to."""
        return self.indices, self.out, self.base, self.shared, self.edge, self.own
