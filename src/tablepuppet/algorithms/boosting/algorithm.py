"""boosting, declared.

How often clients object to a strict tree is known from runs alone: after the first tree, which takes a round per level,
a tree took two rounds on flights and Walmart (docs/boosting.md).
"""

from __future__ import annotations

import math
from typing import Any

import tablepuppet.algorithms.boosting.answer_rules  # noqa: F401  it declares what answers must be
from tablepuppet.algorithms.algorithm import Algorithm, Disclosure
from tablepuppet.algorithms.base import Answer, Figures, PartSetup, Problem, Server
from tablepuppet.algorithms.boosting import messages
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.shape import BlockShape, PartShape, Shape, Wave
from tablepuppet.errors import TransportError
from tablepuppet.models.spec import ModelSpec
from tablepuppet.protocol import Done

_TENTH = 10  # one strict tree in ten takes a third round
_CHANGED = 0.3  # of a tree, that a second or third round is about
_NODE = 40  # bytes that a node takes, down and up
_BIN = 16  # bytes of Σg and Σh
_TOGETHER = 0.5  # of the (row, cell) pairs that there would be if a row's joined rows fell into cells by chance
_SPARE = 4  # bits of a derivative that few rows need
_REST = 3  # bits of what rounding leaves of h where it follows from g


class BoostingAlgorithm(Algorithm[Boosting]):
    """Trees over the join, in rounds of their own (engine/boosting.py)."""

    options = Boosting
    summary = "boosted trees: those of a histogram booster on the joined table, in two rounds a tree or fewer"
    own_model = "boosted"
    own_requests = messages.REQUESTS
    answers = messages.RESPONSES
    epoch = "tree"
    epochs = 1
    remedy = "use a smaller learning_rate, or bits = 32"

    def refusal(self, options: Boosting, spec: ModelSpec) -> str | None:
        return None if spec.is_boosted else 'algorithm="boosting" grows trees; use it with model="boosted"'

    def title(self, options: Boosting) -> str:
        trees = "1 tree" if options.trees == 1 else f"{options.trees:,} trees"
        size = f"depth {options.levels}" if options.leaves is None else f"{options.leaves:,} leaves"
        kind = "a forest of" if options.forest else "at most"
        return f"{kind} {trees} of {size}, {options.checks} checks"

    def run_epochs(self, options: Boosting, usual: int) -> int:
        return options.trees

    def can_go_on(self, options: Boosting) -> bool:
        return not options.forest

    def can_stop_early(self, options: Boosting) -> bool:
        return not options.forest

    def server(self, problem: Problem, options: Boosting) -> Server:
        raise TransportError("boosting has rounds of its own")

    def start(self, setup: PartSetup, options: Boosting) -> tuple[Any, Figures]:
        raise TransportError("boosting has rounds of its own")

    def step(self, setup: PartSetup, options: Boosting, state: Any, message: Any) -> tuple[Any, Answer | Done]:
        raise TransportError("boosting has rounds of its own")

    def traffic(self, shape: Shape, options: Boosting, epoch: int, batch_size: int | None) -> list[Wave]:
        """The rounds of one tree; `epoch` is its number."""
        if epoch == 0:
            return _waves(shape, options, _levels(options), 1.0)
        if options.checks == "lazy":
            return _waves(shape, options, 1, 1.0) if epoch % options.every == 0 else []
        again = 2 if epoch % _TENTH == 0 else 1
        return [*_waves(shape, options, 1, 1.0), *_waves(shape, options, again, _CHANGED)]

    def server_memory(self, shape: Shape, options: Boosting) -> int:
        """Scores, the order of rows and room to part them, derivatives; then the bins that are known."""
        per_row = 8 * shape.outputs + 4 + shape.outputs * (4 + 2 * max(16, options.bits) // 8)
        return shape.joined * per_row + sum(block.rows * block.width for block in shape.blocks)

    def client_memory(self, shape: Shape, options: Boosting, block: BlockShape, part: PartShape) -> float:
        return (part.rows + part.test_rows) * block.width

    def disclosure(self, shape: Shape, options: Boosting, block: BlockShape, batches: int) -> Disclosure:
        """Bits, not predictions: plan/boosting.py says it in words."""
        return Disclosure(predictions=0, slopes=options.trees)

    def why_not_private(self, options: Boosting) -> str:
        return "boosted trees tell the server bits of every row; they have no private form"


def _levels(options: Boosting) -> int:
    """Rounds of the first tree: one a level, of which growth by leaves has a few more than a balanced tree."""
    return min(options.levels, math.ceil(1.5 * math.log2(options.most_leaves)))


def _waves(shape: Shape, options: Boosting, times: int, share: float) -> list[Wave]:
    """Rounds that are about this share of a tree; where clients share a block, each takes one more, for bits."""
    waves = [_wave(times, [(p.client, *_sizes(shape, options, b, p, share)) for b, p in shape.parts])]
    bits = [(part.client, 0.0, part.rows / 8) for block, part in shape.parts if block.is_split]
    return [*waves, _wave(times, bits)] if bits else waves


def _sizes(shape: Shape, options: Boosting, block: BlockShape, part: PartShape, share: float) -> tuple[float, float]:
    """Bytes down and up of one part."""
    cells = max(1, options.most_leaves // 2)
    places = max(1, part.rows * cells)
    is_once = part.joined <= part.rows
    pairs = part.joined if is_once else _TOGETHER * places * (1 - math.exp(-part.joined / places))
    fan = max(1.0, part.joined / max(1.0, pairs))
    each = max(2, options.bits - _SPARE)
    per_h = (_REST if is_once else each) if shape.curvature_varies or shape.outputs > 1 else 0
    others = 1 - block.width / max(1, sum(b.width for b in shape.blocks))  # whose turns the owner does not know
    bits = others * math.log2(cells) + each + per_h + 2 * math.log2(fan)
    down = shape.outputs * share * pairs * bits / 8
    if block.is_split:
        return down, shape.outputs * share * cells * block.width * options.bins * _BIN
    return down, share * (2 * cells * _NODE * shape.outputs + part.rows / 8)


def _wave(times: int, sizes: list[tuple[str, float, float]]) -> Wave:
    by_client: dict[str, float] = {}
    for client, down, up in sizes:
        by_client[client] = by_client.get(client, 0.0) + down + up
    down, up = sum(d for _, d, _ in sizes), sum(u for _, _, u in sizes)
    return Wave(times=times, down=down, up=up, slowest=max(by_client.values(), default=0.0), messages=2 * len(sizes))


ALGORITHM = BoostingAlgorithm()
