"""A walk over one lane of joined rows, shard by shard: expand, an algorithm's step, collapse.

In: joined rows, the borders of the lane's shards, and each block's values. Out: for each signal and block the sums that
the lane collapsed, (rows, k) from some row of the block on, and the sums that its steps gave. A lane sums the rows that
it can meet: all of an unsorted block, a range of a block in order. Lanes are added up in order (joined_rows.py).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import NUMBERS_PER_TRIANGLES, Array, Triangles, floats, pieces
from tablepuppet.join.row_index import Place, gather, scatter_add
from tablepuppet.models.losses import Weighted

if TYPE_CHECKING:
    from tablepuppet.join.joined_rows import JoinedRows


class Shard(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Some joined rows, as an algorithm's join step sees them."""

    scores: Array  # Σ_i expand_i(v_i), the step's to overwrite
    columns: Sequence[Array]  # expand_i of each block's further columns
    state: Mapping[str, Array]  # the algorithm's own joined values, writable where the walk says so
    read_labels: Callable[[], Array]
    weights: Array | None = None  # of the rows; None: all one

    @cached_property
    def labels(self) -> Array:
        """Looked up when a step asks for them."""
        return self.read_labels()


Sums = dict[str, Any]
Lane = Sequence[tuple[int, int]]  # the borders of its shards
Collapsed = list[list[tuple[int, Array]]]  # by signal and block: from which row on something is to be added
LaneResult = tuple[Collapsed, Sums]
Column = Array | Triangles
Columns = Array | tuple[Column, ...]  # (rows, k), whole or as arrays side by side
Signal = Columns | list[Columns]  # to be collapsed to every block, or one for each
JoinStep = Callable[..., tuple[Sequence[Signal], Sums]]
Places = Sequence[Place | slice]  # of each block


class Work(msgspec.Struct, frozen=True, eq=False):
    step: JoinStep
    signals: int = 0  # that are collapsed
    writes: tuple[str, ...] = ()  # state that is overwritten
    given: Mapping[str, Any] = msgspec.field(default_factory=dict)  # to the step
    own: float = 0.0  # times a block's own values is subtracted from its rows' signal


class BlockValues(msgspec.Struct, frozen=True, eq=False):
    """Each block's values for a walk to expand: values are summed over blocks, columns are not."""

    values: Sequence[Array]
    columns: Sequence[Array] = ()


class Pass(msgspec.Struct, frozen=True, eq=False):
    """The outcome of one walk over all joined rows."""

    signals: list[list[Array]]  # signals[s][i]: the s-th signal, collapsed to block i
    sums: Sums


def add_sums(parts: Sequence[Sums]) -> Sums:
    """Sums of the same names, added in order."""
    total: Sums = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def walk_lane(rows: "JoinedRows", lane: Lane, work: Work, given: BlockValues) -> LaneResult:
    """The collapsed signals of one lane, and the sums of its steps."""
    collapsed: Collapsed = []
    sums: list[Sums] = []
    spans = [p.span(lane[0][0], lane[-1][1]) for p in rows.indices]
    for start, stop in lane:
        places = [p.place(start, stop) for p in rows.indices]
        shard = _shard(rows, given, places, (start, stop), work)
        options = dict(work.given)
        if shard.weights is not None and "loss" in options:
            options["loss"] = Weighted(options["loss"], shard.weights)
        outcome, of_shard = work.step(shard, **options)
        sums.append(of_shard)
        signals = [_by_block(signal, work.own, given, places) for signal in outcome[: work.signals]]
        collapsed = collapsed or [
            [
                (low, np.zeros((high - low, sum(c.shape[1] for c in own))))
                for (low, high), own in zip(spans, signal, strict=True)
            ]
            for signal in signals
        ]
        for signal, targets in zip(signals, collapsed, strict=True):
            for columns, (base, out), place in zip(signal, targets, places, strict=True):
                _collapse(out, base, columns, place)
    return collapsed, add_sums(sums)


def _shard(rows: "JoinedRows", given: BlockValues, places: Places, borders: tuple[int, int], work: Work) -> Shard:
    owner = rows.label_index
    state = {name: kept[slice(*borders)] for name, kept in rows.state.items()}
    for name, kept in state.items():
        kept.flags.writeable = name in work.writes
    first = gather(given.values[0], places[0])
    scores = first.copy() if isinstance(places[0], slice) else first  # the step's to overwrite
    for values, place in zip(given.values[1:], places[1:], strict=True):
        scores += gather(values, place)
    columns = [gather(values, place) for values, place in zip(given.columns, places, strict=bool(given.columns))]
    known = [place for p, place in zip(rows.indices, places, strict=True) if p is owner]

    def of_label_rows(per_row: NDArray[Any]) -> Array:
        return floats(gather(per_row, known[0] if known else owner.place(*borders)))

    weights = None if rows.weights is None else of_label_rows(rows.weights)
    return Shard(scores, columns, state, partial(of_label_rows, rows.labels), weights)


def _by_block(signal: Signal, own: float, given: BlockValues, places: Places) -> list[tuple[Column, ...]]:
    """Each block's signal: less `own` times its own values, if that is asked for."""
    if own:
        assert isinstance(signal, np.ndarray)
        signal = [signal - own * gather(v, place) for v, place in zip(given.values, places, strict=True)]
    each = signal if isinstance(signal, list) else [signal] * len(places)
    return [columns if isinstance(columns, tuple) else (columns,) for columns in each]


def _collapse(out: Array, base: int, columns: tuple[Column, ...], place: Place | slice) -> None:
    """Adds the columns of a shard; triangles behind them as they are made."""
    if not columns:  # this block gets nothing of the signal
        return
    last = columns[-1]
    if not isinstance(last, Triangles):
        scatter_add(out, base, cast(tuple[Array, ...], columns), place)
        return
    whole = tuple(c for c in columns if isinstance(c, np.ndarray))
    count, step = len(last.z), max(1, NUMBERS_PER_TRIANGLES // max(1, last.shape[1]))
    for some in pieces(count, step):
        if isinstance(place, slice):
            here: Place | slice = slice(place.start + some.start, place.start + some.stop)
        else:
            here = Place(place.rows[some], None if place.is_there is None else place.is_there[some])
        scatter_add(out, base, (*(c[some] for c in whole), last[some].written_out()), here)
