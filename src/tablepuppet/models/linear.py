"""Features: the encoded rows of a part, as numbers and category codes, never one-hot. LinearModel: h = T θ.

In: numbers (n, p) and one code per row and string column. Out: exact linear algebra in
float64 with the n × d matrix X that they stand for: Xθ, Xᵀs, Xᵀdiag(w)X. Time is
O(n · k) for k columns of θ however many categories there are, and no n × d array exists.

θ has one row per encoded column, in feature order; a feature's columns are contiguous. A number is 1 column and a
vector of size k is k columns. Each is followed by a 0/1 column for "missing" if a training row lacked it. A string is
one 0/1 column per category, then NULL and "any other" if its encoder asks for them.

θ is always an argument of a block's model. neural.py has the other family, with the same methods.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import NUMBERS_PER_WEIGHTED_COPY, ROWS_PER_LOOKUP, Array, Codes, Following, RowNumbers, pieces
from tablepuppet.errors import TrainingError
from tablepuppet.privacy.gaussian import GradientPrivacy, clip_scale
from tablepuppet.threads import pool

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_MAX_COLUMNS_TO_COUNT = 3  # for more columns one sparse product is faster than a bincount for each


def add_picked(out: Array, theta: Array, codes: Codes) -> None:
    """Adds X θ to `out` (n, k): the row of θ (size, k) that each code names."""
    padded = np.concatenate([theta, np.zeros((1, theta.shape[1]))])
    for chunk in pieces(len(codes), ROWS_PER_LOOKUP):
        # "wrap" takes code −1 to the last row, the zeros; it is also faster than checking the bounds.
        out[chunk] += padded.take(codes[chunk], axis=0, mode="wrap")


def sum_by_code(codes: Codes, signal: Array, size: int, weights: Array | None = None) -> Array:
    """Xᵀ diag(w) s: the sum of the rows of s (n, k) that share a code: (size, k)."""
    if signal.shape[1] > _MAX_COLUMNS_TO_COUNT:
        return np.asarray(one_hot(codes, size, weights).T @ signal)
    shifted = codes.astype(np.intp) + 1
    each = [column if weights is None else column * weights for column in signal.T]
    sums = [np.bincount(shifted, column, size + 1)[1:] for column in each]
    return np.stack(sums, axis=1).astype(np.float64, copy=False) if sums else np.zeros((size, 0))  # of no row: integers


def count_by_code(codes: Codes, weights: Array, size: int) -> Array:
    """The diagonal of Xᵀ diag(w) X: Σ w over the rows with each code."""
    return sum_by_code(codes, weights[:, None], size)[:, 0]


def count_by_pair(left: Codes, right: Codes, weights: Array, left_size: int, right_size: int) -> Array:
    """X_leftᵀ diag(w) X_right: Σ w over the rows with each pair of codes, (left_size, right_size)."""
    if (left_size + 1) * (right_size + 1) > 8 * len(left):  # most pairs occur nowhere: do not count them in order
        return np.asarray((one_hot(left, left_size, weights).T @ one_hot(right, right_size)).toarray())
    pairs = (left.astype(np.intp) + 1) * (right_size + 1) + (right + 1)
    counts = np.bincount(pairs, weights, (left_size + 1) * (right_size + 1))
    return np.asarray(counts.reshape(left_size + 1, right_size + 1)[1:, 1:], np.float64)


def one_hot(codes: Codes, size: int, weights: Array | None = None) -> "csr_array":
    """diag(w) X as a sparse matrix, (n, size)."""
    from scipy.sparse import csr_array  # here: it takes a tenth of a second to load

    present = codes >= 0
    starts = np.zeros(len(codes) + 1, np.int64)
    np.cumsum(present, out=starts[1:])
    columns = codes[present]
    values = np.ones(len(columns)) if weights is None else weights[present]
    return csr_array((values, columns, starts), shape=(len(codes), size))


GRAM_LIMIT = 20_000  # columns: a dense d × d matrix of 3.2 GB
_SMALL_COLUMNS, _SMALL_RESULTS_AHEAD = 64, 8  # columns of small matrices, and how many of them may lie about


class Features(msgspec.Struct, frozen=True):
    """The encoded feature matrix X of a part."""

    dense: Array  # (n, p), C-contiguous
    codes: tuple[Codes, ...]  # per string column (n,); −1: all zeros
    dense_columns: NDArray[np.int64]  # (p,): the θ row of each dense column
    code_columns: tuple[slice, ...]  # the θ rows of each string column
    width: int  # d

    @property
    def rows(self) -> int:
        return len(self.dense)

    def dot(self, theta: Array, rows: RowNumbers | None = None) -> Array:
        """X θ: (d, k) → (n, k); with `rows`, of these rows only, in their order."""
        dense, own = self._dense(rows), theta[self.dense_columns]
        codes = self.codes if rows is None else [codes.take(rows) for codes in self.codes]
        out = dense @ own
        for own_codes, columns in zip(codes, self.code_columns, strict=True):
            add_picked(out, theta[columns], own_codes)
        return out

    def transpose_dot(self, signal: Array, rows: RowNumbers | None = None) -> Array:
        """Xᵀ s: (n, k) → (d, k); with `rows`, s has one row for each of them."""
        out = np.zeros((self.width, signal.shape[1]))
        out[self.dense_columns] = self._dense(rows).T @ signal
        for codes, columns in self._categories():
            out[columns] = sum_by_code(codes if rows is None else codes.take(rows), signal, _size(columns))
        return out

    def row_norms(self) -> Array:
        """‖x_k‖ of every row: (n,)."""
        squares = np.einsum("kj,kj->k", self.dense, self.dense)
        for codes in self.codes:
            squares += codes >= 0
        return np.asarray(np.sqrt(squares))

    def gram(self, weights: Array | Following) -> Array:
        """Xᵀ diag(w) X as a dense (d, d) matrix, for d up to GRAM_LIMIT."""
        if self.width > GRAM_LIMIT:
            raise TrainingError(
                f"a block has {self.width:,} encoded columns, and its matrix of second moments is kept up to "
                f"{GRAM_LIMIT:,}; set max_categories, leave out the string column with most values, "
                "or train by an algorithm that forms none (explain advises one)"
            )
        out = np.zeros((self.width, self.width))
        out[np.ix_(self.dense_columns, self.dense_columns)] = _dense_gram(self.dense, weights)
        weights = np.asarray(weights) if self.codes else np.zeros(0)  # for what follows
        for i, (codes, columns) in enumerate(self._categories()):
            position = np.arange(columns.start, columns.stop)
            out[position, position] = count_by_code(codes, weights, _size(columns))
            with_dense = sum_by_code(codes, self.dense, _size(columns), weights)
            out[np.ix_(position, self.dense_columns)] = with_dense
            out[np.ix_(self.dense_columns, position)] = with_dense.T
            for other, other_columns in zip(self.codes[:i], self.code_columns[:i], strict=True):
                pairs = count_by_pair(codes, other, weights, _size(columns), _size(other_columns))
                out[columns, other_columns] = pairs
                out[other_columns, columns] = pairs.T
        return out

    def grams(self, weights: Array) -> Array:
        """The same for each column w of the weights, in few passes over the rows: (n, k) → (k, d, d)."""
        out = np.zeros((weights.shape[1], self.width, self.width))
        for chunk in _chunks(weights):
            self.take(chunk)._add_grams(out, weights[chunk])
        return out

    def _add_grams(self, out: Array, weights: Array) -> None:
        place = self.dense_columns

        def add(left: NDArray[np.int64], right: NDArray[np.int64], sums: Array) -> None:
            """Sums over the rows of left × right, one column for each w: on both sides of the diagonal."""
            out[:, left, right] += sums.T
            out[:, right, left] += np.where(left == right, 0.0, sums.T)

        for j, x in enumerate(self.dense.T):
            add(place[: j + 1], place[[j]], (x[:, None] * self.dense[:, : j + 1]).T @ weights)
        for i, (codes, columns) in enumerate(self._categories()):
            here = np.arange(columns.start, columns.stop)
            hot = one_hot(codes, len(here)).T
            add(here, here, hot @ weights)
            for j, x in zip(place, self.dense.T, strict=True):
                add(here, np.full(len(here), j), hot @ (x[:, None] * weights))
            for other, theirs in zip(self.codes[:i], self.code_columns[:i], strict=True):
                pairs = np.where((codes < 0) | (other < 0), -1, codes.astype(np.int64) * _size(theirs) + other)
                left, right = (side.ravel() for side in np.mgrid[columns, theirs])
                add(left, right, one_hot(pairs, len(left)).T @ weights)

    def gram_product(self, weights: Array, theta: Array) -> Array:
        """Xᵀ diag(w) X θ for any width: (d, k) → (d, k)."""
        return self.transpose_dot(weights[:, None] * self.dot(theta))

    def gram_diagonal(self, weights: Array) -> Array:
        """The diagonal of Xᵀ diag(w) X: (d,)."""
        out = np.zeros(self.width)
        squares = np.zeros(self.dense.shape[1])
        for chunk in _chunks(self.dense):
            squares += np.ascontiguousarray(weights[chunk]) @ np.square(self.dense[chunk])
        out[self.dense_columns] = squares
        for codes, columns in self._categories():
            out[columns] = count_by_code(codes, weights, _size(columns))
        return out

    def take(self, rows: RowNumbers | slice) -> "Features":
        codes = tuple(np.ascontiguousarray(codes[rows]) for codes in self.codes)
        return replace(self, dense=np.ascontiguousarray(self.dense[rows]), codes=codes)

    def zeros(self) -> "Features":
        codes = tuple(np.full(1, -1, codes.dtype) for codes in self.codes)
        return replace(self, dense=np.zeros((1, self.dense.shape[1])), codes=codes)

    def to_dense(self) -> Array:
        """X itself, n × d: for the centralised baseline and tests."""
        out = np.zeros((self.rows, self.width))
        out[:, self.dense_columns] = self.dense
        for codes, columns in self._categories():
            present = np.flatnonzero(codes >= 0)
            out[present, columns.start + codes[present]] = 1.0
        return out

    def _dense(self, rows: RowNumbers | None) -> Array:
        return self.dense if rows is None else self.dense.take(rows, axis=0)

    def _categories(self) -> Iterator[tuple[Codes, slice]]:
        return zip(self.codes, self.code_columns, strict=True)


def _size(columns: slice) -> int:
    return int(columns.stop - columns.start)


def _chunks(dense: Array) -> Iterator[slice]:
    rows, columns = dense.shape
    return pieces(rows, max(1, NUMBERS_PER_WEIGHTED_COPY // max(1, columns)))


def _dense_gram(dense: Array, weights: Array | Following) -> Array:
    # AᵀA of one array with itself is symmetric and takes half the work of AᵀB.
    is_square = isinstance(weights, Following) or bool((weights >= 0).all())

    def of_chunk(chunk: slice) -> Array:
        root = np.sqrt(weights[chunk]) if is_square else weights[chunk]
        left = root[:, None] * dense[chunk]
        return np.asarray(left.T @ (left if is_square else dense[chunk]))

    columns = dense.shape[1]
    chunks = list(pieces(len(weights), ROWS_PER_LOOKUP) if isinstance(weights, Following) else _chunks(dense))
    ahead = _SMALL_RESULTS_AHEAD if columns <= _SMALL_COLUMNS else 0
    found = pool().map(of_chunk, chunks, ahead) if len(chunks) > 1 else map(of_chunk, chunks)
    return sum(found, np.zeros((columns, columns)))  # added in order, whoever is first


MOST_CONSTANTS = 64  # outputs; inner products of constants grow by their square, and only save rounds


class LinearModel(msgspec.Struct, frozen=True):
    """h = T θ."""

    train: Features
    test: Features
    outputs: int
    norms: Array | None = None  # ‖x_k‖ of the train rows, where gradients are clipped
    start: tuple[int, int, tuple[float, ...]] | None = None  # seed, block, and each output's spread; None: all zero
    has_absent: bool = False  # whether some row of the block, here or elsewhere, may lack categories of texts

    def initial(self) -> Array:
        """θ before training; the same at every client of the block."""
        if self.start is None:
            return np.zeros((self.train.width, self.outputs))
        seed, block, spread = self.start
        entries = self.train.dense.shape[1] + len(self.train.codes)  # that a row has: one of each category's columns
        drawn = np.random.default_rng((seed, block)).standard_normal((self.train.width, self.outputs))
        return np.asarray(drawn * (np.array(spread) / np.sqrt(max(1, entries))))

    @property
    def width(self) -> int:
        return self.train.width

    def predict(self, theta: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        """h of some (or all) train rows; `draw` numbers the random draws of training, None: without any."""
        return self.train.dot(theta, rows)

    def gradient(self, theta: Array, signal: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        """Σ_k (∂h_k/∂θ)ᵀ Y_k over some (or all) train rows."""
        return self.train.transpose_dot(signal, rows)

    def clipped_gradient(
        self, theta: Array, signal: Array, privacy: GradientPrivacy, rows: RowNumbers | None, draw: int | None
    ) -> Array:
        """The same sum, each row's summand scaled down to a norm of at most C and R·‖Y_k‖."""
        norms = self.norms if self.norms is not None else self.train.row_norms()
        scale = clip_scale(signal, norms if rows is None else norms[rows], privacy.clip, privacy.reach)
        return self.train.transpose_dot(signal * scale[:, None], rows)

    def predict_test(self, theta: Array) -> Array:
        return self.test.dot(theta)

    def constants(self) -> list[Array]:
        """For each output a θ of small norm that predicts 1 on every row; none without one-hot columns in all rows."""
        groups = [group for group in self.train.code_columns if group.stop > group.start]
        if not groups or self.has_absent or self.outputs > MOST_CONSTANTS:
            return []
        shares = np.array([1.0 / (g.stop - g.start) for g in groups])
        found = []
        for output in range(self.outputs):
            theta = self.initial()
            for group, share in zip(groups, shares / shares.sum(), strict=True):
                theta[group, output] = share
            found.append(theta)
        return found
