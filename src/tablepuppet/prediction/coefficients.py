"""What a model says, on the original scale of its features.

In: the blocks' encoders and θ, the encoded intercept, the classes. Out: a table of weights, the intercept that goes
with them, and how far each feature moves the score. An encoded column is (x − mean) / scale, so the weight of x is
θ / scale, and the intercept absorbs −θ · mean / scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.registry import own_model
from tablepuppet.arrays import Array
from tablepuppet.errors import ModelError
from tablepuppet.join.mapping import Class
from tablepuppet.prediction.model import BlockModel, Model
from tablepuppet.protocol.columns import Encoder, NumberEncoder
from tablepuppet.sources.encoding import encoded_names, encoded_width, start_weights

if TYPE_CHECKING:
    import pandas as pd


def coefficients(model: Model) -> pd.DataFrame:
    """Weights on the original scale: columns table, feature, class_, weight."""
    import pandas as pd  # here, not above: most runs never need it, and it takes 40 MB and a third of a second

    _need_linear(model, "coefficients on the original scale")
    frames = []
    for block in model.blocks:
        labels, weights = _weights(block, model.outputs)
        frames += [
            pd.DataFrame({"table": block.table, "feature": labels, "class_": name, "weight": weights[:, k]})
            for k, name in enumerate(_outputs(model.classes, model.outputs))
        ]
    return pd.concat(frames, ignore_index=True)


def intercept(model: Model) -> float | Array:
    """One number, or one per class for softmax."""
    _need_linear(model, "intercept on the original scale")
    total = model.encoded_intercept.copy()
    for block in model.blocks:
        if not block.is_held:
            total -= (_original_scale(block.encoders)[1] * _is_everywhere(block)) @ block.theta
    return float(total[0]) if len(total) == 1 else total


def importance(model: Model) -> pd.DataFrame:
    """How far each feature moves the score, the farthest first: columns table, feature, importance."""
    import pandas as pd

    _need_linear(model, "importance that follows from its parameters")
    rows = [
        (block.table, feature, spread)
        for block in model.blocks
        for feature, spread in zip(block.features, _spreads(block), strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["table", "feature", "importance"])
    return frame.sort_values("importance", ascending=False, kind="stable", ignore_index=True)


def unit_weights(model: Model) -> dict[str, dict[str, list[float]]]:
    """Weights on the original scale by feature and unit of it: "" a number, "=toys" a category, " IS NULL" …"""
    _need_linear(model, "weights to begin with")
    held = [block.name for block in model.blocks if block.is_held]
    if held:
        raise ModelError(
            f"the parameters of {', '.join(held)} stay with their owners, and training cannot begin with them"
        )
    pairs = ((block.features, start_weights(block.encoders, block.theta)) for block in model.blocks)
    return {name: units for features, own in pairs for name, units in zip(features, own, strict=True)}


def _weights(block: BlockModel, outputs: int) -> tuple[list[str], Array]:
    """The names of a block's encoded columns and their weights on the original scale."""
    if block.is_held and not block.encoders:  # its owner's folder is not here: names of columns are not known either
        return list(block.features), np.full((len(block.features), outputs), np.nan)
    scale, shift = _original_scale(block.encoders)
    labels, weights = encoded_names(block.features, block.encoders), block.theta * scale[:, None]
    if block.is_lacking:
        labels = [*labels, f"{block.name} IS NOT NULL"]
        weights = np.vstack([weights, -((shift * ~_is_everywhere(block)) @ block.theta)])
    return labels, weights


def _is_everywhere(block: BlockModel) -> NDArray[np.bool_]:
    """Per encoded column: whether all joined rows have it, those too that a LEFT JOIN found no row for."""
    absent = block.absent or (None,) * len(block.encoders)
    widths = [encoded_width(encoder) for encoder in block.encoders]
    return np.repeat([not block.is_outer or value is not None for value in absent], widths).astype(np.bool_)


def _spreads(block: BlockModel) -> list[float]:
    """The standard deviation of each feature's contribution, its categories counted alike; NaN where θ is withheld."""
    if block.is_held:
        return [np.nan] * len(block.features)
    ends = np.cumsum([encoded_width(encoder) for encoder in block.encoders])
    centred = block.theta - block.theta.mean(axis=1, keepdims=True) if block.theta.shape[1] > 1 else block.theta
    parts = np.split(centred, ends[:-1])
    return [
        float(np.sqrt((part**2 if isinstance(encoder, NumberEncoder) else _variance(part)).sum()))
        for encoder, part in zip(block.encoders, parts, strict=True)
    ]


def _variance(weights: Array) -> Array:
    """Of the categories' weights; 0 where there are none, as where a LEFT JOIN found nobody."""
    return weights.var(axis=0) if len(weights) else np.zeros(1)


def _need_linear(model: Model, what: str) -> None:
    if own_model(model.spec) is not None:
        raise ModelError(f"boosted trees have no {what}; importance() says which features their splits ask")
    if model.head is not None:
        raise ModelError(f"a model with a {model.head.spec.kind} head has no {what}; its tables act together")
    if not model.spec.is_linear:
        raise ModelError(
            f"a neural model has no {what}; result.module(block) gives a block's trained network, encoded_intercept "
            "what is added to the sum of their scores"
        )


def _outputs(classes: Sequence[Class], outputs: int) -> list[Class | None]:
    """The class that each column of θ speaks of: of two classes, the second."""
    if not classes:
        return [None]
    return [classes[1]] if outputs == 1 else list(classes)


def _original_scale(encoders: tuple[Encoder, ...]) -> tuple[Array, Array]:
    """Per encoded column: what its weight is multiplied by, and mean/scale, which the intercept absorbs."""
    scale: list[Array] = [np.zeros(0)]
    shift: list[Array] = [np.zeros(0)]
    for encoder in encoders:
        if isinstance(encoder, NumberEncoder):
            inverse = np.divide(1.0, encoder.scale, out=np.zeros_like(encoder.scale), where=encoder.scale != 0)
            extra = 1 if encoder.has_missing else 0
            scale += [inverse, np.ones(extra)]
            shift += [encoder.mean * inverse, np.zeros(extra)]
        else:
            width = encoded_width(encoder)
            scale.append(np.ones(width))
            shift.append(np.zeros(width))
    return np.concatenate(scale), np.concatenate(shift)
