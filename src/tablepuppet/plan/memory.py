"""How much memory a job takes: of the server, and of the client that needs most.

In: a Shape and an algorithm, which declares what it keeps. Out: bytes, to within a factor of about two: arrays that
live at the same time, not what Python and the libraries take (some 200 MB).
"""

from __future__ import annotations

from tablepuppet.algorithms.algorithm import FLOAT
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.registry import BY_NAME, is_expanded
from tablepuppet.algorithms.shape import Shape
from tablepuppet.mapping.join.join import BYTES_PER_JOINED_ROW
from tablepuppet.mapping.mapping import Placement

_INDEX = 4  # bytes of a row number
_CODE = 4  # bytes of a category


def server_memory(shape: Shape, algorithm: str, options: AlgorithmOptions, placement: Placement | None = None) -> int:
    """The join of the keys, or the training after it, whichever is more; with a placement, without what lies there."""
    declared, own = BY_NAME[algorithm], shape.expanded if is_expanded(algorithm) else shape
    joining = BYTES_PER_JOINED_ROW * (shape.joined + shape.test_joined)
    training = declared.server_memory(own, options)
    if placement is None or own is not shape or declared.is_pooled:  # baselines run here
        return int(max(joining, _mapping(shape) + training + declared.state_memory(own, options)))
    return int(max(0 if placement.is_joined_there else joining, training))


def client_memory(shape: Shape, algorithm: str, options: AlgorithmOptions) -> int:
    """The client with the most: its encoded rows, vectors over them, and what the algorithm keeps of a part."""
    declared, own = BY_NAME[algorithm], shape.expanded if is_expanded(algorithm) else shape
    totals: dict[str, float] = {}
    for block, part in own.parts:
        rows = part.rows + part.test_rows
        encoded = rows * (FLOAT * block.numbers + _CODE * block.strings)
        vectors = FLOAT * block.outputs * 3 * rows
        kept = declared.client_memory(own, options, block, part)
        totals[part.client] = totals.get(part.client, 0.0) + encoded + vectors + kept
    return int(max(totals.values(), default=0.0))


def _mapping(shape: Shape) -> int:
    """One row number per joined row and block, except where they are 0, 1, 2, …; and the label's."""
    arrays = 1 + sum(not block.is_identity for block in shape.blocks)
    return _INDEX * arrays * (shape.joined + shape.test_joined)
