"""A baseline that pools encoded features at the server: its inputs, its results, and its declaration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.algorithm import FLOAT, Algorithm, Disclosure
from tablepuppet.algorithms.numerics.optimizers import NoiseEdge
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.shape import BlockShape, Exchanges, OuterRound, PartShape, RoundTraffic, RunShape, Shape
from tablepuppet.arrays import Array
from tablepuppet.errors import TransportError
from tablepuppet.models.features import Features
from tablepuppet.models.heads.base import Head
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import ModelSpec

_Options = TypeVar("_Options", bound=AlgorithmOptions)


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """θ (features, outputs), the intercept, F there, and how many iterations it took."""

    theta: Array
    intercept: Array
    value: float
    iterations: int


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


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Parameters as blocks hold them, the head's own, and how many steps were taken."""

    thetas: list[Array]
    own: Array
    intercept: Array
    steps: int


class PooledAlgorithm(Algorithm[_Options], ABC):
    """A baseline that fits pooled features at the server, in one process: it has no halves."""

    is_pooled = True
    epochs = 1

    @abstractmethod
    def fit(self, features: Array, labels: Array, loss: Loss, l2: float, options: _Options) -> Optimum:
        """The minimum of F on the joined feature matrix, where it is convex."""

    def train(self, pooled: Pooled, options: _Options) -> Trained:
        """A network or a head on the joined rows."""
        raise TransportError(f"{self.name} trains linear models only")

    def traffic(self, shape: Shape, options: _Options, epoch: int, batch_size: int | None) -> list[RoundTraffic]:
        """Every encoded feature of every row, once."""
        pooled = OuterRound(lambda _b, _p: 0, lambda b, part: (part.rows + part.test_rows) * b.width, lambda _b: [])
        return pooled.traffic(shape)

    def server_memory(self, shape: Shape, options: _Options) -> int:
        return 3 * FLOAT * shape.joined * sum(block.width for block in shape.blocks)

    def client_memory(self, shape: Shape, options: _Options, block: BlockShape, part: PartShape) -> float:
        pooled = 2 * FLOAT * (part.rows + part.test_rows) * block.width
        return super().client_memory(shape, options, block, part) + pooled

    def disclosure(self, shape: Shape, options: _Options, block: BlockShape, batches: int) -> Disclosure:
        return Disclosure(predictions=0, slopes=0, features=True)

    def exchanges(self, options: _Options, run: RunShape) -> Exchanges:
        return Exchanges(run.epochs, is_pooled=True)

    def why_not_private(self, options: _Options) -> str:
        return f"{self.name} pools all features; it has no private form"
