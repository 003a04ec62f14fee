"""The client's half of mini-batch gradient descent: a batch's gradient, and the step once it is summed over the block.

∇ = T_iᵀ Y_i / |B| + βθ_i                                                  Eq. sgd-client-side
"""

from __future__ import annotations

import msgspec
import numpy as np

from tablepuppet.algorithms.base import Answer, PartSetup, squared_norm
from tablepuppet.algorithms.numerics.optimizers import Moments, clip_gradient, descend, sensitivity
from tablepuppet.algorithms.sgd.options import Sgd, SgdFigures, SgdUpdate
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.linear import LinearModel
from tablepuppet.protocol.base import Combined, Partial, Predictions


class SgdState(msgspec.Struct, frozen=True):
    """A part's parameters, its optimiser's memory, and the rows of the batch under way."""

    theta: Array
    moments: Moments
    rows: RowNumbers | None
    learning_rate: float = 0.0
    divisor: float = 1.0  # of the sum that comes back


def client_start(setup: PartSetup, options: Sgd) -> tuple[SgdState, SgdFigures]:
    theta = setup.model.initial()
    is_told = isinstance(setup.model, LinearModel) or setup.is_private
    figures = SgdFigures(0.0 if is_told else sensitivity(setup))
    return SgdState(theta, Moments.zero(theta, options.optimizer), None), figures


def client_step(
    setup: PartSetup, options: Sgd, state: SgdState, message: SgdUpdate | Combined
) -> tuple[SgdState, Answer]:
    """The partial gradient; then, once it is summed over the block, the step and new predictions."""
    if isinstance(message, SgdUpdate):
        if message.signal is not None:
            drawn = state.moments.step  # the masks under which this batch was predicted
            if setup.private is None:
                total = setup.model.gradient(state.theta, message.signal, state.rows, drawn)
            else:
                total = setup.private.gradient(setup.model, state.theta, message.signal, state.rows, drawn)
            # A share of noise lies on a grid that masks keep; whoever divided it would leave digits beside the grid.
            divisor = float(message.count) if setup.private is not None and setup.private.is_shared else 1.0
            gradient = total if divisor > 1.0 else total / message.count
            state = msgspec.structs.replace(
                state, rows=message.next_rows, learning_rate=message.learning_rate, divisor=divisor
            )
            if setup.clients > 1:
                return state, Partial(values=[gradient])
            state = _descend(setup, options, state, gradient)
        else:
            state = msgspec.structs.replace(state, rows=message.next_rows)
    else:
        gradient = (message.values[0] / state.divisor).astype(state.theta.dtype, copy=False)
        state = _descend(setup, options, state, gradient)
    predictions = setup.model.predict(state.theta, state.rows, state.moments.step)
    return state, Predictions(values=predictions, products=np.array([squared_norm(state.theta)]))


def _descend(setup: PartSetup, options: Sgd, state: SgdState, gradient: Array) -> SgdState:
    slope = clip_gradient(gradient + setup.decay * state.theta, options.clip_norm)
    theta, moments = descend(state.theta, slope, state.moments, state.learning_rate, options.rule, setup.unit)
    return msgspec.structs.replace(state, theta=theta, moments=moments)
