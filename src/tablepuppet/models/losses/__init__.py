"""The list of losses: all that the files named here declare. A new one is a file and its name (docs/extending.md)."""

from importlib import import_module

from tablepuppet.errors import JobError
from tablepuppet.models.losses.base import LabelFacts, Loss, Weighted
from tablepuppet.models.losses.classes import Logistic, Softmax
from tablepuppet.models.losses.numbers import Squared
from tablepuppet.models.metrics import Metric

_FILES = ("numbers", "classes")
_DECLARED = [kind for file in _FILES for kind in vars(import_module(f"{__name__}.{file}")).values()]
LOSSES: list[type[Loss]] = [k for k in _DECLARED if isinstance(k, type) and issubclass(k, Loss) and "name" in vars(k)]

__all__ = ["LabelFacts", "Logistic", "Loss", "Squared", "Weighted"]


def loss_named(name: str) -> type[Loss]:
    """The loss of that name.

    >>> loss_named("squared").model
    'linear'
    """
    found = {loss.name: loss for loss in LOSSES}
    if name not in found:
        raise JobError(f"unknown loss {name!r}; choose one of {', '.join(found)}")
    return found[name]


def loss_of_model(model: str) -> type[Loss] | None:
    """The loss that model="…" names; None: the model leaves it open."""
    return next((loss for loss in LOSSES if loss.model == model), None)


def usual_loss(classes: int) -> type[Loss]:
    """The loss of a label with so many classes (0: a number), where none is asked for."""
    return Squared if classes == 0 else Logistic if classes == 2 else Softmax


def metrics_by_name() -> dict[str, Metric]:
    return {metric.name: metric for loss in LOSSES for metric in loss.metrics}
