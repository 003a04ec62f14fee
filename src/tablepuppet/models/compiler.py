"""Whether the compiler of kernels (numba, the extra `fast`) is there, and for how many joined rows it is loaded.

Without it NumPy does the same work over joined rows of any number, more slowly where they are many.

`LaneView`: some joined rows as the arrays that a compiled pass (jit.py) takes from and adds to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array

COMPILED_FROM = 1 << 23  # joined rows from which compiled kernels are worth loading

HINT = "pip install 'tablepuppet[fast]' compiles the loops over so many joined rows: shorter epochs, in long runs"


@cache
def is_installed() -> bool:
    """Whether kernels can be compiled here."""
    return find_spec("numba") is not None


def wins(joined_rows: int, *, is_dear: bool = False) -> bool:
    """Whether compiled loops over so many joined rows win back the third of a second and 100 MB of their loading.

    `is_dear`: losses whose proximal maps iterate, or with several exponentials a row, for which they win much sooner.
    """
    return joined_rows >= COMPILED_FROM >> 5 * is_dear


Counts = NDArray[np.int64]
RowNumbers = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class LaneView:
    """Some consecutive joined rows; arrays over joined rows begin with the first of them. One output."""

    rows: int
    values: tuple[Array, ...]  # of each block: per row; per joined row where it has no row numbers
    indices: tuple[RowNumbers, ...]  # of each block; a number that is too large is no row; empty: 0, 1, 2, …
    labels: Array
    label_index: RowNumbers
    state: Mapping[str, NDArray[np.floating[Any]]]  # the algorithm's own joined values, to read and to write
    own: float  # a block's rows get the signal less `own` times their own values
    out: tuple[Array, ...]  # what is collapsed to a block's rows, from row `base` on
    base: Counts
    shared: Counts  # of a block in order: how many joined rows at the start go to `edge` instead; −1: not in order
    edge: Array

    @property
    def source(self) -> tuple[Any, ...]:
        """What `expand` takes from."""
        return self.values, self.indices, self.labels, self.label_index

    @property
    def target(self) -> tuple[Any, ...]:
        """What `collapse` adds to."""
        return self.indices, self.out, self.base, self.shared, self.edge, self.own
