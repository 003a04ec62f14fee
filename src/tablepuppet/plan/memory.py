"""How much memory a job takes: of the server, and of the client that needs most.

In: a Shape and an algorithm. Out: bytes, to within a factor of about two: arrays that live at the
same time, not what Python and the libraries take (some 200 MB).
"""

from __future__ import annotations

from tablepuppet.algorithms.numerics.conjugate import WIDE
from tablepuppet.algorithms.options import Admm, Newton, Options
from tablepuppet.mapping.join.join import BYTES_PER_JOINED_ROW
from tablepuppet.mapping.mapping import Placement
from tablepuppet.plan.shape import BlockShape, PartShape, Shape

_INDEX = 4  # bytes of a row number
_FLOAT = 8
_SINGLE = 4  # bytes of what ADMM keeps per joined row, where that only steers it
_CODE = 4  # bytes of a category


def server_memory(shape: Shape, algorithm: str, options: Options, placement: Placement | None = None) -> int:
    """The join of the keys, or the training after it, whichever is more; with a placement, without what lies there."""
    joining = BYTES_PER_JOINED_ROW * (shape.joined + shape.test_joined)
    training = _training(shape, algorithm, options)
    if placement is None or algorithm.startswith("vfl-") or algorithm == "centralized":  # baselines run here
        return int(max(joining, _mapping(shape) + training))
    return int(max(0 if placement.is_joined_there else joining, training - _state(shape, options)))


def client_memory(shape: Shape, algorithm: str, options: Options) -> int:
    """The client with the most: its encoded rows, and matrices as wide as its block."""
    totals: dict[str, float] = {}
    for block, part in shape.parts:
        totals[part.client] = totals.get(part.client, 0.0) + _part(shape, block, part, algorithm, options)
    return int(max(totals.values(), default=0.0))


def _mapping(shape: Shape) -> int:
    """One row number per joined row and block, except where they are 0, 1, 2, …; and the label's."""
    arrays = 1 + sum(not block.is_identity for block in shape.blocks)
    return _INDEX * arrays * (shape.joined + shape.test_joined)


def _training(shape: Shape, algorithm: str, options: Options) -> int:
    n = shape.joined * len(shape.blocks) if algorithm.startswith("vfl-") else sum(b.rows for b in shape.blocks)
    if isinstance(options, Newton):
        return _FLOAT * n * (shape.outputs * (options.memory + 5) + shape.curvature_varies)
    if isinstance(options, Admm):
        averages = options.averages and shape.is_linear
        kept = options.memory + 5 if averages else 4
        return shape.outputs * _FLOAT * n * kept + _state(shape, options)
    if algorithm == "centralized":
        return 3 * _FLOAT * shape.joined * sum(block.width for block in shape.blocks)
    return _FLOAT * (shape.joined + 4 * n * shape.outputs)


def _state(shape: Shape, options: Options) -> int:
    """What ADMM keeps per joined row."""
    if not isinstance(options, Admm):
        return 0
    return shape.outputs * shape.joined * (_SINGLE if options.averages and shape.is_linear else _FLOAT)


def _part(shape: Shape, block: BlockShape, part: PartShape, algorithm: str, options: Options) -> float:
    rows = (part.joined if algorithm.startswith("vfl-") else part.rows) + part.test_rows
    encoded = rows * (_FLOAT * block.numbers + _CODE * block.strings)
    vectors = _FLOAT * shape.outputs * 3 * rows
    if shape.is_linear and _has_matrices(block, options):
        own = 4 * _FLOAT * block.width**2
    else:  # θ, directions and what a solver by products works with
        kept = options.memory + 8 if shape.is_linear and isinstance(options, Newton | Admm) else 4
        own = kept * _FLOAT * block.parameters
    pooled = 2 * _FLOAT * rows * block.width if algorithm == "centralized" else 0
    return encoded + vectors + own + pooled


def _has_matrices(block: BlockShape, options: Options) -> bool:
    """Whether second moments are formed, d × d numbers; wide blocks are solved by products (conjugate.py)."""
    if isinstance(options, Admm):
        return block.width <= WIDE or (block.is_split and options.union == "exact")
    return isinstance(options, Newton) and block.width <= WIDE
