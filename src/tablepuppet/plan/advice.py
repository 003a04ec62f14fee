"""Which algorithm to take, and why: the one that reaches the optimum in the least time on a slow network.

In: a Shape. Out: an Advice. The epochs that an algorithm needs are those it took where it was measured
(docs/algorithms.md): ten of newton leave a gap of 1e-8, ten of admm one of 1e-3, ten of sgd a larger one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablepuppet.algorithms.options import FAMILIES
from tablepuppet.plan.costs import RUN_EPOCHS, Cost, cost
from tablepuppet.plan.shape import Shape
from tablepuppet.plan.text import seconds
from tablepuppet.tables.features import GRAM_LIMIT

_NETWORK = "us-uk"


@dataclass(frozen=True, slots=True)
class Advice:
    """An algorithm and the reason for it."""

    algorithm: str
    why: str


def advise(shape: Shape, batch_size: int | None) -> Advice:
    """The algorithm for a model of this shape."""
    if not shape.is_linear:
        costs = [cost(shape, name, FAMILIES[name](), RUN_EPOCHS, batch_size) for name in ("sgd", "admm")]
        return Advice("sgd", f"it descends a network's objective as on the joined table; {_others(*costs)} on US-UK")
    widest = max(shape.blocks, key=lambda block: block.width)
    if widest.width > GRAM_LIMIT:
        return Advice(
            "sgd",
            f"block {widest.name} has {widest.width:,} columns, more than the {GRAM_LIMIT:,} whose second moments "
            "newton and admm keep",
        )
    newton, admm, sgd = (
        cost(shape, name, FAMILIES[name](), RUN_EPOCHS, batch_size) for name in ("newton", "admm", "sgd")
    )
    if newton.seconds(_NETWORK) <= 2 * admm.seconds(_NETWORK):
        return Advice(
            "newton",
            f"it has nothing to tune and reaches the optimum in about {newton.epochs} iterations, "
            f"{newton.rounds} rounds, {_seconds(newton)} on US-UK; {_others(admm, sgd)}",
        )
    return Advice(
        "admm",
        f"newton would send the {widest.width:,} × {widest.width:,} second moments of block {widest.name} "
        f"from every client in every round ({_seconds(newton)} on US-UK for {newton.epochs} epochs); "
        f"{_others(admm, sgd)}",
    )


def _others(*costs: Cost) -> str:
    return ", ".join(f"{c.algorithm} takes {_seconds(c)} for {c.epochs} epochs" for c in costs)


def _seconds(of: Cost) -> str:
    return seconds(of.seconds(_NETWORK))
