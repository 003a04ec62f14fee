"""What an answer must be: which message answers which request, and the bounds of every field in it.

In: a request, the answer to it, and what the same client has said before (`Known`). Out: nothing, or a `WrongError`
that names the field. Nothing of an answer is used, or kept on a disk, before it has passed. Sizes follow from what was
asked and from what the client committed itself to: how many rows a scan has, which columns, which keys and labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tablepuppet import protocol as m

MOST_COLUMNS = 10_000
MOST_CLASSES = 10_000
MOST_CATEGORIES = 10_000_000
LONGEST_TEXT = 65_536  # characters of a name, a category, a message
LARGEST_COUNT = 2.0**62
_LARGEST = 1e140  # of labels, weights, predictions and means
_TOO_LARGE = "hold a number too large to be squared"
_NUMBERS = frozenset("fiub")
_NUMBER_KINDS = ("integer", "float", "decimal", "boolean", "date", "timestamp", "vector")
_MOST_FIGURES = 100

_AS_NUMBERS = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
)  # databases differ in which of them
_AS_TIMES = (pa.types.is_date, pa.types.is_timestamp)
_AS_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_ARROW: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {  # kinds that keys and identifiers come as
    **dict.fromkeys(("integer", "float", "decimal", "boolean"), _AS_NUMBERS),
    **dict.fromkeys(("date", "timestamp"), _AS_TIMES),
    **dict.fromkeys(("string", "uuid"), _AS_TEXTS),
}


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
        _text(answer.error, "error")
        _text(answer.message, "message")
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


def _text(text: str, name: str) -> None:
    require(len(text) <= LONGEST_TEXT, name, f"has {len(text):,} characters, more than {LONGEST_TEXT:,}")


def _count(number: float, name: str, most: float = LARGEST_COUNT) -> None:
    """A count, or a sum of them: finite, not negative, not more than there can be."""
    require(bool(np.isfinite(number)) and number >= 0, name, "is not a count: it is negative or not finite")
    require(number <= most, name, f"is {number:,.0f}, more than there can be ({most:,.0f})")


def array(values: Any, name: str, shape: tuple[int | None, ...], *, kinds: frozenset[str] = _NUMBERS) -> None:
    """An array of this shape (None: any length) and of numbers."""
    if values.dtype.kind not in kinds:
        raise WrongError(name, f"has elements of type {values.dtype}")
    if values.ndim == len(shape) and all(w is None or n == w for n, w in zip(values.shape, shape, strict=True)):
        return
    wanted = " × ".join("any" if want is None else f"{want:,}" for want in shape)
    raise WrongError(name, f"has shape {'×'.join(map(str, values.shape)) or 'of a number'} where {wanted} is due")


def finite(values: Any, name: str, *, diverged: bool = False) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise WrongError(name, "holds numbers that are not finite", diverged=diverged)


def is_number(info: m.ColumnInfo) -> bool:
    """Whether a feature of this kind is a number, or several."""
    return info.kind in _NUMBER_KINDS


def _columns(columns: list[m.ColumnInfo], name: str) -> None:
    require(len(columns) <= MOST_COLUMNS, name, f"are {len(columns):,}, more than {MOST_COLUMNS:,}")
    for column in columns:
        _text(column.name, f"{name}.name")
        _text(column.detail, f"{name}.detail")
        _count(column.size, f"{name}.size", 2.0**24)


def _table(table: pa.Table, name: str, columns: int, rows: int) -> None:
    """Every buffer, offset and index of a table lies within it."""
    require(table.num_columns == columns, name, f"has {table.num_columns:,} columns where {columns:,} are due")
    require(table.num_rows == rows or not columns, name, f"has {table.num_rows:,} rows where {rows:,} are due")
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise WrongError(name, f"is damaged ({str(error)[:200]})") from None


def _numbered(table: pa.Table, name: str, numbers: Sequence[int]) -> None:
    require(table.column_names == [f"c{n}" for n in numbers], name, "are not those that were asked for")


def _key_values(table: pa.Table, name: str, numbers: Sequence[int], infos: Sequence[m.ColumnInfo]) -> None:
    """Columns as they are, of the kind that their owner described them as."""
    for number, column in zip(numbers, table.columns, strict=True):
        kind = infos[number].kind if number < len(infos) else "other"
        found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        is_due = any(is_one(found) for is_one in _ARROW.get(kind, (lambda _: True,)))
        require(is_due, name, f"are {str(found)[:100]}, and were described as {kind}")


def _rows(rows: int, scan: Scan, known: Known) -> int:
    """A scan's number of rows, which stays what it was the first time."""
    _count(rows, "rows", known.most_rows)
    require(scan.rows in (None, rows), "rows", f"are {rows:,}, and were {scan.rows} before: a table changes in a run")
    scan.rows = rows
    return rows


# -- before training --------------------------------------------------------------------


@answered_by(m.DescribeTable, m.TableSchema)
def _table_schema(request: m.DescribeTable, answer: m.TableSchema, known: Known) -> None:
    _columns(answer.columns, "columns")
    names = {column.name for column in answer.columns}
    require(len(names) == len(answer.columns), "columns", "name one column twice")
    require(len(answer.stamp) <= 1024, "stamp", "is longer than 1,024 bytes")


@answered_by(m.OpenScan, m.ScanSchema)
def _scan_schema(request: m.OpenScan, answer: m.ScanSchema, known: Known) -> None:
    _columns(answer.columns, "columns")
    asked = len(request.columns)
    require(len(answer.columns) == asked, "columns", f"are {len(answer.columns)} where {asked} were asked for")
    known.scans[request.job, request.scan] = Scan(asked, answer.columns)


@answered_by(m.ProposeContract, m.Agreement)
def _agreement(request: m.ProposeContract, answer: m.Agreement, known: Known) -> None:
    require(answer.contract == request.contract.hash, "contract", "names another one than was proposed")
    require(len(answer.waits_for) <= 1000, "waits_for", "is longer than 1,000 characters")


@answered_by(m.CountRows, m.RowCount)
def _row_count(request: m.CountRows, answer: m.RowCount, known: Known) -> None:
    _rows(answer.rows, known.scan(request), known)


@answered_by(m.SendKeys, m.Keys)
def _keys(request: m.SendKeys, answer: m.Keys, known: Known) -> None:
    rows = _rows(answer.rows, known.scan(request), known)
    _table(answer.columns, "columns", len(request.columns), rows)
    _numbered(answer.columns, "columns", request.columns)
    require(len(answer.check) <= 64, "check", "is longer than 64 bytes")
    require(
        bool(answer.check) or request.tokens not in ("hmac", "dh"),
        "check",
        "is missing, without which keys cannot be compared",
    )
    if request.tokens == "plain":
        _key_values(answer.columns, "columns", request.columns, known.scan(request).columns)
    else:
        for column in answer.columns.columns:
            kind = column.type
            size = 32 if request.tokens == "dh" else 16
            is_token = pa.types.is_dictionary(kind) and kind.value_type == pa.binary(size)
            require(is_token, "columns", f"are {kind}, not tokens of {size} bytes; install the same version everywhere")
    is_due = request.order is not None and request.order.is_shared
    require(answer.order is not None or not is_due, "order", "is missing, and rows are shared out in it")
    if answer.order is not None:
        array(answer.order, "order", (rows,), kinds=frozenset("i"))
        require(bool((answer.order[1:] >= answer.order[:-1]).all()), "order", "is not ascending")


@answered_by(m.BlindKeys, m.BlindedKeys)
def _blinded(request: m.BlindKeys, answer: m.BlindedKeys, known: Known) -> None:
    array(answer.points, "points", request.points.shape, kinds=frozenset("u"))


@answered_by(m.DescribeLabels, m.LabelSummary)
def _label_summary(request: m.DescribeLabels, answer: m.LabelSummary, known: Known) -> None:
    rows = known.scan(request).rows
    _count(answer.missing, "missing", LARGEST_COUNT if rows is None else rows)
    classes = answer.classes
    require(len(classes) <= MOST_CLASSES, "classes", f"are {len(classes):,}, more than {MOST_CLASSES:,}")
    require(len(set(classes)) == len(classes), "classes", "name one class twice")
    require(len({type(c) for c in classes}) <= 1, "classes", "mix texts and numbers")
    require(answer.kind != "boolean" or classes == [0.0, 1.0], "classes", "of a boolean label are false and true")
    for value in classes:
        if isinstance(value, str):
            _text(value, "classes")
        else:
            require(bool(np.isfinite(value)), "classes", "hold a number that is not finite")


@answered_by(m.SendLabels, m.Labels)
def _labels(request: m.SendLabels, answer: m.Labels, known: Known) -> None:
    rows = known.scan(request).rows
    array(answer.values, "values", (rows,), kinds=frozenset("f"))
    array(answer.is_test, "is_test", (rows,), kinds=frozenset("b"))
    values = answer.values[~np.isnan(answer.values)]
    require(not np.isinf(values).any(), "values", "hold infinity")
    if request.classes is not None and len(values):
        count = len(request.classes)
        is_class = (values >= 0).all() and (values < count).all() and (values == np.floor(values)).all()
        require(bool(is_class), "values", f"hold a number that is no class of {count}")
    else:
        require(not (np.abs(values) > _LARGEST).any(), "values", _TOO_LARGE)
    if answer.folds is not None:
        array(answer.folds, "folds", (rows,), kinds=frozenset("i"))
        last = request.folds - (request.fold_by != "time")
        is_fold = not len(answer.folds) or (answer.folds.min() >= 0 and answer.folds.max() <= last)
        require(request.folds > 0 and bool(is_fold), "folds", "hold a number that is no fold")
    _held_out(request, answer, rows)


@answered_by(m.SendSides, m.Sides)
def _sides(request: m.SendSides, answer: m.Sides, known: Known) -> None:
    rows = known.scan(request).rows
    array(answer.is_test, "is_test", (rows,), kinds=frozenset("b"))
    _held_out(request, answer, rows)


def _held_out(request: m.SendLabels | m.SendSides, answer: m.Labels | m.Sides, rows: int | None) -> None:
    is_split = request.test_column is not None or request.test_fraction > 0
    require(is_split or not answer.is_test.any(), "is_test", "names test rows where none were asked for")
    if answer.is_validation is not None:
        array(answer.is_validation, "is_validation", (rows,), kinds=frozenset("b"))
        require(not (answer.is_validation & answer.is_test).any(), "is_validation", "names rows that are for the test")


@answered_by(m.SendWeights, m.Weights)
def _weights(request: m.SendWeights, answer: m.Weights, known: Known) -> None:
    array(answer.values, "values", (known.scan(request).rows,), kinds=frozenset("f"))
    require(not np.isinf(answer.values).any(), "values", "hold infinity")
    require(not (np.abs(answer.values) > _LARGEST).any(), "values", _TOO_LARGE)


# -- features ---------------------------------------------------------------------------


@answered_by(m.FindIds, m.FoundIds)
def _found_ids(request: m.FindIds, answer: m.FoundIds, known: Known) -> None:
    is_inside = all(0 <= place < len(request.columns) for place in answer.places)
    require(is_inside and len(set(answer.places)) == len(answer.places), "places", "are not among the columns")


@answered_by(m.OpenPart, m.FeatureStatistics, m.FeatureNames)
def _feature_statistics(request: m.OpenPart, answer: m.FeatureStatistics | m.FeatureNames, known: Known) -> None:
    scan = known.scan(request)
    train = scan.rows if request.train_rows is None else len(request.train_rows)
    total = float(train or 0) if request.multiplicity is None else float(request.multiplicity.sum(dtype=np.float64))
    infos = [scan.columns[column] for column in request.columns if column < len(scan.columns)]
    known.parts[request.job, request.part] = Part(scan, train, len(request.test_rows), total, infos)
    is_masked = isinstance(answer, m.FeatureNames)
    require(is_masked == request.wants_key, "columns", "come with figures where none were asked for, or without them")
    is_silent = isinstance(answer, m.FeatureNames) and not answer.columns and answer.key is None
    due = len(request.columns) if request.wants_statistics else 0
    require(is_silent or len(answer.columns) == due, "columns", "are not those that were asked for")
    for statistics, column in zip(answer.columns, request.columns, strict=False):
        info = scan.columns[column] if column < len(scan.columns) else None
        is_one = isinstance(statistics, m.NumberStatistics)
        require(info is None or is_one == is_number(info), "columns", "are of other types than the scan said")
        if isinstance(statistics, m.NumberStatistics):
            _number_statistics(statistics, total, info)
        elif isinstance(statistics, m.IdStatistics):
            _id_statistics(statistics, request, train)
        else:
            _category_statistics(statistics, total)
    if isinstance(answer, m.FeatureNames) and answer.key is not None:
        require(len(answer.key.public) == 32 and len(answer.key.tag) <= 64, "key", "is not a public key of 32 bytes")
        require(len(answer.key.client) <= 256, "key.client", "is longer than any client's name")


def _number_statistics(statistics: m.NumberStatistics, total: float, info: m.ColumnInfo | None) -> None:
    most = total * (1 + 1e-6) + 1e-6
    _count(statistics.weight, "columns.weight", most)
    _count(statistics.missing, "columns.missing", most)
    _count(statistics.weight + statistics.missing, "columns.missing", most)
    array(statistics.mean, "columns.mean", (None,))
    size = len(statistics.mean)
    largest = max(info.size, 1) if info is not None and info.kind != "vector" else 2**24
    require(size <= largest, "columns.mean", f"has {size:,} numbers where {largest:,} are due")
    array(statistics.spread, "columns.spread", (size,))
    finite(statistics.mean, "columns.mean")
    require(not (np.abs(statistics.mean) > _LARGEST).any(), "columns.mean", "is too large to be squared")
    finite(statistics.spread, "columns.spread")
    require(not (statistics.spread < 0).any(), "columns.spread", "is negative")


def _category_statistics(statistics: m.CategoryStatistics, total: float) -> None:
    count = len(statistics.categories)
    require(count <= MOST_CATEGORIES, "columns.categories", f"are {count:,}, more than {MOST_CATEGORIES:,}")
    require(len(set(statistics.categories)) == count, "columns.categories", "name one category twice")
    longest = max(map(len, statistics.categories), default=0)
    require(longest <= LONGEST_TEXT, "columns.categories", f"hold a text of {longest:,} characters")
    most = total * (1 + 1e-6) + 1e-6
    _count(statistics.missing, "columns.missing", most)
    array(statistics.weights, "columns.weights", (count,))
    finite(statistics.weights, "columns.weights")
    require(not (statistics.weights < 0).any(), "columns.weights", "hold a negative count")
    # float32 on the wire rounds each of them
    _count(float(statistics.weights.sum()) + statistics.missing, "columns.weights", most * (1 + 1e-5))


def _id_statistics(statistics: m.IdStatistics, request: m.OpenPart, rows: int | None) -> None:
    require(bool(request.ids) or request.finds_ids, "columns", "hold an id where none was asked for")
    count, most = statistics.count, MOST_CATEGORIES if rows is None else min(MOST_CATEGORIES, rows)
    require(0 <= count <= most, "columns.count", f"is {count:,}, outside 0 to {most:,}")
    require(
        (statistics.tokens is not None) == bool(request.id_salt), "columns.tokens", "come where none are due, or not"
    )
    require(len(statistics.check) <= 16, "columns.check", "is too long")
    if statistics.tokens is not None:
        array(statistics.tokens, "columns.tokens", (count,), kinds=frozenset("i"))
        is_ascending = bool((statistics.tokens[1:] > statistics.tokens[:-1]).all())
        require(is_ascending, "columns.tokens", "are not ascending")


@answered_by(m.EncodeFeatures, m.Encoded)
def _encoded(request: m.EncodeFeatures, answer: m.Encoded, known: Known) -> None:
    due = sum(_width(encoder) for encoder in request.encoders)
    require(answer.width == due, "width", f"is {answer.width:,} where these encoders make {due:,} columns")
    part = known.part(request)
    if part is not None:
        part.width = due


def _width(encoder: m.Encoder) -> int:
    if isinstance(encoder, m.NumberEncoder):
        return int(encoder.mean.size) + encoder.has_missing
    if isinstance(encoder, m.IdEncoder):
        return encoder.count + encoder.has_missing
    return len(encoder.categories) + encoder.has_missing + encoder.has_other


@answered_by(m.RevealFeatures, m.RevealedFeatures)
def _revealed(request: m.RevealFeatures, answer: m.RevealedFeatures, known: Known) -> None:
    part = known.part(request)
    width = None if part is None or request.as_codes else part.width
    for name, rows in (("train", None if part is None else part.train), ("test", None if part is None else part.test)):
        array(getattr(answer, name), name, (rows, width))
        finite(getattr(answer, name), name)


# -- training ---------------------------------------------------------------------------


@answered_by(m.StartPart, m.Started)
def _started(request: m.StartPart[Any], answer: m.Started, known: Known) -> None:
    part = known.part(request)
    _figures_of(answer.figures)
    require(0 <= answer.entropy < 2**63, "entropy", "is not a number of 63 bits")
    _count(answer.width, "width", 2.0**31)
    if part is None:
        return
    part.outputs, part.is_linear, part.theta = request.outputs, request.model.is_linear, answer.width
    part.figures, part.vectors, part.products = answer.figures, None, None
    if part.is_linear and part.width is not None:
        require(answer.width == part.width, "width", f"is {answer.width:,} where the part has {part.width:,} columns")
    elif part.width is not None:
        most = _most_parameters(request, part.width)
        require(answer.width <= most, "width", f"is {answer.width:,}, more than such a model has ({most:,})")
    if answer.values is not None:
        predictions_of(answer.values, "values", part.train, part.outputs)


def _most_parameters(request: m.StartPart[Any], width: int) -> int:
    """Parameters of a neural block, at the most; of a user's own module nobody here knows."""
    if request.model.kind == "module":
        return 2**31
    sizes = (width, *request.model.hidden, request.outputs)
    return sum((before + 1) * after for before, after in pairwise(sizes)) + request.outputs


def predictions_of(values: Any, name: str, rows: int | None, outputs: int | None) -> None:
    array(values, name, (rows, outputs), kinds=frozenset("f"))
    if (
        values.size and not max(float(values.max()), -float(values.min())) <= _LARGEST
    ):  # what is not a number is neither
        raise WrongError(name, "holds numbers that are not finite, or too large to be squared", diverged=True)


def _figures_of(figures: dict[str, float]) -> None:
    require(len(figures) <= _MOST_FIGURES, "figures", f"are {len(figures):,}")
    for name, value in figures.items():
        require(len(name) <= 200, "figures", "have a name of more than 200 characters")
        require(bool(np.isfinite(value)), "figures", "hold a number that is not finite")


@answered_by(m.Evaluate, m.Evaluation)
def _evaluation(request: m.Evaluate, answer: m.Evaluation, known: Known) -> None:
    part = known.part(request)
    if part is not None:
        predictions_of(answer.test, "test", part.test, part.outputs)
    require((answer.train is not None) == request.train, "train", "is not what was asked for")
    if part is not None and answer.train is not None:
        predictions_of(answer.train, "train", part.train, part.outputs)
    if not np.isfinite(answer.norm):
        raise WrongError("norm", "is not finite", diverged=True)
    require(answer.norm >= 0, "norm", "is negative")
    absolute = 0.0 if answer.absolute is None else answer.absolute
    require(bool(np.isfinite(absolute)) and absolute >= 0, "absolute", "is not a number from 0 up")
    if part is not None:
        part.norm = answer.norm


@answered_by(m.Release, m.Parameters)
def _parameters(request: m.Release, answer: m.Parameters, known: Known) -> None:
    part = known.part(request)
    finite(answer.values, "values")
    if part is not None and part.is_linear and part.width is not None:
        array(answer.values, "values", (part.width, part.outputs))
    elif part is not None and part.theta is not None:
        require(answer.values.size == part.theta, "values", f"are {answer.values.size:,} where {part.theta:,} are due")
    if part is not None and part.norm is not None:
        square = float(np.vdot(answer.values, answer.values))
        is_same = abs(square - part.norm) <= 1e-3 * max(square, part.norm)  # float32 on the wire rounds them
        require(is_same, "values", "have another norm than at the last evaluation")


# -- prediction -------------------------------------------------------------------------


@answered_by(m.ScoreRows, m.Scores)
def _scores(request: m.ScoreRows, answer: m.Scores, known: Known) -> None:
    array(answer.values, "values", (len(request.rows), request.outputs), kinds=frozenset("f"))
    finite(answer.values, "values")


@answered_by(m.ScoreOwnRows, m.Scores)
def _own_scores(request: m.ScoreOwnRows, answer: m.Scores, known: Known) -> None:
    array(answer.values, "values", (len(request.rows), None), kinds=frozenset("f"))
    finite(answer.values, "values")


@answered_by(m.SendIdentifiers, m.Identifiers)
def _identifiers(request: m.SendIdentifiers, answer: m.Identifiers, known: Known) -> None:
    scan = known.scan(request)
    due = answer.columns.num_rows if scan.rows is None else scan.rows
    _table(answer.columns, "columns", len(request.columns), due)
    _numbered(answer.columns, "columns", request.columns)
    _key_values(answer.columns, "columns", request.columns, scan.columns)


def _done(request: m.Message, answer: m.Done, known: Known) -> None:
    """Done says nothing."""


for _quiet in (m.Move, m.Keep, m.Restore, m.HoldPart, m.CloseJob):
    answered_by(_quiet, m.Done)(_done)
