"""JoinedSide → ClusterRows: joined rows that are made where they will lie, with a cluster's workers.

In: a side of the joined table, whose keys go to every node once. Out: its partitions on disk, and what the server must
know of them: sizes, and which rows of the tables each partition uses. Workers go over the joined rows twice, each over
a range of its own: first to see what p_i is like as a whole, for that decides on lanes and on the numbering of rows;
then to write partitions of whole lanes. The partitions are those of one machine's joined rows, bit for bit. Where
joined rows had to be made by one machine after all, they are cut into the same partitions there.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.mapping.cluster.cluster import Cluster
from tablepuppet.mapping.cluster.index_stats import merge
from tablepuppet.mapping.cluster.partitions import (
    IndexFacts,
    Partition,
    PartitionSpec,
    Storage,
    partition_specs,
    write_partition,
)
from tablepuppet.mapping.cluster.rows import ClusterRows
from tablepuppet.mapping.cluster.worker import Layout
from tablepuppet.mapping.join.side import JoinedSide
from tablepuppet.mapping.rows.index import RowIndex
from tablepuppet.mapping.rows.joined import JoinedRows, lanes_of


def build_on_cluster(
    side: JoinedSide, labels: Array, weights: Array | None, cluster: Cluster, name: str, *, is_walked: bool
) -> ClusterRows:
    """Joined rows, made by the workers; all is as in `write_rows`."""
    given, blocks = cluster.put(side), side.blocks
    wants_order = [is_walked and column != side.label for column in range(len(side.columns))]
    parts = min(cluster.size, side.rows)
    borders = np.linspace(0, side.rows, parts + 1).astype(np.int64).tolist()
    calls = [(given, a, b, wants_order) for a, b in itertools.pairwise(borders)]
    seen = list(cluster.ask("collect", calls))
    concluded = [merge(column.rows, [own[i] for own in seen]) for i, column in enumerate(side.columns)]
    del seen
    facts = [of_column for of_column, _ in concluded]
    layout = cluster.put(Layout(facts, [order for _, order in concluded], blocks, side.label))
    lanes = lanes_of(side.rows, sum(of.rows for of in facts[:blocks] if not of.is_sorted))
    partitions = list(
        cluster.ask("write", [(given, layout, spec) for spec in partition_specs(lanes, cluster.size, name)])
    )
    return ClusterRows(side.rows, tuple(facts[:blocks]), partitions, cluster, labels, weights, side.label_counts())


def distribute_rows(joined: JoinedRows, cluster: Cluster, name: str) -> ClusterRows:
    """Joined rows that are here already, for the workers to load."""
    partitions = [
        make_partition(joined, cluster.storage, spec)
        for spec in partition_specs(joined.lanes_of_shards, cluster.size, name)
    ]
    facts = tuple(IndexFacts(p.rows, p.is_identity, p.is_sorted, p.is_partial) for p in joined.indices)
    return ClusterRows(joined.rows, facts, partitions, cluster, joined.labels, joined.weights, joined.label_counts())


def make_partition(joined: JoinedRows, storage: Storage, spec: PartitionSpec) -> Partition:
    """Writes some lanes of joined rows."""
    indices = (*joined.indices, joined.label_index)
    blocks = len(joined.indices)
    return write_partition(storage, spec, [_inside(p, spec) for p in indices], blocks, blocks)


def _inside(p: RowIndex, spec: PartitionSpec) -> RowIndex:
    return p if p.index is None else replace(p, index=p.index[spec.start : spec.stop])
