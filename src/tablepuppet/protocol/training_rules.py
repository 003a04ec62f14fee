"""What answers in training and prediction must be (rules.py): parameters, predictions, summands.

A summand adds to what all clients of a block share. Its first array is as large as the part's parameters; others are
curvatures of theirs. Under masks nothing can be read in it but its shape and scale, so these are held to.
"""

from __future__ import annotations

from itertools import pairwise
from math import isfinite, isqrt
from typing import Any

import numpy as np

from tablepuppet import protocol as m
from tablepuppet.protocol.rules import (
    LARGEST,
    MOST_COLUMNS,
    OWN,
    Known,
    Part,
    WrongError,
    answered_by,
    array,
    bounded_count,
    finite,
    is_ruled,
    require,
)

_MOST_FIGURES = 100
_MOST_EXPONENT = 1200
_STEP_ANSWERS = (m.Predictions, m.Partial, m.Masked)
_FLOATS = frozenset("f")
Shapes = list[tuple[int | None, ...]]


# -- sums -------------------------------------------------------------------------------


@answered_by(m.SumStatistics, m.Masked, m.Partial)
def _statistics(request: m.SumStatistics, answer: m.Masked | m.Partial, known: Known) -> None:
    due: Shapes = []
    for column in request.columns:
        if isinstance(column, m.NumberStatistics):
            size = column.mean.size
            due += [(size,), (size,)] if request.is_second else [(2,), (size,)]
        elif isinstance(column, m.CategoryStatistics) and not request.is_second:
            due.append((len(column.categories) + 1,))
    _summands(answer, known.part(request), "moments" if request.is_second else "counts", due)


@answered_by(m.MultiplyGram, m.Partial, m.Masked)
def _gram(request: m.MultiplyGram, answer: m.Partial | m.Masked, known: Known) -> None:
    _summands(answer, known.part(request), "gram", [request.vector.shape])


@answered_by(m.SendFigures, m.Partial, m.Masked)
def _figures(request: m.SendFigures, answer: m.Partial | m.Masked, known: Known) -> None:
    _summands(answer, known.part(request), "figure", [(None,)])
    require(all(v.size <= _MOST_FIGURES for v in answer.values), "values", "are more numbers than figures")


@answered_by(m.Seal, m.Masked)
def _sealed(request: m.Seal, answer: m.Masked, known: Known) -> None:
    part = known.part(request)
    if part is not None:
        part.scales[part.summed] = list(request.scales)
    _masked(answer, part)


def _summands(answer: Any, part: Part | None, kind: str, due: Shapes | None = None) -> None:
    """One client's share of a sum, in plain numbers or under masks."""
    if part is not None:
        part.summed, part.shapes = kind, due
    if isinstance(answer, m.Masked):
        _masked(answer, part)
        return
    require(len(answer.values) <= MOST_COLUMNS, "values", f"are {len(answer.values):,} arrays")
    _shaped(answer.values, part, due)
    for values in answer.values:
        finite(values, "values", diverged=True)


def _shaped(values: Any, part: Part | None, due: Shapes | None) -> None:
    """As many arrays as were asked for, each of its shape; of an algorithm's step, those that can be."""
    if due is not None:
        require(len(values) == len(due), "values", f"are {len(values)} arrays where {len(due)} are due")
        for one, shape in zip(values, due, strict=True):
            array(one, "values", shape)
        return
    require(1 <= len(values) <= 3, "values", f"are {len(values)} arrays where one to three are due")
    theta = None if part is None else part.shape
    if theta is None:
        return
    array(values[0], "values", theta)
    for more in values[1:]:
        width, outputs = (*theta, 1)[:2]
        triangle, pairs = width * (width + 1) // 2, outputs * (outputs + 1) // 2
        matrices = {(width, width), (1, triangle), (pairs, triangle)}
        fits = more.shape in matrices | {(width, 1), (width, pairs), (0, 0)}
        require(fits, "values", f"has shape {'×'.join(map(str, more.shape))}, which is no curvature of the part's")


def _masked(answer: m.Masked, part: Part | None) -> None:
    count = len(answer.kinds)
    require(count <= MOST_COLUMNS, "kinds", f"are {count:,}, more than {MOST_COLUMNS:,}")
    require(len(answer.exponents) == count, "exponents", "are not as many as there are arrays")
    require(all(abs(e) <= _MOST_EXPONENT for e in answer.exponents), "exponents", "are no exponents of floats")
    require(len(answer.scales) in (0, count), "scales", "are not as many as there are arrays")
    require(len(answer.values) == len(answer.scales), "values", "are not as many as there are scales")
    for values in answer.values:
        require(values.dtype == np.int64, "values", f"hold elements of type {values.dtype}")
    due = None if part is None else part.shapes
    require(
        due is None or count == len(due), "kinds", f"are {count} arrays where {0 if due is None else len(due)} are due"
    )
    if part is not None and answer.scales:
        named = part.scales.get(part.summed, [])[:count]
        require(answer.scales == named, "scales", "are not those that were named")
        _shaped(answer.values, part, due)


@answered_by(m.Combined, m.Predictions, m.Partial, m.Masked)
def _combined(request: m.Combined, answer: Any, known: Known) -> None:
    part = known.part(request)
    if part is not None and request.scales:
        part.scales["training"] = list(request.scales)
    _update(request, answer, known)


def _update(request: Any, answer: Any, known: Known) -> None:
    """An algorithm's step: predictions of the rows that it asked for, or a summand."""
    if not isinstance(answer, _STEP_ANSWERS) and is_ruled(type(answer)):
        raise WrongError(type(answer).__name__, "is no answer to such a request")
    part = known.part(request)
    if part is not None and not isinstance(request, m.Combined):
        wanted = getattr(request, "next_rows", None)
        part.wanted = part.train if wanted is None else len(wanted)
        part.has_trail = type(request).keeps_trail
    if isinstance(answer, m.Partial | m.Masked):
        _summands(answer, part, "training")
        return
    if not isinstance(answer, m.Predictions):
        _own(answer)
        return
    rows, outputs = (None, None) if part is None else (part.wanted, part.outputs)
    predictions_of(answer.values, "values", rows, outputs)
    products = answer.products
    array(products, "products", (None,), kinds=_FLOATS)
    if not 0 < products.size <= 100_000:
        raise WrongError("products", f"are {products.size:,} numbers")
    first = float(products[0])
    if products.size > 1 or not isfinite(first):
        finite(products, "products", diverged=True)
    if first < 0:
        raise WrongError("products", "begin with a negative square")
    if part is not None and part.has_trail:
        _vectors(products.size, part)
    elif part is not None:
        due = part.products = part.products or products.size
        if products.size != due:
            raise WrongError("products", f"are {products.size:,} numbers where they were {due:,} before")


def _vectors(products: int, part: Part) -> None:
    """Inner products of θ, its direction, constants and earlier directions, of which a round adds one at most."""
    count = isqrt(products)
    require(count * count == products, "products", "are not those of each vector with each")
    if part.vectors is None:
        has_constants = part.figures.get("spans_constant", 0.0) > 0
        require((count > 2) == has_constants, "products", "are of other constants than the part began with")
    else:
        require(part.vectors <= count <= part.vectors + 1, "products", "are of more or fewer vectors than can be")
    part.vectors = count


OWN.append(_update)


def _own(answer: m.Message) -> None:
    """An answer that an algorithm declares itself, which its server half judges: arrays of it hold numbers."""
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        for values in value if isinstance(value, list) else [value]:
            if isinstance(values, np.ndarray):
                require(values.dtype.kind in "fiub", name, f"hold elements of type {values.dtype}")


# -- training ---------------------------------------------------------------------------


@answered_by(m.StartPart, m.Started)
def _started(request: m.StartPart[Any], answer: m.Started, known: Known) -> None:
    part = known.part(request)
    _figures_of(answer.figures)
    require(0 <= answer.entropy < 2**63, "entropy", "is not a number of 63 bits")
    bounded_count(answer.width, "width", 2.0**31)
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
    array(values, name, (rows, outputs), kinds=_FLOATS)
    if values.size and not max(float(values.max()), -float(values.min())) <= LARGEST:  # what is not a number is neither
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
    ridged = 0.0 if answer.ridged is None else answer.ridged
    require(bool(np.isfinite(ridged)) and ridged >= 0, "ridged", "is not a number from 0 up")
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


def _done(request: m.Message, answer: m.Done, known: Known) -> None:
    """Done says nothing."""


for _quiet in (m.Move, m.Keep, m.Restore, m.HoldPart, m.CloseJob):
    answered_by(_quiet, m.Done)(_done)
