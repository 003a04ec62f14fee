"""(c·S + ridge·I)⁻¹ b, of a symmetric matrix by its eigenvectors, and of a wide block by conjugate gradients.

`Spectrum`: for any c and ridge at O(d²) each. Directions without curvature are left out when there is no ridge, which
gives the solution of minimum norm.

Conjugate gradients (SciPy's): S is never formed. In: products with S = Tᵀ diag(w) T, its diagonal (the preconditioner),
the right-hand side, one column per output. Out: the solution to a relative residual of all columns. One product costs
O(n · k), however many categories there are, where a matrix would take d² numbers and its factors d³ operations.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import TrainingError

WIDE = 2_000  # columns of a block from which products are cheaper than a matrix and its eigenvectors
_ITERATIONS = 300


class Products(msgspec.Struct, frozen=True, eq=False):
    """S by its products with vectors, and by its diagonal."""

    multiply: Callable[[Array], Array]
    diagonal: Array

    def solve(self, scale: float, ridge: float, right: Array, start: Array | None = None, *, to: float) -> Array:
        """(scale·S + ridge·I)⁻¹ right, until the residual is `to` times the right-hand side."""
        from scipy.sparse import linalg  # here: it takes a tenth of a second to load

        curved, shape = scale * self.diagonal + ridge, right.shape
        inverse = np.divide(1.0, curved, out=np.zeros_like(curved), where=curved > 0)[:, None]

        def apply(flat: Array) -> Array:
            x = flat.reshape(shape)
            return np.asarray(scale * self.multiply(x) + ridge * x).ravel()

        def precondition(flat: Array) -> Array:
            return np.asarray(inverse * flat.reshape(shape)).ravel()

        size = right.size
        operators = [linalg.LinearOperator((size, size), f, dtype=np.float64) for f in (apply, precondition)]
        first = None if start is None else start.ravel()
        found, _ = linalg.cg(operators[0], right.ravel(), first, rtol=to, maxiter=_ITERATIONS, M=operators[1])
        return np.asarray(found.reshape(shape))


class Spectrum(msgspec.Struct, frozen=True, eq=False):
    """S = V diag(values) Vᵀ."""

    values: Array
    vectors: Array

    @classmethod
    def of(cls, matrix: Array) -> "Spectrum":
        if not len(matrix):
            return cls(np.zeros(0), np.zeros((0, 0)))
        values, vectors = eigenvalues(matrix)
        return cls(np.maximum(values, 0.0), vectors)

    def solve(self, scale: float, ridge: float | Array, right: Array) -> Array:
        """(scale·S + ridge·I)⁻¹ right, with one ridge or one for each column; the pseudo-inverse where it is 0."""
        values = self.values[:, None]
        curved = (values > 1e-12 * self.values.max(initial=0.0)) | (np.asarray(ridge) > 0)
        inverse = np.divide(1.0, scale * values + ridge, out=np.zeros(curved.shape), where=curved)
        return np.asarray(self.vectors @ (inverse * (self.vectors.T @ right)))


def pack_triangle(matrix: Array) -> Array:
    """The upper triangle of a symmetric matrix, row by row: all that needs to travel.

    >>> pack_triangle(np.array([[1.0, 2.0], [2.0, 3.0]]))
    array([1., 2., 3.])
    """
    return np.asarray(matrix[np.triu_indices(len(matrix))])


def unpack_triangle(packed: Array, size: int) -> Array:
    """The symmetric matrices whose upper triangles those are: (…, K(K+1)/2) → (…, K, K)."""
    rows, columns = np.triu_indices(size)
    whole = np.empty((*packed.shape[:-1], size, size))
    whole[..., rows, columns] = whole[..., columns, rows] = packed
    return whole


def eigenvalues(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of a symmetric matrix; numbers that are none are a run that diverges."""
    try:
        return np.linalg.eigh(matrix)
    except np.linalg.LinAlgError:
        raise TrainingError(
            "training diverged: second moments hold numbers that are not finite; look for extreme values in the columns"
        ) from None
