"""Head: score(j) = intercept + head(h_1[p_1(j)], …, h_M[p_M(j)]), with h_i of width k_i.

In: every block's outputs for some joined rows. Out: their scores; backwards, from ∂ℓ/∂score, the signals ∂ℓ/∂h_i. These
are collapsed to each block's rows like the residual of a sum; only widths grow. A head may have parameters, one vector
that the server keeps. A sum needs no head: walks over joined rows add up h by themselves.

Joined rows under a head: walks see the head's results as scores, so join steps, metrics and predictions run as they do
over a sum. A step's signal ∂ℓ/∂score is pulled back through the head and then collapsed, with the shrinkage λ h_i. Sums
get one more entry, `head`: the gradient of the head's own parameters. Everything is in the label's unit u: signals are
those of the objective divided by u².
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.spec import Activation, Dtype

HeadKind = Literal["sum", "factor", "mlp", "module"]  # a new one has a file of its name (docs/extending.md)


class HeadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A head over M blocks: the width k_i of each block's output, and how they combine into scores."""

    kind: HeadKind = "sum"
    outputs: int = 1  # d_c, scores per joined row
    widths: tuple[int, ...] = ()  # k_i
    unit: float = 1.0  # of a numeric label: scores are this multiple of the head's result
    shrinkage: float | None = 0.0  # λ of ½ λ Σ_i ‖h_i‖² per joined row; None: the algorithm learns it
    hidden: tuple[int, ...] = ()  # layers of a network
    sum_weight: float = 0.0  # factor of the sum of the blocks' first outputs, added to a perceptron; 0: no sum
    activation: Activation = "relu"
    dtype: Dtype = "float32"  # of a network's arithmetic
    module: str = ""  # the name under which the server knows a torch module of the user's own


class HeadTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Traits of a kind of head, known before a head is made; a head's file declares them as HEAD."""

    widths: Callable[[Any, int, int], tuple[int, ...]]  # k_i for a job's model, so many blocks and outputs
    make: "Callable[[HeadSpec, int], Head] | None" = None  # with its initial values, by a seed; None: rows add up h
    options: tuple[str, ...] = ()  # of a job, that are its own
    is_sum: bool = False  # scores are the sum of table scores
    is_network: bool = False  # has weights, an activation and a precision
    is_own: bool = False  # a module of the user's, whose function is unknown
    has_layers: bool = False  # hidden ones, of known sizes
    stands_beside_sum: bool = False  # where steps and penalties are left open
    l2: float | None = None  # where a job leaves it open; None: the usual one
    # What l2 gets besides where it is left open, over the joined rows: as the rows of so many made-up labels would say
    # that a weight is 0. A feature of all rows does not notice it; an id of a few rows stays small.
    l2_by_rows: float = 0.0
    shrinkage: float = 0.0  # where it is left open
    learns_shrinkage: bool = False  # where l2 is left open too
    enough_steps: int = 0  # that training takes; 0: the usual epochs
    most_epochs: int = 1  # times the usual ones, where there are few rows


PullBack = Callable[[Array], tuple[list[Array], Array]]  # ∂ℓ/∂score → ∂ℓ/∂h_i of each block, Σ_j ∂ℓ/∂(own parameters)


class Head(Protocol):
    """Combines the blocks' outputs into scores; pure functions of its own parameters and of h."""

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


class TrainedHead(msgspec.Struct):
    head: Head
    own: Array
    # Of each block: of h² per joined row, and of θ² in addition to l2, by output; None: the spec's.
    penalties: Sequence[tuple[Array, Array]] | None = None
    squares: list[Array] = msgspec.field(default_factory=list)  # Σ θ² of each block by output, for penalties

    @property
    def per_joined(self) -> Sequence[Array | float]:
        """λ of each block, by output where they differ; empty: none."""
        if self.penalties is not None:
            return [weights for weights, _ in self.penalties]
        shrinkage = self.head.spec.shrinkage
        return [shrinkage] * len(self.head.spec.widths) if shrinkage else []

    def snapshot(self) -> "TrainedHead":
        """As it is now, for `go_back`."""
        return replace(self, squares=list(self.squares))

    def go_back(self, to: "TrainedHead") -> None:
        self.own, self.penalties, self.squares = to.own, to.penalties, to.squares

    @property
    def data(self) -> "HeadModel":
        return HeadModel(self.head.spec, self.own)


class HeadModel(msgspec.Struct, frozen=True, eq=False):
    """The same as data, for results and saved models: kinds.py makes the head of it."""

    spec: HeadSpec
    own: Array


@dataclass(frozen=True, eq=False)
class HeadedRows:
    """Joined rows whose scores are a head's."""

    joined: Any  # Walkable: join/joined_rows.py, or a cluster's
    trained: TrainedHead

    @property
    def rows(self) -> int:
        return int(self.joined.rows)

    def run(self, step: Callable[..., Any], per_row: Sequence[Array], *, signals: int = 0, **given: Any) -> Any:
        """As JoinedRows.run, with per_row of the head's widths, and one signal at most."""
        nothing = [np.zeros((len(values), 1)) for values in per_row]
        given |= {"inner": step, "trained": self.trained, "wants_signal": signals > 0}
        return self.joined.run(headed_step, nothing, columns=per_row, signals=signals, **given)

    def take(self, joined: NDArray[np.int64]) -> "tuple[HeadedRows, list[RowNumbers]]":
        batch, rows = self.joined.take(joined)
        return HeadedRows(batch, self.trained), rows

    def __getattr__(self, name: str) -> Any:
        """Attributes that do not depend on scores: allocate, by_label, ordered, collect …"""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.joined, name)


def apply_head(joined: Any, trained: TrainedHead | None) -> Any:
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
    unit = head.spec.unit
    signals, slope = pull_back(outcome[0] / (unit * unit))
    for signal, values, weight in zip(signals, h, trained.per_joined, strict=False):
        signal += (weight if shard.weights is None else weight * shard.weights[:, None]) * values
    sums = sums | {"head": slope}
    if head.spec.shrinkage is None:
        sums["lengths"] = np.stack([np.einsum("jk,jk->k", values, values) for values in h])
    return (signals,), sums
