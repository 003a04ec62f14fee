"""The cost of training: rounds, bytes and memory of every algorithm, counted from the shape of the job.

In: a mapping's sizes and, where known, the width of each block: a Shape. An algorithm's name and options. Out: a Cost,
to compare with the meter's counts, and bytes of memory to within a factor of about two. Memory counts arrays that live
at the same time, without Python and the libraries (some 200 MB). The formulae are those of docs/algorithms.md
("Communication"); every algorithm declares its own (`traffic`, `server_memory`, `client_memory`). One epoch is an outer
round to all blocks, and inner rounds for blocks with several clients.

`Advice`: which algorithm to take, and why: the one that reaches the optimum in the least time on a slow network. An
algorithm declares how good it is for a Shape (`merit`); its time follows from its cost. The epochs that an algorithm
needs are those it took where it was measured (docs/algorithms.md).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.algorithms.algorithm import FLOAT, Algorithm, tree_seconds
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.registry import BY_NAME, FEDERATED, is_expanded
from tablepuppet.algorithms.shape import BlockShape, PartShape, RoundTraffic, Shape, agreement
from tablepuppet.formatting import format_count, plural, seconds
from tablepuppet.join.factorised.series import TOLERANCE, USUAL_REACH, guess_frequencies
from tablepuppet.join.join import BYTES_PER_JOINED_ROW
from tablepuppet.join.mapping import Placement
from tablepuppet.join.walk_choice import MAX_DRAWN
from tablepuppet.models.heads.kinds import traits_of
from tablepuppet.models.linear import GRAM_LIMIT
from tablepuppet.models.losses.base import Analytic
from tablepuppet.sources.columns import STRING_KINDS
from tablepuppet.transport.meter import Network, network

if TYPE_CHECKING:
    from tablepuppet.plan.plan import Plan

RUN_EPOCHS = 10  # over which runs of different algorithms are compared
HEADER_BYTES = 90  # of one message, all but its arrays
_MESSAGE = 1.4e-4  # CPU seconds to write, check, count and read one


class Cost(msgspec.Struct, frozen=True):
    """The estimated traffic of a run's training rounds."""

    algorithm: str
    epochs: int
    round_traffic: tuple[RoundTraffic, ...]
    computing: float | None = None  # CPU seconds besides messages; None: of a network that nobody knows
    round_range: tuple[int, int] = (0, 0)  # at least and at most, of a run

    @property
    def cpu(self) -> float | None:
        """CPU seconds of the server and all clients in one process, to within a factor of two on the core of
        docs/performance.md."""
        messages = sum(rounds.times * rounds.messages for rounds in self.round_traffic)
        return None if self.computing is None else self.computing + _MESSAGE * messages

    @property
    def rounds(self) -> int:
        return sum(rounds.times for rounds in self.round_traffic)

    @property
    def rounds_text(self) -> str:
        """
        >>> Cost("boosting", 5, (), round_range=(2, 1045)).rounds_text
        '2–1,045'
        """
        low, high = self.round_range
        return f"{low:,}–{high:,}" if low < high else f"{self.rounds:,}"

    @property
    def payload_down(self) -> float:
        return sum(rounds.times * rounds.down for rounds in self.round_traffic)

    @property
    def payload_up(self) -> float:
        return sum(rounds.times * rounds.up for rounds in self.round_traffic)

    @property
    def payload(self) -> float:
        return self.payload_down + self.payload_up

    @property
    def bytes(self) -> float:
        """All bytes, both ways: the arrays, and a header for every message."""
        return self.payload + sum(rounds.times * rounds.messages for rounds in self.round_traffic) * HEADER_BYTES

    def seconds(self, on: str | Network) -> float:
        net = network(on)
        return sum(rounds.times * net.seconds(rounds.slowest) for rounds in self.round_traffic)


def cost(
    shape: Shape,
    algorithm: str,
    options: AlgorithmOptions,
    epochs: int,
    batch_size: int | None = None,
    *,
    after: int = 0,
) -> Cost:
    """The cost of `epochs` epochs of an algorithm, `after` so many others: the first may send more."""
    declared = BY_NAME[algorithm]
    shape = as_walked(shape, declared)
    own = shape.expanded if is_expanded(algorithm) else shape
    numbers = range(1) if declared.is_pooled else range(after, after + epochs)
    round_traffic = [rounds for epoch in numbers for rounds in declared.traffic(own, options, epoch, batch_size)]
    agreed = agreement(shape) if after == 0 and not (declared.is_pooled or declared.own_model) else []
    size = shape.joined if batch_size is None else min(batch_size, shape.joined)
    batches = -(-shape.joined // max(1, size)) if declared.uses_batches or declared.is_pooled else 1
    is_solved = declared.is_pooled and shape.is_linear and shape.is_sum  # at once, independent of the epochs
    computed = numbers if is_solved else range(after, after + epochs)
    computing = None if shape.has_module else sum(declared.cpu(own, options, epoch, batches) for epoch in computed)
    traffic = (*round_traffic, *agreed)
    rounds = sum(one.times for one in traffic)
    span = declared.round_range(own, options, rounds) if declared.own_model and after == 0 else (rounds, rounds)
    return Cost(algorithm, epochs, traffic, computing, span)


def shape_of(plan: "Plan") -> Shape:
    mapping, loss, spec, head, wire = plan.mapping, plan.loss, plan.job.model.spec, plan.head, plan.job.wire
    value_bytes = 4 if wire.startswith("float32") else 8  # before compression
    traits = traits_of(head.kind)
    inputs = sum(head.widths) - (len(head.widths) * head.outputs if head.sum_weight else 0)  # of a network head
    return Shape(
        joined=mapping.train_rows,
        test_joined=mapping.test_rows,
        validation_joined=mapping.validation_rows,
        outputs=loss.outputs,
        blocks=tuple(_block_shape(plan, number, outputs) for number, outputs in enumerate(head.widths)),
        is_linear=spec.is_linear,
        curvature_varies=not loss.is_quadratic and loss.outputs == 1,
        has_widths=plan.widths is not None,
        epochs=plan.job.epochs,
        head=head.kind,
        head_parameters=_layers(inputs, head.hidden, head.outputs) if traits.has_layers else 0,
        has_module=spec.kind == "module" or traits.is_own,
        value_bytes=value_bytes,
        model_bytes=value_bytes if spec.is_linear or spec.dtype == "float64" else 4,
        has_kinks=not loss.is_smooth,
        slopes_tell_curvature=loss.slope_tells_curvature
        and mapping.label.channel is None
        and not plan.job.data.has_weights,
        frequencies=expected_frequencies(plan),
    )


def expected_frequencies(plan: "Plan") -> int | None:
    """K of a walk over the join's tree, for scores of a usual range; None: joined rows are written down."""
    if plan.mapping.walk != "factorised":
        return None
    parts = plan.loss.separate(np.zeros(1))
    core = None if parts is None else parts.core
    return guess_frequencies(core, USUAL_REACH) if isinstance(core, Analytic) else 0


def describe_walk(plan: "Plan") -> str:
    """How joined rows are walked over; nothing where they are written down."""
    mapping, shape = plan.mapping, plan.shape
    if mapping.whole is not None:
        return (
            f"walk drawn: {mapping.train_rows:,} of {format_count(mapping.whole.train)} joined rows to train on and "
            f"{mapping.test_rows:,} of {format_count(mapping.whole.test)} to test on, drawn with replacement"
        )
    if shape.frequencies is None:
        return ""
    how = "sums are exact to rounding"
    if shape.frequencies:
        how = f"K = {shape.frequencies} frequencies, or more where scores reach beyond ±{USUAL_REACH:g}, give each "
        how += f"joined row's slope to {TOLERANCE:g}"
    rows, joined = sum(block.rows for block in shape.blocks), format_count(mapping.train_rows)
    return (
        f"walk factorised: over {rows:,} rows of the join's tree instead of {joined} joined rows; {how}; "
        f"about {seconds(tree_seconds(shape))} of CPU a walk"
    )


def _block_shape(plan: "Plan", number: int, outputs: int) -> BlockShape:
    mapping = plan.mapping
    block, counted, own = mapping.bound.blocks[number], mapping.blocks[number], mapping.parts_of(number)
    unmatched = mapping.train_rows - counted.joined
    parts: list[PartShape] = []
    for part in own:
        joined = part.fan.joined + (unmatched if not parts else 0)
        parts.append(PartShape(part.client, part.train_rows, part.test_rows, joined, part.fan, part.is_in_both))
    strings = sum(column.kind in STRING_KINDS for column in block.columns)
    numbers = sum(max(1, column.size) for column in block.columns if column.kind not in STRING_KINDS)
    width = numbers + strings if plan.widths is None else plan.widths[number]
    spec = plan.job.model.spec  # a user's own module counts as a linear one, for only its owner can build it
    return BlockShape(
        name=block.name,
        table=block.table,
        features=len(block.features),
        numbers=numbers,
        strings=strings,
        width=width,
        parameters=_layers(width, spec.hidden, outputs) if spec.kind == "mlp" else width * outputs,
        outputs=outputs,
        is_identity=counted.is_identity,
        unmatched=unmatched,
        parts=tuple(parts),
        is_masked=plan.job.privacy.masks(len({part.client for part in own})),
        integers=sum(column.kind == "integer" for column in block.columns),
        booleans=sum(column.kind == "boolean" for column in block.columns),
    )


def _layers(width: int, hidden: Sequence[int], outputs: int) -> int:
    return sum((a + 1) * b for a, b in pairwise((width, *hidden, outputs)))


_INDEX = 4  # bytes of a row number
_CODE = 4  # bytes of a category
_TREE = 400  # bytes of a row of a join's tree while it is walked over


def server_memory(shape: Shape, algorithm: str, options: AlgorithmOptions, placement: Placement | None = None) -> int:
    """The join of the keys, or the training after it, whichever is more; a placement's own share is left out."""
    declared, shape = BY_NAME[algorithm], as_walked(shape, BY_NAME[algorithm])
    own = shape.expanded if is_expanded(algorithm) else shape
    joining = BYTES_PER_JOINED_ROW * (shape.joined + shape.test_joined)
    if own.frequencies is not None:
        return declared.server_memory(own, options) + _TREE * sum(block.rows for block in own.blocks)
    training = declared.server_memory(own, options)
    if placement is None or own is not shape or declared.is_pooled:  # baselines run here
        arrays = 1 + sum(not block.is_identity for block in shape.blocks)  # of row numbers, and the label's
        mapping = _INDEX * arrays * (shape.joined + shape.test_joined)
        return int(max(joining, mapping + training + declared.state_memory(own, options)))
    return int(max(0 if placement.is_joined_there else joining, training))


def client_memory(shape: Shape, algorithm: str, options: AlgorithmOptions) -> int:
    """The client with the most: its encoded rows, vectors over them, and the algorithm's own arrays for a part."""
    declared, own = BY_NAME[algorithm], shape.expanded if is_expanded(algorithm) else shape
    totals: dict[str, float] = {}
    for block, part in own.parts:
        rows = part.rows + part.test_rows
        encoded = rows * (FLOAT * block.numbers + _CODE * block.strings)
        vectors = FLOAT * block.outputs * 3 * rows
        kept = declared.client_memory(own, options, block, part)
        totals[part.client] = totals.get(part.client, 0.0) + encoded + vectors + kept
    return int(max(totals.values(), default=0.0))


def as_walked(shape: Shape, algorithm: Algorithm[Any]) -> Shape:
    """The shape that an algorithm sees of a join that nobody writes down: its tree, or joined rows that are drawn."""
    if shape.frequencies is None or algorithm.takes_trees:
        return shape
    joined, tested = min(shape.joined, MAX_DRAWN), min(shape.test_joined, MAX_DRAWN)
    return replace(shape, joined=joined, test_joined=tested, frequencies=None)


_NETWORK = "us-uk"
_SLOW = 2  # times as long as the fastest


class Advice(msgspec.Struct, frozen=True):
    algorithm: str
    why: str


def advise(shape: Shape, batch_size: int | None, *, is_smooth: bool) -> Advice:
    """The algorithm for a model of this shape: of the best, the first in the list that is not slow."""
    widest = max(shape.blocks, key=lambda block: block.width)
    is_wide = shape.is_linear and widest.width > GRAM_LIMIT
    fit = [a for a in FEDERATED if shape.head in a.heads and (shape.is_linear or not a.requires_linear)]
    fit = [a for a in fit if is_smooth or not a.requires_curvature]
    kept = [a for a in fit if not (is_wide and a.forms_second_moments)]
    costs = {a.name: cost(shape, a.name, a.options(), RUN_EPOCHS, batch_size) for a in fit}
    rank = max(a.merit(shape).rank for a in kept)
    best = [a for a in kept if a.merit(shape).rank == rank]
    fastest = min(_time(costs[a.name]) for a in best)
    chosen = next(a for a in best if _time(costs[a.name]) <= _SLOW * fastest)
    if len(kept) < len(fit):
        names = " and ".join(a.name for a in fit if a not in kept)
        return Advice(
            chosen.name,
            f"block {widest.name} has {widest.width:,} columns, more than the {GRAM_LIMIT:,} whose second moments "
            f"{names} keep",
        )
    slow = [a for a in best[: best.index(chosen)] if a.merit(shape).burden]
    return Advice(chosen.name, _why(shape, chosen, slow[:1], costs))


def _why(shape: Shape, chosen: Algorithm[Any], slow: list[Algorithm[Any]], costs: dict[str, Cost]) -> str:
    own, merit = costs[chosen.name], chosen.merit(shape)
    if slow:
        burden = costs[slow[0].name]
        others = [c for name, c in costs.items() if name != slow[0].name]
        return f"{slow[0].merit(shape).burden} ({time_of(burden)} on US-UK for {burden.epochs} epochs); {_list(others)}"
    others = [c for c in costs.values() if c is not own]
    if merit.rank < 2:
        return f"{merit.why}; {_list([own, *others])} on US-UK"
    return (
        f"{merit.why} in about {own.epochs} iterations, {own.rounds} rounds, {time_of(own)} on US-UK; {_list(others)}"
    )


def _list(costs: list[Cost]) -> str:
    return ", ".join(f"{c.algorithm} takes {time_of(c)} for {c.epochs} epochs" for c in costs)


def _time(of: Cost) -> float:
    return of.seconds(_NETWORK)


def range_of(of: Cost) -> str:
    """The rounds of a run, and their seconds on a slow network."""
    low, high = of.round_range
    if low == high:
        return f"about {plural(of.rounds, 'round')}, {time_of(of)} on US-UK"
    each = _time(of) / max(1, of.rounds)
    return f"{low:,} to {high:,} rounds, {seconds(low * each)} to {seconds(high * each)} on US-UK"


def time_of(of: Cost) -> str:
    return seconds(_time(of))
