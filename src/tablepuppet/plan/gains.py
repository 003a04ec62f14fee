"""What tables would say together: models that are no sum, what each would explain of what the sum leaves, and its cost.

In: how much pairs of blocks explain of a trained sum's residuals (engine/interactions.py). Out: a line for each model.
Shares are rounded to whole per cents: they are an advice, not a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from tablepuppet.algorithms.boosting.plan import trees_cost
from tablepuppet.algorithms.registry import BY_NAME
from tablepuppet.formatting import columns, size
from tablepuppet.job.make import usual_algorithm
from tablepuppet.models.heads.base import HeadKind
from tablepuppet.plan.costs import Cost

if TYPE_CHECKING:
    from tablepuppet.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Interaction:
    """Two blocks, and the share of what the sum leaves that they explain on rows held back."""

    blocks: tuple[int, int]
    cells: float  # by bins of what both say
    vectors: float  # by a number for each row of both: factors

    @property
    def share(self) -> float:
        return max(self.cells, self.vectors)


@dataclass(frozen=True, slots=True)
class Gain:
    """What a model would add to the sum of tables, and cost."""

    model: str  # as a user writes it
    share: float  # of what the sum leaves, in whole per cents; 0: nothing was found
    blocks: tuple[str, ...]  # that say it together
    rounds: int
    bytes: float


def gains_of(plan: Plan, pairs: Sequence[Interaction]) -> tuple[Gain, ...]:
    """A line for each model, the sum first."""
    sum_of_tables = headed_cost(plan, "sum")
    found = [Gain("sum of tables", 0.0, (), sum_of_tables.rounds, sum_of_tables.bytes)]
    by_rows = max(pairs, key=lambda one: one.share)
    by_cells = max(pairs, key=lambda one: one.cells)
    trees = trees_cost(plan.shape)
    for model, pair, share, cost in (
        ('head="factor"', by_rows, by_rows.share, headed_cost(plan, "factor")),
        ('head="mlp"', by_cells, by_cells.cells, headed_cost(plan, "mlp")),
        ('model="boosted"', by_cells, by_cells.cells, trees),
    ):
        rounded = max(0.0, round(share, 2))
        names = tuple(plan.mapping.bound.blocks[block].name for block in pair.blocks) if rounded else ()
        found.append(Gain(model, rounded, names, cost.rounds, cost.bytes))
    return tuple(found)


def headed_cost(plan: Plan, head: HeadKind) -> Cost:
    """What the job would cost under another head, by the algorithm that it is usually trained by."""
    several = plan.loss.outputs > 1
    algorithm = BY_NAME[usual_algorithm(head, "softmax" if several else "auto")]
    job = msgspec.structs.replace(
        plan.job, model="auto", head=head, algorithm=algorithm.name, options=algorithm.options(), l2_by_rows=0.0
    )
    return replace(plan, job=job).cost(algorithm.name, algorithm.head_epochs or algorithm.epochs)


def gain_lines(gains: Sequence[Gain]) -> list[str]:
    """The section of explain's text."""
    rows = [["model", "of what the sum leaves", "tables", "rounds", "bytes"]]
    for gain in gains:
        share = f"{gain.share:.0%}" if gain.share else "–" if gain.model == gains[0].model else "nothing found"
        rows.append([gain.model, share, " and ".join(gain.blocks), f"{gain.rounds:,}", size(gain.bytes)])
    return ["What tables say together, by a sum that was trained for it and what it leaves", *columns(rows)]
