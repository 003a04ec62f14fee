"""Answers before training: what a table looks like, tokens of its keys, labels and weights; statistics of a part's
columns, then the encoding that all clients of its block share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet import protocol as m
from tablepuppet.client import row_rules
from tablepuppet.client.answers import training
from tablepuppet.client.answers.contract import reads
from tablepuppet.client.ids import Column, are_ids, id_statistics, known_ids, look_like_ids
from tablepuppet.client.masked_sums import Sealing
from tablepuppet.client.state import ClientState, Part
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.memory import give_back
from tablepuppet.tables.columns import STRING_KINDS, all_in_order, as_read
from tablepuppet.tables.encoding import encode, without_rare
from tablepuppet.tables.labels import LabelNoise, read_labels, read_weights
from tablepuppet.tables.labels import describe_labels as describe
from tablepuppet.tables.split import Split, fold_numbers
from tablepuppet.tables.statistics import first_summands, names_only, second_summands, statistics, without_moments
from tablepuppet.tables.tokens import (
    blinded,
    blinding_key,
    job_key,
    key_check,
    key_of,
    points_of,
    sorted_tokens,
    to_array,
    tokens,
)


def describe_table(own: ClientState, request: m.DescribeTable) -> m.TableSchema:
    return replace(
        own.tables.describe(request.table, request.query),
        withholds=not own.policy.release_parameters,
        merges=own.policy.merges,
    )


def open_scan(own: ClientState, request: m.OpenScan) -> m.ScanSchema:
    answer = own.tables.open_scan(request)
    own.policy.check_scan(own.tables.use(request.job, request.scan))
    return answer


def count_rows(own: ClientState, request: m.CountRows) -> m.RowCount:
    return m.RowCount(rows=own.tables.scan(request.job, request.scan).num_rows)


def send_keys(own: ClientState, request: m.SendKeys) -> m.Keys:
    order = None
    if request.order is not None:
        order = _shuffle(own, request, request.order)
    elif not own.may_reveal:  # nobody need know where a row lies here: an order of this job, and of no other
        own.tables.shuffle(request.job, request.scan, own.secret + request.job.encode(), 0, 0, wants_bits=False)
    table = own.tables.scan(request.job, request.scan)
    if request.tokens == "plain":
        return m.Keys(rows=table.num_rows, columns=as_read(table, request.columns), order=order)
    key = b"" if request.tokens == "sha256" else job_key(own.key, request.job)
    columns = {}
    for column, domain in zip(request.columns, request.domains, strict=True):
        values, info = own.column(request.job, request.scan, column)
        found = tokens(values, info, "sha256" if request.tokens == "sha256" else "hmac", key, domain)
        if request.tokens == "dh":
            points = blinded(points_of(found.dictionary), blinding_key(own.secret, request.job, domain))
            found = sorted_tokens(found.indices, to_array(points))
        columns[f"c{column}"] = found
    give_back(table.num_rows)
    check = key_check(key) if key else b""
    return m.Keys(rows=table.num_rows, columns=pa.table(columns), order=order, check=check)


def blind_keys(own: ClientState, request: m.BlindKeys) -> m.BlindedKeys:
    """Other owners' keys under this owner's secret too; the log says how many."""
    told = own.told.setdefault(request.job, Counter())
    told["keys of others, blinded"] += len(request.points)
    return m.BlindedKeys(points=blinded(request.points, blinding_key(own.secret, request.job, request.domain)))


def _shuffle(own: ClientState, request: m.SendKeys, order: m.RowOrder) -> NDArray[np.int64] | None:
    """Puts the rows in the clients' order; what the server needs to merge it with other clients' orders."""
    key = own.order_key if own.order_key is not None else key_of(own.key)
    given = (request.job, request.scan, key, order.seed, order.offset)
    return own.tables.shuffle(*given, wants_bits=order.is_shared)


def describe_labels(own: ClientState, request: m.DescribeLabels) -> m.LabelSummary:
    column, info = own.column(request.job, request.scan, request.column)
    if info.kind in STRING_KINDS:
        row_rules.check_classes(own, request, column)
    return describe(column, info, request.wants_classes)


def send_labels(own: ClientState, request: m.SendLabels) -> m.Labels:
    column, info = own.column(request.job, request.scan, request.column)
    order = own.tables.order(request.job, request.scan)
    noise = None
    table = own.tables.use(request.job, request.scan).table
    if request.privacy is None:
        own.owner.plain_label(table)
        contract = own.contracts.contract(request.job)
        if request.classes is not None and contract is not None and contract.purpose != "evaluate":
            row_rules.check_classes(own, request, column)
    else:
        rows = own.tables.row_ids(request.job, request.scan)
        expression = own.tables.expressions(request.job, request.scan)[request.column]
        noise = LabelNoise(request.privacy, own.secret, table, _spend(own, table, request), rows, expression)
    sides = _split(own, request)
    labels = read_labels(column, info, request.classes, sides, order, noise)
    if not request.folds:
        return labels
    by = None if request.fold_column is None else own.column(request.job, request.scan, request.fold_column)
    folds = fold_numbers(len(column), sides, request.folds, request.fold_by, by, order, request.is_alone)
    row_rules.check_folds(own, request, folds)
    return replace(labels, folds=folds)


def send_sides(own: ClientState, request: m.SendSides) -> m.Sides:
    sides, order = _split(own, request), own.tables.order(request.job, request.scan)
    rows = own.tables.scan(request.job, request.scan).num_rows
    is_test = sides.test(rows, order)
    return m.Sides(is_test=is_test, is_validation=sides.validation(rows, order, is_test))


def _split(own: ClientState, request: m.SendLabels | m.SendSides) -> Split:
    """How rows are shared out, if the owner has nothing against it."""
    where = [
        None if c is None else own.column(request.job, request.scan, c)[0]
        for c in (request.test_column, request.validation_column)
    ]
    sides = Split(request.offset, request.seed, request.test_fraction, request.validation_fraction, *where)
    row_rules.check_split(own, request, sides)
    return sides


def _spend(own: ClientState, table: str, request: m.SendLabels) -> Callable[[str], None]:
    return partial(own.owner.label, table, reads(own, request.job, request.scan, [request.column]), request)


def send_weights(own: ClientState, request: m.SendWeights) -> m.Weights:
    return read_weights(*own.column(request.job, request.scan, request.column))


def close_job(own: ClientState, request: m.CloseJob) -> m.Done:
    for (job, _), part in own.parts.items():
        if job == request.job and part.shown:
            own.owner.exposed(training.shown(own, part, part.shown))
    if own.told.get(request.job):
        own.approvals.finish(request.job)
    own.tables.close(request.job)
    own.owner.close(request.job)
    own.parts = {key: part for key, part in own.parts.items() if key[0] != request.job}
    return m.Done()


def find_ids(own: ClientState, request: m.FindIds) -> m.FoundIds:
    columns = [own.column(request.job, request.scan, c) for c in request.columns]
    return m.FoundIds(places=tuple(i for i, column in enumerate(columns) if look_like_ids(column)))


def open_part(own: ClientState, request: m.OpenPart) -> m.FeatureStatistics | m.FeatureNames:
    row_rules.check_part(own, request)
    columns = [own.column(request.job, request.scan, c) for c in request.columns]
    if columns and all_in_order(request.train_rows, len(columns[0][0])):
        request = replace(request, train_rows=None)  # which need not be kept
    part = own.parts[request.job, request.part] = Part(request)
    wanted = columns if request.wants_statistics else []
    found = [_statistics(own, part, place, column) for place, column in enumerate(wanted)]
    part.statistics = found if request.wants_moments else [without_moments(s) for s in found]
    give_back()
    if not request.wants_key:
        return m.FeatureStatistics(columns=list(part.statistics))
    if own.key is None:
        return m.FeatureNames(columns=[])
    part.sealing = Sealing(request.job, own.name, request.part, own.key)
    return m.FeatureNames(columns=[names_only(s) for s in part.statistics], key=part.sealing.offer())


def _statistics(own: ClientState, part: Part, place: int, column: Column) -> m.Statistics:
    """A feature's statistics over the part's rows: of ids only how many, and their names are kept here."""
    request = part.request
    if not are_ids(own, request, place, column):
        return statistics(*column, request.train_rows, request.multiplicity, own.policy.minimum_rows)
    found = statistics(*column, request.train_rows, request.multiplicity)
    assert isinstance(found, m.CategoryStatistics)
    part.ids[place] = found.categories
    return id_statistics(own, request, place, found)


def sum_statistics(own: ClientState, request: m.SumStatistics) -> m.Message:
    part = own.part(request)
    part.meet(request.peers)
    summands = second_summands if request.is_second else first_summands
    values = summands(part.statistics, request.columns)
    return part.sealed(m.Partial(values=values), "moments" if request.is_second else "counts")


def encode_features(own: ClientState, request: m.EncodeFeatures) -> m.Encoded:
    part = own.part(request)
    opened = part.request
    pairs = [own.column(opened.job, opened.scan, c) for c in opened.columns]
    columns, infos = [c for c, _ in pairs], [i for _, i in pairs]
    least = own.policy.minimum_rows
    named = zip(request.encoders, pairs, strict=True)
    common = [without_rare(encoder, *pair, opened.train_rows, least) for encoder, pair in named]
    encoders = known_ids(own, opened, pairs, common, part.ids)
    part.train = encode(columns, infos, opened.train_rows, encoders)
    part.test = encode(columns, infos, opened.test_rows, encoders)
    part.encoders = tuple(request.encoders)
    same = [p for (job, _), p in own.parts.items() if job == opened.job and p.request.scan == opened.scan]
    if all(p.train is not None for p in same):  # features are what training goes on with
        del columns, pairs, named
        for each in same:
            if training.limits_predictions(own, each):
                training.count_unknowns(own, each)
        own.tables.let_go(opened.job, opened.scan)
    give_back(part.train.rows)  # before training: what encoding took would stay with Arrow's pool
    return m.Encoded(width=part.train.width)


def reveal_features(own: ClientState, request: m.RevealFeatures) -> m.RevealedFeatures:
    part = own.part(request)
    if not own.may_reveal:
        raise PolicyError("features are never pooled; a baseline that pools them runs in process only")
    if part.train is None or part.test is None:
        raise TransportError("a part must be encoded before its features can be pooled")
    if not request.as_codes:
        return m.RevealedFeatures(train=part.train.to_dense(), test=part.test.to_dense())
    codes = (part.train.codes, part.test.codes)
    return m.RevealedFeatures(part.train.dense, part.test.dense, *codes, row_width=part.train.width)
