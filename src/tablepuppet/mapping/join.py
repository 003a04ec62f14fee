"""Keys → row numbers: the join of what the clients sent of their key columns.

In: the keys of every scan. Out: for each relation of a branch the row number of every joined row, ordered by the
label's row first, then by those of the other relations in the order of the query, so that the same keys always give
the same order. Joins that form a tree are counted out (tree_join.py); all others are DuckDB's (duck_join.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from tablepuppet.catalog.bound import BoundQuery, Branch
from tablepuppet.errors import MappingError
from tablepuppet.mapping.duck_join import DuckJoin, why_empty
from tablepuppet.mapping.scan_keys import ScanKeys
from tablepuppet.mapping.tree_join import TreeJoin
from tablepuppet.transport.messages import RowNumbers

BYTES_PER_JOINED_ROW = 40


def join_branch(
    bound: BoundQuery, branch: Branch, keys: Sequence[ScanKeys], max_rows: int, *, may_be_empty: bool = False
) -> list[RowNumbers]:
    """The row number of each joined row in each relation of the branch; −1 where there is none."""
    join = TreeJoin.of(branch, keys) or DuckJoin(branch, keys)
    count = join.count()
    if count == 0 and not may_be_empty:
        raise MappingError(why_empty(bound, branch, keys))
    if count > max_rows:
        raise MappingError(
            f"the query joins to {count:,} rows, more than the limit of {max_rows:,}; "
            "add a WHERE, join on more keys, or raise max_joined_rows"
        )
    return join.rows()
