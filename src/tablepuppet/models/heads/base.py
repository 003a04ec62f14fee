"""Head: score(j) = intercept + head(h_1[p_1(j)], …, h_M[p_M(j)]), with h_i of width k_i.

In: what every block gives for some joined rows. Out: their scores, and back from ∂ℓ/∂score the signals ∂ℓ/∂h_i, which
are collapsed to each block's rows as the sum's residual is: only widths grow. A head may have parameters of its own,
one vector that the server keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tablepuppet.arrays import Array
from tablepuppet.models.heads.spec import HeadSpec

PullBack = Callable[[Array], tuple[list[Array], Array]]  # ∂ℓ/∂score → ∂ℓ/∂h_i of each block, Σ_j ∂ℓ/∂(own parameters)


class Head(Protocol):
    """What joins the blocks' outputs to scores; pure functions of its own parameters and of h."""

    @property
    def spec(self) -> HeadSpec: ...

    def initial(self) -> Array:
        """Its own parameters before training: one vector."""

    def spread(self, block: int) -> list[float]:
        """The standard deviation of each output of a linear block before training."""

    def combine(self, own: Array, h: Sequence[Array]) -> Array:
        """Scores of some joined rows, (rows, outputs)."""

    def differentiate(self, own: Array, h: Sequence[Array]) -> tuple[Array, PullBack]:
        """The same, and the way back."""


@dataclass
class TrainedHead:
    """A head and where training has taken its own parameters."""

    head: Head
    own: Array
    penalties: Sequence[tuple[Array, Array]] | None = (
        None  # of each block's h²: per joined row, per row; None: the spec's
    )

    @property
    def data(self) -> HeadModel:
        return HeadModel(self.head.spec, self.own)


@dataclass(frozen=True, slots=True, eq=False)
class HeadModel:
    """The same as data, for results and saved models: making.py makes the head of it."""

    spec: HeadSpec
    own: Array
