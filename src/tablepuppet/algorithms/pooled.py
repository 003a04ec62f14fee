"""A baseline that pools encoded features at the server: its inputs and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.numerics.optimizers import NoiseEdge
from tablepuppet.arrays import Array
from tablepuppet.models.features import Features
from tablepuppet.models.heads.base import Head
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Parameters as blocks hold them, the head's own, and how many steps were taken."""

    thetas: list[Array]
    intercept: Array
    steps: int
    value: float = 0.0  # F there, where it is convex
    own: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class PooledBlock:
    """A table's rows in one place, and the row of each joined row (−1: an outer join found none)."""

    name: str
    features: Features
    rows: NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """A model to be trained on the materialised join."""

    blocks: Sequence[PooledBlock]
    labels: Array
    weights: Array | None
    loss: Loss
    l2: float
    l2_by_output: Sequence[Sequence[float]]  # of each block under a head whose outputs differ; empty: l2
    head_l2: float  # of the head's own parameters
    spec: ModelSpec  # of every block
    head: Head | None  # None: a sum
    noise: NoiseEdge | None  # shrinkage of factors; None: the head's spec
    unit: float
    intercept: Array  # to begin with
    has_intercept: bool
    epochs: int
    batch_size: int | None
    seed: int
