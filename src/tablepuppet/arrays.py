"""The arrays that pass through the house, by what they hold. Imports nothing of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RowNumbers = NDArray[np.signedinteger[Any]]  # int32 where it fits, else int64
Codes = NDArray[np.int32]  # of categories
Integers = NDArray[np.int64]  # fixed point


def fixed(array: Array) -> Array:
    """The array, which nobody changes from now on: messages carry it without a copy."""
    array.flags.writeable = False
    return array
