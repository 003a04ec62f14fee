"""Answers about features: statistics of a part's columns, then the encoding that all clients of its block share."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tablepuppet import protocol as m
from tablepuppet.client import row_rules
from tablepuppet.client.masked_sums import Sealing
from tablepuppet.client.part import Part
from tablepuppet.client.state import ClientState
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.memory import give_back
from tablepuppet.tables.columns import all_in_order
from tablepuppet.tables.encoding import encode
from tablepuppet.tables.statistics import first_summands, names_only, second_summands, statistics, without_moments


def open_part(own: ClientState, request: m.OpenPart) -> m.FeatureStatistics | m.FeatureNames:
    row_rules.check_part(own, request)
    columns = [own.column(request.job, request.scan, c) for c in request.columns]
    if columns and all_in_order(request.train_rows, len(columns[0][0])):
        request = replace(request, train_rows=None)  # which need not be kept
    part = own.parts[request.job, request.part] = Part(request)
    weights = None if request.multiplicity is None else request.multiplicity.astype(np.float64)
    wanted = columns if request.wants_statistics else []
    found = [statistics(column, info, request.train_rows, weights, own.policy.minimum_rows) for column, info in wanted]
    part.statistics = found if request.wants_moments else [without_moments(s) for s in found]
    give_back()
    if not request.wants_key:
        return m.FeatureStatistics(columns=list(part.statistics))
    if own.key is None:
        return m.FeatureNames(columns=[])
    part.sealing = Sealing(request.job, own.name, request.part, own.key)
    return m.FeatureNames(columns=[names_only(s) for s in part.statistics], key=part.sealing.offer())


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
    part.train = encode(columns, infos, opened.train_rows, request.encoders)
    part.test = encode(columns, infos, opened.test_rows, request.encoders)
    part.encoders = tuple(request.encoders)
    give_back()  # before training: what encoding took would stay with Arrow's pool
    return m.Encoded(width=part.train.width)


def reveal_features(own: ClientState, request: m.RevealFeatures) -> m.RevealedFeatures:
    part = own.part(request)
    if not own.may_reveal:
        raise PolicyError("features are never pooled; a baseline that pools them runs in process only")
    if part.train is None or part.test is None:
        raise TransportError("a part must be encoded before its features can be pooled")
    return m.RevealedFeatures(train=part.train.to_dense(), test=part.test.to_dense())
