"""What answers in training must be (rules.py): summands of the shapes and at the scales that were asked for.

A summand adds to what all clients of a block share. Its first array is as large as the part's parameters; others are
curvatures of theirs. Under masks nothing can be read in it but its shape and scale, so these are held to.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np

from tablepuppet import protocol as m
from tablepuppet.protocol.rules import (
    MOST_COLUMNS,
    OWN,
    Known,
    Part,
    answered_by,
    array,
    finite,
    is_ruled,
    predictions_of,
    require,
)

_MOST_FIGURES = 100
_MOST_EXPONENT = 1200
_STEP_ANSWERS = (m.Predictions, m.Partial, m.Masked)
Shapes = list[tuple[int | None, ...]]


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
        size = width * outputs
        fits = more.shape in {(width, width), (size, size), (width, 1), (width, outputs * (outputs + 1) // 2), (0, 0)}
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
    is_one = isinstance(answer, _STEP_ANSWERS) or not is_ruled(type(answer))
    require(is_one, type(answer).__name__, "is no answer to such a request")
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
    array(products, "products", (None,), kinds=frozenset("f"))
    require(0 < products.size <= 100_000, "products", f"are {products.size:,} numbers")
    finite(products, "products", diverged=True)
    require(products[0] >= 0, "products", "begin with a negative square")
    if part is not None and part.has_trail:
        _vectors(products.size, part)
    elif part is not None:
        due = part.products = part.products or products.size
        require(products.size == due, "products", f"are {products.size:,} numbers where they were {due:,} before")


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
