"""Joined rows on their way through a tree: parted by splits that the server knows; what leaves add to scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.exchange import Codes
from tablepuppet.algorithms.boosting.known import Choice, KnownBlock
from tablepuppet.algorithms.boosting.rows import BlockIndex, RowNumbers

Sums = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """How joined rows, of training or held out, find their side of a block's splits."""

    block: KnownBlock
    index: BlockIndex
    is_held: bool

    def part(
        self, order: RowNumbers, segments: Sequence[tuple[int, int]], how: Sequence[Choice], spare: RowNumbers
    ) -> Sums:
        """Parts the rows of every segment; where the right sides begin."""
        borders = np.empty(len(segments), np.int64)
        kernels.part_nodes(order, np.array(segments, np.int64), *self._where(how), spare, borders)
        return borders

    def add(
        self,
        order: RowNumbers,
        segments: Sequence[tuple[int, int]],
        how: Sequence[Choice],
        values: Sequence[Sequence[float]],
        scores: NDArray[np.float64],
    ) -> None:
        """Adds one of two values to the scores of every segment's rows."""
        kernels.add_split(order, np.array(segments, np.int64), *self._where(how), np.array(values), scores)

    def _where(self, how: Sequence[Choice]) -> tuple[RowNumbers, int, int, Codes, Sums, Codes]:
        rows = self.block.rows
        return (self.index.index, rows + 1 if self.is_held else 0, rows, self.block.codes, *self.block.splits_by(how))


def add_leaves(
    order: RowNumbers, segments: Sequence[tuple[int, int]], values: Sequence[float], scores: NDArray[np.float64]
) -> None:
    """Adds a value to the scores of every segment's rows."""
    if segments:
        kernels.add_values(order, np.array(segments, np.int64), np.array(values), scores)
