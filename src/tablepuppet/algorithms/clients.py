"""The client halves by algorithm: how one starts, and how it answers one message."""

from __future__ import annotations

from typing import Any

from tablepuppet.algorithms.admm import linear as admm_linear
from tablepuppet.algorithms.admm import neural as admm_neural
from tablepuppet.algorithms.base import Answer, PartSetup
from tablepuppet.algorithms.newton import client as newton
from tablepuppet.algorithms.numerics.sensitivity import sensitivity
from tablepuppet.algorithms.options import Admm, Newton, Options, Sgd
from tablepuppet.algorithms.sgd import client as sgd
from tablepuppet.errors import JobError, TransportError
from tablepuppet.models.linear import LinearModel
from tablepuppet.protocol import AdmmUpdate, Combined, Done, Move, NewtonUpdate, SgdUpdate


def start(setup: PartSetup, options: Options) -> tuple[Any, float]:
    """The half's first state, and one figure that the server half wants to know of it."""
    if isinstance(options, Sgd):
        is_told = isinstance(setup.model, LinearModel) or setup.is_private
        return sgd.client_start(setup, options), 0.0 if is_told else sensitivity(setup)
    if isinstance(options, Admm):
        half = admm_linear if isinstance(setup.model, LinearModel) else admm_neural
        curvature = 1.0 if setup.is_private else half.mean_curvature(setup)
        return half.client_start(setup, options), curvature
    if isinstance(options, Newton):
        state = newton.client_start(setup, options)
        return state, float(len(state.trail.constants) > 0)
    raise JobError("the centralised baseline has no client half")


def step(setup: PartSetup, options: Options, state: Any, message: Any) -> tuple[Any, Answer | Done]:
    """The half's next state and its answer."""
    if isinstance(options, Sgd) and isinstance(message, SgdUpdate | Combined):
        return sgd.client_step(setup, options, state, message)
    if isinstance(options, Admm) and isinstance(state, admm_neural.NeuralAdmmState):
        if isinstance(message, AdmmUpdate | Combined):
            return admm_neural.client_step(setup, options, state, message)
    elif isinstance(options, Admm) and isinstance(message, AdmmUpdate | Move | Combined):
        return admm_linear.client_step(setup, options, state, message)
    if isinstance(options, Newton) and isinstance(message, NewtonUpdate | Move | Combined):
        return newton.client_step(setup, options, state, message)
    raise TransportError(f"a {type(message).__name__} does not belong to algorithm {options.name}")
