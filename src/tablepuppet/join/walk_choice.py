"""How joined rows are walked over: written down, as the trees that make them, or by some that are drawn.

In: the joins of all branches, and the job's needs. Out: the cheapest way. Written down, N rows cost N and suit any
algorithm. As trees they cost as much as the tables, for losses that are sums over a tree. If neither is possible, as
many rows as fit in memory are drawn independently and stand for the join.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.errors import MappingError
from tablepuppet.job.job import Walk
from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.duckdb_join import ListedRows, why_empty
from tablepuppet.join.join import BYTES_PER_JOINED_ROW, SizeLimit, join_branch
from tablepuppet.join.keys import ScanKeys
from tablepuppet.join.labels import MappingRequest
from tablepuppet.join.mapping import LabelInfo
from tablepuppet.join.tree_join import BranchJoin, BranchSide, TreeJoin, draw_numbers
from tablepuppet.memory import free_memory
from tablepuppet.sql.bound import BoundQuery

MAX_COUNTED = 1 << 53  # joined rows beyond which float64 counts are no longer exact
MIN_FACTORISED = 1 << 24  # joined rows below which writing them down takes no time to speak of
MIN_FAN_OUT = 20  # joined rows per row of the tables from which a walk over trees is cheaper (docs/factorised.md)
MAX_DRAWN = 1 << 22  # joined rows of a side that are drawn, unless the user wants more
_STREAM = 0x647261776E


class BranchJoins(msgspec.Struct, frozen=True):
    """The joins of all branches, and how many joined rows may be written down."""

    joins: tuple[BranchJoin, ...]
    limit: int

    @property
    def rows(self) -> int:
        return sum(join.count() for join in self.joins)

    @property
    def are_trees(self) -> bool:
        return all(isinstance(join, TreeJoin) for join in self.joins)

    def choose(self, request: MappingRequest, label: LabelInfo) -> Walk:
        """The way that the user wants, or the cheapest."""
        has_sums = self.are_trees and request.has_sums is not None and request.has_sums(label)
        if request.walk == "factorised" and not self.are_trees:
            raise MappingError(
                'walk="factorised" sums over a join tree, and this join is none: it has a cycle, or the label lies on '
                "the optional side of a LEFT JOIN; leave walk out"
            )
        if request.walk == "factorised" and not has_sums:
            raise MappingError(
                'walk="factorised" has sums for second-order steps on exact labels with a squared, logistic (two '
                'classes), poisson or gamma loss; leave walk out, or train on drawn rows with walk="drawn"'
            )
        if request.walk is not None:
            return request.walk
        if not request.may_draw:
            return "materialised"
        table_rows = sum(sum(join.sizes) for join in self.joins)
        is_worth_it = self.rows > max(MIN_FACTORISED, MIN_FAN_OUT * table_rows)
        if has_sums and (is_worth_it or self.rows > self.limit):
            return "factorised"
        return "drawn" if self.rows > self.limit else "materialised"


def join_branches(
    bound: BoundQuery, keys: Sequence[ScanKeys], request: MappingRequest, cluster: Cluster | None
) -> BranchJoins:
    is_sized = request.walk in (None, "materialised")  # else nothing depends on how many there are
    given = request.max_joined_rows if is_sized else None
    limit = SizeLimit(
        given or default_limit(cluster),
        given or default_limit(),
        bounds_trees=request.walk == "materialised" or given is not None or not request.may_draw,
        prefers_trees=request.walk == "factorised",
    )
    most, joins = limit.rows, list[BranchJoin]()
    for branch in bound.branches:
        joins.append(join_branch(branch, keys, limit))
        count = joins[-1].count()
        limit = replace(limit, rows=limit.rows - count, here=limit.here - count)
    found = BranchJoins(tuple(joins), most)
    if not found.rows:  # one branch of UNION ALL may be empty, and not all of them
        raise MappingError(why_empty(bound, bound.branches[0], keys))
    if found.rows >= MAX_COUNTED:
        raise MappingError(
            f"the query joins to {found.rows:.2e} rows, more than 2^53, beyond which they cannot be counted exactly; "
            "add a WHERE, or join on more keys"
        )
    return found


def default_limit(cluster: Cluster | None = None) -> int:
    """As many joined rows as three quarters of the free memory hold, here or of the cluster."""
    memory = free_memory() if cluster is None else max(cluster.memory, free_memory())
    return max(1_000_000, int(0.75 * memory / BYTES_PER_JOINED_ROW))


def draw_side(side: Sequence[BranchSide], most: int, seed: int) -> list[BranchSide]:
    """`most` joined rows of a side, drawn independently; the side itself, if it has no more."""
    ends = np.cumsum([branch.rows for branch in side])
    if ends[-1] <= most:
        return list(side)
    drawn = np.sort(draw_numbers(int(ends[-1]), most, (seed, _STREAM)))
    inside = np.split(drawn, np.searchsorted(drawn, ends[:-1]))
    starts = [0, *ends[:-1].tolist()]
    return [_only(branch, own - start) for branch, own, start in zip(side, inside, starts, strict=True)]


def _only(branch: BranchSide, numbers: NDArray[np.int64]) -> ListedRows:
    """Some joined rows of a branch, by their numbers, which may repeat."""
    if isinstance(branch, ListedRows):
        return branch.only(numbers)
    found = branch.look_up(numbers)
    sizes = branch.join.sizes
    kinds = [np.int32 if size < 2**31 else np.int64 for size in sizes]
    return ListedRows(sizes, branch.join.root, [found[relation].astype(own) for relation, own in enumerate(kinds)])
