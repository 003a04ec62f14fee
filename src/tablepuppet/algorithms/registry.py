"""The list of algorithms, and their names, options and updates.

A new algorithm is a folder next to the others and one line here; docs/extending.md explains how.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Union

from tablepuppet.algorithms.algorithm import Ability, Algorithm, OwnModel
from tablepuppet.algorithms.options import AlgorithmOptions, read_options
from tablepuppet.errors import JobError, ModelError
from tablepuppet.models.spec import ModelSpec
from tablepuppet.protocol.base import Message

# In the order in which they are listed, and advised where two do as well. The first is the default.
FOLDERS = (
    "newton",
    "admm",
    "sgd",
    "boosting",
    "als",
    "elastic",
    "centralized",
)

_MODULES = [import_module(f"tablepuppet.algorithms.{folder}.algorithm") for folder in FOLDERS]
ALGORITHMS: tuple[Algorithm[Any], ...] = tuple(module.ALGORITHM for module in _MODULES)
EXPANDED: tuple[Algorithm[Any], ...] = tuple(module.BASELINE for module in _MODULES if hasattr(module, "BASELINE"))
FEDERATED = tuple(a for a in ALGORITHMS if not a.is_pooled and not a.own_model and not a.supports_nonsmooth)
KINKED = tuple(a for a in ALGORITHMS if a.supports_nonsmooth)
OF_SUMS = tuple(a for a in FEDERATED if "sum" in a.heads)
DEFAULT = ALGORITHMS[0].name
BY_NAME: dict[str, Algorithm[Any]] = {
    **{a.name: a for a in FEDERATED},
    **{a.name: a for a in EXPANDED},
    **{a.name: a for a in ALGORITHMS if a.own_model},
    **{a.name: a for a in KINKED},
    **{a.name: a for a in ALGORITHMS if a.is_pooled},
}
_BY_OPTIONS = {a.options: a for a in BY_NAME.values()}
UPDATES = tuple(kind for a in ALGORITHMS for kind in a.requests)  # answered by the client half of a started part

if TYPE_CHECKING:
    Options = AlgorithmOptions
else:
    Options = Union[tuple(_BY_OPTIONS)]  # noqa: UP007


def algorithm_of(options: AlgorithmOptions) -> Algorithm[Any]:
    return _BY_OPTIONS[type(options)]


_OWN_MODELS = {a.own_model: folder for a, folder in zip(ALGORITHMS, FOLDERS, strict=True) if a.own_model}


def own_model(spec: ModelSpec) -> OwnModel | None:
    """The functions of a model that is no sum or head of table scores; None: the other packages' own apply."""
    folder = _OWN_MODELS.get(spec.kind)
    if folder is None:
        return None
    own: OwnModel = import_module(f"tablepuppet.algorithms.{folder}.own_model").OWN_MODEL
    return own


def require_ability(spec: ModelSpec, ability: Ability, what: str = "") -> None:
    """Refuses an ability that a model of its own kind lacks; `what`: the form that was asked for."""
    own = own_model(spec)
    if own is not None and ability in own.refusals:
        raise ModelError(own.refusals[ability].format(what=what))


def is_expanded(name: str) -> bool:
    """Whether a name is that of a baseline on expanded blocks."""
    return name in BY_NAME and BY_NAME[name].is_expanded


def options_of(name: str, given: dict[str, Any]) -> AlgorithmOptions:
    """The options of an algorithm by its name, from plain values (keyword arguments, TOML)."""
    if name not in BY_NAME:
        raise JobError(f"unknown algorithm {name!r}; choose one of {', '.join(BY_NAME)}")
    options: AlgorithmOptions = read_options(BY_NAME[name].options, given, f"algorithm {name}")
    return options


def remedy(request: Message) -> str:
    """The remedy if the answer to a request shows that training diverged."""
    return next((a.remedy for a in ALGORITHMS if isinstance(request, a.requests)), "take smaller steps")


def name_algorithms(algorithms: Iterable[Algorithm[Any]]) -> str:
    """Algorithms as a sentence names them: algorithm="sgd" or algorithm="admm"."""
    return " or ".join(f'algorithm="{a.name}"' for a in algorithms)
