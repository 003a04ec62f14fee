"""The loops of boosted trees: compiled where the compiler is installed (the extra `fast`), else NumPy's; the same sums,
and so the same trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.models.compiler import is_installed

if TYPE_CHECKING or is_installed():
    from tablepuppet.algorithms.boosting.compiled import (
        add_split,
        add_values,
        best_splits,
        count_nodes,
        count_pairs,
        emit_cells,
        mark_nodes,
        pack,
        pairs_in_order,
        pairs_of_each,
        part_nodes,
        scatter_cells,
        sum_nodes,
        unpack,
        widths_of,
    )
else:
    from tablepuppet.algorithms.boosting.plain import (
        add_split,
        add_values,
        best_splits,
        count_nodes,
        count_pairs,
        emit_cells,
        mark_nodes,
        pack,
        pairs_in_order,
        pairs_of_each,
        part_nodes,
        scatter_cells,
        sum_nodes,
        unpack,
        widths_of,
    )

__all__ = [
    "add_split",
    "add_values",
    "best_splits",
    "count_nodes",
    "count_pairs",
    "emit_cells",
    "fixed_type",
    "mark_nodes",
    "pack",
    "pairs_in_order",
    "pairs_of_each",
    "part_nodes",
    "scatter_cells",
    "sum_nodes",
    "unpack",
    "widths_of",
]


def fixed_type(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: a loop is compiled once, wherever its arrays come from."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
