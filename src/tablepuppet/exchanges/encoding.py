"""Encoders that all clients of a block share, and the encoded features, which a baseline in one process may pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from tablepuppet.arrays import Array, Codes
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.exchanges.base import TRAINING, Rules
from tablepuppet.memory import trim_heap
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.releases import count_unknowns, limits_predictions
from tablepuppet.owner.state import ClientState
from tablepuppet.owner.tokens import known_ids
from tablepuppet.protocol import bounds
from tablepuppet.protocol.base import Discloses, Message, PartRequest, Place
from tablepuppet.protocol.columns import Encoder, IdEncoder, NumberEncoder
from tablepuppet.sources.encoding import encode, encoded_width, without_rare
from tablepuppet.sources.statistics import existing_rows


class EncodeFeatures(PartRequest, frozen=True):
    """Encode the part's features like this, as all clients of the block do. → Encoded"""

    encoders: Annotated[list[Encoder], Discloses("encoders")]


class Encoded(Message, frozen=True):
    width: Place


class RevealFeatures(PartRequest, frozen=True):
    """Send the encoded features of all rows: the centralised baseline only. → RevealedFeatures"""

    as_codes: bool = False  # texts as codes of their categories, not as columns of zeros and ones


class RevealedFeatures(Message, frozen=True):
    train: Annotated[Array, Discloses("features", is_per_row=True)]
    test: Annotated[Array, Discloses("features", is_per_row=True)]
    train_codes: tuple[Codes, ...] = ()
    test_codes: tuple[Codes, ...] = ()
    row_width: int = 0  # columns that a row stands for, where texts come as codes


def check_encoders(encoders: Sequence[Encoder], due: int) -> None:
    bounds.require(len(encoders) == due, "encoders", f"are {len(encoders)} where {due} are due")
    for one in encoders:
        if isinstance(one, NumberEncoder):
            bounds.check_array(one.mean, "encoders.mean", (None,))
            for name in ("mean", "scale", "fill"):
                bounds.check_array(getattr(one, name), f"encoders.{name}", (one.mean.size,))
                bounds.check_finite(getattr(one, name), f"encoders.{name}")
            bounds.require(not (one.scale < 0).any(), "encoders.scale", "is negative")
        elif isinstance(one, IdEncoder):
            if one.tokens is not None:
                bounds.check_array(one.tokens, "encoders.tokens", (one.count,), kinds=frozenset("i"))
                is_ascending = bool((one.tokens[1:] > one.tokens[:-1]).all())
                bounds.require(is_ascending, "encoders.tokens", "are not ascending")
        else:
            bounds.require(
                len(set(one.categories)) == len(one.categories), "encoders.categories", "name one category twice"
            )


def _check_encoded(request: EncodeFeatures, answer: Encoded, known: bounds.Known) -> None:
    due = sum(map(encoded_width, request.encoders))
    bounds.require(answer.width == due, "width", f"is {answer.width:,} where these encoders make {due:,} columns")
    known.part(request).width = due


@Rules(
    TRAINING,
    enforce=lambda job, request: job.part(request.part).count("encode", 1),
    check_request=lambda own, request: check_encoders(request.encoders, len(own.part(request).request.columns)),
    check_answer=_check_encoded,
    leaves_state=True,
)
def _encode_features(own: ClientState, request: EncodeFeatures) -> Encoded:
    part = own.part(request)
    opened = part.request
    pairs = [own.column(opened.job, opened.scan, c) for c in opened.columns]
    columns, infos = [c for c, _ in pairs], [i for _, i in pairs]
    least = own.policy.minimum_rows
    named = zip(request.encoders, pairs, strict=True)
    rows = existing_rows(opened.train_rows, opened.multiplicity)
    common = [without_rare(encoder, *pair, rows, least) for encoder, pair in named]
    encoders = known_ids(own, opened, pairs, common, part.ids)
    part.train = encode(columns, infos, opened.train_rows, encoders)
    part.test = encode(columns, infos, opened.test_rows, encoders)
    part.encoders = tuple(request.encoders)
    same = [p for (job, _), p in own.parts.items() if job == opened.job and p.request.scan == opened.scan]
    if all(p.train is not None for p in same):  # training continues with features alone
        del columns, pairs, named
        for each in same:
            if limits_predictions(own, each):
                count_unknowns(own, each)
        own.scan(opened).let_go()
    trim_heap()  # before training: Arrow's pool would keep the memory of encoding
    return Encoded(width=part.train.width)


def _enforce_pooling(job: JobUnderContract, request: RevealFeatures) -> None:
    job.policy.check_release("a model that is fitted at the server is known there")
    if not job.training.is_pooled:
        raise breach("features are not pooled")
    job.part(request.part).count("pool", 1)


def _check_revealed(request: RevealFeatures, answer: RevealedFeatures, known: bounds.Known) -> None:
    part = known.part(request)
    width = None if request.as_codes else part.width
    for name, rows in (("train", part.train), ("test", part.test)):
        bounds.check_array(getattr(answer, name), name, (rows, width))
        bounds.check_finite(getattr(answer, name), name)


@Rules(TRAINING, enforce=_enforce_pooling, check_answer=_check_revealed)
def _reveal_features(own: ClientState, request: RevealFeatures) -> RevealedFeatures:
    part = own.part(request)
    if not own.may_reveal:
        raise PolicyError("features are never pooled; a baseline that pools them runs in process only")
    if part.train is None or part.test is None:
        raise TransportError("a part must be encoded before its features can be pooled")
    if not request.as_codes:
        return RevealedFeatures(train=part.train.to_dense(), test=part.test.to_dense())
    codes = (part.train.codes, part.test.codes)
    return RevealedFeatures(part.train.dense, part.test.dense, *codes, row_width=part.train.width)
