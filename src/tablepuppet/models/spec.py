"""ModelSpec: a block's model, as data that its clients are sent; Penalty: the cost of its parameters."""

from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np

from tablepuppet.arrays import Array

Activation = Literal["relu", "tanh", "sigmoid", "gelu", "silu", "elu"]
Dtype = Literal["float32", "float64"]


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a client builds f_i: linear, a multi-layer perceptron, or a torch module that it knows by name."""

    kind: Literal["linear", "mlp", "module", "boosted"] = "linear"
    hidden: tuple[int, ...] = (16,)
    activation: Activation = "relu"
    dropout: float = 0.0
    dtype: Dtype = "float32"
    module: str = ""  # the name of the builder that the client was given
    unit: float = 1.0  # of a numeric label, a power of two near its spread: h = unit · module(T; θ / unit)

    @property
    def is_linear(self) -> bool:
        return self.kind == "linear"


L2 = 1e-4  # of a job that does not say


class Penalty(msgspec.Struct, frozen=True):
    """One block's."""

    l2: float = 0.0
    l1: float = 0.0
    signs: tuple[int, ...] = ()  # of each encoded column: 1, −1, or 0 for any; empty: any

    def value(self, theta: Array) -> float:
        return self.l1 * float(np.abs(theta).sum()) + 0.5 * self.l2 * float(np.vdot(theta, theta))

    def bounds(self, width: int) -> tuple[Array, Array]:
        """The least and the largest value of each column's parameters."""
        signs = np.array(self.signs or (0,) * width)
        return np.where(signs > 0, 0.0, -np.inf), np.where(signs < 0, 0.0, np.inf)

    def shrunk(self, towards: Array, curved: Array) -> Array:
        """argmin ½ curved θ² − towards θ + the penalty, entry by entry."""
        lower, upper = self.bounds(len(towards))
        size = np.maximum(np.abs(towards) - self.l1, 0.0)
        ridge = np.broadcast_to(curved + self.l2, size.shape)
        found = np.divide(np.copysign(size, towards), ridge, out=np.zeros_like(size), where=ridge > 0)
        return np.clip(found, lower[:, None], upper[:, None])


def l2_of(l2: float | Mapping[str, float], block: str, table: str) -> float:
    """β of a block: one for all, or by the name of the block or of its table."""
    return l2 if isinstance(l2, int | float) else l2.get(block, l2.get(table, L2))
