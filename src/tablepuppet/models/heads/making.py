"""Heads by their kind; modules of the user's own are known to the server of this process by a name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tablepuppet.errors import JobError
from tablepuppet.models.heads.base import Head, HeadModel, HeadSpec, SumHead, TrainedHead
from tablepuppet.models.heads.factor import FactorHead

_MODULES: dict[str, Any] = {}
_NUMBERS = itertools.count(1)


def make_head(spec: HeadSpec, seed: int = 0) -> Head:
    """A head with its initial values."""
    if spec.kind == "sum":
        return SumHead(spec)
    if spec.kind == "factor":
        return FactorHead(spec)
    if spec.kind == "module" and spec.module not in _MODULES:
        raise JobError(
            "a head that is a torch module of your own stays in the process that made it: give it to train(head=…) or "
            'predict(head=…) of a federation in this process; head="mlp" works everywhere'
        )
    from tablepuppet.models.heads.network import network_head  # here, not above: torch is an extra

    return network_head(spec, seed, _MODULES.get(spec.module))


def trained_head(model: HeadModel | None) -> TrainedHead | None:
    """A saved head, ready to combine; None: a sum."""
    return None if model is None else TrainedHead(make_head(model.spec), model.own)


@contextmanager
def offered_head(module: Any, name: str) -> Iterator[None]:
    """While inside, the server half of this process knows a module by the name."""
    if module is None:
        yield
        return
    _MODULES[name] = module
    try:
        yield
    finally:
        _MODULES.pop(name, None)


@contextmanager
def known_head(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A job's arguments, with a name in place of a head that is a module."""
    head = options.get("head")
    if not hasattr(head, "named_parameters"):
        yield options
        return
    name = f"{type(head).__name__}-{next(_NUMBERS)}"
    with offered_head(head, name):
        yield options | {"head": "module", "head_module": name}
