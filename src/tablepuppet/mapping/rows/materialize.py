"""JoinedSide → joined rows, written down: here, or in partitions with the workers of a cluster.

Joined rows of a tree are made by the workers themselves (cluster/build.py). Those that one machine had to make, because
DuckDB joined them or a cap has chosen among them, are made here and cut into partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.mapping.cluster.build import build_on_cluster, distribute_rows
from tablepuppet.mapping.cluster.cluster import Cluster
from tablepuppet.mapping.join.listed_rows import BranchSide
from tablepuppet.mapping.join.side import Column, JoinedSide, Span
from tablepuppet.mapping.join.tree_join import TreeSide
from tablepuppet.mapping.keys.labels import LabelSpace
from tablepuppet.mapping.mapping import Joined
from tablepuppet.mapping.rows.joined import JoinedRows, RowIndex


@dataclass(frozen=True, slots=True, eq=False)
class Writer:
    """Writes the sides of one joined table."""

    blocks: int
    spans: Sequence[Span]  # of the blocks, then that of the labels, if it is none of theirs
    label: int  # which of them is the labels'
    sizes: Sequence[Sequence[int]]  # of each branch's relations
    labels: LabelSpace
    cluster: Cluster | None

    def write(self, name: str, side: Sequence[BranchSide], occurring: Sequence[RowNumbers]) -> Joined:
        """The joined rows of a side, in which these rows occur of each block."""
        columns = tuple(Column.of(*given, self.sizes) for given in zip(self.spans, occurring, strict=True))
        joined = JoinedSide(tuple(side), columns, self.blocks, self.label)
        own = occurring[self.label]
        labels = self.labels.values[own]
        weights = None if self.labels.weights is None else self.labels.weights[own]
        is_walked = name == "train"
        if self.cluster is None or not joined.rows:
            return materialize(joined, labels, weights, is_walked=is_walked)
        if can_build_on_workers(side):
            return build_on_cluster(joined, labels, weights, self.cluster, name, is_walked=is_walked)
        return distribute_rows(materialize(joined, labels, weights, is_walked=is_walked), self.cluster, name)


def can_build_on_workers(side: Sequence[BranchSide]) -> bool:
    """Whether the workers of a cluster can make these joined rows."""
    return all(isinstance(branch, TreeSide) for branch in side)


def materialize(side: JoinedSide, labels: Array, weights: Array | None, *, is_walked: bool) -> JoinedRows:
    """Joined rows in memory; labels and weights are those of the label rows that occur. `is_walked`: often."""
    numbers = side.numbers(0, side.rows)
    indices = [RowIndex.of(numbers.pop(0), column.rows) for column in side.columns]
    own = indices[side.label]
    if is_walked:
        indices = [index if index is own else index.arranged() for index in indices]
    return JoinedRows(side.rows, tuple(indices[: side.blocks]), own, labels, weights=weights)
