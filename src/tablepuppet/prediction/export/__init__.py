"""Models for other tools: SQL that an owner runs, ONNX, and an estimator of scikit-learn for pooled rows.

`layers_of`: a block's parameters as dense layers, for any tool. They lead from encoded features to the block's
contribution to the scores,

    h = W_L φ(… φ(W_1 x + b_1) …) + b_L

A linear block is one layer without a constant. Labels are in the user's unit: the unit of a network's parameters
(ModelSpec.unit) is in the last layer.
"""

from itertools import pairwise

import msgspec
import numpy as np

from tablepuppet.algorithms.registry import require_ability
from tablepuppet.arrays import Array
from tablepuppet.errors import ModelError
from tablepuppet.prediction.model import Model
from tablepuppet.protocol.columns import IdEncoder


class Layer(msgspec.Struct, frozen=True):
    """φ(W x + b); the last one of a block has no φ."""

    weights: Array  # (inputs, outputs)
    constant: Array
    activation: str = ""


def block_named(model: Model, name: str | None, tool: str) -> int:
    """The position of a block that can be exported; without a name, of the only one."""
    require_ability(model.spec, "export", tool)
    names = [block.name for block in model.blocks]
    of_table = [block.name for block in model.blocks if block.table == name]
    if (name is None and len(names) == 1) or (name not in names and len(of_table) == 1):
        name = (of_table or names)[0]
    if name not in names:
        raise ModelError(
            f"name the block to export, one of {', '.join(names)}" + (f"; {name!r} is none" if name else "")
        )
    if model.spec.kind == "module":
        raise ModelError(f"a torch module of your own cannot be exported to {tool}; result.module(block) gives it")
    number = names.index(name)
    if model.blocks[number].is_held:
        table = model.blocks[number].table
        raise ModelError(f"the parameters of block {name} stay with the owners of table {table}: export it there")
    if any(isinstance(encoder, IdEncoder) for encoder in model.blocks[number].encoders):
        raise ModelError(f"the ids of block {name} are known by tokens here, and only its owners can encode them")
    return number


def layers_of(model: Model, number: int) -> list[Layer]:
    """A block's layers, the one that reads encoded features first."""
    block, outputs = model.blocks[number], model.widths[number]
    if model.spec.is_linear:
        return [Layer(np.asarray(block.theta).reshape(-1, outputs), np.zeros(outputs))]
    sizes = [block.width, *model.spec.hidden, outputs]
    flat, layers, start = np.asarray(block.theta, np.float64), [], 0
    for number_, (inputs, size) in enumerate(pairwise(sizes)):
        is_last = number_ == len(sizes) - 2
        unit = 1.0 if is_last else model.spec.unit
        weights = flat[start : start + inputs * size].reshape(size, inputs).T / unit
        start += inputs * size
        layers.append(Layer(weights, flat[start : start + size] / unit, "" if is_last else model.spec.activation))
        start += size
    return layers
