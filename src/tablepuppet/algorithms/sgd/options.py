"""What travels for sgd: what a user can choose, and the message of a round."""

from __future__ import annotations

from math import inf
from typing import ClassVar, Literal

import msgspec

from tablepuppet.algorithms.base import Figures
from tablepuppet.algorithms.numerics.optimizers import Rule, rule_of
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.protocol.base import Count, FieldDisclosure, FieldDisclosures, Update
from tablepuppet.protocol.bounds import require


class Sgd(AlgorithmOptions, frozen=True, tag="sgd"):
    """Mini-batch gradient descent (RFL-SGD-V, RFL-SGD; docs/algorithms.md).

    A job that gives neither `optimizer` nor `learning_rate` is trained by Adam under a cosine
    schedule, a linear model under feature privacy by plain descent; otherwise `optimizer` is plain
    descent by default. Without `learning_rate` a run begins at the best constant, and Adam's steps
    are in units of the label's spread (docs/algorithms.md). Plain descent then takes the reciprocal
    of a bound on the objective's curvature, with which full-batch descent never diverges (for
    neural models: of its estimate at the start).
    Optimisers, momentum and weight decay are those of torch.optim; `schedule` sets the learning
    rate anew for every batch, after `warmup_epochs` of linear increase; `clip_norm` bounds the
    norm of each block's gradient, after its clients' shares were summed.
    """

    name: ClassVar[str] = "sgd"
    learning_rate: float | None = None
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["constant", "linear", "cosine", "exponential"] | None = None
    decay: float = 0.9  # what an exponential schedule multiplies by, each epoch
    warmup_epochs: float = 0.0
    clip_norm: float | None = None
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        self._check(
            self.learning_rate is None or 0 < self.learning_rate < inf, "learning_rate must be above 0 and finite"
        )
        self._check(0 <= self.momentum < 1, "momentum must lie in [0, 1)")
        self._check(self.weight_decay >= 0, "weight_decay must not be negative")
        self._check(0 < self.decay <= 1, "decay must lie in (0, 1]")
        self._check(self.warmup_epochs >= 0, "warmup_epochs must not be negative")
        self._check(self.clip_norm is None or self.clip_norm > 0, "clip_norm must be above 0, or None")
        self._check(0 <= self.tolerance < inf, "tolerance must not be negative or infinite")

    def resolve_defaults(self, *, is_linear: bool, is_private: bool) -> Sgd:
        """The same, with an optimiser and a schedule where the user left them open; noise wants steps that fade out."""
        is_open = self.optimizer is None and self.learning_rate is None and not (is_linear and is_private)
        optimizer, schedule = ("adam", "cosine") if is_open else ("sgd", "linear" if is_private else "constant")
        return msgspec.structs.replace(self, optimizer=self.optimizer or optimizer, schedule=self.schedule or schedule)

    @property
    def rule(self) -> Rule:
        """How a step is taken."""
        return rule_of(self.optimizer or "sgd", self.momentum, self.weight_decay)

    def for_private_run(self) -> Sgd:
        return msgspec.structs.replace(self, tolerance=0.0)


class SgdUpdate(Update, frozen=True):
    """Y of the last batch, and the rows whose predictions are wanted next. → Predictions | Partial | Masked"""

    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("signal", "signals", is_per_row=True),)
    signal: Array | None  # None: nothing to learn yet
    count: Count  # joined rows in the last batch
    learning_rate: float
    next_rows: RowNumbers | None  # None: all

    def check(self, outputs: int, clients: int) -> None:
        require(self.signal is None or self.count > 0, "count", "is 0, and there is a signal")


class SgdFigures(Figures, frozen=True):
    """Of linear models the largest eigenvalue of Tᵀ diag(w) T / N, of networks the trace of the Gauss–Newton matrix."""

    curvature: float = 0.0
