"""Answers about boosted trees: bins, checks, sums, bits of keys, and finally the rules of keys.

The state of a part is its keys; codes are made when it starts, and again when a checkpoint is restored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import answer_rules
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.tree_checks import (
    NUMBER,
    SPARSE,
    WHOLE,
    Bins,
    CategoryBins,
    Check,
    Codes,
    Key,
    NumberBins,
    Outline,
    Union,
)
from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.algorithms.shape import Exchanges
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.exchanges.base import SCORING, STARTED, TRAINING, NoCheck, Rules
from tablepuppet.exchanges.evaluation import enforce_holding, enforce_release, permit_release
from tablepuppet.exchanges.features import OpenPart
from tablepuppet.exchanges.prediction import check_asked_rows, count_scores, permit_own_scores, permit_scores
from tablepuppet.memory import trim_heap
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.analyst_budget import is_noisy
from tablepuppet.owner.enforcement import JobUnderContract, refused
from tablepuppet.owner.part_store import BlockPart
from tablepuppet.owner.policy import Policy, Use
from tablepuppet.owner.releases import DisclosedValues, bound_reach, reads, tells_label, unknowns
from tablepuppet.owner.state import ClientState, Part
from tablepuppet.privacy.accounting import Mechanism, composed_noise
from tablepuppet.protocol.base import MOST_CLIENTS, Done
from tablepuppet.protocol.bounds import check_array, check_finite, check_range, require
from tablepuppet.protocol.contract import Contract
from tablepuppet.sources.binning import (
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

if TYPE_CHECKING:
    from tablepuppet.algorithms.boosting.client import ClientHalf

OfRows = OpenPart | trees.AskRows | trees.AskOwnRows  # requests that name columns of a scan
_SPEC = ModelSpec(kind="boosted")
_CODES = 256  # of a column in bins


class TreesState(msgspec.Struct, frozen=True):
    """The keys of a part, or columns of them, and which of them it has revealed."""

    entries: list[Key] = []
    is_told: list[bool] = []


@dataclass(frozen=True, slots=True, eq=False)
class TreesPart:
    """The data of a part that trees are grown from."""

    request: trees.StartTrees
    columns: list[RawColumn]
    bins: list[Bins]
    train: Codes
    held: Codes
    limit: int | None
    reveals_columns: bool
    before: tuple[trees.SplitRule, ...] = ()  # of trees that were there already
    is_private: bool = False
    halves: list[tuple[TreesState, ClientHalf]] = field(default_factory=list)  # of the last request, and its state


def sketch_features(own: ClientState, request: trees.SketchFeatures) -> trees.FeatureSketches:
    part = own.part(request)
    weights = _weights(part, own)
    contract = own.contracts.contract(request.job)
    bins = 0 if contract is None or contract.training is None else int(contract.training.algorithm["bins"])
    is_private = contract is not None and contract.feature_privacy is not None  # names are public, and numbers are not
    columns = [
        trees.NumberSketch(values=np.zeros(0), weights=np.zeros(0))
        if is_private and c.is_number
        else sketch(c, weights, bins, own.policy.minimum_rows)
        for c in _raw(own, part.request, part.request.train_rows)
    ]
    trim_heap()
    return trees.FeatureSketches(columns=columns)


def start_trees(own: ClientState, request: trees.StartTrees) -> trees.TreesStarted:
    part = own.part(request)
    use = own.tables.use(request.job, part.request.scan)
    own.releases.charge_whole_model(request.job, use, _spends(own, request, use.table))
    train = _raw(own, part.request, part.request.train_rows)
    held = _raw(own, part.request, part.request.test_rows)
    weights = _weights(part, own)
    options = request.algorithm
    least = own.policy.minimum_rows
    bins = request.bins
    contract = own.contracts.contract(request.job)
    is_private = contract is not None and contract.feature_privacy is not None
    if is_private:
        public = public_bins(
            train, own.contracts.jobs[request.job].part(request.part).block.bounds, options.bins, least
        )
        bins = public if bins is None else _check_borders(bins, public)
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
    reveals_columns = (
        options.reveals_columns and most is None and own.policy.minimum_rows <= 1
    )  # a bin may have few rows
    if before and not isinstance(request.before, str):
        _charge(own, part.request, before)
    empty = [RawColumn(c.feature, c.entry, np.zeros(0) if c.is_number else None) for c in columns]
    given = (request, empty, bins, np.vstack([codes, missed]), held_codes, limit, reveals_columns, before)
    part.trees = TreesPart(*given, is_private)
    part.state = TreesState()
    if request.peers:
        part.meet(request.peers)
    else:
        part.sealing = None
    trim_heap()
    half = _half(part)
    is_random = options.is_random
    has_missing = half.book.has_missing if is_random or request.bins is not None else np.zeros(0, np.bool_)
    kinds, sizes = half.book.columns.kinds, sizes if is_random else np.zeros(0, np.int64)
    right = _earlier_bits(train, held, _without_rare_names(own, part.request, before))
    return trees.TreesStarted(
        kinds=kinds,
        has_missing=has_missing,
        limit=part.trees.limit,
        reveals_columns=half.book.reveals_columns,
        right=right,
        sizes=sizes,
    )


def _check_borders(bins: list[Bins], public: list[Bins]) -> list[Bins]:
    """Bins that owners of a private table share; borders of numbers are those between the agreed bounds."""
    for given, due in zip(bins, public, strict=False):
        borders, agreed = (b.borders.tolist() if isinstance(b, NumberBins) else None for b in (given, due))
        if borders != agreed:
            raise refused("borders lie evenly between the bounds that were agreed on")
    return bins


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
    sums = [own[outline.left < 0] for own, outline in zip(sums, request.check.trees, strict=True)]
    _keep(part, half)
    return trees.TreeSums(values=sums if part.sealing is None else part.sealing.seal_integers(sums))


def reveal_keys(own: ClientState, request: trees.RevealKeys) -> trees.RevealedKeys:
    part = own.part(request)
    half = _half(part)
    book = half.book
    for key in request.keys:
        if not 0 <= key.column < len(book.columns.kinds):
            raise TransportError("a key is of a column that there is not")
        if book.is_whole(key) and not book.reveals_columns and book.columns.kinds[key.column] != SPARSE:
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


def hold_splits(own: ClientState, request: trees.HoldSplits) -> Done:
    part = own.part(request)
    rules = [*part.trees.before, *_rules(part, request.unions, request.keys)]
    every = own.tables.scan(request.job, part.request.scan).expressions
    held = BlockPart(
        askers=own.askers(request.job),
        model=request.job,
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
    return Done()


def ask_rows(own: ClientState, request: trees.AskRows) -> trees.RowBits:
    return _bits(own, request, request.rules)


def ask_own_rows(own: ClientState, request: trees.AskOwnRows) -> trees.RowBits:
    return _bits(own, request, _find_held(own, request, request.model, request.name))


def _earlier(own: ClientState, part: Part, request: trees.StartTrees) -> tuple[trees.SplitRule, ...]:
    """The splits of trees that were grown before: as they were sent, or as this owner holds them."""
    if not isinstance(request.before, str):
        return tuple(request.before)
    return _find_held(own, part.request, request.before, request.name)


def _find_held(own: ClientState, request: OfRows, model: str, block: str) -> tuple[trees.SplitRule, ...]:
    """The splits of a model's part that this owner holds, if they fit the columns of a request."""
    part = own.part_store.find(model, block, own.askers(request.job))
    scan = own.scan(request)
    part.check([scan.expressions[c] for c in request.columns], [scan.columns[c] for c in request.columns])
    return part.splits


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
    _charge(own, request, rules)
    return trees.RowBits(right=answers(columns, _without_rare_names(own, request, rules)))


def _charge(own: ClientState, request: OfRows, rules: Sequence[trees.SplitRule]) -> None:
    """Counts the answers of rows to splits. A split that a server chose may reveal all of a column with few values, so
    it counts as a number."""
    noisy = is_noisy(own.policy, own.contracts.contract(request.job), own.tables.use(request.job, request.scan))
    if own.releases.limits_scores and not noisy:
        place = (own, request.job, request.scan, request.columns)
        table = own.scan(request).table
        values = DisclosedValues(table, reads(*place), len(rules), trees.splits_name(rules))
        own.releases.charge_scores(values, partial(unknowns, *place))


def _without_rare_names(
    own: ClientState, request: OfRows, rules: Sequence[trees.SplitRule]
) -> Sequence[trees.SplitRule]:
    """The rules that rows answer: names that few rows of the whole table hold are left out, as in training."""
    least = own.policy.minimum_rows
    if least <= 1 or not any(rule.left or rule.known for rule in rules):
        return rules
    named = sorted({rule.feature for rule in rules if rule.left or rule.known})
    infos = own.scan(request).columns
    places = [request.columns[feature] for feature in named]
    read = own.scan(request).everywhere(places)
    found = raw_columns(read.columns, [infos[c] for c in places])
    columns = [replace(column, feature=named[column.feature]) for column in found]
    return rules_without_rare(rules, columns, least)


def _require_trees(part: Part) -> TreesPart:
    started: TreesPart | None = part.trees
    if started is None:
        raise TransportError("a part's trees must be started before they are grown")
    return started


def _half(part: Part) -> ClientHalf:
    from tablepuppet.algorithms.boosting.client import ClientHalf  # here: they load the compiler
    from tablepuppet.algorithms.boosting.kernels import announce_compilation
    from tablepuppet.algorithms.boosting.keys import KeyBook

    announce_compilation()

    own = _require_trees(part)
    state = part.state
    if own.halves:
        left, half = own.halves.pop()  # `_keep` puts it back after the request
        if left is state:  # else a checkpoint was restored
            return half
    layout = Columns.of([b.kind for b in own.bins], [b.size for b in own.bins], own.request.signs)
    has_missing = (own.train[:-1] == 0).any(axis=0) | (own.held == 0).any(axis=0) | own.request.is_outer
    has_missing |= own.is_private  # under noise, nobody checks whether any is missing
    rules = own.request.algorithm.rules
    known = (list(state.entries), list(state.is_told))
    book = KeyBook(own.request.block, layout, has_missing, rules, *known, own.limit, own.reveals_columns)
    return ClientHalf(book, own.train, own.held)


def _keep(part: Part, half: ClientHalf) -> None:
    """Makes the result of a request the part's state."""
    part.state = TreesState(list(half.book.entries), list(half.book.is_told))
    part.trees.halves.append((part.state, half))


def _rules(part: Part, unions: Sequence[Union], keys: Sequence[int]) -> list[trees.SplitRule]:
    """The rules of some keys; sets that were made after the last check come first."""
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
        own.releases.record_scores(own.scan(opened).table, trees.splits_name(rules))


def _raw(own: ClientState, request: OfRows, rows: RowNumbers | None) -> list[RawColumn]:
    """The raw columns of some rows of a scan."""
    pairs = [own.column(request.job, request.scan, c) for c in request.columns]
    found = raw_columns([c for c, _ in pairs], [i for _, i in pairs])
    if rows is None:
        return found
    count = own.scan(request).rows().num_rows
    if len(rows) and (rows.min() < -1 or rows.max() >= count):
        raise TransportError("a request is about rows that there are not")
    return [column.take(rows) for column in found]


def _weights(part: Part, own: ClientState) -> Array:
    """How often each training row is joined."""
    request = part.request
    if request.multiplicity is not None:
        return request.multiplicity.astype(np.float64)
    rows = request.train_rows
    return np.ones(own.scan(request).rows().num_rows if rows is None else len(rows))


def _permit_sketch(policy: Policy, request: trees.SketchFeatures, use: Use) -> None:
    policy.check_masked(1)
    policy.check_release("the owners of a table agree on bins through the server")


def _enforce_sketch(job: JobUnderContract, request: trees.SketchFeatures) -> None:
    job.check_model_kind(are_trees=True)
    part = job.part(request.part)
    part.count("sketch", 1)


def _permit_trees(policy: Policy, request: trees.StartTrees, use: Use) -> None:
    policy.check_masked(max(1, len({peer.client for peer in request.peers})))
    policy.check_split_limit(True, request.algorithm.max_splits)


def _enforce_start(job: JobUnderContract, request: trees.StartTrees) -> None:
    contract = job.agreed
    part, training = job.part(request.part), job.training
    if msgspec.to_builtins(request.algorithm) != training.algorithm:
        raise refused("the algorithm is not the one that was agreed on")
    earlier = 1 if isinstance(request.before, str) else len(request.before)  # a held part is as large as it was
    if earlier > training.earlier_splits:
        raise refused("it speaks of more splits of earlier trees than were agreed on")
    if not isinstance(request.before, str) and request.before:
        _check_agreed_splits(contract, part.block.place, request.before)
    part.check_peers(request.peers)
    _enforce_leaves(contract, request)
    if request.bins is not None and not part.block.is_shared:
        raise refused("a table with one owner is put in bins by that owner")
    part.count("start trees", 1)
    part.exchanges, part.most_checks = Exchanges(request.algorithm.trees), request.algorithm.most_checks


def _enforce_leaves(contract: Contract, request: trees.StartTrees) -> None:
    """Under feature privacy, refuses trees without the agreed noise, or with bits of all splits unless agreed."""
    agreed = contract.feature_privacy
    if agreed is None or contract.prediction_privacy.mode == "local":
        if contract.prediction_privacy.mode == "local":
            raise refused("trees have no noise")
        return
    if algorithm_of(request.algorithm).why_not_private(request.algorithm) is not None:
        raise refused("what was agreed to be noised has no noise")
    if not contract.allow_reconstruction and request.algorithm.max_splits is None:
        raise refused("bits of all splits tell rows, and the job does not say allow_reconstruction")


def _spends(own: ClientState, request: trees.StartTrees, table: str) -> tuple[Mechanism, ...]:
    """The privacy cost of the agreed noise on leaves for a row of a table: at most ε. If the noise is given in units of
    the clip, the cost follows from the joined rows that this client counts."""
    contract = own.contracts.contract(request.job)
    agreed = None if contract is None else contract.feature_privacy
    if agreed is None:
        return ()
    steps = request.algorithm.trees
    if agreed.noise is None:
        assert agreed.epsilon is not None
        return (Mechanism(composed_noise(agreed.epsilon, agreed.delta, (Mechanism(1.0, steps),)), steps),)
    parts = [part for (job, _), part in own.parts.items() if job == request.job]
    same = [part for part in parts if own.tables.scan(request.job, part.request.scan).table == table]
    reach = {part.request.scan: bound_reach(own.tables.use(request.job, part.request.scan)) for part in same}
    most = sum(reach[part.request.scan] * int(_weights(part, own).max(initial=1.0)) for part in same)
    return (Mechanism(agreed.noise / most, steps),)


def _check_start_request(own: ClientState, request: trees.StartTrees) -> None:
    check_range(request.block, "block", 0, MOST_CLIENTS)
    require(all(sign in (-1, 0, 1) for sign in request.signs), "signs", "hold what is no sign")
    for bins in request.bins or ():
        check_range(bins.size, "bins", 1, _CODES)
        if isinstance(bins, NumberBins):
            check_array(bins.borders, "bins.borders", (None,))
            check_finite(bins.borders, "bins.borders")
            require(bool((bins.borders[1:] > bins.borders[:-1]).all()), "bins.borders", "are not ascending")
        else:
            assert isinstance(bins, CategoryBins)
            require(len(set(bins.categories)) == len(bins.categories), "bins.categories", "name one category twice")


def _enforce_checks(job: JobUnderContract, request: Any) -> None:
    part = job.started(request.part)
    if job.training.algorithm["splits"] == "random" and not isinstance(request, trees.RevealKeys):
        raise refused("splits are drawn, and no trees are checked")
    part.count("check trees", part.most_checks)


def _check_trees_request(own: ClientState, request: trees.CheckTrees | trees.SumTrees) -> None:
    part, check = own.part(request), request.check
    grown = _require_trees(part)
    check_array(check.columns, "check.columns", (len(grown.bins),), kinds=frozenset("b"))
    most = grown.request.outputs
    require(len(check.trees) <= most, "check.trees", f"are {len(check.trees)} where there are {most} outputs")
    _check_unions(check, len(grown.bins))
    for outline in check.trees:
        _check_outline(outline, 2 * grown.request.algorithm.most_leaves, len(grown.train))


def _check_unions(check: Check, columns: int) -> None:
    for union in check.unions:
        require(0 <= union.column < columns, "check.unions.column", "is none of the part's")
        check_array(union.rows, "check.unions.rows", (None, None), kinds=frozenset("u"))
        require(len(union.rows) <= _CODES, "check.unions.rows", f"are more than {_CODES}")


_OF_NODES = [
    (name, frozenset(kind))
    for name, kind in (("asks", "b"), ("gain", "f"), ("block", "i"), ("key", "i"), ("to_left", "b"))
]


def _check_outline(outline: Outline, most: int, rows: int) -> None:
    """A tree no deeper than agreed, and sums of no more pairs than it has rows and cells."""
    nodes = len(outline.left) if outline.left.ndim == 1 else 0
    check_array(outline.left, "check.trees.left", (None,), kinds=frozenset("i"))
    require(0 < nodes <= most, "check.trees.left", f"has {nodes:,} nodes where at most {most:,} are due")
    for name, kinds in _OF_NODES:
        check_array(getattr(outline, name), f"check.trees.{name}", (nodes,), kinds=kinds)
    check_finite(outline.gain, "check.trees.gain")
    check_array(outline.least, "check.trees.least", (nodes, 2))
    check_array(outline.bounds, "check.trees.bounds", (nodes if len(outline.bounds) else 0, 2))
    require(all(0 < u < math.inf for u in outline.unit), "check.trees.unit", "is not a positive number")
    cells = int(np.count_nonzero(outline.left < 0))
    require(outline.pairs is not None, "check.trees.pairs", "are missing")
    assert outline.pairs is not None
    require(outline.pairs.counts.size == rows, "check.trees.pairs", f"are not of {rows:,} rows")
    size, others = outline.pairs.cells.size, {outline.pairs.g.size, outline.pairs.h.size}
    require(size <= rows * cells, "check.trees.pairs", f"are {size:,} where there are {rows * cells:,}")
    require(others == {size}, "check.trees.pairs", "have sums of other pairs")


def _check_keys_request(own: ClientState, request: trees.RevealKeys) -> None:
    grown = _require_trees(own.part(request))
    require(len(request.keys) <= sum(b.size for b in grown.bins), "keys", "are more than there can be")
    for key in request.keys:
        require(0 <= key.column < len(grown.bins), "keys.column", "is none of the part's")
        bins = grown.bins[key.column]
        if bins.kind == NUMBER or key.border == WHOLE:
            is_border = key.border == WHOLE or 1 <= key.border < bins.size
            require(is_border and not key.left, "keys.border", "is none of the column's")
        else:
            is_inside = all(0 <= code < bins.size for code in key.left) and len(set(key.left)) == len(key.left)
            require(is_inside and key.border == -1, "keys.left", "holds what is no category of the column")


def _check_agreed_splits(contract: Contract, place: Any, rules: Sequence[trees.SplitRule]) -> None:
    if trees.splits_name(rules) not in {block.model for block in contract.blocks if block.place == place}:
        raise refused("the splits are not those that were agreed on")


def _check_rows_request(own: ClientState, request: trees.AskRows) -> None:
    check_asked_rows(own, request)
    for rule in request.rules:
        require(rule.border is None or bool(np.isfinite(rule.border)), "rules.border", "is not finite")


def _enforce_end(job: JobUnderContract, request: trees.ReleaseSplits | trees.HoldSplits) -> None:
    (enforce_holding if isinstance(request, trees.HoldSplits) else enforce_release)(job, request, are_trees=True)


def _enforce_rows(job: JobUnderContract, request: trees.AskRows | trees.AskOwnRows) -> None:
    contract = job.agreed
    if isinstance(request, trees.AskRows):
        _check_agreed_splits(contract, job.blocks(request.scan, request.columns)[0].place, request.rules)
    count_scores(job, request)


EXCHANGES = (
    Rules(
        TRAINING,
        permit=_permit_sketch,
        enforce=_enforce_sketch,
        check_answer=answer_rules.check_sketches,
    )(sketch_features),
    Rules(
        TRAINING,
        permit=_permit_trees,
        enforce=_enforce_start,
        check_request=_check_start_request,
        check_answer=answer_rules.check_started,
        leaves_state=True,
    )(start_trees),
    Rules(
        TRAINING,
        permit=STARTED,
        enforce=_enforce_checks,
        check_request=_check_trees_request,
        check_answer=answer_rules.check_objections,
    )(check_trees),
    Rules(
        TRAINING,
        permit=STARTED,
        enforce=_enforce_checks,
        check_request=_check_trees_request,
        check_answer=answer_rules.check_sums,
    )(sum_trees),
    Rules(
        TRAINING,
        permit=STARTED,
        enforce=_enforce_checks,
        check_request=_check_keys_request,
        check_answer=answer_rules.check_revealed,
    )(reveal_keys),
    Rules(
        TRAINING,
        permit=permit_release,
        enforce=_enforce_end,
        check_request=NoCheck("keys are looked up among those that the part knows"),
        check_answer=answer_rules.check_splits,
    )(release_splits),
    Rules(
        TRAINING,
        permit=NoCheck("nothing leaves: the splits stay with their owner"),
        enforce=_enforce_end,
        check_request=NoCheck("keys are looked up among those that the part knows"),
    )(hold_splits),
    Rules(
        SCORING,
        permit=permit_scores,
        enforce=_enforce_rows,
        check_request=_check_rows_request,
        check_answer=answer_rules.check_bits,
    )(ask_rows),
    Rules(
        SCORING,
        permit=permit_own_scores,
        enforce=_enforce_rows,
        check_request=check_asked_rows,
        check_answer=answer_rules.check_own_bits,
    )(ask_own_rows),
)
