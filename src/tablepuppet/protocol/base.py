"""The base of every message, the disclosures of its fields, and the messages that belong to no one exchange.

A message is a frozen struct that rejects unknown fields. A field that reveals something about rows is marked with what
it is (`Discloses`). The meter counts these disclosures as it counts bytes.

Any request may be answered by `Failure`, and one that asks for an action by `Done`. The halves of any algorithm
share the further messages here. A part answers an update with its predictions, or with one client's summand of a sum
over the block, in plain numbers (`Partial`) or under masks (`Masked`). Their rules are in exchanges/steps.py.
"""

import sys
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array

What = Literal[
    "row count",
    "key tokens",
    "blinded keys",  # of other owners: how many they have
    "row order",
    "cutoff count",
    "cutoffs",  # distinct moments of another owner, until which one's history is read
    "group tokens",
    "magnitudes",  # of groups' aggregates, roughly
    "shared groups",  # which of one's groups others have too
    "masked group sums",  # which nobody but a group's holder can read
    "group sums",  # over all other clients
    "masked group extremes",
    "group extremes",  # of each other client
    "label classes",
    "labels",
    "split",
    "weights",
    "statistics",
    "category names",
    "figure",
    "sums",
    "predictions",  # of train rows
    "held-out predictions",
    "scores",  # predictions by a finished model
    "norms",
    "parameters",
    "features",
    "identifiers",
    "multiplicities",
    "summed weights",
    "encoders",
    "signals",
    "curvatures",
    "agreed values",
    "model",
    "sketches",  # values of a column, as many as it has bins
    "splits",  # which rows go right: one bit each
    "gains",  # how good splits are
    "node sums",  # of slopes and curvatures, per row and node
]


LONGEST_TEXT = 65_536  # characters of a name, a category, a message
MOST_COLUMNS = 10_000
MOST_CATEGORIES = 10_000_000
MOST_CLIENTS = 100_000
MOST_CHANGED = 65_536  # rows of a query that one row of a table changes; a query in which it changes more has no bound
_GREATEST = sys.float_info.max

# Bounds that are declared with a field; the decoder holds both ends to them.
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Place = Annotated[int, Meta(ge=0)]  # of a scan, a part, a column
Count = Annotated[int, Meta(ge=0, le=2**62)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Amount = Annotated[float, Meta(ge=0.0, le=_GREATEST)]  # finite, and not negative
Finite = Annotated[float, Meta(ge=-_GREATEST, le=_GREATEST)]
Exponent = Annotated[int, Meta(ge=-1200, le=1200)]  # of floats, subnormal ones included, and some room


class Discloses(NamedTuple):
    """A mark of a field that reveals something about rows that are not the receiver's own."""

    what: What
    is_per_row: bool = False  # an entry (or a line of them) for each row
    if_empty: bool = False  # whether leaving the field out reveals as much ("all are one", "too many to list")


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, kw_only=True):
    """Base of all messages; the tag is the class name."""

    repeats: ClassVar[bool] = False  # whether the answer repeats the last one


class ScanRequest(Message, frozen=True):
    """A request about one scan of a job."""

    job: str
    scan: int


class PartRequest(Message, frozen=True):
    """A request about one client's share of a block."""

    job: str
    part: int


class Done(Message, frozen=True):
    """The answer to a request that only asks for an action."""


class Failure(Message, frozen=True):
    """The answer when a request cannot be met: which error, and its message."""

    error: Text
    message: Text


@cache
def marked_fields(kind: type[Message]) -> dict[str, Discloses]:
    """The fields of a message that reveal something, by name."""
    hints = get_type_hints(kind, include_extras=True)
    marks = {name: getattr(hints[name], "__metadata__", ()) for name in kind.__struct_fields__}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, Discloses)}


_MANY = (np.ndarray, list, dict)


def disclosures(message: Message) -> list[tuple[Discloses, int]]:
    """The disclosures of a message, each with its numbers per row (or, where it is not per row, one).

    >>> disclosures(Done())
    []
    """
    found = []
    for name, disclosed in marked_fields(type(message)).items():
        value = getattr(message, name)
        if value is None or (not disclosed.is_per_row and isinstance(value, _MANY) and not len(value)):
            if disclosed.if_empty:
                found.append((disclosed, 1))
            continue
        width = (getattr(message, "row_width", 0) or _numbers(value)) if disclosed.is_per_row else 1
        if width:
            found.append((disclosed, width))
    return found


def _numbers(value: Any) -> int:
    """The numbers, or bits, that a field reveals of each row: one per entry of a list, unless it declares more."""
    if isinstance(value, np.ndarray):
        return int(value.shape[1]) if value.ndim > 1 else 1
    if isinstance(value, list):
        return sum(int(getattr(entry, "bits_of_a_row", 1)) for entry in value)
    return int(getattr(value, "bits_of_a_row", 1))


class Update(PartRequest, frozen=True):
    """An algorithm's server half updates a part in a round. → Predictions | Partial | Masked"""

    keeps_trail: ClassVar[bool] = False  # whether predictions come with inner products of θ and all directions so far

    def check(self, outputs: int, clients: int) -> None:
        """Raises a WrongError where a field does not fit the others, or the part that it is for."""


class Partial(Message, frozen=True):
    """One client's summand: the union operator adds those of all clients of the block."""

    values: Annotated[list[Array], Meta(max_length=MOST_COLUMNS), Discloses("sums")]


class Masked(Message, frozen=True):
    """One client's summand in fixed point and under masks that cancel in the sum (privacy/masks.py).

    Without a scale that fits, only how large it is: `Seal` names one.
    """

    values: list[NDArray[np.int64]]
    exponents: Annotated[list[Exponent], Discloses("sums")]  # of each array: the power of two above its largest entry
    scales: list[Exponent]  # of each array: the power of two that the integers are in units of
    kinds: Annotated[list[Literal["<f8", "<f4"]], Meta(max_length=MOST_COLUMNS)]  # the type of each array before


class Combined(PartRequest, frozen=True):
    """Continue with the combined sum of all clients of the block. → Predictions | Partial | Masked"""

    values: Annotated[list[Array], Meta(min_length=1, max_length=2), Discloses("agreed values")]
    scales: list[Exponent] = []  # of the next masked summand


class Move(PartRequest, frozen=True):
    """Move by these step coefficients along the last directions. → Done"""

    coefficients: Array


class Predictions(Message, frozen=True):
    """h of the rows asked for, and inner products of the parameters (‖θ‖² first)."""

    values: Annotated[Array, Discloses("predictions", is_per_row=True)]
    products: Annotated[Array, Discloses("norms")]
