"""What a user can choose about each algorithm: frozen, checked, no unknown names."""

from __future__ import annotations

from math import inf
from typing import Any, ClassVar, Literal

import msgspec

from tablepuppet.algorithms.checked import Checked, checked
from tablepuppet.errors import JobError


class _Options(
    msgspec.Struct,
    metaclass=Checked,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag=True,
    repr_omit_defaults=True,
):
    name: ClassVar[str] = ""

    def _check(self, is_fine: bool, rule: str) -> None:
        if not is_fine:
            raise JobError(f"algorithm {self.name}: {rule}")


class Sgd(_Options, frozen=True, tag="sgd"):
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

    def settled(self, *, is_linear: bool, is_private: bool = False) -> Sgd:
        """The same, with an optimiser and a schedule where the user left them open; noise wants steps that fade out."""
        is_open = self.optimizer is None and self.learning_rate is None and not (is_linear and is_private)
        optimizer, schedule = ("adam", "cosine") if is_open else ("sgd", "linear" if is_private else "constant")
        return msgspec.structs.replace(self, optimizer=self.optimizer or optimizer, schedule=self.schedule or schedule)


class Admm(_Options, frozen=True, tag="admm"):
    """Alternating direction method of multipliers (RFL-ADMM-V, RFL-ADMM).

    `rho` is in units of the loss curvature (None: 0.4, and 1 for neural models) and, for linear
    models, tunes itself (`adapt`); `variant="published"`
    is the paper's update, which may diverge. `union`: how the clients of one table agree.
    `local_…`: how a client solves the θ-step of a neural model, with a learning rate that falls as
    1/√round (None: two epochs and at least 32 steps, a rate of 0.01 in units of the
    label's spread); linear models solve it exactly.
    """

    name: ClassVar[str] = "admm"
    rho: float | None = None
    adapt: bool = True
    relax: float = 1.6
    variant: Literal["sharing", "published"] = "sharing"
    union: Literal["consensus", "exact"] = "consensus"
    inner_rounds: int = 10
    memory: int = 8  # fewer stall where tables correlate: docs/decisions/0006
    tolerance: float = 1e-8
    local_epochs: int | None = None
    local_batch_size: int | None = None
    local_optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    local_learning_rate: float | None = None

    def __post_init__(self) -> None:
        self._check(self.rho is None or 0 < self.rho < inf, "rho must be above 0 and finite, or None")
        self._check(self.local_epochs is None or self.local_epochs >= 1, "local_epochs must be at least 1, or None")
        self._check(
            self.local_batch_size is None or self.local_batch_size >= 1, "local_batch_size must be at least 1, or None"
        )
        self._check(
            self.local_learning_rate is None or 0 < self.local_learning_rate < inf,
            "local_learning_rate must be above 0 and finite, or None",
        )
        self._check(0 < self.relax < 2, "relax must lie in (0, 2)")
        self._check(0 <= self.memory <= 16, "memory must lie in 0..16")
        self._check(self.inner_rounds >= 1, "inner_rounds must be at least 1")
        self._check(0 <= self.tolerance < inf, "tolerance must not be negative or infinite")

    def start_rho(self, is_linear: bool = True) -> float:
        """ρ to begin with, in units of the loss curvature."""
        if self.rho is not None:
            return self.rho
        return 0.4 if is_linear else 1.0

    @property
    def first_local_rate(self) -> float:
        """The learning rate of the first round's local steps."""
        return 0.01 if self.local_learning_rate is None else self.local_learning_rate

    @property
    def averages(self) -> bool:
        """Whether the reported model is the best combination of iterates instead of the last one."""
        return self.variant == "sharing" and self.memory > 0


class Newton(_Options, frozen=True, tag="newton"):
    """Block-preconditioned Newton with subspace search: nothing to tune (docs/algorithms.md).

    `memory`: how many earlier directions are kept for the search; `tolerance`: the relative gain below which it ends.

    >>> Newton(tolerance=1e-6)
    Newton(tolerance=1e-06)
    """

    name: ClassVar[str] = "newton"
    memory: int = 8  # fewer stall where tables correlate: docs/decisions/0006
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        self._check(0 <= self.memory <= 16, "memory must lie in 0..16")
        self._check(0 <= self.tolerance < inf, "tolerance must not be negative or infinite")


class Centralized(_Options, frozen=True, tag="centralized"):
    """The baseline: pool all rows, materialise the join, minimise F on it. For comparison where pooling is allowed."""

    name: ClassVar[str] = "centralized"
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        self._check(0 <= self.tolerance < inf, "tolerance must not be negative or infinite")


Options = Sgd | Admm | Newton | Centralized
FAMILIES: dict[str, type[Sgd] | type[Admm] | type[Newton] | type[Centralized]] = {
    "newton": Newton,
    "admm": Admm,
    "sgd": Sgd,
    "vfl-admm": Admm,
    "vfl-sgd": Sgd,
    "centralized": Centralized,
}


def options_of(name: str, given: dict[str, Any]) -> Options:
    """The options of an algorithm by its name, from plain values (keyword arguments, TOML)."""
    if name not in FAMILIES:
        raise JobError(f"unknown algorithm {name!r}; choose one of {', '.join(FAMILIES)}")
    options: Options = checked(FAMILIES[name], given, f"algorithm {name}")
    return options
