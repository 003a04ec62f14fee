"""The client halves by algorithm: how one starts, and how it answers one message."""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet.algorithms import admm, newton, sgd
from tablepuppet.algorithms.base import Answer, PartSetup
from tablepuppet.algorithms.options import Admm, Newton, Options, Sgd
from tablepuppet.errors import JobError, TransportError
from tablepuppet.models.linear import LinearModel
from tablepuppet.transport.messages import AdmmUpdate, Combined, Done, NewtonMove, NewtonUpdate, SgdUpdate


def start(setup: PartSetup, options: Options) -> tuple[Any, float]:
    """The half's first state, and the curvature that the server half wants to know."""
    if isinstance(options, Sgd):
        wanted = options.learning_rate is None and options.optimizer == "sgd"
        return sgd.client_start(setup, options), largest_curvature(setup) if wanted else 0.0
    if isinstance(options, Admm):
        return admm.client_start(setup, options), admm.mean_curvature(setup)
    if isinstance(options, Newton):
        return newton.client_start(setup, options), 0.0
    raise JobError("the centralised baseline has no client half")


def step(setup: PartSetup, options: Options, state: Any, message: Any) -> tuple[Any, Answer | Done]:
    """The half's next state and its answer."""
    if isinstance(options, Sgd) and isinstance(message, SgdUpdate | Combined):
        return sgd.client_step(setup, options, state, message)
    if isinstance(options, Admm) and isinstance(message, AdmmUpdate | Combined):
        return admm.client_step(setup, options, state, message)
    if isinstance(options, Newton) and isinstance(message, NewtonUpdate | NewtonMove | Combined):
        return newton.client_step(setup, options, state, message)
    raise TransportError(f"a {type(message).__name__} does not belong to algorithm {options.name}")


def largest_curvature(setup: PartSetup) -> float:
    """The largest eigenvalue of the part's share of XᵀX/N, by power iteration (within a few percent)."""
    assert isinstance(setup.model, LinearModel)
    features = setup.model.train
    v = np.sqrt(features.gram_diagonal(setup.multiplicity))[:, None]
    value = 0.0
    for _ in range(30):
        length = float(np.linalg.norm(v))
        if length == 0.0:
            return 0.0
        new = features.gram_product(setup.multiplicity, v / length)
        value, v = float(np.linalg.norm(new)), new
    return 1.05 * value / setup.joined_rows
