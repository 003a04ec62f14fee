"""Which algorithm to take, and why: the one that reaches the optimum in the least time on a slow network.

In: a Shape. Out: an Advice. How good an algorithm is for it, the algorithm declares (`merit`); how long it takes
follows from its cost. The epochs that an algorithm needs are those it took where it was measured (docs/algorithms.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tablepuppet.algorithms.algorithm import Algorithm
from tablepuppet.algorithms.registry import FEDERATED
from tablepuppet.algorithms.shape import Shape
from tablepuppet.formatting import seconds
from tablepuppet.models.features import GRAM_LIMIT
from tablepuppet.plan.costs import RUN_EPOCHS, Cost, cost

_NETWORK = "us-uk"
_SLOW = 2  # times what the fastest takes


@dataclass(frozen=True, slots=True)
class Advice:
    """An algorithm and the reason for it."""

    algorithm: str
    why: str


def advise(shape: Shape, batch_size: int | None) -> Advice:
    """The algorithm for a model of this shape: of the best, the first in the list that is not slow."""
    widest = max(shape.blocks, key=lambda block: block.width)
    is_wide = shape.is_linear and widest.width > GRAM_LIMIT
    fit = [a for a in FEDERATED if shape.head in a.heads and (shape.is_linear or not a.requires_linear)]
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
        return f"{slow[0].merit(shape).burden} ({spelled(burden)} on US-UK for {burden.epochs} epochs); {_list(others)}"
    if merit.rank < 2:
        return f"{merit.why}; {_list([own, *(c for c in costs.values() if c is not own)])} on US-UK"
    others = [c for c in costs.values() if c is not own]
    return (
        f"{merit.why} in about {own.epochs} iterations, {own.rounds} rounds, {spelled(own)} on US-UK; {_list(others)}"
    )


def _list(costs: list[Cost]) -> str:
    return ", ".join(f"{c.algorithm} takes {spelled(c)} for {c.epochs} epochs" for c in costs)


def _time(of: Cost) -> float:
    return of.seconds(_NETWORK)


def spelled(of: Cost) -> str:
    """The seconds of a run on a slow network."""
    return seconds(_time(of))
