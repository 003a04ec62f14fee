"""Shape: the few sizes of a job that its cost depends on; no row, no key, no label.

plan/costs.py counts them in a table mapping; algorithms say what they cost by them, without running.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.models.heads.base import HeadKind


@dataclass(frozen=True, slots=True)
class Fan:
    """How many rows occur in how many joined rows: G as a histogram."""

    multiplicities: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, multiplicity: NDArray[np.signedinteger[Any]]) -> Fan:
        if int(multiplicity.max(initial=0)) <= len(multiplicity):  # most often: counting is faster than sorting
            counts = np.bincount(multiplicity)
            values = np.flatnonzero(counts)
            counts = counts[values]
        else:
            values, counts = np.unique(multiplicity, return_counts=True)
        return cls(tuple(values.tolist()), tuple(counts.tolist()))

    @property
    def joined(self) -> int:
        """Joined rows that one of these rows is in."""
        return sum(g * n for g, n in zip(self.multiplicities, self.rows, strict=True))

    @property
    def most(self) -> int:
        return max(self.multiplicities, default=0)

    def expected_rows(self, fraction: float) -> float:
        """α: the rows that occur in a random share of the joined rows.

        >>> Fan(multiplicities=(1, 2), rows=(10, 10)).expected_rows(0.5)
        12.5
        """
        return float(
            sum(n * (1.0 - (1.0 - fraction) ** g) for g, n in zip(self.multiplicities, self.rows, strict=True))
        )


@dataclass(frozen=True, slots=True)
class PartShape:
    """One client's share of a block."""

    client: str
    rows: int  # that training joined rows come from
    test_rows: int
    joined: int  # joined rows that come from them
    fan: Fan
    is_in_both: bool = True  # whether some row is trained on and held out, in different joined rows


@dataclass(frozen=True, slots=True)
class BlockShape:
    """One table of the join."""

    name: str
    table: str
    features: int
    numbers: int  # entries of numeric features
    strings: int
    width: int  # d: encoded columns
    parameters: int  # |θ|
    is_identity: bool  # one row per joined row, in order
    unmatched: int  # joined rows for which a LEFT JOIN found none here
    parts: tuple[PartShape, ...]
    outputs: int  # k: numbers that it gives for each row; d_c, but for heads other than the sum
    is_masked: bool = False  # whether the server sees sums over its clients only

    @property
    def rows(self) -> int:
        """n: rows that take part in training."""
        return sum(part.rows for part in self.parts)

    @property
    def is_split(self) -> bool:
        return len(self.parts) > 1

    @property
    def most(self) -> int:
        """The largest G."""
        return max((part.fan.most for part in self.parts), default=0)


@dataclass(frozen=True, slots=True)
class Shape:
    """N, d_c and the blocks."""

    joined: int  # N
    test_joined: int
    validation_joined: int
    outputs: int  # d_c
    blocks: tuple[BlockShape, ...]
    is_linear: bool
    curvature_varies: bool  # ∂²ℓ/∂a² depends on the scores, one number per row
    has_widths: bool  # whether widths are known, or strings were counted as one column
    epochs: int = 1  # that the job plans at most
    head: HeadKind = "sum"
    value_bytes: int = 8
    model_bytes: int = 8  # of predictions and parameters: a network's own precision
    has_kinks: bool = False  # of the loss, whose slope at a kink must be kept

    @property
    def parts(self) -> list[tuple[BlockShape, PartShape]]:
        return [(block, part) for block in self.blocks for part in block.parts]

    @property
    def expanded(self) -> Shape:
        """The same job with a row of every block for each joined row: what the VFL baselines train on."""
        return replace(self, blocks=tuple(_expanded(block) for block in self.blocks))


def _expanded(block: BlockShape) -> BlockShape:
    parts = tuple(replace(part, rows=part.joined, fan=Fan((1,), (part.joined,))) for part in block.parts)
    return replace(block, parts=parts)
