"""The client's half of Newton: the next direction of its block, and moves along those that the server chose.

g = T_iᵀY_i/N + βθ,  D = T_iᵀdiag(W_i)T_i/N + βI,  d_i = −D⁻¹g;  sends T_i d_i
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from tablepuppet.algorithms.base import Answer, PartSetup
from tablepuppet.algorithms.newton.full_curvature import MOST, curvature_matrix, solve, solve_by_products
from tablepuppet.algorithms.newton.options import Newton, NewtonFigures, NewtonUpdate
from tablepuppet.algorithms.numerics.linear_systems import WIDE, Products, Spectrum
from tablepuppet.algorithms.numerics.subspace import Trail
from tablepuppet.arrays import Array, fixed
from tablepuppet.models.linear import LinearModel
from tablepuppet.protocol import Combined, Done, Move, Partial, Predictions

_CLOSE = 1e-4  # residual of a wide block's direction


class NewtonState(msgspec.Struct, frozen=True):
    """A part's trail, and the curvature of its block where that does not change."""

    trail: Trail
    values: Array | None = None  # eigenvalues; empty where the coordinator holds them
    vectors: Array | None = None

    @property
    def theta(self) -> Array:
        return self.trail.theta


def client_start(setup: PartSetup, options: Newton) -> tuple[NewtonState, NewtonFigures]:
    assert isinstance(setup.model, LinearModel)
    theta = setup.initial
    constants = setup.model.constants()
    figures = NewtonFigures(float(len(constants) > 0))
    return NewtonState(Trail(theta, np.zeros_like(theta), constants, [])), figures


def client_step(
    setup: PartSetup, options: Newton, state: NewtonState, message: NewtonUpdate | Move | Combined
) -> tuple[NewtonState, Answer | Done]:
    """Move by the coefficients chosen last, then find and send the next direction."""
    replace = msgspec.structs.replace
    if isinstance(message, Combined):
        return _predicted(setup, state, message.values[0])
    if message.coefficients is not None:
        state = replace(state, trail=state.trail.moved(message.coefficients, options.memory))
    if isinstance(message, Move):
        return state, Done()
    assert isinstance(setup.model, LinearModel)
    ridge = setup.joined_rows * setup.l2
    gradient = setup.model.gradient(state.theta, message.signal) + ridge / setup.clients * state.theta
    if message.curvature is not None and message.curvature.shape[1] > 1:
        return _full_step(setup, state, message.curvature, ridge, gradient)
    if setup.model.train.width > WIDE:
        return _wide_step(setup, state, _weights(setup, message), ridge, gradient)
    is_constant = message.curvature is None
    is_known = is_constant and state.values is not None
    if setup.clients > 1:
        if is_known:
            return state, Partial(values=[gradient])
        gram = _gram(setup, message)
        return (replace(state, values=np.zeros(0)) if is_constant else state), Partial(values=[gradient, gram])
    if is_known:
        assert state.values is not None
        assert state.vectors is not None
        spectrum = Spectrum(state.values, state.vectors)
    else:
        spectrum = Spectrum.of(_gram(setup, message))
        if is_constant:
            state = replace(state, values=spectrum.values, vectors=spectrum.vectors)
    return _predicted(setup, state, -spectrum.solve(1.0, ridge, gradient))


def _full_step(
    setup: PartSetup, state: NewtonState, curvature: Array, ridge: float, gradient: Array
) -> tuple[NewtonState, Answer]:
    """The direction of all outputs at once (full_curvature.py)."""
    assert isinstance(setup.model, LinearModel)
    if gradient.size > MOST and setup.clients == 1:
        return _predicted(setup, state, -solve_by_products(setup.model, curvature, ridge, gradient))
    matrix = curvature_matrix(setup.model, curvature, setup.outputs)
    if setup.clients > 1:
        return state, Partial(values=[gradient, matrix])
    return _predicted(setup, state, -solve(matrix, ridge, gradient))


def _wide_step(
    setup: PartSetup, state: NewtonState, weights: Array, ridge: float, gradient: Array
) -> tuple[NewtonState, Answer]:
    """Too many columns for a matrix: products for one client; with several, a sum of diagonals.

    The direction need not be exact: the search takes what is good in it.
    """
    assert isinstance(setup.model, LinearModel)
    diagonal = setup.model.gram_diagonal(weights)
    if setup.clients > 1:
        return state, Partial(values=[gradient, diagonal[:, None]])
    products = Products(partial(setup.model.gram_product, weights), diagonal)
    return _predicted(setup, state, -products.solve(1.0, ridge, gradient, to=_CLOSE))


def _weights(setup: PartSetup, message: NewtonUpdate) -> Array:
    """The curvature of each row: collapsed by the server, or its bound times the row's weight."""
    return message.bound * setup.weights if message.curvature is None else message.curvature[:, 0]


def _gram(setup: PartSetup, message: NewtonUpdate) -> Array:
    assert isinstance(setup.model, LinearModel)
    return setup.model.gram(_weights(setup, message))


def _predicted(setup: PartSetup, state: NewtonState, direction: Array) -> tuple[NewtonState, Answer]:
    trail = state.trail.towards(direction)
    answer = Predictions(values=fixed(setup.model.predict(direction)), products=trail.products())
    return msgspec.structs.replace(state, trail=trail), answer
