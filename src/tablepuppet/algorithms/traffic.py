"""What rounds carry, counted from the shape of a job: an algorithm says what an outer round sends, here it is added up.

In: a Shape, and how many values a part is sent and answers in an outer round and its inner rounds. Out: Waves, whose
bytes and seconds plan/costs.py adds up and the meter counts in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tablepuppet.algorithms.shape import BlockShape, PartShape, Shape

ROW_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Wave:
    """Some rounds that are alike: payload bytes of one of them, in all and on its slowest path."""

    times: int
    down: float
    up: float
    slowest: float
    messages: int


Values = Callable[[BlockShape, PartShape], float]
Inner = Callable[[BlockShape], list[tuple[float, float]]]  # values of each inner round: up, then down


@dataclass(frozen=True, slots=True)
class OuterRound:
    """What a part is sent, what it answers in the end, and the inner rounds between, where a block has several."""

    update: Values
    answer: Values
    inner: Inner


def waves(shape: Shape, outer: OuterRound, times: int = 1) -> list[Wave]:
    """An outer round and its inner rounds, so many times; the blocks' inner rounds run side by side."""
    inner = {block.name: _inner(shape, block, outer) for block in shape.blocks}
    return [
        _wave(shape, list(_exchanges(shape, outer, inner, step)), times)
        for step in range(1 + max((len(steps) for steps in inner.values()), default=0))
    ]


def _inner(shape: Shape, block: BlockShape, outer: OuterRound) -> list[tuple[float, float]]:
    """The inner rounds of a block; a masked number takes 8 bytes, whatever it was."""
    if not block.is_split:
        return []
    wider = 8 / shape.model_bytes if block.is_masked else 1.0
    return [(up * wider, down) for up, down in outer.inner(block)]


def agreement(shape: Shape) -> list[Wave]:
    """The first sums that are masked only tell their scale, and are asked for again."""
    messages = 2 * sum(len(block.parts) for block in shape.blocks if block.is_masked)
    return [Wave(times=1, down=0.0, up=0.0, slowest=0.0, messages=messages)] if messages else []


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
