"""Calls of the public functions: an argument of another name or type → one sentence, and never Python's own error.

The annotations decide. Only plain types are checked: numbers, texts, lists, federations. Where a call passes options on
to a job, job/ checks its numbers and texts.
"""

import inspect
import re
from collections.abc import Callable
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from tablepuppet.errors import JobError, hint

_Given = TypeVar("_Given", bound=Callable[..., Any])
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "None": ("None", lambda value: value is None),
    "int": ("a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "str": ("text", lambda value: isinstance(value, str)),
    "bytes": ("bytes", lambda value: isinstance(value, bytes)),
    "tuple": ("a tuple", lambda value: isinstance(value, tuple | list)),
    "Sequence": ("a list", lambda value: hasattr(value, "__iter__") and not isinstance(value, str | bytes | dict)),
    "Mapping": ('a dict, as in {"name": …}', lambda value: hasattr(value, "items")),
    "Federation": (
        "a Federation (tables stay with their owners, so there is no X)",
        lambda value: "Federation" in (kind.__name__ for kind in type(value).__mro__),
    ),
}
_OF_JOBS = {"int", "float", "str"}


def check_calls(given: _Given) -> _Given:
    """A function that refuses arguments of other names or types; or a class whose public methods do.

    >>> check_calls(lambda folds=5: folds)(fold=3)
    Traceback (most recent call last):
    tablepuppet.errors.JobError: <lambda> has no argument 'fold'; did you mean 'folds'?
    """
    if isinstance(given, type):
        for name, verb in list(vars(given).items()):
            if inspect.isfunction(verb) and not name.startswith("_"):
                setattr(given, name, check_calls(verb))
        return cast("_Given", given)
    signature = inspect.signature(given)
    names = [name for name in signature.parameters if name != "self"]
    kinds = {name: _kinds_of(signature.parameters[name]) for name in names}
    is_open = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    kinds = {name: own for name, own in kinds.items() if not (is_open and _OF_JOBS & set(own))}

    @wraps(given)
    def call(*values: Any, **named: Any) -> Any:
        other = next((name for name in named if name not in names and not is_open), None)
        if other is not None:
            raise JobError(f"{given.__name__} has no argument {other!r}; {hint(other, names)}")
        try:
            bound = signature.bind(*values, **named).arguments
        except TypeError as error:
            raise JobError(f"{given.__name__}: {error}; it takes {', '.join(names) or 'none'}") from None
        for name, wanted in kinds.items():
            if wanted and name in bound and not any(_KINDS[kind][1](bound[name]) for kind in wanted):
                what = " or ".join(_KINDS[kind][0] for kind in wanted)
                raise JobError(f"{name} must be {what}, not {_describe(bound[name])}")
        return given(*values, **named)

    return cast("_Given", call)


def _kinds_of(parameter: inspect.Parameter) -> list[str]:
    """The plain types of a parameter; none where it takes others too."""
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or parameter.annotation is parameter.empty:
        return []
    text = inspect.formatannotation(parameter.annotation)
    while re.search(r"\[[^\[\]]*\]", text):  # of a list, what it holds
        text = re.sub(r"\[[^\[\]]*\]", "", text)
    found = [part.strip(" '\"").rpartition(".")[2] for part in text.split("|")]
    return found if all(kind in _KINDS for kind in found) else []


def _describe(value: Any) -> str:
    """A number as it is; of anything else, which may be a secret or a row's value, the type."""
    return repr(value) if value is None or isinstance(value, int | float) else type(value).__name__
