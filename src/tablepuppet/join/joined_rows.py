"""Joined: the joined rows as algorithms and training use them. JoinedRows: those that lie here, as row numbers.

The joined table exists only as p_i, one row number per block and joined row (docs/notation.md).
`expand` carries per-row values to joined rows; `collapse` sums joined values back to rows. They are adjoint, and every
algorithm rests on this one law.

All work over joined rows runs in shards small enough for a core's cache. Shards are grouped in
lanes; a lane is walked by one thread, and lanes are summed in order. Borders depend on N alone,
so the number of threads, or of the machines that lanes lie on (cluster/rows.py), never changes a bit
of the result.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, Self

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Walkable
from tablepuppet.arrays import (
    JOINED_ROWS_PER_SHARD,
    ROWS_IN_CACHE,
    VALUES_PER_SORTED_PIECE,
    Array,
    RowNumbers,
    floats,
    pieces,
)
from tablepuppet.join.row_index import IndexFacts, RowIndex, count_rows, distinct, gather
from tablepuppet.join.walk import BlockValues, JoinStep, Lane, LaneResult, Pass, Shard, Sums, Work, add_sums, walk_lane
from tablepuppet.threads import one_blas_thread, pool

__all__ = ["JoinStep", "JoinedRows", "LaneResult", "Pass", "RowIndex", "Shard", "Sums", "Work", "add_sums", "batch"]

Used = slice | NDArray[np.int64]  # which of a block's rows some joined rows use
LANES = 16
_JOINED_ROWS_PER_LANE = 1 << 24  # joined rows beyond which 16 lanes would be too few: a lane lies on one machine
_MAX_JOINED_ROWS_PER_LANE = 1 << 26  # joined rows of a lane, even where blocks are large


class Joined(Walkable, Protocol):
    """The joined rows of one side, wherever they lie: here as row numbers, or on a cluster (cluster/rows.py).

    Algorithms only use Walkable. Plans and training also use counts, and change labels and weights.
    """

    @property
    def indices(self) -> Sequence[RowIndex | IndexFacts]:
        """For each block, facts about p_i."""

    def label_counts(self) -> RowNumbers:
        """How many joined rows have their label from each label row."""

    def collapsed_weights(self) -> list[Array] | None:
        """collapse_i of the rows' weights; None: they are the multiplicities."""

    def with_weights(self, weights: Array | None) -> "Joined":
        """The same joined rows with other weights, per row of the label table."""

    def with_labels(self, labels: Array) -> "Joined":
        """The same joined rows with other labels, per row of the label table."""

    def fetch(self) -> "JoinedRows":
        """The same joined rows in this process, for work that is not a walk."""

    def look_up(self, joined: NDArray[np.int64]) -> tuple[list[RowNumbers], Array, Array | None]:
        """p_i of some joined rows, for each block, and their labels and weights."""

    def walk_all(self, work: Work, per_row: Sequence[Array], columns: Sequence[Array]) -> Pass:
        """The results of all lanes, added up in order."""


class AnyRows(msgspec.Struct, frozen=True, eq=False, dict=True):
    """What joined rows do alike, wherever they lie."""

    def run(
        self: Joined,
        step: JoinStep,
        per_row: Sequence[Array],
        *,
        columns: Sequence[Array] = (),
        signals: int = 0,
        writes: Collection[str] = (),
        own: float = 0.0,
        **given: Any,
    ) -> Pass:
        """Walk over all joined rows: expand, `step`, collapse its signals, add up its sums.

        `per_row` is summed over blocks; `columns`, one array per block, are not. `writes` names the state that the
        step overwrites. A block's rows get the signal less `own` times the block's own values. A step that takes a loss
        gets it with the rows' weights, if they have any. A signal (arrays side by side) is collapsed to every block; a
        list has one signal per block.
        """
        return self.walk_all(Work(step, signals, tuple(writes), given, own), per_row, columns)

    def by_label(self: Joined) -> "JoinedRows":
        """The different labels in one block, each as heavy as all joined rows that have it. While nothing is predicted,
        sums over them are sums over all joined rows."""
        labels, weights, counts = self.labels, self.weights, self.label_counts()
        found = np.unique(labels)
        if len(found) == len(labels):
            found, heavy = labels, np.asarray(counts * (1.0 if weights is None else weights), np.float64)
        else:
            heavy = np.zeros(len(found))
            for here in pieces(len(labels), ROWS_IN_CACHE if weights is None else len(labels)):
                own = counts[here] if weights is None else counts[here] * weights[here]
                heavy += np.bincount(np.searchsorted(found, labels[here]), own, len(found))
        identity = RowIndex(len(found), None, is_sorted=True)
        return JoinedRows(len(found), (identity,), identity, floats(found), weights=heavy)

    def collapsed_weights(self: Joined) -> list[Array] | None:
        if self.weights is None:
            return None
        found: list[Array] = self.run(_weight_step, [np.zeros((p.rows, 1)) for p in self.indices], signals=1).signals[0]
        return found

    def take(self: Joined, joined: NDArray[np.int64]) -> "tuple[JoinedRows, list[RowNumbers]]":
        """A batch of joined rows, and for each block the rows that occur in it (ascending)."""
        return batch(*self.look_up(joined), [p.rows for p in self.indices])

    def with_weights(self, weights: Array | None) -> Self:
        return replace(self, weights=weights, state={})

    def with_labels(self, labels: Array) -> Self:
        return replace(self, labels=labels, state={})


class JoinedRows(AnyRows, frozen=True):
    """Some joined rows (all training rows, all test rows, one batch) and their labels."""

    rows: int
    indices: tuple[RowIndex, ...]  # one per block
    label_index: RowIndex
    labels: NDArray[Any]  # per row of the label table: float64, or bytes, where those are classes in order
    state: dict[str, Array] = msgspec.field(default_factory=dict)
    weights: Array | None = None  # of the rows' losses, per row of the label table; None: all one
    counts: RowNumbers | None = None  # joined rows per row of the label table, where they were counted already
    lanes: Sequence[Lane] | None = None  # a partition's own lanes; None: as many as N asks for

    def allocate(self, name: str, outputs: int, dtype: type[np.floating[Any]] = np.float64) -> None:
        """A value per joined row and output, kept between passes and seen by join steps."""
        self.state[name] = np.zeros((self.rows, outputs), dtype)

    def walk_all(self, work: Work, per_row: Sequence[Array], columns: Sequence[Array]) -> Pass:
        each = pool().map if len(self.lanes_of_shards) > 1 else map
        whole = [slice(0, p.rows) for p in self.indices]
        lanes = ((whole, lane) for lane in self.walk(work, per_row, columns, each))
        done = add_lanes(lanes, [p.rows for p in self.indices])
        zeros = [[np.zeros((p.rows, per_row[0].shape[1])) for p in self.indices] for _ in range(work.signals)]
        return done if done.signals else Pass(zeros, done.sums)

    def walk(
        self,
        work: Work,
        per_row: Sequence[Array],
        columns: Sequence[Array],
        each: Callable[[Callable[[Lane], LaneResult], Sequence[Lane]], Iterable[LaneResult]] = map,
    ) -> Iterator[LaneResult]:
        """The result of every lane, in order, as it comes."""
        given = BlockValues([np.ascontiguousarray(values) for values in per_row], columns)

        def one(lane: Lane) -> LaneResult:
            with np.errstate(over="ignore", invalid="ignore"):  # divergence is the engine's to notice
                return walk_lane(self, lane, work, given)

        with one_blas_thread:  # lanes already keep all cores busy
            yield from each(one, self.lanes_of_shards)

    def collect(self, name: str) -> Array:
        """A value per joined row that a walk left in the state, which gives it up."""
        return self.state.pop(name)

    def look_up(self, joined: NDArray[np.int64]) -> tuple[list[RowNumbers], Array, Array | None]:
        rows = self.label_index.take(joined)
        weights = None if self.weights is None else self.weights[rows]
        return [p.take(joined) for p in self.indices], floats(self.labels[rows]), weights

    def expand(self, block: int, values: Array) -> Array:
        """expand_i of one block's values: (n_i, k) → (N, k). The centralised baseline alone wants them all at once."""
        return gather(values, self.indices[block].place(0, self.rows))

    def joined_labels(self) -> Array:
        """The label of every joined row."""
        index = self.label_index.index
        return floats(self.labels if index is None else self.labels[index])

    def joined_weights(self) -> Array | None:
        """The weight of every joined row; None: all one."""
        index = self.label_index.index
        return self.weights if self.weights is None or index is None else self.weights[index]

    def fetch(self) -> "JoinedRows":
        return self

    def label_counts(self) -> RowNumbers:
        if self.counts is not None:
            return self.counts
        p = self.label_index
        return np.broadcast_to(np.int32(1), p.rows) if p.index is None else count_rows(p.index, p.rows)

    def iterate_sorted(self, name: str) -> Iterator[Array]:
        """The values that a walk left in the state, which gives them up, in ascending order, some at a time."""
        return ascending(self.state.pop(name).reshape(-1))

    @cached_property
    def lanes_of_shards(self) -> Sequence[Lane]:
        """The lanes: fewer where blocks are large, for each lane sums an unsorted block on its own."""
        if self.lanes is not None:
            return self.lanes
        return lanes_of(self.rows, sum(p.rows for p in self.indices if not p.is_sorted))


def lanes_of(rows: int, scattered: int) -> list[Lane]:
    """The lanes of so many joined rows; `scattered`: rows of the blocks that are not sorted."""
    borders = [*list(range(0, rows, JOINED_ROWS_PER_SHARD)), rows]
    shards = list(itertools.pairwise(borders))
    most, least = max(LANES, rows // _JOINED_ROWS_PER_LANE), max(2, rows // _MAX_JOINED_ROWS_PER_LANE)
    lanes = min(most, max(least, rows // max(1, scattered)))
    size = max(1, -(-len(shards) // lanes))
    return [shards[i : i + size] for i in range(0, len(shards), size)]


def ascending(values: Array) -> Iterator[Array]:
    """The values in ascending order, some at a time; nobody else may use `values` any more."""
    values.sort()
    return (values[here] for here in pieces(max(1, len(values)), VALUES_PER_SORTED_PIECE))


def _weight_step(shard: Shard) -> tuple[Sequence[Array], Sums]:
    assert shard.weights is not None
    return (shard.weights[:, None],), {}


def add_lanes(lanes: Iterable[tuple[Sequence[Used], LaneResult]], rows: Sequence[int]) -> Pass:
    """The sum of lanes' results, in order; each lane comes with the rows of every block that are its own."""
    totals: list[list[Array]] = []
    sums: list[Sums] = []
    for used, (collapsed, of_lane) in lanes:  # as they come: a lane's arrays can be as large as the tables
        sums.append(of_lane)
        totals = totals or [
            [np.zeros((size, out.shape[1])) for size, (_, out) in zip(rows, own, strict=True)] for own in collapsed
        ]
        for into, own in zip(totals, collapsed, strict=True):
            for total, here, (base, out) in zip(into, used, own, strict=True):
                if isinstance(here, slice):
                    total[here.start + base : here.start + base + len(out)] += out
                else:
                    total[here[base : base + len(out)]] += out
        del collapsed  # before the next lane's come
    return Pass(totals, add_sums(sums))


def batch(
    row_numbers: Sequence[RowNumbers], labels: Array, weights: Array | None, sizes: Sequence[int]
) -> tuple[JoinedRows, list[RowNumbers]]:
    """Joined rows from p_i, labels and weights; blocks have just the rows that occur, which are returned ascending."""
    indices: list[RowIndex] = []
    occurring: list[RowNumbers] = []
    for numbers, size in zip(row_numbers, sizes, strict=True):
        unique, inverse = distinct(numbers, size)
        missing = int(len(unique) > 0 and unique[0] < 0)
        occurring.append(unique[missing:].astype(np.int32 if len(unique) == 0 or unique[-1] < 2**31 else np.int64))
        indices.append(RowIndex.of(inverse - missing, len(unique) - missing))
    identity = RowIndex(len(labels), None, is_sorted=True)
    return JoinedRows(len(labels), tuple(indices), identity, labels, weights=weights), occurring
