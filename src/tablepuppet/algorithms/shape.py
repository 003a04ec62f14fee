"""Shape: the few sizes of a job that its cost depends on; no row, no key, no label.

plan/costs.py counts them in a table mapping; algorithms derive their costs from them, without running.

Rounds have a number of values that a part receives and answers, in an outer round and its inner rounds. Costs
(plan/costs.py) add up their bytes and seconds, and the meter counts them in a run. Exchanges count a part's messages.
Exposures (plan/knowledge.py), noise for predictions (plan/private.py) and a contract's limits (owner/enforcement.py)
follow from them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.models.heads.base import HeadKind
from tablepuppet.models.heads.kinds import traits_of


class FanOutHistogram(msgspec.Struct, frozen=True):
    """How many rows occur in how many joined rows: G as a histogram."""

    multiplicities: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, multiplicity: NDArray[np.signedinteger[Any]]) -> "FanOutHistogram":
        values, counts = np.unique(multiplicity, return_counts=True)
        return cls(tuple(values.tolist()), tuple(counts.tolist()))

    @property
    def joined(self) -> int:
        return sum(g * n for g, n in zip(self.multiplicities, self.rows, strict=True))

    @property
    def most(self) -> int:
        return max(self.multiplicities, default=0)

    def expected_rows(self, fraction: float) -> float:
        """α: the rows that occur in a random share of the joined rows.

        >>> FanOutHistogram(multiplicities=(1, 2), rows=(10, 10)).expected_rows(0.5)
        12.5
        """
        return float(
            sum(n * (1.0 - (1.0 - fraction) ** g) for g, n in zip(self.multiplicities, self.rows, strict=True))
        )


class PartShape(msgspec.Struct, frozen=True):
    """One client's share of a block."""

    client: str
    rows: int  # that training joined rows come from
    test_rows: int
    joined: int  # joined rows that come from them
    fan: FanOutHistogram
    is_in_both: bool = True  # whether some row is trained on and held out, in different joined rows


class BlockShape(msgspec.Struct, frozen=True):
    name: str
    table: str
    features: int
    numbers: int  # entries of numeric features
    strings: int
    width: int  # d: encoded columns
    parameters: int  # |θ|
    is_identity: bool  # one row per joined row, in order
    unmatched: int  # joined rows for which a LEFT JOIN found none here
    parts: tuple[PartShape, ...]
    outputs: int  # k: numbers that it gives for each row; d_c, but for heads other than the sum
    is_masked: bool = False  # whether the server sees sums over its clients only
    integers: int = 0  # of the numbers
    booleans: int = 0

    @property
    def rows(self) -> int:
        """n: rows that take part in training."""
        return sum(part.rows for part in self.parts)

    @property
    def entries(self) -> int:
        """Encoded numbers of a row that are not 0: of a string's columns, one."""
        return self.numbers + self.strings if self.strings else self.width

    @property
    def is_split(self) -> bool:
        return len(self.parts) > 1

    @property
    def most(self) -> int:
        return max((part.fan.most for part in self.parts), default=0)


class Shape(msgspec.Struct, frozen=True):
    """N, d_c and the blocks."""

    joined: int  # N
    test_joined: int
    validation_joined: int
    outputs: int  # d_c
    blocks: tuple[BlockShape, ...]
    is_linear: bool
    curvature_varies: bool  # ∂²ℓ/∂a² depends on the scores, one number per row
    has_widths: bool  # whether widths are known, or strings were counted as one column
    epochs: int = 1  # that the job plans at most
    head: HeadKind = "sum"
    head_parameters: int = 0  # of a network's
    has_module: bool = False  # a network of the user's own, whose function is unknown
    value_bytes: int = 8
    model_bytes: int = 8  # of predictions and parameters: a network's own precision
    has_kinks: bool = False  # of the loss, whose slope at a kink must be kept
    slopes_tell_curvature: bool = False  # ∂²ℓ/∂a² of a joined row follows from ∂ℓ/∂a
    frequencies: int | None = None  # K of a walk over the join's tree; 0: it has no series; None: there is no tree

    @property
    def is_sum(self) -> bool:
        return traits_of(self.head).is_sum

    @property
    def parts(self) -> list[tuple[BlockShape, PartShape]]:
        return [(block, part) for block in self.blocks for part in block.parts]

    @property
    def expanded(self) -> "Shape":
        """The same job with a row of every block for each joined row, as the VFL baselines train."""
        return replace(self, blocks=tuple(_expand(block) for block in self.blocks))


def _expand(block: BlockShape) -> BlockShape:
    parts = tuple(replace(part, rows=part.joined, fan=FanOutHistogram((1,), (part.joined,))) for part in block.parts)
    return replace(block, parts=parts)


ROW_NUMBER_BYTES = 4


class RoundTraffic(msgspec.Struct, frozen=True):
    """Some rounds that are alike: payload bytes of one of them, in all and on its slowest path."""

    times: int
    down: float
    up: float
    slowest: float
    messages: int


Values = Callable[[BlockShape, PartShape], float]
Inner = Callable[[BlockShape], list[tuple[float, float]]]  # values of each inner round: up, then down


class OuterRound(msgspec.Struct, frozen=True):
    """A part's update, its final answer, and the inner rounds between, where a block has several clients."""

    update: Values
    answer: Values
    inner: Inner

    def traffic(self, shape: Shape, times: int = 1) -> list[RoundTraffic]:
        """This round and its inner rounds, so many times; the blocks' inner rounds run side by side."""
        inner: dict[str, list[tuple[float, float]]] = {block.name: [] for block in shape.blocks}
        for block in shape.blocks:
            if block.is_split:  # a masked number takes 8 bytes, whatever it was
                wider = 8 / shape.model_bytes if block.is_masked else 1.0
                inner[block.name] = [(up * wider, down) for up, down in self.inner(block)]
        return [
            count_round(list(_exchanges(shape, self, inner, step)), times, shape.value_bytes)
            for step in range(1 + max((len(steps) for steps in inner.values()), default=0))
        ]


def agreement(shape: Shape) -> list[RoundTraffic]:
    """The first masked sums only reveal their scale, and are asked for again."""
    messages = 2 * sum(len(block.parts) for block in shape.blocks if block.is_masked)
    return [RoundTraffic(times=1, down=0.0, up=0.0, slowest=0.0, messages=messages)] if messages else []


def _exchanges(
    shape: Shape, outer: OuterRound, inner: dict[str, list[tuple[float, float]]], step: int
) -> Iterator[tuple[str, float, float]]:
    """Who is sent how many values in the `step`-th of its rounds, and answers with how many."""
    for block, part in shape.parts:
        steps = inner[block.name]
        if step <= len(steps):
            down = outer.update(block, part) if step == 0 else steps[step - 1][1]
            up = outer.answer(block, part) if step == len(steps) else steps[step][0]
            yield part.client, down, up


def count_round(exchanges: list[tuple[str, float, float]], times: int = 1, size: int = 1) -> RoundTraffic:
    """A round of which each client is sent, and answers, so many values of a size; it takes place so many times."""
    by_client: dict[str, float] = {}
    for client, down, up in exchanges:
        by_client[client] = by_client.get(client, 0.0) + down + up
    return RoundTraffic(
        times=times,
        down=size * sum(down for _, down, _ in exchanges),
        up=size * sum(up for _, _, up in exchanges),
        slowest=size * max(by_client.values(), default=0.0),
        messages=2 * len(exchanges),
    )


POWER_ROUNDS = 12  # products with second moments that bound the curvature for plain descent


class RunShape(msgspec.Struct, frozen=True):
    """The sizes that the number of messages depends on."""

    epochs: int
    rows: int  # joined rows that are trained on
    batch_size: int | None
    is_linear: bool
    is_private: bool = False
    has_head: bool = False  # other than the sum: linear blocks begin at random numbers and send predictions


class Exchanges(msgspec.Struct, frozen=True):
    """Messages of one part in a run of so many epochs."""

    epochs: int
    batches: int = 1  # steps of an epoch
    has_opening: bool = False  # predictions are asked for once before the first step
    has_start: bool = False  # …and come with the start
    inner: int = 1  # sums between two steps, where a table has several clients
    evaluates_train: bool = False  # train rows are predicted again to be measured
    power_rounds: int = 0
    is_pooled: bool = False

    @property
    def steps(self) -> int:
        return 0 if self.is_pooled else self.epochs * self.batches

    @property
    def evaluations(self) -> int:
        return 0 if self.is_pooled else self.epochs + 1

    @property
    def train_showings(self) -> int:
        return self.steps + self.has_opening + self.has_start + (self.evaluations if self.evaluates_train else 0)

    def row_showings(self, multiplicity: int) -> int:
        """How often a row of that multiplicity is predicted at most, as a train row."""
        return self.train_showings - self.steps + self.row_steps(multiplicity)

    def row_steps(self, multiplicity: int) -> int:
        """How many steps a row of that multiplicity is in: no more batches of an epoch than it has joined rows."""
        return 0 if self.is_pooled else self.epochs * min(max(1, multiplicity), self.batches)

    @property
    def showings(self) -> int:
        return self.train_showings + self.evaluations
