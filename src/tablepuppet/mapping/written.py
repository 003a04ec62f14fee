"""JoinedSide → JoinedRows: the row numbers of all joined rows, in memory."""

from __future__ import annotations

from tablepuppet.mapping.joined import JoinedRows, RowIndex
from tablepuppet.mapping.side import JoinedSide
from tablepuppet.transport.messages import Array


def write_rows(
    side: JoinedSide, blocks: int, label: int, labels: Array, weights: Array | None, *, is_walked: bool
) -> JoinedRows:
    """Joined rows; labels and weights are those of the label rows that occur, which column `label` numbers.

    `is_walked`: often, by training.
    """
    numbers = side.numbers(0, side.rows)
    indices = [RowIndex.of(numbers.pop(0), column.rows) for column in side.columns]
    own = indices[label]
    if is_walked:
        indices = [index if index is own else index.arranged() for index in indices]
    return JoinedRows(side.rows, tuple(indices[:blocks]), own, labels, weights=weights)
