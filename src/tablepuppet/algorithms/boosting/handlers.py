"""Answers about boosted trees: bins, checks, sums, bits of keys, and finally the rules of keys.

The state of a part is its keys; codes are made when it starts, and again when a checkpoint is restored.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.tree_checks import RARE, SPARSE, Bins, Codes, Key, NumberBins, Union
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.exchanges.features import OpenPart
from tablepuppet.memory import trim_heap
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner import row_rules
from tablepuppet.owner.enforcement import breach
from tablepuppet.owner.part_store import BlockPart
from tablepuppet.owner.releases import bound_reach, reads, tells_label
from tablepuppet.owner.state import ClientState, Part
from tablepuppet.privacy.accounting import Mechanism, composed_noise
from tablepuppet.protocol.base import Done
from tablepuppet.sources import binning
from tablepuppet.sources.binning import RawColumn, raw_columns

if TYPE_CHECKING:
    from tablepuppet.algorithms.boosting.client import ClientHalf

OfRows = OpenPart | trees.AskRows | trees.AskOwnRows  # requests that name columns of a scan
_SPEC = ModelSpec(kind="boosted")


class TreesState(msgspec.Struct, frozen=True):
    """The keys of a part, or columns of them, and which of them it has revealed."""

    entries: list[Key] = []
    is_told: list[bool] = []


class TreesPart(msgspec.Struct, frozen=True, eq=False):
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
    halves: "list[tuple[TreesState, ClientHalf]]" = msgspec.field(default_factory=list)  # of the last request


def sketch_features(own: ClientState, request: trees.SketchFeatures) -> trees.FeatureSketches:
    part = own.part(request)
    weights = _weights(part, own)
    contract = own.contracts.contract(request.job)
    bins = 0 if contract is None or contract.training is None else int(contract.training.algorithm["bins"])
    least = row_rules.least_of(own, part.request, part.request.train_rows)
    raw = _raw(own, part.request, part.request.train_rows)
    columns: list[trees.Sketch] = [binning.sketch(c, weights, bins, least) for c in raw]
    if own.hides_features(request.job):
        columns = [_sketch_names(own, part, c) for c in raw]
    trim_heap()
    return trees.FeatureSketches(columns=columns)


def start_trees(own: ClientState, request: trees.StartTrees) -> trees.TreesStarted:
    part = own.part(request)
    use = own.scan(part.request).use()
    own.releases.charge_whole_model(request.job, use, _spends(own, request, use.table))
    train = _raw(own, part.request, part.request.train_rows)
    held = _raw(own, part.request, part.request.test_rows)
    weights = _weights(part, own)
    options = request.algorithm
    least = row_rules.least_of(own, part.request, part.request.train_rows)
    bins = request.bins
    is_private = own.hides_features(request.job)
    if is_private:
        agreed = own.contracts.jobs[request.job].part(request.part).block.bounds
        bounds = [agreed[c.feature] for c in train if c.feature < len(agreed)]
        public = binning.public_bins([[_sketch_names(own, part, c)] for c in train], bounds, options.bins)
        bins = public if bins is None else _check_borders(bins, public)
    elif bins is None:
        bins = binning.own_bins(train, weights, options.bin_rules, least)
    columns = binning.columns_of(bins, train)
    known = bins if request.bins is None or is_private else binning.without_rare(bins, columns, weights, least)
    codes, held_codes = (_code(side, bins, known) for side in (train, held))
    sizes = np.array([b.size for b in bins], np.int64)
    if (sizes > 256).any() or (len(codes) and (codes.max(axis=0) >= sizes).any()):
        raise TransportError("the bins that were sent do not hold all values of this part's columns")
    if request.signs and len(request.signs) != len(train):
        raise TransportError(f"signs of {len(request.signs)} columns were sent, and there are {len(train)}")
    before: Sequence[trees.SplitRule] | str = request.before
    if isinstance(before, str):  # this owner holds them
        before = _find_held(own, part.request, before, request.name)
    limit, most = request.algorithm.most_splits, own.policy.max_splits
    if most is not None and len(before) > most:
        raise PolicyError(f"no more than {most} splits of this table may be told (max_splits), and there are more")
    limit = limit if most is None else min(limit, most - len(before))
    reveals_columns = options.reveals_columns and most is None and least <= 1  # a bin may have few rows
    if before and not isinstance(request.before, str):
        _charge(own, part.request, before)
    empty = [RawColumn(c.feature, c.entry, c.is_number, np.zeros(0)) for c in columns]
    given = (request, empty, bins, np.pad(codes, ((0, 1), (0, 0))), held_codes, limit, reveals_columns, tuple(before))
    part.trees = TreesPart(*given, is_private)
    part.state = TreesState()
    if request.peers:
        part.meet(request.peers)
    else:
        part.sealing = None
    trim_heap()
    book, is_random = _half(part).book, options.is_random
    return trees.TreesStarted(
        kinds=book.columns.kinds,
        has_missing=book.has_missing if is_random or request.bins is not None else np.zeros(0, np.bool_),
        limit=limit,
        reveals_columns=reveals_columns,
        right=_earlier_bits(train, held, _without_rare_names(own, part.request, before)),
        sizes=sizes if is_random else np.zeros(0, np.int64),
    )


def _code(columns: list[RawColumn], bins: list[Bins], known: list[Bins]) -> Codes:
    """The codes of some rows, (rows, columns of bins)."""
    if not columns:
        return np.zeros((0, 0), np.uint8)
    pairs = zip(binning.columns_of(bins, columns), known, strict=True)
    return np.stack([binning.codes_of(column, own) for column, own in pairs], axis=1)


def _check_borders(bins: list[Bins], public: list[Bins]) -> list[Bins]:
    """Bins that owners of a private table share; borders of numbers are those between the agreed bounds."""
    for given, due in zip(bins, public, strict=False):
        borders, agreed = (b.borders.tolist() if isinstance(b, NumberBins) else None for b in (given, due))
        if borders != agreed:
            raise breach("borders lie evenly between the bounds that were agreed on")
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
        if book.is_whole(key) and not book.reveals_columns and book.columns.kinds[key.column] not in (SPARSE, RARE):
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
    sides = [[column.and_missing() for column in train], held]
    found = [[np.unpackbits(b, count=len(side[0])) for b in binning.answers(side, rules)] for side in sides]
    return [np.packbits(np.concatenate(both)) for both in zip(*found, strict=True)]


def _bits(
    own: ClientState, request: trees.AskRows | trees.AskOwnRows, rules: Sequence[trees.SplitRule]
) -> trees.RowBits:
    columns = [column.and_missing() for column in _raw(own, request, request.rows)]
    _charge(own, request, rules)
    return trees.RowBits(right=binning.answers(columns, _without_rare_names(own, request, rules)))


def _charge(own: ClientState, request: OfRows, rules: Sequence[trees.SplitRule]) -> None:
    """Counts the answers of rows to splits. A split that a server chose may reveal all of a column with few values, so
    it counts as a number."""
    if own.releases.limits_scores and not own.shows_noise(request):
        scan, contract = own.scan(request), own.agreed(request.job)
        own.releases.charge_scores(scan, request.columns, len(rules), trees.splits_name(rules), contract)


def _sketch_names(own: ClientState, part: Part, column: RawColumn) -> trees.Sketch:
    """Under noise: nothing of numbers, and the names that a text has in the whole table."""
    if column.is_number:
        return trees.NumberSketch(values=np.zeros(0), weights=np.zeros(0))
    found = row_rules.find_names(own, part.request, part.request.columns[column.feature])
    is_cut = found.is_cut or own.policy.minimum_rows > 1  # rarer names are others
    return trees.CategorySketch(categories=found.categories, weights=found.weights, is_cut=is_cut)


def _without_rare_names(
    own: ClientState, request: OfRows, rules: Sequence[trees.SplitRule]
) -> Sequence[trees.SplitRule]:
    """The rules that rows answer: names that few rows of the whole table hold are left out, as in training; but not
    for an analyst, as one row more would bring the scores of all of them."""
    least = row_rules.least_of(own, request)
    if least <= 1 or own.shows_noise(request) or not any(rule.left or rule.known for rule in rules):
        return rules
    named = sorted({rule.feature for rule in rules if rule.left or rule.known})
    infos = own.scan(request).columns
    places = [request.columns[feature] for feature in named]
    read = own.scan(request).everywhere(places)
    found = raw_columns(read.columns, [infos[c] for c in places])
    columns = [replace(column, feature=named[column.feature]) for column in found]
    return binning.rules_without_rare(rules, columns, least)


def require_trees(part: Part) -> TreesPart:
    started: TreesPart | None = part.trees
    if started is None:
        raise TransportError("a part's trees must be started before they are grown")
    return started


def _half(part: Part) -> "ClientHalf":
    from tablepuppet.algorithms.boosting.client import (
        ClientHalf,  # here: they load the compiler
        KeyBook,
    )
    from tablepuppet.algorithms.boosting.kernels import announce_compilation

    announce_compilation()

    own = require_trees(part)
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


def _keep(part: Part, half: "ClientHalf") -> None:
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
    return [binning.rule_of(key, own.columns[key.column], own.bins[key.column]) for key in (book.keys[k] for k in keys)]


def _count_trained(own: ClientState, part: Part, rules: Sequence[trees.SplitRule]) -> None:
    scan = own.scan(part.request)
    if not tells_label(own, part.request.job, reads(scan, part.request.columns)):
        own.releases.record_scores(scan.table, trees.splits_name(rules))


def _raw(own: ClientState, request: OfRows, rows: RowNumbers | None) -> list[RawColumn]:
    pairs = [own.scan(request).column(c) for c in request.columns]
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
    reach = {part.request.scan: bound_reach(own.scan(part.request).use()) for part in same}
    most = sum(reach[part.request.scan] * int(_weights(part, own).max(initial=1.0)) for part in same)
    return (Mechanism(agreed.noise / most, steps),)
