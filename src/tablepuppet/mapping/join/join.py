"""Keys → joined rows: the join of what the clients sent of their key columns.

In: the keys of every scan. Out: the joined rows of a branch, to be counted and read. They are ordered by the label's
row first, then by those of the other relations in the order of the query, so that the same keys always give the same
order. Joins that form a tree are counted out (tree_join.py); all others are DuckDB's (duckdb_join.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tablepuppet.catalog.bound import BoundQuery, Branch
from tablepuppet.errors import MappingError
from tablepuppet.mapping.join.duckdb_join import DuckJoin, why_empty
from tablepuppet.mapping.join.listed_rows import BranchSide, ListedJoin, Marks
from tablepuppet.mapping.join.tree_join import TreeJoin
from tablepuppet.mapping.keys.gather import ScanKeys

BYTES_PER_JOINED_ROW = 40


class BranchJoin(Protocol):
    """The joined rows of a branch."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each relation."""

    def count(self) -> int:
        """N."""

    def side(self, marks: Marks | None) -> BranchSide:
        """The joined rows whose label's row is marked; None: all."""


def join_branch(
    bound: BoundQuery,
    branch: Branch,
    keys: Sequence[ScanKeys],
    max_rows: int,
    *,
    max_here: int | None = None,
    may_be_empty: bool = False,
) -> BranchJoin:
    """The joined rows of a branch, if they are not too many; `max_here`: where they must be made by this machine."""
    join = TreeJoin.of(branch, keys) or DuckJoin(branch, keys)
    count = join.count()
    if isinstance(join, DuckJoin) and max_here is not None:
        max_rows = min(max_rows, max_here)
    if count == 0 and not may_be_empty:
        raise MappingError(why_empty(bound, branch, keys))
    if count > max_rows:
        raise MappingError(
            f"the query joins to {count:,} rows, more than the limit of {max_rows:,}; "
            "add a WHERE, join on more keys, or raise max_joined_rows"
        )
    if isinstance(join, TreeJoin):
        return join
    sizes = tuple(keys[relation.scan].rows for relation in branch.relations)
    return ListedJoin(sizes, branch.label_relation, join.rows())
