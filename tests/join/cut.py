"""Joined rows that one machine made, cut into the partitions of a cluster."""

from __future__ import annotations

from msgspec.structs import replace

from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.cluster.rows import ClusterRows
from tablepuppet.join.cluster.worker import (
    Partition,
    PartitionSpec,
    Storage,
    partition_specs,
    write_partition,
)
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.row_index import IndexFacts, RowIndex


def distribute_rows(joined: JoinedRows, cluster: Cluster, name: str) -> ClusterRows:
    """Joined rows of one machine, cut into partitions for workers to load: the oracle of those that workers make."""
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
