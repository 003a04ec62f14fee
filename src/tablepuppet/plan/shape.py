"""The shape of a job, counted in its table mapping.

In: a table mapping, and the width of each block where it is known. Out: a Shape, from which costs.py
counts messages for any algorithm without running it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tablepuppet.algorithms.shape import BlockShape, PartShape, Shape
from tablepuppet.mapping.summary import MappingSummary
from tablepuppet.models.heads.spec import HeadSpec
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.options import Privacy
from tablepuppet.tables.columns import STRING_KINDS


def shape_of(
    mapping: MappingSummary,
    loss: Loss,
    spec: ModelSpec,
    widths: Sequence[int] | None,
    value_bytes: int,
    privacy: Privacy,
    epochs: int,
    *,
    head: HeadSpec,
) -> Shape:
    """The shape of a job over a mapping."""
    blocks = []
    for number, (block, counted) in enumerate(zip(mapping.bound.blocks, mapping.blocks, strict=True)):
        own = mapping.parts_of(number)
        unmatched = mapping.train_rows - counted.joined
        parts: list[PartShape] = []
        for part in own:
            joined = part.fan.joined + (unmatched if not parts else 0)
            parts.append(PartShape(part.client, part.train_rows, part.test_rows, joined, part.fan, part.is_in_both))
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
                parameters=_parameters(spec, width, head.widths[number]),
                outputs=head.widths[number],
                is_identity=counted.is_identity,
                unmatched=unmatched,
                parts=tuple(parts),
                is_masked=privacy.masks(len({part.client for part in own})),
            )
        )
    return Shape(
        joined=mapping.train_rows,
        test_joined=mapping.test_rows,
        validation_joined=mapping.validation_rows,
        outputs=loss.outputs,
        blocks=tuple(blocks),
        is_linear=spec.is_linear,
        curvature_varies=not loss.is_quadratic and loss.outputs == 1,
        has_widths=widths is not None,
        epochs=epochs,
        head=head.kind,
        value_bytes=value_bytes,
        model_bytes=value_bytes if spec.is_linear or spec.dtype == "float64" else 4,
        has_kinks=not loss.is_smooth,
    )


def _parameters(spec: ModelSpec, width: int, outputs: int) -> int:
    """|θ| of a block; a module of the user's own is taken for a linear one, for only its owner can build it."""
    if spec.kind != "mlp":
        return width * outputs
    layers = (width, *spec.hidden, outputs)
    return sum((a + 1) * b for a, b in pairwise(layers))
