"""Options of admm, and the messages of a round."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from tablepuppet.algorithms.base import Figures
from tablepuppet.algorithms.options import AlgorithmOptions, Count, Memory, Positive, Tolerance
from tablepuppet.arrays import Array
from tablepuppet.protocol.base import Discloses, Update
from tablepuppet.protocol.bounds import require


class Admm(AlgorithmOptions, frozen=True, tag="admm"):
    """Alternating direction method of multipliers (RFL-ADMM-V, RFL-ADMM; docs/algorithms.md).

    - `rho`: the penalty in units of the loss curvature; None: 0.4, and 1 for networks. `adapt`: tune it, for linear
      models.
    - `relax`: over-relaxation; `variant`: "sharing", or "published" for the paper's update, which may diverge.
    - `union`: how the clients of one table agree; `inner_rounds`: rounds for it.
    - `memory`: earlier iterates that the reported model combines; `tolerance`: the relative gain at which it ends.
    - `local_epochs`, `local_batch_size`, `local_optimizer`, `local_learning_rate`: how a client solves the θ-step of a
      network; None: two epochs and at least 32 steps, at 0.01 in units of the label's spread, falling as 1/√round.

    >>> Admm(rho=0.5)
    Admm(rho=0.5)
    """

    name: ClassVar[str] = "admm"
    rho: Positive | None = None
    adapt: bool = True
    relax: Annotated[float, Meta(gt=0.0, lt=2.0)] = 1.6
    variant: Literal["sharing", "published"] = "sharing"
    union: Literal["consensus", "exact"] = "consensus"
    inner_rounds: Count = 10
    memory: Memory = 8  # fewer stall where tables correlate: docs/decisions/0006
    tolerance: Tolerance = 1e-8
    local_epochs: Count | None = None
    local_batch_size: Count | None = None
    local_optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    local_learning_rate: Positive | None = None

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

    @property
    def sends_second_moments(self) -> bool:
        return self.union == "exact"

    @property
    def samples_at_clients(self) -> bool:
        return True

    def for_kinks(self) -> "Admm":
        """Without the search over past iterates."""
        return msgspec.structs.replace(self, memory=0)

    def for_private_run(self) -> "Admm":
        return msgspec.structs.replace(self, memory=0, adapt=False, tolerance=0.0, relax=1.0)


class VflAdmm(Admm, frozen=True, tag="vfl-admm"):
    """The same on expanded blocks, a row of every table for each joined row: a baseline."""

    name: ClassVar[str] = "vfl-admm"


class AdmmUpdate(Update, frozen=True):
    """Solve your part of ADMM from the derivatives Y of all training rows. → Predictions | Partial | Masked"""

    keeps_trail: ClassVar[bool] = True
    signal: Annotated[Array, Discloses("signals", is_per_row=True)]
    factor: float  # Mρ
    union_rho: float  # ρ_u of the consensus rounds
    coefficients: Array | None  # of the last step of the reported model

    def check(self, outputs: int, clients: int) -> None:
        require(self.union_rho > 0 or clients == 1, "union_rho", "is not positive")


class AdmmFigures(Figures, frozen=True):
    """The mean diagonal of XᵀX/N, or of a network's Gauss–Newton matrix: the scale of ρ_u."""

    curvature: float = 0.0
