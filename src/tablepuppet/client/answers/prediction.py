"""Answers to predictions: rows scored by a model that is sent, or by the part of one that its owner holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tablepuppet import protocol as m
from tablepuppet.client.answers.contract import reads, unknowns
from tablepuppet.client.ids import known_ids
from tablepuppet.client.state import ClientState, check_model, check_outputs
from tablepuppet.errors import TransportError
from tablepuppet.models.neural import NeuralModel
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.gaussian import secure_generator
from tablepuppet.tables.columns import STRING_KINDS, as_read
from tablepuppet.tables.encoding import encode


def score_rows(own: ClientState, request: m.ScoreRows) -> m.Scores:
    return _score(own, request, request.encoders, request.theta, request.model, request.outputs)


def score_own_rows(own: ClientState, request: m.ScoreOwnRows) -> m.Scores:
    part = own.part_store.find(request.model, request.name, own.asker(request.job))
    infos = own.tables.columns(request.job, request.scan)
    part.check(own.tables.reads(request.job, request.scan, request.columns), [infos[c] for c in request.columns])
    return _score(own, request, part.encoders, part.theta, part.spec, part.outputs)


def _score(
    own: ClientState,
    request: m.ScoreRows | m.ScoreOwnRows,
    encoders: Sequence[m.Encoder],
    theta: m.Array,
    spec: ModelSpec,
    outputs: int,
) -> m.Scores:
    """h of the rows asked for."""
    pairs = [own.column(request.job, request.scan, c) for c in request.columns]
    known = known_ids(own, request, pairs, encoders, {})
    columns = [c for c, _ in pairs]
    for feature in request.shuffled:
        columns[feature] = _shuffled(columns[feature], request.rows)
    infos = [i for _, i in pairs]
    fixed = request.fixed if isinstance(request, m.ScoreRows) else -1
    if isinstance(request, m.ScoreRows) and fixed >= 0:
        columns[fixed], infos[fixed] = _constant(columns[fixed], infos[fixed], request.value)
    features = encode(columns, infos, request.rows, known)
    if own.owner.limits_scores:
        place = (own, request.job, request.scan, request.columns)
        table = own.tables.use(request.job, request.scan).table
        name = np.append(theta, secure_generator().random()) if request.shuffled else theta  # tells something new
        if isinstance(request, m.ScoreRows) and fixed >= 0:  # as well, unless it was asked for before
            name = np.append(name, np.frombuffer(repr((fixed, request.value)).encode(), np.uint8))
        own.owner.scores(table, reads(*place), (encoders, spec, outputs), name, partial(unknowns, *place))
    check_outputs(outputs, features.rows)
    check_model(spec, features.width, outputs)
    if not spec.is_linear:
        module = own.module(spec, features.width, outputs, request.name)
        missing = request.rows < 0
        model = NeuralModel.of(module, spec, features, features, outputs, missing=(missing, missing), stream=0)
        return m.Scores(values=model.predict(theta.astype(spec.dtype)))
    if len(theta) != features.width:
        raise TransportError(f"the parameters are for {len(theta)} columns, and there are {features.width}")
    return m.Scores(values=features.dot(theta))


def _shuffled(column: pa.ChunkedArray, rows: m.RowNumbers) -> pa.ChunkedArray:
    """A column whose values have changed places among the rows that take part."""
    taken = np.unique(rows[rows >= 0])
    order = np.arange(len(column))
    order[taken] = secure_generator().permutation(taken)
    return column.take(pa.array(order))


def _constant(
    column: pa.ChunkedArray, info: m.ColumnInfo, value: float | str | None
) -> tuple[pa.ChunkedArray, m.ColumnInfo]:
    """A column with one value in all its rows; a date or a decimal becomes the number that it is encoded as."""
    is_text = info.kind in STRING_KINDS
    constant = pa.repeat(pa.scalar(value, pa.large_string() if is_text else pa.float64()), len(column))
    return pa.chunked_array([constant]), info if is_text else replace(info, kind="float")


def send_identifiers(own: ClientState, request: m.SendIdentifiers) -> m.Identifiers:
    table = own.tables.scan(request.job, request.scan)
    return m.Identifiers(columns=as_read(table, request.columns))
