"""ModelSpec: what a block's model is, as data that every client of the block is sent."""

from __future__ import annotations

from typing import Literal

import msgspec

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

    @property
    def is_boosted(self) -> bool:
        return self.kind == "boosted"
