"""The rounds of training: an algorithm's updates, what its union step made of a sum, and masked sums once more.

A summand adds to what all clients of a block share. Its first array is as large as the part's parameters; others are
curvatures of theirs. Under masks nothing can be read in it but its shape and scale, so these are held to.
"""

import dataclasses
import math
from math import isfinite, isqrt
from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import TransportError
from tablepuppet.exchanges.base import TRAINING, WITH_STATISTICS, Exchange, Rules
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.releases import release_predictions
from tablepuppet.owner.state import ClientState, Part
from tablepuppet.protocol import base as messages
from tablepuppet.protocol import bounds
from tablepuppet.protocol.bounds import Known, KnownPart, WrongError, check_array, check_finite, require


class Seal(messages.PartRequest, frozen=True):
    """Send the last summand once more, at this scale and under new masks. → Masked"""

    repeats: ClassVar[bool] = True
    scales: list[messages.Exponent]


Shapes = list[tuple[int | None, ...]]


def _enforce_step(job: JobUnderContract, request: Any) -> None:
    part = job.started_part(request.part)
    if not isinstance(request, part.requests):
        raise breach(f"{type(request).__name__} is of another algorithm")
    part.count("step", part.allowed.steps + 1)  # an opening


def _check_step_request(own: ClientState, request: messages.Update) -> None:
    """An algorithm's step: arrays per row have the rows that were predicted last; numbers are finite."""
    part = own.started_part(request)
    assert part.train is not None
    assert part.setup is not None
    batch = getattr(part.state, "rows", None)
    rows, outputs = part.train.rows if batch is None else len(batch), part.setup.outputs
    kind = type(request)
    for name, disclosed in messages.marked_fields(kind).items():
        value = getattr(request, name)
        if value is not None and disclosed.is_per_row:
            check_array(value, name, (rows, None))
            due = (outputs,) if disclosed.what == "signals" else (1, outputs * (outputs + 1) // 2)
            width = value.shape[1]
            if width not in due:
                raise WrongError(name, f"has {width} numbers a row where {due[-1]} are due")
    for name in kind.__struct_fields__:
        value = getattr(request, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise WrongError(name, "is not finite")
    next_rows, coefficients = getattr(request, "next_rows", None), getattr(request, "coefficients", None)
    if next_rows is not None:
        bounds.check_row_numbers(next_rows, "next_rows", part.train.rows, least=0)
    if coefficients is not None:
        _check_coefficients(part, coefficients)
    request.check(outputs, part.setup.clients)


def _check_coefficients(part: Part, given: Any) -> None:
    trail = getattr(part.state, "trail", None)
    check_array(given, "coefficients", (1 if trail is None else 1 + len(trail.constants) + len(trail.earlier),))


def _check_step(request: Any, answer: Any, known: Known) -> None:
    """An algorithm's step: predictions of the rows that it asked for, or a summand."""
    part = known.part(request)
    if isinstance(request, messages.Update):
        wanted = getattr(request, "next_rows", None)
        part.wanted = part.train if wanted is None else len(wanted)
        part.has_trail = type(request).keeps_trail
    if isinstance(answer, messages.Partial | messages.Masked):
        check_summands(answer, part, "training")
    elif isinstance(answer, messages.Predictions):
        _check_predictions(answer, part)
    else:
        _check_own(answer)


def _check_predictions(answer: messages.Predictions, part: KnownPart) -> None:
    check_predictions(answer.values, "values", part.wanted, part.outputs)
    products = answer.products
    check_array(products, "products", (None,), kinds="f")
    if not 0 < products.size <= 100_000:
        raise WrongError("products", f"are {products.size:,} numbers")
    first = float(products[0])
    if products.size > 1 or not isfinite(first):
        check_finite(products, "products", diverged=True)
    if first < 0:
        raise WrongError("products", "begin with a negative square")
    if part.has_trail:
        _check_vectors(products.size, part)
    else:
        due = part.products = part.products or products.size
        if products.size != due:
            raise WrongError("products", f"are {products.size:,} numbers where they were {due:,} before")


def check_predictions(values: Any, name: str, rows: int | None, outputs: int | None) -> None:
    check_array(values, name, (rows, outputs), kinds="f")
    if values.size and not max(float(values.max()), -float(values.min())) <= bounds.LARGEST:  # NaN fails this too
        raise WrongError(name, "holds numbers that are not finite, or too large to be squared", diverged=True)


def _check_vectors(products: int, part: KnownPart) -> None:
    """Inner products of θ, its direction, constants and earlier directions; a round adds one direction at most."""
    count = isqrt(products)
    require(count * count == products, "products", "are not those of each vector with each")
    if part.vectors is None:
        has_constants = part.figures.get("spans_constant", 0.0) > 0
        require((count > 2) == has_constants, "products", "are of other constants than the part began with")
    else:
        require(part.vectors <= count <= part.vectors + 1, "products", "are of more or fewer vectors than can be")
    part.vectors = count


def _check_own(answer: messages.Message) -> None:
    """An answer that an algorithm declares itself, which its server half judges: arrays of it hold numbers."""
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        for values in value if isinstance(value, list) else [value]:
            if isinstance(values, np.ndarray):
                require(values.dtype.kind in "fiub", name, f"hold elements of type {values.dtype}")


def check_summands(answer: Any, part: KnownPart, kind: str, due: Shapes | None = None) -> None:
    """One client's share of a sum, in plain numbers or under masks."""
    part.summed, part.shapes = kind, due
    if isinstance(answer, messages.Masked):
        _check_masked(answer, part)
        return
    _check_shapes(answer.values, part, due)
    for values in answer.values:
        check_finite(values, "values", diverged=True)


def _check_shapes(values: Any, part: KnownPart, due: Shapes | None) -> None:
    """As many arrays as were asked for, each of its shape; of an algorithm's step, those that can be."""
    if due is not None:
        require(len(values) == len(due), "values", f"are {len(values)} arrays where {len(due)} are due")
        for one, shape in zip(values, due, strict=True):
            check_array(one, "values", shape)
        return
    require(1 <= len(values) <= 3, "values", f"are {len(values)} arrays where one to three are due")
    theta = part.shape
    if theta is None:
        return
    check_array(values[0], "values", theta)
    for more in values[1:]:
        width, outputs = (*theta, 1)[:2]
        triangle, pairs = width * (width + 1) // 2, outputs * (outputs + 1) // 2
        matrices = {(width, width), (1, triangle), (pairs, triangle)}
        fits = more.shape in matrices | {(width, 1), (width, pairs), (0, 0)}
        require(fits, "values", f"has shape {'×'.join(map(str, more.shape))}, which is no curvature of the part's")


def _check_masked(answer: messages.Masked, part: KnownPart) -> None:
    count = len(answer.kinds)
    require(len(answer.exponents) == count, "exponents", "are not as many as there are arrays")
    require(len(answer.scales) in (0, count), "scales", "are not as many as there are arrays")
    require(len(answer.values) == len(answer.scales), "values", "are not as many as there are scales")
    for values in answer.values:
        require(values.dtype == np.int64, "values", f"hold elements of type {values.dtype}")
    due = part.shapes
    require(
        due is None or count == len(due), "kinds", f"are {count} arrays where {0 if due is None else len(due)} are due"
    )
    if answer.scales:
        named = part.scales.get(part.summed, [])[:count]
        require(answer.scales == named, "scales", "are not those that were named")
        _check_shapes(answer.values, part, due)


def _take_step(own: ClientState, request: Any) -> messages.Message:
    part = own.started_part(request)
    assert part.setup is not None
    if part.kept is not None and part.kept.is_restored:
        raise TransportError("training is over: the part's best parameters were restored")
    if part.sealing is not None and isinstance(request, messages.Combined) and request.scales:
        part.sealing.rescale("training", request.scales)
    algorithm = algorithm_of(part.options)
    if not isinstance(request, (*algorithm.requests, messages.Combined, messages.Move)):
        raise TransportError(f"a {type(request).__name__} does not belong to algorithm {algorithm.name}")
    count_batch(own, part, request)
    part.state, answer = algorithm.step(part.setup, part.options, part.state, request)
    if isinstance(answer, messages.Partial):
        return part.sealed(answer, "training")
    if isinstance(answer, messages.Predictions):
        return replace(answer, values=release_predictions(own, part, answer.values))
    return answer


def count_batch(own: ClientState, part: Part, request: Any) -> None:
    """In an epoch a row is in no more batches than it has joined rows, whatever the server claims."""
    epochs = own.contracts.jobs[part.request.job].parts[part.request.part].epochs
    if epochs is None or not hasattr(request, "next_rows"):
        return
    assert part.setup is not None
    if part.batches_left is None:
        most = epochs * part.setup.multiplicity  # and what Poisson samples may have more, or the epoch after the last
        most = most + (8.0 * np.sqrt(most) + 20.0 if part.setup.is_private else 1.0)
        part.batches_left = most.astype(np.min_scalar_type(int(most.max(initial=0))))  # small: look-ups are far apart
    _check_rate(part, request.next_rows)
    every = request.next_rows is None
    rows = np.arange(len(part.batches_left)) if every else request.next_rows.astype(np.intp)  # as look-ups want them
    left = part.batches_left.take(rows)
    if not left.all():
        raise breach("in an epoch a row is in no more batches than it has joined rows")
    left -= 1  # a row that is named twice is predicted once
    part.batches_left[rows] = left


def _check_rate(part: Part, rows: RowNumbers | None) -> None:
    """A private batch has about as many rows as the rate that noise was computed for."""
    assert part.setup is not None
    private = part.setup.private
    if private is None or not private.privacy.clips:
        return
    usual = private.privacy.batch_rate * float(part.setup.multiplicity.sum())
    found = len(part.setup.multiplicity) if rows is None else len(rows)
    if found > usual + 8.0 * math.sqrt(usual) + 20.0:
        raise breach("a batch has more rows than the rate that noise was computed for")


def _enforce_combined(job: JobUnderContract, request: messages.Combined) -> None:
    part = job.started_part(request.part)
    part.count("combine", part.asked["step"] * part.allowed.inner)


def _check_combined_request(own: ClientState, request: messages.Combined) -> None:
    theta = own.started_part(request).state.theta
    check_array(request.values[0], "values", theta.shape)
    for more in request.values[1:]:
        check_array(more, "values", (0, 0))


def _check_combined(request: messages.Combined, answer: Any, known: Known) -> None:
    if request.scales:
        known.part(request).scales["training"] = list(request.scales)
    _check_step(request, answer, known)


def _enforce_move(job: JobUnderContract, request: messages.Move) -> None:
    part = job.started_part(request.part)
    part.count("settle", part.asked["step"] + 1)


def _enforce_seal(job: JobUnderContract, request: Seal) -> None:
    part = job.part(request.part)
    sums = sum(part.asked[name] for name in ("summed statistics 0", "summed statistics 1", "figure"))
    sums += sum(part.asked[name] for name in ("second moments", "step", "combine"))
    part.count("seal", 2 * sums + 2)


def _check_sealed(request: Seal, answer: messages.Masked, known: Known) -> None:
    part = known.part(request)
    part.scales[part.summed] = list(request.scales)
    _check_masked(answer, part)


@Rules(WITH_STATISTICS, enforce=_enforce_seal, check_answer=_check_sealed)
def _seal(own: ClientState, request: Seal) -> messages.Masked:
    part = own.part(request)
    if part.sealing is None:
        raise TransportError("this part's sums are not masked")
    return part.sealing.again(request.scales)


_STEP = Rules(TRAINING, enforce=_enforce_step, check_request=_check_step_request, check_answer=_check_step)
_COMBINED = dataclasses.replace(
    _STEP, enforce=_enforce_combined, check_request=_check_combined_request, check_answer=_check_combined
)
_MOVE = Rules(
    TRAINING,
    enforce=_enforce_move,
    check_request=lambda own, request: _check_coefficients(own.started_part(request), request.coefficients),
)


def update_exchange(
    request: type[messages.Message], *answers: type[messages.Message], rules: Rules = _STEP
) -> Exchange:
    """The exchange of an algorithm's own update; `answers`: those of this algorithm only."""
    return rules.over(request, (messages.Predictions, messages.Partial, messages.Masked, *answers), _take_step)


_combine = update_exchange(messages.Combined, rules=_COMBINED)
_move = _MOVE.over(messages.Move, (messages.Done,), _take_step)
