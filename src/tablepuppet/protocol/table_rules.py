"""What answers about tables must be (rules.py): schemas, rows, keys, labels, statistics of features, identifiers.

Sizes follow from what was asked and from what the client has said before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tablepuppet import protocol as m
from tablepuppet.arrays import Array
from tablepuppet.protocol.rules import (
    LARGEST,
    LARGEST_COUNT,
    LONGEST_TEXT,
    MOST_CATEGORIES,
    MOST_CLASSES,
    MOST_COLUMNS,
    TOO_LARGE,
    Known,
    Part,
    Scan,
    WrongError,
    answered_by,
    array,
    bounded_count,
    bounded_text,
    finite,
    is_number,
    require,
)

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


def _columns(columns: list[m.ColumnInfo], name: str) -> None:
    require(len(columns) <= MOST_COLUMNS, name, f"are {len(columns):,}, more than {MOST_COLUMNS:,}")
    for column in columns:
        bounded_text(column.name, f"{name}.name")
        bounded_text(column.detail, f"{name}.detail")
        bounded_count(column.size, f"{name}.size", 2.0**24)


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
    bounded_count(rows, "rows", known.most_rows)
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


@answered_by(m.SendGroups, m.Groups)
def _groups(request: m.SendGroups, answer: m.Groups, known: Known) -> None:
    array(answer.tokens, "tokens", (None, 16), kinds=frozenset("u"))
    bounded_count(len(answer.tokens), "tokens", known.most_rows)
    halves = np.ascontiguousarray(answer.tokens).view(">u8").astype(np.uint64)
    first, second = halves[:, 0], halves[:, 1]
    is_next = (first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (second[1:] > second[:-1]))
    require(bool(is_next.all()), "tokens", "are not ascending, each once")
    require(0 < len(answer.kinds) <= MOST_COLUMNS, "kinds", f"are {len(answer.kinds):,}")
    require(all(len(kind) <= LONGEST_TEXT for kind in answer.kinds), "kinds", "hold a text too long")
    due = sum(map(m.scales_of, answer.kinds))
    require(len(answer.sizes) == due, "sizes", f"are {len(answer.sizes)} where {due} are due")
    require(all(abs(size) <= 1200 for size in answer.sizes), "sizes", "are no exponents of floats")
    require(len(answer.key.public) == 32 and len(answer.key.tag) <= 64, "key", "is not a public key of 32 bytes")
    require(len(answer.key.client) <= 256, "key.client", "is longer than any client's name")
    require(len(answer.salt) == 16, "salt", "has not 16 bytes")
    words = [m.words_of(kind) for kind in answer.kinds[1:]]
    known.scan(request).words = sum(w[0] for w in words), sum(w[1] for w in words)


@answered_by(m.SumGroups, m.GroupSums)
def _group_sums(request: m.SumGroups, answer: m.GroupSums, known: Known) -> None:
    due = int((request.holders != request.place).sum())
    sums, extremes = known.scan(request).words
    array(answer.sums, "sums", (due, sums), kinds=frozenset("i"))
    require((answer.extremes is not None) == (extremes > 0), "extremes", "come where none are due, or not")
    if answer.extremes is not None:
        array(answer.extremes, "extremes", (due, extremes), kinds=frozenset("i"))


@answered_by(m.HoldGroups, m.Done)
def _holds(request: m.HoldGroups, answer: m.Done, known: Known) -> None:
    """There is nothing in it."""


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
    scan = known.scan(request)
    bounded_count(answer.missing, "missing", LARGEST_COUNT if scan.rows is None else scan.rows)
    scan.missing[request.column] = answer.missing
    classes = answer.classes
    require(len(classes) <= MOST_CLASSES, "classes", f"are {len(classes):,}, more than {MOST_CLASSES:,}")
    require(len(set(classes)) == len(classes), "classes", "name one class twice")
    require(len({type(c) for c in classes}) <= 1, "classes", "mix texts and numbers")
    require(answer.kind != "boolean" or classes == [0.0, 1.0], "classes", "of a boolean label are false and true")
    for value in classes:
        if isinstance(value, str):
            bounded_text(value, "classes")
        else:
            require(bool(np.isfinite(value)), "classes", "hold a number that is not finite")


_PIECE = 1 << 16  # labels that are looked at together: they stay in the cache


def _check_labels(labels: Array, classes: int | None) -> int:
    """How many are missing; none of the others is wrong."""
    is_there = ~np.isnan(labels)
    values = labels if is_there.all() else labels[is_there]
    require(not np.isinf(values).any(), "values", "hold infinity")
    if classes is None:
        require(not (np.abs(values) > LARGEST).any(), "values", TOO_LARGE)
    else:
        is_class = (values >= 0).all() and (values < classes).all() and (values == np.floor(values)).all()
        require(bool(is_class), "values", f"hold a number that is no class of {classes}")
    return len(labels) - len(values)


@answered_by(m.SendLabels, m.Labels)
def _labels(request: m.SendLabels, answer: m.Labels, known: Known) -> None:
    scan = known.scan(request)
    rows = scan.rows
    array(answer.values, "values", (rows,), kinds=frozenset("f"))
    array(answer.is_test, "is_test", (rows,), kinds=frozenset("b"))
    missing, told = 0, scan.missing.get(request.column)
    for start in range(0, len(answer.values), _PIECE):
        piece = answer.values[start : start + _PIECE]
        missing += _check_labels(piece, None if request.classes is None else len(request.classes))
    is_as_told = told in (None, missing) or request.privacy is not None
    require(is_as_told, "values", f"are missing in {missing:,} rows, and {told} were described")
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
    require(not (np.abs(answer.values) > LARGEST).any(), "values", TOO_LARGE)


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
    bounded_count(statistics.weight, "columns.weight", most)
    bounded_count(statistics.missing, "columns.missing", most)
    bounded_count(statistics.weight + statistics.missing, "columns.missing", most)
    array(statistics.mean, "columns.mean", (None,))
    size = len(statistics.mean)
    largest = max(info.size, 1) if info is not None and info.kind != "vector" else 2**24
    require(size <= largest, "columns.mean", f"has {size:,} numbers where {largest:,} are due")
    array(statistics.spread, "columns.spread", (size,))
    finite(statistics.mean, "columns.mean")
    require(not (np.abs(statistics.mean) > LARGEST).any(), "columns.mean", "is too large to be squared")
    finite(statistics.spread, "columns.spread")
    require(not (statistics.spread < 0).any(), "columns.spread", "is negative")


def _category_statistics(statistics: m.CategoryStatistics, total: float) -> None:
    count = len(statistics.categories)
    require(count <= MOST_CATEGORIES, "columns.categories", f"are {count:,}, more than {MOST_CATEGORIES:,}")
    require(len(set(statistics.categories)) == count, "columns.categories", "name one category twice")
    longest = max(map(len, statistics.categories), default=0)
    require(longest <= LONGEST_TEXT, "columns.categories", f"hold a text of {longest:,} characters")
    most = total * (1 + 1e-6) + 1e-6
    bounded_count(statistics.missing, "columns.missing", most)
    array(statistics.weights, "columns.weights", (count,))
    finite(statistics.weights, "columns.weights")
    require(not (statistics.weights < 0).any(), "columns.weights", "hold a negative count")
    # float32 on the wire rounds each of them
    bounded_count(float(statistics.weights.sum()) + statistics.missing, "columns.weights", most * (1 + 1e-5))


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


@answered_by(m.SendIdentifiers, m.Identifiers)
def _identifiers(request: m.SendIdentifiers, answer: m.Identifiers, known: Known) -> None:
    scan = known.scan(request)
    due = answer.columns.num_rows if scan.rows is None else scan.rows
    _table(answer.columns, "columns", len(request.columns), due)
    _numbered(answer.columns, "columns", request.columns)
    _key_values(answer.columns, "columns", request.columns, scan.columns)
