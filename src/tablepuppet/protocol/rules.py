"""What an answer must be: which message answers which request, and the bounds of every field in it.

In: a request, the answer to it, and what the same client has said before (`Known`). Out: nothing, or a `WrongError`
that names the field. Nothing of an answer is used, or kept on a disk, before it has passed. Sizes follow from what was
asked and from what the client committed itself to: how many rows a scan has, which columns, which keys and labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tablepuppet import protocol as m

MOST_COLUMNS = 10_000
MOST_CLASSES = 10_000
MOST_CATEGORIES = 10_000_000
LONGEST_TEXT = 65_536  # characters of a name, a category, a message
LARGEST_COUNT = 2.0**62
LARGEST = 1e140  # of labels, weights, predictions and means
TOO_LARGE = "hold a number too large to be squared"
_NUMBERS = frozenset("fiub")
_NUMBER_KINDS = ("integer", "float", "decimal", "boolean", "date", "timestamp", "vector")


class WrongError(ValueError):
    """A field of an answer, and what is wrong with it."""

    def __init__(self, field: str, what: str, *, diverged: bool = False) -> None:
        self.field, self.what, self.diverged = field, what, diverged
        super().__init__(f"{field}: {what}")


@dataclass
class Scan:
    """What a client has said of one scan."""

    asked: int  # columns
    columns: list[m.ColumnInfo] = field(default_factory=list)
    rows: int | None = None
    missing: dict[int, int] = field(default_factory=dict)  # labels, by column
    words: tuple[int, int] = (0, 0)  # of a group's sums and extremes, where groups are merged


@dataclass
class Part:
    """What is known of one part: how many rows, columns and parameters it has."""

    scan: Scan | None
    train: int | None
    test: int
    total: float  # Σ G of the train rows
    columns: list[m.ColumnInfo] = field(default_factory=list)  # of its features, where the scan told
    width: int | None = None
    outputs: int = 1
    theta: int | None = None
    is_linear: bool = True
    wanted: int | None = None  # rows whose predictions the update under way asked for
    figures: dict[str, float] = field(default_factory=dict)  # of its start
    has_trail: bool = False  # whether its steps combine earlier ones
    vectors: int | None = None  # whose inner products come with predictions
    products: int | None = None  # how many numbers came with the first predictions of a part without a trail
    norm: float | None = None  # ‖θ‖² at the last evaluation
    summed: str = ""  # what is summed now
    shapes: list[tuple[int | None, ...]] | None = None  # of its arrays; None: what an algorithm sums
    scales: dict[str, list[int]] = field(default_factory=dict)  # of masked sums, by what is summed
    kinds: Any = None  # of columns in bins
    bins: int | None = None  # of all columns, where the server chose them
    keys: list[tuple[int, bool]] = field(default_factory=list)  # of trees: column, and whether it says what is missing

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of its parameters, once they are known."""
        if self.theta is None:
            return None
        return (self.theta, self.outputs) if self.is_linear else (self.theta,)


@dataclass
class Known:
    """One client's commitments within a job."""

    most_rows: int
    scans: dict[tuple[str, int], Scan] = field(default_factory=dict)
    parts: dict[tuple[str, int], Part] = field(default_factory=dict)

    def scan(self, request: Any) -> Scan:
        return self.scans.setdefault((request.job, request.scan), Scan(asked=-1))

    def part(self, request: Any) -> Part | None:
        return self.parts.get((request.job, request.part))

    def close(self, job: str) -> None:
        self.scans = {key: scan for key, scan in self.scans.items() if key[0] != job}
        self.parts = {key: part for key, part in self.parts.items() if key[0] != job}


Rule = Callable[[Any, Any, Known], None]
_R = TypeVar("_R", bound=Rule)
ANSWERS: dict[type[m.Message], tuple[type[m.Message], ...]] = {}  # request → its answers
_RULES: dict[type[m.Message], Rule] = {}  # request → what its answer must be
OWN: list[Rule] = []  # for requests that algorithms declare


def check(request: m.Message, answer: m.Message, known: Known) -> None:
    """Raises WrongError unless this can be an honest answer."""
    if isinstance(answer, m.Failure):
        bounded_text(answer.error, "error")
        bounded_text(answer.message, "message")
        return
    expected = ANSWERS.get(type(request))
    if expected is None:  # an algorithm's own, which may have answers of its own
        for rule in OWN:
            rule(request, answer, known)
        return
    if not isinstance(answer, expected):
        names = " or ".join(kind.__name__ for kind in expected)
        raise WrongError(type(answer).__name__, f"is no answer to {type(request).__name__}, which asks for {names}")
    _RULES[type(request)](request, answer, known)


def answered_by(request: type[m.Message], *answers: type[m.Message]) -> Callable[[_R], _R]:
    """Declares a request's answers, and the rule that they follow."""

    def declare(rule: _R) -> _R:
        ANSWERS[request], _RULES[request] = answers, rule
        return rule

    return declare


def is_ruled(answer: type[m.Message]) -> bool:
    """Whether an answer belongs to some request by name."""
    return any(answer in answers for answers in ANSWERS.values())


# -- fields -----------------------------------------------------------------------------


def require(is_so: bool, name: str, what: str) -> None:
    if not is_so:
        raise WrongError(name, what)


def bounded_text(text: str, name: str) -> None:
    require(len(text) <= LONGEST_TEXT, name, f"has {len(text):,} characters, more than {LONGEST_TEXT:,}")


def bounded_count(number: float, name: str, most: float = LARGEST_COUNT) -> None:
    """A count, or a sum of them: finite, not negative, not more than there can be."""
    require(bool(np.isfinite(number)) and number >= 0, name, "is not a count: it is negative or not finite")
    require(number <= most, name, f"is {number:,.0f}, more than there can be ({most:,.0f})")


def array(values: Any, name: str, shape: tuple[int | None, ...], *, kinds: frozenset[str] = _NUMBERS) -> None:
    """An array of this shape (None: any length) and of numbers."""
    if values.dtype.kind not in kinds:
        raise WrongError(name, f"has elements of type {values.dtype}")
    found = values.shape
    if found == shape or (len(found) == len(shape) and all(map(_is_length, found, shape))):
        return
    wanted = " × ".join("any" if want is None else f"{want:,}" for want in shape)
    raise WrongError(name, f"has shape {'×'.join(map(str, values.shape)) or 'of a number'} where {wanted} is due")


def _is_length(found: int, wanted: int | None) -> bool:
    return wanted is None or found == wanted


def finite(values: Any, name: str, *, diverged: bool = False) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise WrongError(name, "holds numbers that are not finite", diverged=diverged)


def is_number(info: m.ColumnInfo) -> bool:
    """Whether a feature of this kind is a number, or several."""
    return info.kind in _NUMBER_KINDS
