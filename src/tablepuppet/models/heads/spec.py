"""HeadSpec: how a row's score comes from what the tables say, as data that a job and a saved model carry."""

from __future__ import annotations

from typing import Literal

import msgspec

from tablepuppet.models.spec import Activation, Dtype

HeadKind = Literal["sum", "factor", "mlp", "module"]


class HeadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A head over M blocks: the widths k_i of what each of them gives, and what is made of them."""

    kind: HeadKind = "sum"
    outputs: int = 1  # d_c, scores per joined row
    widths: tuple[int, ...] = ()  # k_i
    unit: float = 1.0  # of a numeric label: scores are so many times what the head computes
    shrinkage: float | None = 0.0  # λ of ½ λ Σ_i ‖h_i‖² per joined row; None: the algorithm learns it
    hidden: tuple[int, ...] = ()  # layers of a network
    activation: Activation = "relu"
    dtype: Dtype = "float32"  # of a network's arithmetic
    module: str = ""  # the name under which the server knows a torch module of the user's own
