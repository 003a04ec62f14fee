"""Options of an algorithm: frozen, checked as they are made, no unknown names.

In: keyword arguments of a user. Out: a frozen struct, or a JobError that names the option, its value and the choices.
Every algorithm's folder has its own subclass; options travel to clients as they are.
"""

import re
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta

from tablepuppet.errors import JobError, hint

Positive = Annotated[float, Meta(gt=0.0, lt=1e300)]
Tolerance = Annotated[float, Meta(ge=0.0, lt=1e300)]
Count = Annotated[int, Meta(ge=1)]
Memory = Annotated[int, Meta(ge=0, le=16)]  # earlier directions


class Checked(msgspec.StructMeta):
    """The metaclass of options: calling their class checks names, types and choices."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        fields: tuple[str, ...] = self.__struct_fields__
        if args and (given or len(args) != len(fields)):  # a copy is made from all of them, in order
            raise JobError(f"tp.{self.__name__} takes options by name: {', '.join(fields)}")
        return read_options(self, dict(zip(fields, args, strict=True)) if args else given, f"tp.{self.__name__}")


class AlgorithmOptions(
    msgspec.Struct,
    metaclass=Checked,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag=True,
    repr_omit_defaults=True,
):
    """The base of every algorithm's options; the tag is the algorithm's name.

    Clients and owners' policies check an algorithm by its options before it starts. A server that lies about a trait
    would have to send other options, and would get another algorithm.
    """

    name: ClassVar[str] = ""

    @property
    def sends_second_moments(self) -> bool:
        """Whether the clients of a table send exact Tᵀ diag(w) T of their own rows, to be summed."""
        return False

    @property
    def samples_at_clients(self) -> bool:
        """Under feature privacy: whether clients draw samples of their own rows, unseen; otherwise the server draws
        batches of joined rows."""
        return False

    def resolve_defaults(self, *, is_linear: bool, is_private: bool) -> Self:
        """The same, with a choice for the job wherever the user left one open."""
        return self

    def for_kinks(self) -> Self:
        """The same, for a loss without second derivatives."""
        return self

    def for_private_run(self) -> Self:
        """The same, without anything that uses exact predictions besides noisy steps."""
        return self

    def _check(self, is_fine: bool, rule: str) -> None:
        if not is_fine:
            raise JobError(f"algorithm {self.name}: {rule}")


def read_options(kind: Any, given: dict[str, Any], name: str) -> Any:
    """A struct from plain values; `name` is the user's word for it."""
    fields = kind.__struct_fields__
    for option in given:
        if option not in fields:
            raise JobError(f"{name} has no option {option!r}; {hint(option, fields)}")
    plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in given.items()}
    try:
        return msgspec.convert(plain, kind, strict=True)
    except msgspec.ValidationError as error:
        raise JobError(f"{name}: {explain_error(error, kind, plain)}") from None


_SIDES = {">=": "at least", "<=": "at most", "<": "below", ">": "above"}


def explain_error(error: msgspec.ValidationError, kind: Any, given: dict[str, Any]) -> str:
    """Names the wrong option and its problem, in the user's words.

    >>> class Options(msgspec.Struct):
    ...     order: Literal["up", "down"] = "up"
    >>> try:
    ...     msgspec.convert({"order": "left"}, Options)
    ... except msgspec.ValidationError as error:
    ...     print(explain_error(error, Options, {"order": "left"}))
    order must be one of up, down, not 'left'
    """
    what, _, where = str(error).replace("`", "").partition(" - at $.")
    limit = re.fullmatch(r"Expected (?:int|float) ([<>]=?) (\S+)", what)
    if limit is not None:
        name, bound = where.partition("[")[0], float(limit[2])
        wanted = "finite" if abs(bound) >= 1e300 else f"{_SIDES[limit[1]]} {bound:,g}"
        return f"{name} must be {wanted}, not {given.get(name)!r}"
    choices = _choices(get_type_hints(kind).get(where)) if where else []
    if choices:
        return f"{where} must be one of {', '.join(choices)}, not {given.get(where)!r}"
    if where.endswith("[...]"):  # a dict's value: whose, is not said
        option = where.partition("[")[0]
        where = f"{' or '.join(map(str, given[option]))} of {option}"
    for json_name, name in (("object", "dict"), ("array", "list"), ("null", "None")):
        what = re.sub(rf"\b{json_name}\b", name, what)
    return f"{where or 'the job'}: {what[0].lower()}{what[1:]}"


def _choices(hint: Any) -> list[str]:
    """The values that a Literal allows, also inside a union."""
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    return [choice for part in get_args(hint) if get_origin(part) is Literal for choice in _choices(part)]
