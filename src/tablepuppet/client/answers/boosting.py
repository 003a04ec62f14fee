"""Answers about boosted trees: bins, checks, sums, bits of keys, and what keys mean in the end.

The state of a part is its keys; codes are made when it starts, and again when a checkpoint is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.exchange import Bins, Codes, Key, Union
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.client.answers.contract import reads, tells_label, unknowns
from tablepuppet.client.state import ClientState, Part
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.memory import give_back
from tablepuppet.models.spec import ModelSpec
from tablepuppet.tables.binning import (
    RawColumn,
    answers,
    codes_of,
    columns_of,
    own_bins,
    public_bins,
    raw_columns,
    rule_of,
    rules_without_rare,
    sketch,
    without_rare,
)
from tablepuppet.tables.part_store import BlockPart

if TYPE_CHECKING:
    from tablepuppet.algorithms.boosting.client import ClientHalf

_SPEC = ModelSpec(kind="boosted")


class TreesState(msgspec.Struct, frozen=True):
    """The keys of a part, or columns of them, and which of them it has told."""

    entries: list[Key] = []
    is_told: list[bool] = []


@dataclass(frozen=True, slots=True, eq=False)
class TreesPart:
    """What a part's trees are grown from."""

    request: trees.StartTrees
    columns: list[RawColumn]
    bins: list[Bins]
    train: Codes
    held: Codes
    limit: int | None
    tells_columns: bool
    before: tuple[trees.SplitRule, ...] = ()  # of trees that were there already
    halves: list[tuple[TreesState, ClientHalf]] = field(default_factory=list)  # of the last request, and what it left


def sketch_features(own: ClientState, request: trees.SketchFeatures) -> trees.FeatureSketches:
    part = own.part(request)
    weights = _weights(part, own)
    contract = own.contracts.contract(request.job)
    is_private = contract is not None and contract.feature_privacy is not None  # names are public, and numbers are not
    columns = [
        trees.NumberSketch(values=np.zeros(0), weights=np.zeros(0))
        if is_private and c.is_number
        else sketch(c, weights, request.bins, own.policy.minimum_rows)
        for c in _raw(own, part.request, part.request.train_rows)
    ]
    give_back()
    return trees.FeatureSketches(columns=columns)


def start_trees(own: ClientState, request: trees.StartTrees) -> trees.TreesStarted:
    part = own.part(request)
    own.owner.trees(own.tables.use(request.job, part.request.scan).table, request)
    train = _raw(own, part.request, part.request.train_rows)
    held = _raw(own, part.request, part.request.test_rows)
    weights = _weights(part, own)
    options = request.algorithm
    least = own.policy.minimum_rows
    bins = request.bins
    if bins is None and request.bounds is not None:
        bins = public_bins(train, request.bounds, options.bins, least)
    elif bins is None:
        bins = own_bins(train, weights, options.bin_rules, least)
    columns = columns_of(bins, train)
    known = bins if request.bins is None else without_rare(bins, columns, weights, own.policy.minimum_rows)
    codes, held_codes = (
        np.stack([codes_of(c, b) for c, b in zip(columns_of(bins, side), known, strict=True)], axis=1)
        if side
        else np.zeros((0, 0), np.uint8)
        for side in (train, held)
    )
    sizes = np.array([b.size for b in bins], np.int64)
    if (sizes > 256).any() or (len(codes) and (codes.max(axis=0) >= sizes).any()):
        raise TransportError("the bins that were sent do not hold all values of this part's columns")
    if request.signs and len(request.signs) != len(train):
        raise TransportError(f"signs of {len(request.signs)} columns were sent, and there are {len(train)}")
    missed = np.zeros((1, codes.shape[1]), np.uint8)
    before = _earlier(own, part, request)
    limit, most = request.algorithm.most_splits, own.policy.max_splits
    if most is not None and len(before) > most:
        raise PolicyError(f"no more than {most} splits of this table may be told (max_splits), and there are more")
    limit = limit if most is None else min(limit, most - len(before))
    tells_columns = options.tells_columns and most is None and own.policy.minimum_rows <= 1  # a bin may have few rows
    if before and not isinstance(request.before, str) and own.owner.limits_scores:
        opened = part.request
        place = (own, request.job, opened.scan, opened.columns)
        table = own.tables.use(request.job, opened.scan).table
        own.owner.splits(table, reads(*place), before, partial(unknowns, *place))
    empty = [RawColumn(c.feature, c.entry, np.zeros(0) if c.is_number else None) for c in columns]
    part.trees = TreesPart(request, empty, bins, np.vstack([codes, missed]), held_codes, limit, tells_columns, before)
    part.state = TreesState()
    if request.peers:
        part.meet(request.peers)
    else:
        part.sealing = None
    give_back()
    half = _half(part)
    is_random = options.is_random
    has_missing = half.book.has_missing if is_random or request.bins is not None else np.zeros(0, np.bool_)
    kinds, sizes = half.book.columns.kinds, sizes if is_random else np.zeros(0, np.int64)
    right = _earlier_bits(train, held, _told(own, part.request, before))
    return trees.TreesStarted(
        kinds=kinds,
        has_missing=has_missing,
        limit=part.trees.limit,
        tells_columns=half.book.tells_columns,
        right=right,
        sizes=sizes,
    )


def check_trees(own: ClientState, request: trees.CheckTrees) -> trees.TreeObjections:
    part = own.part(request)
    half = _half(part)
    if part.trees.request.clients > 1:
        raise PolicyError("this table has several owners, whose splits are found from sums over all of them")
    found = half.check(request.check)
    _keep(part, half)
    return trees.TreeObjections(found=found)


def sum_trees(own: ClientState, request: trees.SumTrees) -> trees.TreeSums:
    part = own.part(request)
    half = _half(part)
    half.book.add_unions(request.check.unions)
    sums = half.histograms(request.check)
    _keep(part, half)
    return trees.TreeSums(values=sums if part.sealing is None else part.sealing.seal_integers(sums))


def reveal_keys(own: ClientState, request: trees.RevealKeys) -> trees.RevealedKeys:
    part = own.part(request)
    half = _half(part)
    book = half.book
    for key in request.keys:
        if not 0 <= key.column < len(book.columns.kinds):
            raise TransportError("a key is of a column that there is not")
        if book.is_whole(key) and not book.tells_columns:
            raise PolicyError(
                "columns of this table are not told whole: their splits are, one by one (max_splits, minimum_rows)"
            )
        if not book.may_tell([key]):
            raise PolicyError(f"no more than {book.limit} splits of this table may be told (max_splits)")
        book.add(key, is_told=True)
    _keep(part, half)
    return trees.RevealedKeys(keys=[half.reveal(key) for key in request.keys])


def release_splits(own: ClientState, request: trees.ReleaseSplits) -> trees.Splits:
    part = own.part(request)
    rules = _rules(part, request.unions, request.keys)
    _count_trained(own, part, [*part.trees.before, *rules])
    return trees.Splits(rules=rules)


def hold_splits(own: ClientState, request: trees.HoldSplits) -> m.Done:
    part = own.part(request)
    rules = [*part.trees.before, *_rules(part, request.unions, request.keys)]
    every = own.tables.expressions(request.job, part.request.scan)
    asker = own.asker(request.job)
    held = BlockPart(
        askers=() if asker is None else (asker, *request.readers),
        model=request.model,
        name=part.trees.request.name,
        features=tuple(request.features),
        encoders=(),
        theta=np.zeros((0, part.trees.request.outputs)),
        outputs=part.trees.request.outputs,
        spec=_SPEC,
        uses=(tuple(every[c] for c in part.request.columns),),
        splits=tuple(rules),
    )
    own.part_store.hold(held, request.block)
    _count_trained(own, part, rules)
    return m.Done()


def ask_rows(own: ClientState, request: trees.AskRows) -> trees.RowBits:
    return _bits(own, request, request.rules)


def ask_own_rows(own: ClientState, request: trees.AskOwnRows) -> trees.RowBits:
    part = own.part_store.find(request.model, request.name, own.asker(request.job))
    every = own.tables.expressions(request.job, request.scan)
    infos = own.tables.columns(request.job, request.scan)
    part.check([every[c] for c in request.columns], [infos[c] for c in request.columns])
    return _bits(own, request, part.splits)


def _earlier(own: ClientState, part: Part, request: trees.StartTrees) -> tuple[trees.SplitRule, ...]:
    """The splits of trees that were grown before: as they were sent, or as this owner holds them."""
    if not isinstance(request.before, str):
        return tuple(request.before)
    held = own.part_store.find(request.before, request.name, own.asker(request.job))
    every = own.tables.expressions(request.job, part.request.scan)
    infos = own.tables.columns(request.job, part.request.scan)
    columns = part.request.columns
    held.check([every[c] for c in columns], [infos[c] for c in columns])
    return held.splits


def _earlier_bits(
    train: Sequence[RawColumn], held: Sequence[RawColumn], rules: Sequence[trees.SplitRule]
) -> list[NDArray[np.uint8]]:
    """Of each rule a bit for training rows, one for a row that does not exist, and those for held-out rows."""
    if not rules:
        return []
    sides = [
        [column.take(np.append(np.arange(count), -1)[: count + extra]) for column in side]
        for side, count, extra in ((train, _count(train), 1), (held, _count(held), 0))
    ]
    found = [[np.unpackbits(b, count=_count(side)) for b in answers(side, rules)] for side in sides]
    return [np.packbits(np.concatenate(both)) for both in zip(*found, strict=True)]


def _count(columns: Sequence[RawColumn]) -> int:
    first = columns[0]
    if first.values is not None:
        return len(first.values)
    assert first.codes is not None
    return len(first.codes)


def _bits(
    own: ClientState, request: trees.AskRows | trees.AskOwnRows, rules: Sequence[trees.SplitRule]
) -> trees.RowBits:
    columns = _raw(own, request, request.rows)
    if own.owner.limits_scores:
        place = (own, request.job, request.scan, request.columns)
        table = own.tables.use(request.job, request.scan).table
        own.owner.splits(table, reads(*place), rules, partial(unknowns, *place))
    return trees.RowBits(right=answers(columns, _told(own, request, rules)))


def _told(
    own: ClientState, request: m.OpenPart | trees.AskRows | trees.AskOwnRows, rules: Sequence[trees.SplitRule]
) -> Sequence[trees.SplitRule]:
    """What rows answer to: names that few rows of the whole table hold are no names, as they were in training."""
    least = own.policy.minimum_rows
    if least <= 1 or not any(rule.left or rule.known for rule in rules):
        return rules
    named = sorted({rule.feature for rule in rules if rule.left or rule.known})
    infos = own.tables.columns(request.job, request.scan)
    places = [request.columns[feature] for feature in named]
    read = own.tables.everywhere(request.job, request.scan, places)
    found = raw_columns(read.columns, [infos[c] for c in places])
    columns = [replace(column, feature=named[column.feature]) for column in found]
    return rules_without_rare(rules, columns, least)


def _half(part: Part) -> ClientHalf:
    from tablepuppet.algorithms.boosting.client import ClientHalf  # here: they load the compiler
    from tablepuppet.algorithms.boosting.keys import KeyBook

    own: TreesPart | None = part.trees
    if own is None:
        raise TransportError("a part's trees must be started before they are grown")
    state = part.state
    if own.halves:
        left, half = own.halves.pop()  # it comes back with what the request leaves
        if left is state:  # else a checkpoint was restored
            return half
    layout = Columns.of([b.kind for b in own.bins], [b.size for b in own.bins], own.request.signs)
    has_missing = (own.train[:-1] == 0).any(axis=0) | (own.held == 0).any(axis=0) | own.request.is_outer
    has_missing |= own.request.bounds is not None  # under noise, whether any is missing is not looked at
    rules = own.request.algorithm.rules
    known = (list(state.entries), list(state.is_told))
    book = KeyBook(own.request.block, layout, has_missing, rules, *known, own.limit, own.tells_columns)
    goes_ahead = own.request.algorithm.checks == "strict" and not own.tells_columns
    return ClientHalf(book, own.train, own.held, goes_ahead)


def _keep(part: Part, half: ClientHalf) -> None:
    """What a request changed is the part's state from now on."""
    part.state = TreesState(list(half.book.entries), list(half.book.is_told))
    part.trees.halves.append((part.state, half))


def _rules(part: Part, unions: Sequence[Union], keys: Sequence[int]) -> list[trees.SplitRule]:
    """What some keys mean; sets that were made after the last check come first."""
    book = _half(part).book
    book.add_unions(unions)
    if any(not 0 <= k < len(book.keys) for k in keys):
        raise TransportError("the model has a split that this client does not know")
    own = part.trees
    return [rule_of(key, own.columns[key.column], own.bins[key.column]) for key in (book.keys[k] for k in keys)]


def _count_trained(own: ClientState, part: Part, rules: Sequence[trees.SplitRule]) -> None:
    """Writes down a model whose splits the owner trained it for."""
    opened = part.request
    if not tells_label(own, opened.job, reads(own, opened.job, opened.scan, opened.columns)):
        own.owner.trained_splits(own.tables.use(opened.job, opened.scan).table, rules)


def _raw(
    own: ClientState, request: m.OpenPart | trees.AskRows | trees.AskOwnRows, rows: RowNumbers | None
) -> list[RawColumn]:
    """The raw columns of some rows of a scan."""
    pairs = [own.column(request.job, request.scan, c) for c in request.columns]
    found = raw_columns([c for c, _ in pairs], [i for _, i in pairs])
    if rows is None:
        return found
    count = own.tables.scan(request.job, request.scan).num_rows
    if len(rows) and (rows.min() < -1 or rows.max() >= count):
        raise TransportError("a request is about rows that there are not")
    return [column.take(rows) for column in found]


def _weights(part: Part, own: ClientState) -> Array:
    """How often each training row is joined."""
    request = part.request
    if request.multiplicity is not None:
        return request.multiplicity.astype(np.float64)
    rows = request.train_rows
    return np.ones(own.tables.scan(request.job, request.scan).num_rows if rows is None else len(rows))
