"""Joined rows under a head: what walks over them sees as scores is what the head makes of the blocks' outputs.

In: joined rows, a head. Out: joined rows again, over which an algorithm's join step, metrics and predictions run as
they do over a sum. A step's signal ∂ℓ/∂score is pulled back through the head before it is collapsed, together with
the shrinkage λ h_i; sums get one more entry, `head`, the gradient of the head's own parameters.

All is in the label's unit u: signals are those of the objective divided by u².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.heads.base import TrainedHead


@dataclass(frozen=True, eq=False)
class HeadedRows:
    """Joined rows whose scores are a head's."""

    joined: Any  # Walkable: mapping/rows/joined.py, or a cluster's
    trained: TrainedHead

    @property
    def rows(self) -> int:
        return int(self.joined.rows)

    def run(self, step: Callable[..., Any], per_row: Sequence[Array], *, signals: int = 0, **given: Any) -> Any:
        """As JoinedRows.run, with per_row of the head's widths, and one signal at most."""
        nothing = [np.zeros((len(values), 1)) for values in per_row]
        given |= {"inner": step, "trained": self.trained, "wants_signal": signals > 0}
        return self.joined.run(headed_step, nothing, columns=per_row, signals=signals, **given)

    def take(self, joined: NDArray[np.int64]) -> tuple[HeadedRows, list[RowNumbers]]:
        batch, rows = self.joined.take(joined)
        return HeadedRows(batch, self.trained), rows

    def __getattr__(self, name: str) -> Any:
        """What does not look at scores: allocate, by_label, ordered, collect …"""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.joined, name)


def headed(joined: Any, trained: TrainedHead | None) -> Any:
    """The joined rows under a head; None: their sum."""
    return joined if trained is None else HeadedRows(joined, trained)


def headed_step(
    shard: Any, *, inner: Callable[..., Any], trained: TrainedHead, wants_signal: bool, **given: Any
) -> tuple[Sequence[Any], dict[str, Any]]:
    """An algorithm's step on a shard whose scores are the head's."""
    head, h = trained.head, shard.columns
    if not wants_signal:
        return inner(replace(shard, scores=head.combine(trained.own, h)), **given)  # type: ignore[no-any-return]
    scores, pull_back = head.differentiate(trained.own, h)
    outcome, sums = inner(replace(shard, scores=scores), **given)
    unit, shrinkage = head.spec.unit, head.spec.shrinkage
    signals, slope = pull_back(outcome[0] / (unit * unit))
    if shrinkage:
        weight = shrinkage if shard.weights is None else shrinkage * shard.weights[:, None]
        signals = [signal + weight * values for signal, values in zip(signals, h, strict=True)]
    return (signals,), {**sums, "head": slope}
