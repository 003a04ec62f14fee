"""The list of losses. A new one is a file next to these and one line in LOSSES (docs/extending.md)."""

from tablepuppet.errors import JobError
from tablepuppet.models.losses.base import LabelFacts, Loss, Weighted
from tablepuppet.models.losses.classes import Logistic, Softmax
from tablepuppet.models.losses.numbers import Gamma, Huber, Poisson, Quantile, Squared
from tablepuppet.models.metrics import Metric

LOSSES: list[type[Loss]] = [
    Squared,
    Logistic,
    Softmax,
    Poisson,
    Gamma,
    Huber,
    Quantile,
]

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
