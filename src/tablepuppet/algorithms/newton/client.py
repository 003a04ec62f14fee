"""Newton: options, messages, and the client's half.

The client finds the next direction of its block, and moves along those that the server chose.

g = T_iᵀY_i/N + βθ,  D = T_iᵀdiag(W_i)T_i/N + βI, its columns far from zero centred,  d_i = −D⁻¹g;  sends T_i d_i
"""

from functools import partial
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from tablepuppet.algorithms.base import Answer, Figures, PartSetup
from tablepuppet.algorithms.newton.full_curvature import (
    MOST,
    beside_intercept,
    curvature_triangles,
    sampled_matrix,
    solve,
    solve_by_products,
    without_intercept,
)
from tablepuppet.algorithms.numerics.linear_systems import WIDE, Products, Spectrum, pack_triangle
from tablepuppet.algorithms.numerics.subspace import Trail, kept_directions
from tablepuppet.algorithms.options import AlgorithmOptions, Memory, Tolerance
from tablepuppet.arrays import Array, Following, freeze
from tablepuppet.errors import TransportError
from tablepuppet.models.losses.classes import curvature_of_slopes
from tablepuppet.protocol.base import Combined, Discloses, Done, Move, Partial, Predictions, Update
from tablepuppet.protocol.bounds import require


class Newton(AlgorithmOptions, frozen=True, tag="newton"):
    """Block-preconditioned Newton with subspace search: nothing to tune (docs/algorithms.md).

    `memory`: how many earlier directions are kept for the search. `tolerance`: the relative gain below which it ends.
    The default is 1e-10, or 1e-8 for a label of more than two classes, whose rounds cost more.

    >>> Newton(tolerance=1e-6)
    Newton(tolerance=1e-06)
    """

    name: ClassVar[str] = "newton"
    memory: Memory = 8  # fewer stall where tables correlate: docs/decisions/0006
    tolerance: Tolerance | None = None

    def tolerance_of(self, outputs: int) -> float:
        if self.tolerance is not None:
            return self.tolerance
        return 1e-10 if outputs == 1 else 1e-8

    @property
    def sends_second_moments(self) -> bool:
        return True


class NewtonUpdate(Update, frozen=True):
    """Take a Newton step from the derivatives Y and curvatures of your rows. → Predictions | Partial | Masked

    `curvature` None: it is `bound` times a row's weight, or, of rows that are in one joined row each, follows from Y.
    """

    keeps_trail: ClassVar[bool] = True
    signal: Annotated[Array, Discloses("signals", is_per_row=True)]
    curvature: Annotated[Array | None, Discloses("curvatures", is_per_row=True)]
    bound: float  # the curvature per joined row where `curvature` is None and does not follow from Y
    coefficients: Array | None
    follows: bool = False  # whether the curvature does

    def check(self, outputs: int, clients: int) -> None:
        is_slope = not self.follows or not (np.abs(self.signal) > 1.0).any()
        require(is_slope, "signal", "has slopes that no curvature follows from")


class BasisUpdate(Update, frozen=True):
    """Take Newton steps of several models from their derivatives Y. → Predictions | Partial | Masked"""

    signal: Annotated[Array, Discloses("signals", is_per_row=True)]  # a column for each model
    points: Array  # (directions, models)
    ridges: list[float]  # l2 of each model
    bound: float  # the curvature per joined row


class NewtonFigures(Figures, frozen=True):
    """How many parts have features that span the constant: their encoders already disclose this."""

    is_public: ClassVar[bool] = True
    spans_constant: float = 0.0


_RESIDUAL = 1e-4  # residual of a wide block's direction
_MIN_NEW_LENGTH = 1e-3  # of the largest of several directions: shorter ones wait for a later round


class NewtonState(msgspec.Struct, frozen=True):
    """A part's trail, and the curvature of its block where that does not change."""

    trail: Trail
    values: Array | None = None  # eigenvalues; empty where the coordinator holds them
    vectors: Array | None = None
    basis: Array | None = None  # directions that several models share, orthogonal; their θ stay with the server

    @property
    def theta(self) -> Array:
        return self.trail.theta


def client_start(setup: PartSetup, options: Newton) -> tuple[NewtonState, NewtonFigures]:
    theta = setup.initial
    constants = setup.linear.constants()
    figures = NewtonFigures(float(len(constants) > 0))
    basis = setup.before.basis if isinstance(setup.before, NewtonState) else None
    if basis is not None:
        theta = np.zeros_like(theta)
    return NewtonState(Trail(theta, np.zeros_like(theta), constants, []), basis=basis), figures


def client_step(
    setup: PartSetup, options: Newton, state: NewtonState, message: NewtonUpdate | BasisUpdate | Move | Combined
) -> tuple[NewtonState, Answer | Done]:
    """Move by the coefficients chosen last, then find and send the next direction."""
    replace = msgspec.structs.replace
    if isinstance(message, BasisUpdate):
        return _basis_step(setup, state, message)
    if isinstance(message, Combined):
        extends = _extend if state.basis is not None else _predict
        return extends(setup, state, message.values[0])
    if message.coefficients is not None:
        memory = kept_directions(options.memory, state.theta.size)
        state = replace(state, trail=state.trail.move(message.coefficients, memory))
    if isinstance(message, Move):
        return state, Done()
    ridge = setup.joined_rows * setup.l2
    gradient = setup.linear.gradient(state.theta, message.signal) + ridge / setup.clients * state.theta
    if message.curvature is not None and message.curvature.shape[1] > 1:
        return _full_step(setup, state, message.curvature, ridge, gradient)
    if setup.linear.train.width > WIDE:
        return _wide_step(setup, state, np.asarray(_weights(setup, message)), ridge, gradient)
    is_constant = message.curvature is None and not message.follows
    state, found = _find_curvature(setup, state, gradient, _weights(setup, message), is_constant=is_constant)
    return (state, found) if isinstance(found, Partial) else _predict(setup, state, -found.solve(1.0, ridge, gradient))


def _find_curvature(
    setup: PartSetup, state: NewtonState, gradient: Array, weights: Array | Following, *, is_constant: bool
) -> tuple[NewtonState, Spectrum | Partial]:
    """The block's curvature, formed unless it is known; of several clients, what they send to be summed."""
    replace = msgspec.structs.replace
    if is_constant and state.values is not None:
        spectrum = Spectrum(state.values, np.zeros(0) if state.vectors is None else state.vectors)
        return state, spectrum if setup.clients == 1 else Partial(values=[gradient])
    gram, heavy = setup.linear.train.gram(weights), np.asarray(weights)
    beside = beside_intercept(setup.linear, heavy[:, None])
    if setup.clients > 1:
        summand = Partial(values=[gradient, pack_triangle(gram)[None], beside])
        return (replace(state, values=np.zeros(0)) if is_constant else state), summand
    spectrum = Spectrum.of(without_intercept(gram, beside, heavy.sum()))
    return (replace(state, values=spectrum.values, vectors=spectrum.vectors) if is_constant else state), spectrum


def _full_step(
    setup: PartSetup, state: NewtonState, curvature: Array, ridge: float, gradient: Array
) -> tuple[NewtonState, Answer]:
    """The direction of all outputs at once (full_curvature.py)."""
    if gradient.size > MOST and setup.clients == 1:
        return _predict(setup, state, -solve_by_products(setup.linear, curvature, ridge, gradient))
    if setup.clients > 1:
        beside = beside_intercept(setup.linear, curvature)
        return state, Partial(values=[gradient, curvature_triangles(setup.linear, curvature), beside])
    matrix = sampled_matrix(setup.linear, curvature, setup.outputs, is_whole=not ridge)
    return _predict(setup, state, -solve(matrix, ridge, gradient))


def _wide_step(
    setup: PartSetup, state: NewtonState, weights: Array, ridge: float, gradient: Array
) -> tuple[NewtonState, Answer]:
    """Too many columns for a matrix: products for one client; with several, a sum of diagonals.

    An inexact direction suffices, because the search chooses how far to follow it.
    """
    diagonal = setup.linear.train.gram_diagonal(weights)
    if setup.clients > 1:
        return state, Partial(values=[gradient, diagonal[:, None]])
    products = Products(partial(setup.linear.train.gram_product, weights), diagonal)
    return _predict(setup, state, -products.solve(1.0, ridge, gradient, to=_RESIDUAL))


def _basis_step(setup: PartSetup, state: NewtonState, message: BasisUpdate) -> tuple[NewtonState, Answer]:
    """A direction for each of several models, as they stand in the space of the directions (multi_ridge.py)."""
    basis = state.basis
    if basis is None:
        basis = np.concatenate(
            [np.zeros((setup.linear.width, 0)), *(c[:, :1] for c in state.trail.constants[:1])], axis=1
        )
    if message.points.shape != (basis.shape[1], setup.outputs) or len(message.ridges) != setup.outputs:
        raise TransportError("points and penalties are not those of as many models and directions as there are")
    ridges = setup.joined_rows * np.array(message.ridges)
    theta = basis @ message.points
    gradient = setup.linear.gradient(theta, message.signal) + ridges / setup.clients * theta
    state = msgspec.structs.replace(state, basis=basis)
    state, curved = _find_curvature(setup, state, gradient, message.bound * setup.weights, is_constant=True)
    if isinstance(curved, Partial):
        return state, curved
    found = -curved.solve(1.0, ridges, gradient)
    return _extend(setup, state, found, -0.5 * np.einsum("ds,ds->s", gradient, found))


def _extend(
    setup: PartSetup, state: NewtonState, found: Array, gaps: Array | None = None
) -> tuple[NewtonState, Answer]:
    """Adds the new part of some directions to the basis; a column of zeros is sent in place of the rest.

    The answer also has ‖v‖² of the first direction (all others have length 1) and which columns are new. It has each
    model's expected gain, unless the server knows it from a sum over clients.
    """
    basis = state.basis
    assert basis is not None
    norms = np.einsum("dm,dm->m", basis, basis)
    new, length = found, float(np.linalg.norm(found))
    for _ in range(2):  # once leaves rounding errors as long as the removed part
        new = new - basis @ ((basis.T @ new) / norms[:, None])
    vectors, sizes, _ = np.linalg.svd(new, full_matrices=False)
    count = int(np.count_nonzero(sizes > max(_MIN_NEW_LENGTH * sizes.max(initial=0.0), 1e-11 * length)))
    count = min(count, len(basis) - basis.shape[1])
    added = np.zeros_like(found)
    added[:, :count] = vectors[:, :count]
    is_new = np.arange(found.shape[1]) < count
    first = norms[:1] if len(norms) else np.zeros(1)
    products = np.concatenate([first, is_new, np.zeros(len(is_new)) if gaps is None else gaps])
    answer = Predictions(values=freeze(setup.model.predict(added)), products=products)
    return msgspec.structs.replace(state, basis=np.concatenate([basis, added[:, :count]], axis=1)), answer


def _weights(setup: PartSetup, message: NewtonUpdate) -> Array | Following:
    """The curvature of each row: collapsed by the server, computed from its slope, or a bound times its weight."""
    if message.follows:
        return Following(message.signal[:, 0], curvature_of_slopes)
    return message.bound * setup.weights if message.curvature is None else message.curvature[:, 0]


def _predict(setup: PartSetup, state: NewtonState, direction: Array) -> tuple[NewtonState, Answer]:
    trail = state.trail.towards(direction)
    answer = Predictions(values=freeze(setup.model.predict(direction)), products=trail.products())
    return msgspec.structs.replace(state, trail=trail), answer
