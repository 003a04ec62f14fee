"""ScanKeys: what the server holds of one scan to join it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.tables.columns import numpy_of


@dataclass(frozen=True, slots=True, eq=False)
class ScanKeys:
    """The keys of one scan, a row per row number: column `k<expression number>` for each key expression."""

    rows: int
    table: pa.Table
    place: NDArray[np.int64] | None = None  # of each row, in the order of the whole table; None: rows are in order
    is_numbered: bool = False  # keys are small numbers from 0, equal where the tokens they stand for are

    @property
    def numbers(self) -> RowNumbers:
        """0, 1, 2, …, as small as they fit."""
        return np.arange(self.rows, dtype=np.int32 if self.rows < 2**31 else np.int64)

    def column(self, expression: int) -> RowNumbers:
        """A column of numbered keys; −1 where it is NULL."""
        return numpy_of(self.table.column(f"k{expression}"), missing=-1)
