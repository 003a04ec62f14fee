"""Predictions: rows scored by a model that is sent, or by the part of one that its owner holds, and what names rows."""

from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from msgspec import Meta
from msgspec.structs import replace

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.exchanges.base import PREDICTING, SCORING, Rules
from tablepuppet.exchanges.keys import check_key_values, check_table
from tablepuppet.exchanges.parts import check_encoders
from tablepuppet.models.neural import NeuralModel
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.enforcement import JobUnderContract, breach, distinct_rows
from tablepuppet.owner.releases import ScoredModel, score_name
from tablepuppet.owner.state import ClientState, check_model, check_outputs
from tablepuppet.owner.tokens import known_ids
from tablepuppet.privacy.gaussian import secure_generator
from tablepuppet.protocol.base import Discloses, Finite, Message, Place, ScanRequest
from tablepuppet.protocol.bounds import Known, check_array, check_finite, check_row_numbers, require
from tablepuppet.protocol.columns import ColumnInfo, Encoder
from tablepuppet.protocol.contract import fingerprint
from tablepuppet.sources.columns import STRING_KINDS, as_read
from tablepuppet.sources.encoding import encode


class ScoreRows(ScanRequest, frozen=True):
    """Encode these rows of a scan like this and predict them with θ. → Scores"""

    columns: list[int]
    rows: RowNumbers
    encoders: list[Encoder]
    theta: Annotated[Array, Discloses("model")]
    model: ModelSpec
    name: str  # the block's
    outputs: int  # d_c
    shuffled: tuple[Place, ...] = ()  # features whose values change rows, in an order that the owner draws
    fixed: Annotated[int, Meta(ge=-1)] = -1  # a feature that has the same value in all rows
    value: Finite | str | None = None  # of it; None: missing


class ScoreOwnRows(ScanRequest, frozen=True):
    """Predict these rows of a scan with the part of a model that you hold. → Scores"""

    columns: list[int]
    rows: RowNumbers
    model: str
    name: str  # the block's
    shuffled: tuple[Place, ...] = ()


class Scores(Message, frozen=True):
    values: Annotated[Array, Discloses("scores", is_per_row=True)]  # h of the rows asked for


class SendIdentifiers(ScanRequest, frozen=True):
    """Send the columns that name the rows of a scan in the answer to a prediction. → Identifiers"""

    columns: list[int]


class Identifiers(Message, frozen=True):
    columns: Annotated[pa.Table, Discloses("identifiers")]


def _enforce_scores(job: JobUnderContract, request: ScoreRows | ScoreOwnRows) -> None:
    contract = job.agreed
    blocks = job.blocks(request.scan, request.columns)
    if isinstance(request, ScoreRows):
        name = fingerprint(request.encoders, request.theta, request.model, request.outputs)
        if name not in {block.model for block in blocks}:
            raise breach("the model is not the one that was agreed on")
        if request.fixed >= 0 and request.fixed not in {block.fixed for block in blocks if block.values}:
            raise breach("this feature is not set to any value")
    if request.shuffled and not contract.shuffles:
        raise breach("no feature is shuffled")
    count_scores(job, request)


def count_scores(job: JobUnderContract, request: Any) -> None:
    """Refuses rows that are scored more often than agreed, or too few of them."""
    blocks = job.blocks(request.scan, request.columns)
    place = blocks[0].place
    times, values = 1 + job.agreed.shuffles * len(request.columns), sum(block.values for block in blocks)
    job.scored[place] += 1
    if job.scored[place] > len(blocks) * times + values:
        raise breach(f"a model is applied {'once' if times + values == 1 else f'{times + values:,} times'}")
    if job.minimum_rows > 1 and 0 < distinct_rows(request.rows) < job.minimum_rows:
        raise PolicyError(
            f"its policy refuses the request: a model is applied to at least {job.minimum_rows:,} distinct rows, "
            "and fewer were asked for; ask for more (rule minimum_rows)"
        )


def _check_score_request(own: ClientState, request: ScoreRows) -> None:
    _check_own_request(own, request)
    _check_fixed(own, request)
    check_encoders(request.encoders, len(request.columns))
    check_finite(request.theta, "theta")
    check_array(request.theta, "theta", (None, request.outputs) if request.model.is_linear else (None,))


def _check_fixed(own: ClientState, request: ScoreRows) -> None:
    """One value, of the feature's own kind."""
    value = request.value
    if request.fixed < 0:
        require(value is None, "value", "is of no feature")
        return
    require(request.fixed < len(request.columns), "fixed", "is no feature")
    kind = own.scan(request).columns[request.columns[request.fixed]].kind
    require(kind != "vector", "fixed", "is a vector, which is set to no single value")
    is_text = kind in STRING_KINDS
    require(value is None or isinstance(value, str) == is_text, "value", f"is not a {'text' if is_text else 'number'}")


def _check_own_request(own: ClientState, request: ScoreRows | ScoreOwnRows) -> None:
    check_asked_rows(own, request)
    require(all(f < len(request.columns) for f in request.shuffled), "shuffled", "names what is no feature")


def check_asked_rows(own: ClientState, request: Any) -> None:
    check_row_numbers(request.rows, "rows", own.scan(request).rows().num_rows)


def _check_scores(request: ScoreRows | ScoreOwnRows, answer: Scores, known: Known) -> None:
    outputs = request.outputs if isinstance(request, ScoreRows) else None
    check_array(answer.values, "values", (len(request.rows), outputs), kinds="f")
    check_finite(answer.values, "values")


@Rules(SCORING, enforce=_enforce_scores, check_request=_check_score_request, check_answer=_check_scores)
def _score_rows(own: ClientState, request: ScoreRows) -> Scores:
    return _score(own, request, (request.encoders, request.model, request.outputs), request.theta)


@Rules(SCORING, enforce=_enforce_scores, check_request=_check_own_request, check_answer=_check_scores)
def _score_own_rows(own: ClientState, request: ScoreOwnRows) -> Scores:
    part = own.part_store.find(request.model, request.name, own.askers(request.job))
    infos = own.scan(request).columns
    part.check(own.scan(request).reads(request.columns), [infos[c] for c in request.columns])
    return _score(own, request, (part.encoders, part.spec, part.outputs), part.theta)


def _score(own: ClientState, request: ScoreRows | ScoreOwnRows, model: ScoredModel, theta: Array) -> Scores:
    encoders, spec, outputs = model
    scan = own.scan(request)
    pairs = [scan.column(c) for c in request.columns]
    known = known_ids(own, request, pairs, encoders, {})
    columns = [c for c, _ in pairs]
    for feature in request.shuffled:
        columns[feature] = _shuffle(columns[feature], request.rows)
    infos = [i for _, i in pairs]
    fixed = request.fixed if isinstance(request, ScoreRows) else -1
    if isinstance(request, ScoreRows) and fixed >= 0:
        columns[fixed], infos[fixed] = _set_constant(columns[fixed], infos[fixed], request.value)
    features = encode(columns, infos, request.rows, known)
    if own.releases.limits_scores and not own.shows_noise(request):
        name = np.append(theta, secure_generator().random()) if request.shuffled else theta  # a new disclosure
        if isinstance(request, ScoreRows) and fixed >= 0:  # as well, unless it was asked for before
            name = np.append(name, np.frombuffer(repr((fixed, request.value)).encode(), np.uint8))
        contract = own.agreed(request.job)
        own.releases.charge_scores(scan, request.columns, outputs, score_name(model, name), contract)
    check_outputs(outputs, features.rows)
    check_model(spec, features.width, outputs)
    if not spec.is_linear:
        module = own.module(spec, features.width, outputs, request.name)
        missing = (request.rows < 0) & all(info.absent is None for info in infos)
        neural = NeuralModel.of(module, spec, features, features, outputs, missing=(missing, missing), stream=0)
        return Scores(values=neural.predict(theta.astype(spec.dtype)))
    if len(theta) != features.width:
        raise TransportError(f"the parameters are for {len(theta)} columns, and there are {features.width}")
    return Scores(values=features.dot(theta))


def _shuffle(column: pa.ChunkedArray, rows: RowNumbers) -> pa.ChunkedArray:
    """A column whose values are shuffled among the rows that take part."""
    taken = np.unique(rows[rows >= 0])
    order = np.arange(len(column))
    order[taken] = secure_generator().permutation(taken)
    return column.take(pa.array(order))


def _set_constant(
    column: pa.ChunkedArray, info: ColumnInfo, value: float | str | None
) -> tuple[pa.ChunkedArray, ColumnInfo]:
    """A column with one value in all its rows; a date or a decimal becomes the number that it is encoded as."""
    is_text = info.kind in STRING_KINDS
    constant = pa.repeat(pa.scalar(value, pa.large_string() if is_text else pa.float64()), len(column))
    absent = None if info.absent is None else value
    return pa.chunked_array([constant]), replace(info, kind=info.kind if is_text else "float", absent=absent)


def _enforce_identifiers(job: JobUnderContract, request: SendIdentifiers) -> None:
    for column in request.columns:
        job.check_role(request.scan, column, "identifier")
    job.count_once(f"identifiers {sorted(request.columns)}", request.scan)


def _check_identifiers(request: SendIdentifiers, answer: Identifiers, known: Known) -> None:
    scan = known.scan(request)
    due = answer.columns.num_rows if scan.rows is None else scan.rows
    check_table(answer.columns, request.columns, due)
    check_key_values(answer.columns, request.columns, scan.columns)


@Rules(PREDICTING, enforce=_enforce_identifiers, check_answer=_check_identifiers)
def _send_identifiers(own: ClientState, request: SendIdentifiers) -> Identifiers:
    table = own.scan(request).rows()
    return Identifiers(columns=as_read(table, request.columns))
