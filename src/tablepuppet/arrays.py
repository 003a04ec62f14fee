"""The types of our arrays, by content, and the sizes of chunks of work; imports nothing of ours.

Each size is named for the quantity that it bounds. Sums are added up chunk by chunk: another size may change the last
bits of a result.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RowNumbers = NDArray[np.signedinteger[Any]]  # int32 where it fits, else int64
Codes = NDArray[np.int32]  # of categories
Integers = NDArray[np.int64]  # fixed point

# So many that what NumPy makes on the way stays in the cache.
ROWS_IN_CACHE = 1 << 16  # vectors over rows
ROWS_PER_LOOKUP = 1 << 15  # rows whose values are looked up, or follow from others
JOINED_ROWS_PER_PIECE = 1 << 18  # joined rows that a join makes
NUMBERS_IN_CACHE = 1 << 17  # directions of some rows
NUMBERS_PER_WEIGHTED_COPY = 1 << 19  # diag(w) A
MATRICES_IN_CACHE = 1 << 12  # K × K matrices of als

# So many that memory does not grow with the tables.
JOINED_ROWS_PER_SHARD = 1 << 16  # a step of a walk
ROWS_PER_ARROW_BATCH = 1 << 18
ROWS_PER_NETWORK_PASS = 1 << 15
NUMBERS_PER_ROW_GRADIENTS = 1 << 22  # a gradient for each row, each of them clipped
NUMBERS_PER_TRIANGLES = 1 << 20  # second moments of a shard's rows
VALUES_PER_SORTED_PIECE = 1 << 17  # values in ascending order, for curves
VALUES_PER_CLUSTER_SORT = 1 << 20  # the same of a cluster


Numbers = TypeVar("Numbers", bound=np.generic)


def freeze(array: NDArray[Numbers]) -> NDArray[Numbers]:
    """The array, which is immutable from now on: messages carry it without a copy."""
    array.flags.writeable = False
    return array


def floats(array: NDArray[Any]) -> Array:
    """The same numbers as float64: a copy, where they are others."""
    return array.astype(np.float64, copy=False)


def effective_rows(weights: NDArray[Any]) -> float:
    """(Σw)² / Σw²: the number of rows of equal weight that reveal as little of one row. n alike are n, a heavy one 1.

    >>> effective_rows(np.array([2, 2, 2])), round(effective_rows(np.array([1000, 1000, 1, 1])), 2)
    (3.0, 2.0)
    """
    return float(effective_by_code(np.zeros(len(weights), np.intp), weights, 1)[0])


def effective_by_code(codes: NDArray[Any], weights: NDArray[Any], size: int) -> Array:
    """The effective rows of each code 0, 1, …; −1 is none."""
    heavy = floats(weights)
    place = codes.astype(np.intp) + 1
    total = np.bincount(place, heavy, size + 1)[1:]
    squares = np.bincount(place, heavy * heavy, size + 1)[1:]
    return np.asarray(np.divide(total * total, squares, out=np.zeros(size), where=squares > 0))


def pieces(size: int, step: int = ROWS_IN_CACHE) -> Iterator[slice]:
    """Slices of a long array that fit in the cache: NumPy's temporaries are as short."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


class Following(msgspec.Struct, frozen=True, eq=False):
    """Numbers computed from others, row by row: some rows at a time, on demand."""

    values: Array
    follow: Callable[[Array], Array]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, some: slice) -> Array:
        return self.follow(self.values[some])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:]


class Triangles(msgspec.Struct, frozen=True, eq=False):
    """s_j z_j z_jᵀ of joined rows as columns, upper triangles row by row: so wide that a few rows at a time exist."""

    z: Array  # (rows, K)
    scale: Array | float  # s, (rows, 1), or the same for all

    @property
    def shape(self) -> tuple[int, int]:
        size = self.z.shape[1]
        return len(self.z), size * (size + 1) // 2

    def __getitem__(self, some: slice) -> "Triangles":
        return Triangles(self.z[some], self.scale[some] if isinstance(self.scale, np.ndarray) else self.scale)

    def written_out(self) -> Array:
        out, scaled, first = np.empty(self.shape), self.scale * self.z, 0
        for row in range(self.z.shape[1]):
            last = first + self.z.shape[1] - row
            np.multiply(scaled[:, row : row + 1], self.z[:, row:], out=out[:, first:last])
            first = last
        return out
