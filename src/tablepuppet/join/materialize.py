"""JoinedSide → joined rows, written down: here, or in partitions with the workers of a cluster.

Joined rows are made where they will lie, by the workers: the keys go to every node once. Workers go over the
joined rows twice, each over a range of its own. The first pass gathers facts about the whole p_i, which decide on
lanes. The second writes partitions of whole lanes. The partitions are those of one machine's joined rows, bit for bit;
the server knows their sizes, and which rows of the tables each of them uses. If DuckDB joined the rows, or a cap has
chosen among them, they go to every node in the place of keys.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers, floats
from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.cluster.rows import ClusterRows
from tablepuppet.join.cluster.worker import merge, partition_specs
from tablepuppet.join.factorised.rows import FactorisedRows
from tablepuppet.join.factorised.tree import Tree
from tablepuppet.join.join import Column, JoinedSide, Span
from tablepuppet.join.joined_rows import Joined, JoinedRows, lanes_of
from tablepuppet.join.labels import LabelSpace
from tablepuppet.join.tree_join import BranchSide


class Writer(msgspec.Struct, frozen=True, eq=False):
    blocks: int
    spans: Sequence[Span]  # of the blocks, then that of the labels, if it is none of theirs
    label: int  # which of them is the labels'
    sizes: Sequence[Sequence[int]]  # of each branch's relations
    labels: LabelSpace
    cluster: Cluster | None
    trees: tuple[Tree, ...] | None = None  # of the branches, where no joined row is written down
    seed: int = 0  # of those that are drawn then

    def write(
        self, name: str, side: Sequence[BranchSide], occurring: Sequence[RowNumbers], counts: RowNumbers | None = None
    ) -> Joined:
        """The joined rows of a side, in which these rows occur of each block; `counts`: how often those of the labels,
        if it is known."""
        columns = tuple(Column.of(*given, self.sizes) for given in zip(self.spans, occurring, strict=True))
        joined = JoinedSide(tuple(side), columns, self.blocks, self.label)
        own = occurring[self.label]
        labels, weights = self.labels.values, self.labels.weights
        if len(own) < len(labels):  # not all of them, ascending
            labels, weights = labels[own], None if weights is None else weights[own]
        if self.trees is not None:
            return FactorisedRows(joined, self.trees, floats(labels), weights, self.seed, self.cluster)
        if self.cluster is None or not joined.rows:
            return replace(materialize(joined, labels, weights), counts=counts)
        return build_on_cluster(joined, floats(labels), weights, self.cluster, name)


def materialize(side: JoinedSide, labels: NDArray[Any], weights: Array | None) -> JoinedRows:
    """Joined rows in memory; labels and weights are those of the label rows that occur."""
    indices = side.indices()
    own = indices[side.label]
    known = labels if own.is_identity else floats(labels)  # compact types pay only in arrays as long as the joined rows
    return JoinedRows(side.rows, tuple(indices[: side.blocks]), own, known, weights=weights)


def build_on_cluster(
    side: JoinedSide, labels: Array, weights: Array | None, cluster: Cluster, name: str
) -> ClusterRows:
    given, blocks = cluster.put(side), side.blocks
    parts = min(cluster.size, side.rows)
    borders = np.linspace(0, side.rows, parts + 1).astype(np.int64).tolist()
    calls = [(given, a, b) for a, b in itertools.pairwise(borders)]
    seen = list(cluster.ask("collect", calls))
    facts = [merge(views) for views in zip(*seen, strict=True)]
    lanes = lanes_of(side.rows, sum(of.rows for of in facts[:blocks] if not of.is_sorted))
    partitions = list(
        cluster.ask("write", [(given, facts, spec) for spec in partition_specs(lanes, cluster.size, name)])
    )
    return ClusterRows(side.rows, tuple(facts[:blocks]), partitions, cluster, labels, weights, side.label_counts())
