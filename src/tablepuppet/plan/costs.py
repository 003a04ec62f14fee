"""What training costs: rounds and bytes of every algorithm, counted from the shape of the job.

In: a Shape, an algorithm's name and options. Out: a Cost, to be compared with what the meter counts.
The formulae are those of docs/algorithms.md ("Communication"), for the messages of protocol/.
One epoch is an outer round to all blocks, and inner rounds for blocks with several clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tablepuppet.algorithms.options import Admm, Newton, Options, Sgd
from tablepuppet.plan.shape import BlockShape, PartShape, Shape
from tablepuppet.transport.meter import Network, network

RUN_EPOCHS = 10  # what runs of different algorithms are compared by
HEADER_BYTES = 90  # of one message, all but its arrays
_ROW_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Wave:
    """Some rounds that are alike: payload bytes of one of them, in all and on its slowest path."""

    times: int
    down: float
    up: float
    slowest: float
    messages: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The estimated traffic of a run's training rounds."""

    algorithm: str
    epochs: int
    waves: tuple[Wave, ...]

    @property
    def rounds(self) -> int:
        return sum(wave.times for wave in self.waves)

    @property
    def payload_down(self) -> float:
        return sum(wave.times * wave.down for wave in self.waves)

    @property
    def payload_up(self) -> float:
        return sum(wave.times * wave.up for wave in self.waves)

    @property
    def payload(self) -> float:
        """Bytes of arrays, both ways."""
        return self.payload_down + self.payload_up

    @property
    def bytes(self) -> float:
        """All bytes, both ways: the arrays, and a header for every message."""
        return self.payload + sum(wave.times * wave.messages for wave in self.waves) * HEADER_BYTES

    def seconds(self, on: str | Network) -> float:
        """Communication time on a network."""
        net = network(on)
        return sum(wave.times * net.seconds(wave.slowest) for wave in self.waves)


def cost(
    shape: Shape, algorithm: str, options: Options, epochs: int, batch_size: int | None = None, *, after: int = 0
) -> Cost:
    """What `epochs` epochs of an algorithm cost, `after` so many others: the first may send more."""
    is_expanded = algorithm.startswith("vfl-")
    numbers = range(after, after + epochs)
    if isinstance(options, Newton):
        waves = [_newton_waves(shape, options, epoch) for epoch in numbers]
    elif isinstance(options, Admm):
        waves = [_waves(shape, _admm(shape, options, epoch, is_expanded)) for epoch in numbers]
    elif isinstance(options, Sgd):
        waves = [_sgd(shape, epochs, batch_size, is_expanded, is_first=after == 0)]
    else:
        waves = [_pooled(shape)]
    agreement = _agreement(shape) if after == 0 and algorithm != "centralized" else []
    return Cost(algorithm, epochs, (*(wave for epoch in waves for wave in epoch), *agreement))


# -- one epoch -----------------------------------------------------------------------------

Values = Callable[[BlockShape, PartShape], float]
Inner = Callable[[BlockShape], list[tuple[float, float]]]  # values of each inner round: up, then down


@dataclass(frozen=True, slots=True)
class _Epoch:
    """An outer round: what a part is sent, what it answers in the end, and the inner rounds between."""

    update: Values
    answer: Values
    inner: Inner


def _newton_waves(shape: Shape, options: Newton, epoch: int) -> list[Wave]:
    """In the first epoch, light blocks are asked twice."""
    waves = _waves(shape, _newton(shape, options, epoch))
    light = replace(shape, blocks=tuple(block for block in shape.blocks if block.is_small))
    return [*waves, *_waves(light, _newton(shape, options, epoch, again=1))] if light.blocks and not epoch else waves


def _newton(shape: Shape, options: Newton, epoch: int, again: int = 0) -> _Epoch:
    """Down Y and, for logistic loss, W; up the direction's predictions."""
    c = shape.outputs
    varies = shape.curvature_varies
    moments = varies or epoch + again == 0

    def constants(block: BlockShape) -> int:
        return c if block.strings else 0

    def update(block: BlockShape, part: PartShape) -> float:
        # later epochs' coefficients have left by then, for the evaluation
        return part.rows * (c + varies) + again * (1 + constants(block))

    def answer(block: BlockShape, part: PartShape) -> float:
        earlier = epoch + max(again, block.is_small and epoch > 0)
        return part.rows * c + (2 + constants(block) + min(earlier, options.memory)) ** 2

    def inner(block: BlockShape) -> list[tuple[float, float]]:
        return [(block.parameters + moments * block.width**2, block.parameters)]

    return _Epoch(update, answer, inner)


def _admm(shape: Shape, options: Admm, epoch: int, is_expanded: bool) -> _Epoch:
    """Down Y, up predictions; inner rounds by consensus, or one with second moments."""
    c, precision = shape.outputs, shape.model_bytes / shape.value_bytes

    def update(block: BlockShape, part: PartShape) -> float:
        return (part.joined if is_expanded else part.rows) * c

    def answer(block: BlockShape, part: PartShape) -> float:
        directions = 2 + (min(epoch, options.memory) if options.averages else 0)
        return update(block, part) * precision + directions**2

    def inner(block: BlockShape) -> list[tuple[float, float]]:
        values = block.parameters * precision
        if options.union == "exact":
            return [(values + (epoch == 0) * block.width**2, values)]
        return [(values, values)] * options.inner_rounds

    return _Epoch(update, answer, inner)


def _sgd(shape: Shape, epochs: int, batch_size: int | None, is_expanded: bool, *, is_first: bool) -> list[Wave]:
    """Down Y of a batch and the row numbers of the next, up their predictions; one more answer to begin with."""
    c, precision = shape.outputs, shape.model_bytes / shape.value_bytes
    size = shape.joined if batch_size is None else min(batch_size, shape.joined)
    is_full = size == shape.joined
    per_row = c + (0 if is_full else _ROW_NUMBER_BYTES / shape.value_bytes)
    batches = math.ceil(shape.joined / size)
    size = math.ceil(shape.joined / batches)  # the last batch is smaller; the mean is what counts

    def rows(part: PartShape) -> float:
        if is_expanded:
            return part.joined * size / shape.joined
        return part.rows if is_full else part.fan.expected_rows(size / shape.joined)

    batch = _Epoch(
        update=lambda block, part: rows(part) * per_row,
        answer=lambda block, part: rows(part) * c * precision + 1,
        inner=lambda block: [(block.parameters * precision, block.parameters * precision)],
    )
    opening = _Epoch(lambda block, part: rows(part) * (per_row - c), batch.answer, lambda block: [])
    waves = _waves(shape, batch, epochs * batches)
    return waves if is_full or not is_first else [*_waves(shape, opening), *waves]


def _pooled(shape: Shape) -> list[Wave]:
    """Every encoded feature of every row, once: the centralised baseline."""
    return _waves(
        shape, _Epoch(lambda _b, _p: 0, lambda block, part: (part.rows + part.test_rows) * block.width, lambda _b: [])
    )


def _waves(shape: Shape, epoch: _Epoch, times: int = 1) -> list[Wave]:
    """The rounds of an epoch; the blocks' inner rounds run side by side."""
    inner = {block.name: _inner(shape, block, epoch) for block in shape.blocks}
    return [
        _wave(shape, list(_exchanges(shape, epoch, inner, step)), times)
        for step in range(1 + max((len(steps) for steps in inner.values()), default=0))
    ]


def _inner(shape: Shape, block: BlockShape, epoch: _Epoch) -> list[tuple[float, float]]:
    """The inner rounds of a block; a masked number takes 8 bytes, whatever it was."""
    if not block.is_split:
        return []
    wider = 8 / shape.model_bytes if block.is_masked else 1.0
    return [(up * wider, down) for up, down in epoch.inner(block)]


def _agreement(shape: Shape) -> list[Wave]:
    """The first sums that are masked only tell their scale, and are asked for again."""
    messages = 2 * sum(len(block.parts) for block in shape.blocks if block.is_masked)
    return [Wave(times=1, down=0.0, up=0.0, slowest=0.0, messages=messages)] if messages else []


def _exchanges(
    shape: Shape, epoch: _Epoch, inner: dict[str, list[tuple[float, float]]], step: int
) -> Iterator[tuple[str, float, float]]:
    """Who is sent how many values in the `step`-th round of an epoch, and answers with how many."""
    for block, part in shape.parts:
        steps = inner[block.name]
        if step <= len(steps):
            down = epoch.update(block, part) if step == 0 else steps[step - 1][1]
            up = epoch.answer(block, part) if step == len(steps) else steps[step][0]
            yield part.client, down, up


def _wave(shape: Shape, exchanges: list[tuple[str, float, float]], times: int) -> Wave:
    by_client: dict[str, float] = {}
    for client, down, up in exchanges:
        by_client[client] = by_client.get(client, 0.0) + down + up
    size = shape.value_bytes
    return Wave(
        times=times,
        down=size * sum(down for _, down, _ in exchanges),
        up=size * sum(up for _, _, up in exchanges),
        slowest=size * max(by_client.values(), default=0.0),
        messages=2 * len(exchanges),
    )
