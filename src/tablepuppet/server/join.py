"""The join operator (LoJ): learning over the joined table, pushed down to its blocks.

Gather the blocks' predictions, compute over joined rows (expand, the algorithm's join step,
collapse), scatter the result. The algorithm's server half does the middle; this operator strings
one outer round of Algorithm 1 together.
"""

from __future__ import annotations

from collections.abc import Sequence

from tablepuppet.algorithms.base import BlockUpdate, Server
from tablepuppet.server.union import UnionOperator


class JoinOperator:
    """One outer round at a time."""

    def __init__(self, union: UnionOperator, server: Server) -> None:
        self.union = union
        self.server = server

    def round(self) -> None:
        """Compute, scatter, (inner rounds,) gather."""
        updates: Sequence[BlockUpdate | None] | None = self.server.join_step()
        while updates is not None:
            answers = self.union.run(updates, self.server.union_step)
            del updates  # as large as the tables, and no longer needed
            self.server.absorb(answers)
            updates = self.server.second_step()
