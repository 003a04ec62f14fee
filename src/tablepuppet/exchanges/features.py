"""Features: a part is opened, and statistics of its columns are sent, from which encoders are made (parts.py).

A *part* is one client's share of a block: some feature columns of a scan, for the rows that matter.
"""

import hmac
from typing import Annotated

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from tablepuppet.arrays import RowNumbers, effective_rows
from tablepuppet.exchanges.base import WITH_STATISTICS, Rules
from tablepuppet.exchanges.steps import Shapes, check_summands
from tablepuppet.memory import trim_heap
from tablepuppet.owner import row_rules
from tablepuppet.owner.enforcement import JobUnderContract, PartUnderContract, breach, distinct_rows
from tablepuppet.owner.policy import refused_by
from tablepuppet.owner.row_sets import count_equal_before
from tablepuppet.owner.singling_out import is_computed
from tablepuppet.owner.state import ClientState, Part, Sealing
from tablepuppet.owner.tokens import Column, are_ids, id_statistics, look_like_ids
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.privacy.options import Rounding
from tablepuppet.protocol import bounds
from tablepuppet.protocol.base import MOST_CATEGORIES, Discloses, Masked, Message, Partial, PartRequest, Place
from tablepuppet.protocol.bounds import Known, KnownPart, check_array, check_finite, require
from tablepuppet.protocol.columns import CategoryStatistics, ColumnInfo, IdStatistics, NumberStatistics, Statistics
from tablepuppet.sources import statistics as stats
from tablepuppet.sources.columns import STRING_KINDS
from tablepuppet.sources.statistics import existing_rows


class FindIds(PartRequest, frozen=True):
    """Which of these texts would you take for ids (owner/tokens.py)? Asked of blocks with several parts. → FoundIds"""

    scan: int
    columns: list[int]


class FoundIds(Message, frozen=True):
    places: tuple[Place, ...]  # in the columns that were asked about


class OpenPart(PartRequest, frozen=True):
    """Take these columns and rows of a scan as your part of a block; send statistics of its features.

    → FeatureStatistics | FeatureNames. Row −1 stands for a row that does not exist (an outer join found none):
    its features are zeros, or their values for such a row.
    """

    scan: int
    columns: list[int]
    train_rows: RowNumbers | None  # None: all, in order
    test_rows: RowNumbers
    # G of the train rows; None: all one
    multiplicity: Annotated[RowNumbers | None, Discloses("multiplicities", is_per_row=True, if_empty=True)]
    wants_moments: bool = True  # False: no mean and no spread of any number
    wants_statistics: bool = True  # False: nothing about any column
    wants_key: bool = False  # whether the block's sums are masked: then names of categories come, without statistics
    ids: tuple[Place, ...] = ()  # features, by their place in `columns`, whose texts are ids and stay with their owner
    has_absent: bool = False  # whether some part of the block has a row −1 with features
    finds_ids: bool = False  # the owner takes further texts for ids, by its own rule (owner/tokens.py)
    id_salt: Annotated[str, Meta(max_length=64)] = ""  # of tokens of ids, where the block has other parts


class FeatureStatistics(Message, frozen=True):
    columns: Annotated[list[Statistics], Discloses("statistics")]


class FeatureNames(Message, frozen=True):
    """The names of categories and the lengths of vectors, without statistics, where sums are masked."""

    columns: Annotated[list[Statistics], Discloses("category names")]
    key: MaskKey | None = None  # for masks; None: the client has no secret to vouch for it


class SumStatistics(PartRequest, frozen=True):
    """Send your summands of counts and sums over the block's features (sources/statistics.py). → Masked"""

    # Agreed categories and lengths; the second time also means
    columns: Annotated[list[Statistics], Discloses("category names")]
    peers: list[MaskKey]  # keys of all the block's parts
    is_second: bool = False  # moments about the means


def _enforce_ids(job: JobUnderContract, request: FindIds) -> None:
    if not job.blocks(request.scan, request.columns)[0].finds_ids:
        raise breach("which texts are ids is not for this owner to say")
    job.count_once(f"find ids {request.part}", request.scan)


def _check_ids(request: FindIds, answer: FoundIds, known: Known) -> None:
    is_inside = all(place < len(request.columns) for place in answer.places)
    require(is_inside and len(set(answer.places)) == len(answer.places), "places", "are not among the columns")


@Rules(WITH_STATISTICS, enforce=_enforce_ids, check_answer=_check_ids)
def _find_ids(own: ClientState, request: FindIds) -> FoundIds:
    columns = [own.scan(request).names(c, is_noisy=own.hides_features(request.job)) for c in request.columns]
    return FoundIds(places=tuple(i for i, column in enumerate(columns) if look_like_ids(column)))


def _enforce_part(job: JobUnderContract, request: OpenPart) -> None:
    contract, training = job.agreed, job.training
    if request.part in job.parts:
        raise breach("which rows take part is said once, and this part is open already")
    rows = request.train_rows  # None: all, which were counted with the contract
    is_history = any(moments.column < 0 for moments in job.scan(request.scan).moments)  # whose base rows are counted
    if rows is not None and not is_history and 0 < distinct_rows(rows) < job.minimum_rows:  # of none nothing is learned
        raise refused_by(
            "minimum_rows",
            f"at least {job.minimum_rows:,} distinct rows must take part, and fewer do; filter fewer rows out",
        )
    free = job.blocks(request.scan, request.columns)
    for part in job.parts.values():
        if part.block in free:
            free.remove(part.block)
    if not free:
        raise breach("its features are a part already")
    block = next((block for block in free if block.is_masked == request.wants_key), None)
    if block is None:
        raise breach("sums leave under masks if that was agreed on, and not otherwise")
    if request.finds_ids != block.finds_ids or (not block.finds_ids and request.ids != block.ids):
        raise breach("which texts are ids that stay here was agreed on otherwise")
    if request.wants_moments and contract.feature_privacy is not None:
        raise breach("means and spreads of a private job do not leave")
    if rows is not None and not training.is_expanded:
        missing = np.count_nonzero(rows < 0)
        if distinct_rows(rows) != len(rows) - missing or missing > 1:
            raise breach("a row takes part once, however often it is joined")
    given = request.multiplicity
    if given is not None and bool((given < 1).any()):
        raise breach("every row that takes part is joined at least once")
    count = -1 if rows is None else int(np.count_nonzero(rows >= 0))
    job.parts[request.part] = PartUnderContract(block, count)


def _check_part_request(own: ClientState, request: OpenPart) -> None:
    rows = own.scan(request).rows().num_rows
    if request.train_rows is not None:
        bounds.check_row_numbers(request.train_rows, "train_rows", rows)
    bounds.check_row_numbers(request.test_rows, "test_rows", rows)
    require(all(i < len(request.columns) for i in request.ids), "ids", "name a feature that there is not")
    if request.multiplicity is not None:
        due = rows if request.train_rows is None else len(request.train_rows)
        check_array(request.multiplicity, "multiplicity", (due,), kinds="i")


def _check_statistics(request: OpenPart, answer: FeatureStatistics | FeatureNames, known: Known) -> None:
    scan = known.scan(request)
    train = scan.rows if request.train_rows is None else len(request.train_rows)
    total = float(train or 0) if request.multiplicity is None else float(request.multiplicity.sum(dtype=np.float64))
    infos = [scan.columns[column] for column in request.columns if column < len(scan.columns)]
    known.parts[request.job, request.part] = KnownPart(train, len(request.test_rows), infos)
    is_masked = isinstance(answer, FeatureNames)
    require(is_masked == request.wants_key, "columns", "come with figures where none were asked for, or without them")
    is_silent = isinstance(answer, FeatureNames) and not answer.columns and answer.key is None
    due = len(request.columns) if request.wants_statistics else 0
    require(is_silent or len(answer.columns) == due, "columns", "are not those that were asked for")
    for found, column in zip(answer.columns, request.columns, strict=False):
        info = scan.columns[column] if column < len(scan.columns) else None
        is_one = isinstance(found, NumberStatistics)
        require(info is None or is_one == bounds.is_number(info), "columns", "are of other types than the scan said")
        if isinstance(found, NumberStatistics):
            _check_number_statistics(found, total, info)
        elif isinstance(found, IdStatistics):
            _check_id_statistics(found, request, train)
        else:
            _check_category_statistics(found, total)


def _check_number_statistics(statistics: NumberStatistics, total: float, info: ColumnInfo | None) -> None:
    most = total * (1 + 1e-6) + 1e-6
    bounds.check_count(statistics.weight, "columns.weight", most)
    bounds.check_count(statistics.missing, "columns.missing", most)
    bounds.check_count(statistics.weight + statistics.missing, "columns.missing", most)
    check_array(statistics.mean, "columns.mean", (None,))
    size = len(statistics.mean)
    largest = max(info.size, 1) if info is not None and info.kind != "vector" else 2**24
    require(size <= largest, "columns.mean", f"has {size:,} numbers where {largest:,} are due")
    bounds.check_amounts(statistics.spread, "columns.spread", (size,))
    check_finite(statistics.mean, "columns.mean")
    require(not (np.abs(statistics.mean) > bounds.LARGEST).any(), "columns.mean", "is too large to be squared")


def _check_category_statistics(statistics: CategoryStatistics, total: float) -> None:
    bounds.check_distinct(statistics.categories, "columns.categories", "category")
    most = total * (1 + 1e-6) + 1e-6
    bounds.check_count(statistics.missing, "columns.missing", most)
    bounds.check_amounts(statistics.weights, "columns.weights", (len(statistics.categories),))
    # float32 on the wire rounds each of them
    bounds.check_count(float(statistics.weights.sum()) + statistics.missing, "columns.weights", most * (1 + 1e-5))


def _check_id_statistics(statistics: IdStatistics, request: OpenPart, rows: int | None) -> None:
    require(bool(request.ids) or request.finds_ids, "columns", "hold an id where none was asked for")
    count, most = statistics.count, MOST_CATEGORIES if rows is None else min(MOST_CATEGORIES, rows)
    require(0 <= count <= most, "columns.count", f"is {count:,}, outside 0 to {most:,}")
    require(
        (statistics.tokens is not None) == bool(request.id_salt), "columns.tokens", "come where none are due, or not"
    )
    if statistics.tokens is not None:
        check_array(statistics.tokens, "columns.tokens", (count,), kinds="i")
        bounds.check_ascending(statistics.tokens, "columns.tokens")


@Rules(WITH_STATISTICS, _enforce_part, _check_part_request, _check_statistics, leaves_state=True)
def _open_part(own: ClientState, request: OpenPart) -> FeatureStatistics | FeatureNames:
    row_rules.check_part(own, request)
    request = _cap_subjects(own, request)
    columns = [own.scan(request).column(c) for c in request.columns]
    train = request.train_rows
    if columns and train is not None and np.array_equal(train, np.arange(len(columns[0][0]), dtype=train.dtype)):
        request = replace(request, train_rows=None)  # all rows, in order: no list is kept
    part = own.parts[request.job, request.part] = Part(request)
    wanted = columns if request.wants_statistics else []
    found = [_compute_statistics(own, part, place, column) for place, column in enumerate(wanted)]
    if own.policy.minimum_rows > 1:
        least = row_rules.least_of(own, request, request.train_rows)
        rounding = Rounding(least, hmac.digest(own.secret, b"moments", "sha256"))
        weights = existing_rows(request.train_rows, request.multiplicity).weights
        rows = float(len(columns[0][0])) if weights is None else effective_rows(weights)
        found = [stats.round_moments(s, rounding, rows) for s in found]
    part.statistics = found if request.wants_moments else [stats.without_moments(s) for s in found]
    if own.hides_features(request.job):
        part.statistics = [_hide_missing(own, part, *pair) for pair in zip(request.columns, found, strict=bool(found))]
    trim_heap()
    if not request.wants_key:
        return FeatureStatistics(columns=list(part.statistics))
    if own.key is None:
        return FeatureNames(columns=[])
    part.sealing = Sealing(request.job, own.name, request.part, own.key)
    return FeatureNames(columns=[stats.names_only(s) for s in part.statistics], key=part.sealing.offer())


def _cap_subjects(own: ClientState, request: OpenPart) -> OpenPart:
    """Under noise on features, rows beyond those that it covers of one subject count as rows that do not exist."""
    scan = own.scan(request)
    if scan.subject is None or not own.agreed(request.job).is_noisy:
        return request
    rows = np.arange(scan.rows().num_rows) if request.train_rows is None else request.train_rows.copy()
    found = np.flatnonzero(rows >= 0)
    before = count_equal_before(scan.row_keys()[rows[found]][:, None])  # of the same subject
    rows[found[before >= own.policy.rows_per_subject(scan.table)]] = -1
    return replace(request, train_rows=rows)


def _compute_statistics(own: ClientState, part: Part, place: int, column: Column) -> Statistics:
    """A feature's statistics over the part's rows: of ids only how many, and their names are kept here."""
    request, number = part.request, part.request.columns[place]
    is_noisy = own.hides_features(request.job) and column[1].kind in STRING_KINDS
    if not are_ids(own, request, place, own.scan(request).names(number, is_noisy=is_noisy)):
        least = row_rules.least_of(own, request, request.train_rows)
        if is_noisy:
            return row_rules.find_names(own, request, number)
        return stats.statistics(*column, request.train_rows, request.multiplicity, least)
    if is_noisy:
        found: Statistics = row_rules.find_names(own, request, number, least=1)
    else:
        found = stats.statistics(*column, request.train_rows, request.multiplicity)
    assert isinstance(found, CategoryStatistics)
    part.ids[place] = found.categories
    return id_statistics(own, request, place, found)


def _hide_missing(own: ClientState, part: Part, column: int, statistics: Statistics) -> Statistics:
    """Under noise, hides which numbers an expression makes NULL (NULLIF, CASE); those of a plain column are shown."""
    scan = own.scan(part.request)
    released = stats.without_moments(statistics)
    if not isinstance(released, NumberStatistics) or (scan.query is None and not is_computed(scan.expressions[column])):
        return released
    return replace(released, weight=released.weight + released.missing, missing=0.0)


def _enforce_sums(job: JobUnderContract, request: SumStatistics) -> None:
    part = job.part(request.part)
    job.check_peers(part, request.peers)
    part.count(f"summed statistics {int(request.is_second)}", 1)


def _check_sums_request(own: ClientState, request: SumStatistics) -> None:
    bounds.check_length(request.columns, "columns", len(own.part(request).statistics))
    for agreed in request.columns:
        if isinstance(agreed, NumberStatistics):
            check_array(agreed.mean, "columns.mean", (None,))
            check_finite(agreed.mean, "columns.mean")


def _check_sums(request: SumStatistics, answer: Masked | Partial, known: Known) -> None:
    due: Shapes = []
    for column in request.columns:
        if isinstance(column, NumberStatistics):
            size = column.mean.size
            due += [(size,), (size,)] if request.is_second else [(2,), (size,)]
        elif isinstance(column, CategoryStatistics) and not request.is_second:
            due.append((len(column.categories) + 1,))
    check_summands(answer, known.part(request), "moments" if request.is_second else "counts", due)


@Rules(WITH_STATISTICS, _enforce_sums, _check_sums_request, _check_sums, leaves_state=True)
def _sum_statistics(own: ClientState, request: SumStatistics) -> Masked | Partial:
    part = own.part(request)
    part.meet(request.peers)
    summands = stats.second_summands if request.is_second else stats.first_summands
    values = summands(part.statistics, request.columns)
    return part.sealed(Partial(values=values), "moments" if request.is_second else "counts")
