"""Shape: the few sizes of a job that its cost depends on; no row, no key, no label.

In: a table mapping, and the width of each block where it is known. Out: a Shape, from which costs.py
counts messages for any algorithm without running it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.newton.small_blocks import small_blocks
from tablepuppet.mapping.mapping import TableMapping
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.options import Privacy
from tablepuppet.tables.columns import STRING_KINDS


@dataclass(frozen=True, slots=True)
class Fan:
    """How many rows occur in how many joined rows: G as a histogram."""

    multiplicities: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, multiplicity: NDArray[np.signedinteger[Any]]) -> Fan:
        values, counts = np.unique(multiplicity, return_counts=True)
        return cls(tuple(values.tolist()), tuple(counts.tolist()))

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
    is_masked: bool = False  # whether the server sees sums over its clients only
    is_small: bool = False  # whether it takes a second step in Newton's first epoch

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
    value_bytes: int = 8
    model_bytes: int = 8  # of predictions and parameters: a network's own precision

    @property
    def parts(self) -> list[tuple[BlockShape, PartShape]]:
        return [(block, part) for block in self.blocks for part in block.parts]


def shape_of(
    mapping: TableMapping,
    loss: Loss,
    spec: ModelSpec,
    widths: Sequence[int] | None,
    value_bytes: int,
    privacy: Privacy,
    epochs: int,
) -> Shape:
    """The shape of a job over a mapping."""
    train = mapping.train
    varies = not loss.is_quadratic and loss.outputs == 1
    blocks = []
    for number, block in enumerate(mapping.bound.blocks):
        own = mapping.parts_of(number)
        unmatched = train.rows - int(mapping.multiplicity[number].sum())
        parts: list[PartShape] = []
        for part in own:
            multiplicity = mapping.multiplicity[number][part.train]
            joined = int(multiplicity.sum()) + (unmatched if not parts else 0)
            test_rows = part.test.stop - part.test.start
            parts.append(PartShape(part.client, len(multiplicity), test_rows, joined, Fan.of(multiplicity)))
        strings = sum(column.kind in STRING_KINDS for column in block.columns)
        numbers = sum(max(1, column.size) for column in block.columns if column.kind not in STRING_KINDS)
        width = numbers + strings if widths is None else widths[number]
        blocks.append(
            BlockShape(
                name=block.name,
                table=block.table,
                features=len(block.features),
                numbers=numbers,
                strings=strings,
                width=width,
                parameters=_parameters(spec, width, loss.outputs),
                is_identity=train.indices[number].is_identity,
                unmatched=unmatched,
                parts=tuple(parts),
                is_masked=privacy.masks(len({part.client for part in own})),
            )
        )
    sizes, columns = [block.rows for block in blocks], [block.width for block in blocks]
    light = small_blocks(sizes, columns, epochs, loss.outputs, has_curvature=varies)
    return Shape(
        joined=train.rows,
        test_joined=mapping.test.rows,
        validation_joined=mapping.validation.rows,
        outputs=loss.outputs,
        blocks=tuple(replace(block, is_small=number in light) for number, block in enumerate(blocks)),
        is_linear=spec.is_linear,
        curvature_varies=varies,
        has_widths=widths is not None,
        value_bytes=value_bytes,
        model_bytes=value_bytes if spec.is_linear or spec.dtype == "float64" else 4,
    )


def _parameters(spec: ModelSpec, width: int, outputs: int) -> int:
    """|θ| of a block; a module of the user's own is taken for a linear one, for only its owner can build it."""
    if spec.kind != "mlp":
        return width * outputs
    layers = (width, *spec.hidden, outputs)
    return sum((a + 1) * b for a, b in pairwise(layers))
