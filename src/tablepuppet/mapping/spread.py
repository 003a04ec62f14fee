"""JoinedSide → ClusterRows: joined rows that are made where they will lie, with a cluster's workers.

In: a side of the joined table, whose keys go to every node once. Out: its pieces on disk, and what the server must know
of them: sizes, and which rows of the tables each piece uses. Workers go over the joined rows twice, each over a range
of its own: first to see what p_i is like as a whole, for that decides on lanes and on the numbering of rows; then to
write pieces of whole lanes. The pieces are those of one machine's joined rows, bit for bit. Where joined rows had to be
made by one machine after all, they are cut into the same pieces there.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from tablepuppet.mapping.cluster import Cluster
from tablepuppet.mapping.cluster_rows import ClusterRows
from tablepuppet.mapping.index import RowIndex
from tablepuppet.mapping.joined import JoinedRows, lanes_of
from tablepuppet.mapping.pieces import Cut, IndexFacts, Piece, cuts, write_piece
from tablepuppet.mapping.side import JoinedSide
from tablepuppet.mapping.storage import Storage
from tablepuppet.mapping.survey import conclude
from tablepuppet.mapping.worker import Layout
from tablepuppet.transport.messages import Array


def spread_rows(
    side: JoinedSide, labels: Array, weights: Array | None, cluster: Cluster, name: str, *, is_walked: bool
) -> ClusterRows:
    """Joined rows, made by the workers; all is as in `write_rows`."""
    given, blocks = cluster.put(side), side.blocks
    wants_order = [is_walked and column != side.label for column in range(len(side.columns))]
    parts = min(cluster.size, side.rows)
    borders = np.linspace(0, side.rows, parts + 1).astype(np.int64).tolist()
    calls = [(given, a, b, wants_order) for a, b in itertools.pairwise(borders)]
    seen = list(cluster.ask("look_over", calls))
    concluded = [conclude(column.rows, [own[i] for own in seen]) for i, column in enumerate(side.columns)]
    del seen
    facts = [of_column for of_column, _ in concluded]
    layout = cluster.put(Layout(facts, [order for _, order in concluded], blocks, side.label))
    lanes = lanes_of(side.rows, sum(of.rows for of in facts[:blocks] if not of.is_sorted))
    pieces = list(cluster.ask("write", [(given, layout, cut) for cut in cuts(lanes, cluster.size, name)]))
    return ClusterRows(side.rows, tuple(facts[:blocks]), pieces, cluster, labels, weights, side.label_counts())


def cut_rows(joined: JoinedRows, cluster: Cluster, name: str) -> ClusterRows:
    """Joined rows that are here already, for the workers to load."""
    pieces = [cut_piece(joined, cluster.storage, cut) for cut in cuts(joined.cut, cluster.size, name)]
    facts = tuple(IndexFacts(p.rows, p.is_identity, p.is_sorted, p.is_partial) for p in joined.indices)
    return ClusterRows(joined.rows, facts, pieces, cluster, joined.labels, joined.weights, joined.label_counts())


def cut_piece(joined: JoinedRows, storage: Storage, cut: Cut) -> Piece:
    """Writes some lanes of joined rows."""
    indices = (*joined.indices, joined.label_index)
    blocks = len(joined.indices)
    return write_piece(storage, cut, [_inside(p, cut) for p in indices], blocks, blocks)


def _inside(p: RowIndex, cut: Cut) -> RowIndex:
    return p if p.index is None else replace(p, index=p.index[cut.start : cut.stop])
