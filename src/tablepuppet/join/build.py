"""BoundQuery → TableMapping: gather keys, join them, split, and keep only rows that matter.

Three rounds: keys; label summaries; labels. A client's rows that no joined training (or test) row
comes from take no part in training (or testing): they are neither sent nor computed. All that is counted per row of
the tables; the joined rows themselves are made last, those of each side apart.

Under a cap on multiplicity at most κ joined rows per base row take part in training. If a base row has more, a seeded
choice stays. Blocks are capped one after the other, and dropping a joined row never raises another's multiplicity.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers, freeze, pieces
from tablepuppet.errors import MappingError, PrivacyError
from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.duckdb_join import BranchSide, Counts, ListedSide, Marks
from tablepuppet.join.factorised.tree import Tree
from tablepuppet.join.join import BranchJoin, Span
from tablepuppet.join.keys import gather_keys
from tablepuppet.join.labels import LabelSpace, MappingRequest, no_labels, read_labels
from tablepuppet.join.mapping import LabelRows, Part, RelationStats, SideSizes, TableMapping
from tablepuppet.join.materialize import Writer
from tablepuppet.join.tree_join import TreeJoin
from tablepuppet.join.walk_choice import draw_side, join_branches
from tablepuppet.memory import trim_heap
from tablepuppet.sql.bound import Block, BoundQuery
from tablepuppet.transport.link import Link


@dataclass(frozen=True, slots=True)
class Place:
    """Where one client's rows lie in a block."""

    client: str
    scan: int
    columns: tuple[int, ...]
    end: int
    has_absent: bool = False  # whether the last of them stands for the row that a LEFT JOIN did not find


def block_span(
    bound: BoundQuery, block: Block, client_rows: Sequence[dict[str, int]], assumed: Sequence[Collection[int]] = ()
) -> tuple[Span, list[Place]]:
    """Where each branch's rows lie in the block, and where each client's.

    Members of different branches that read the same columns of the same scan share their rows. A column such as
    COALESCE(x, 0) has a value although a LEFT JOIN finds no row; the last client then has one more row for it.
    Relations in `assumed` (by branch), such as those of a missing owner, get no such row.
    """
    offsets: dict[tuple[int, tuple[int, ...]], int] = {}
    places: list[Place] = []
    total = 0
    starts, absent = [], []
    for number, (branch, member) in enumerate(zip(bound.branches, block.members, strict=True)):
        scan = branch.relations[member.relation].scan
        key = (scan, member.columns)
        has_absent = any(bound.scans[scan].columns[c].absent is not None for c in member.columns)
        has_absent &= not assumed or member.relation not in assumed[number]
        if key not in offsets:
            offsets[key] = total
            *others, last = bound.scans[scan].clients
            for client in (*others, last):
                total += client_rows[scan][client] + (has_absent and client == last)
                places.append(Place(client, scan, member.columns, total, has_absent and client == last))
        starts.append(offsets[key])
        absent.append(has_absent)
    return Span(tuple(member.relation for member in block.members), tuple(starts), total, tuple(absent)), places


def parts_of_block(
    block: int,
    places: Sequence[Place],
    sides: tuple[RowNumbers, RowNumbers],
    number: int,
    masks: Callable[[int], bool] = lambda clients: False,
) -> list[Part]:
    """The clients' shares of a block. A client without used rows takes no part, with two exceptions: it is the only
    client (a LEFT JOIN may find nobody), or too few would be left for masks. Then its sums are zero."""
    ends = np.array(
        [0, *(place.end for place in places)], dtype=sides[0].dtype
    )  # of another, NumPy would widen all rows
    borders = [np.searchsorted(rows, ends).tolist() for rows in sides]
    inside = [[slice(*own[i : i + 2]) for own in borders] for i in range(len(places))]
    are_used = [any(s.stop > s.start for s in own) for own in inside]
    used = {place.client for place, is_used in zip(places, are_used, strict=True) if is_used}
    keeps_all = masks(len({place.client for place in places})) and not masks(len(used))
    parts: list[Part] = []
    for i, place in enumerate(places):
        is_last = place is places[-1] and not parts
        if not (keeps_all or is_last or are_used[i]):
            continue
        start, stop = (0 if i == 0 else places[i - 1].end), place.end
        dtype = np.int32 if stop - start < 2**31 else np.int64
        only, held = (np.subtract(rows[own], start, dtype=dtype) for rows, own in zip(sides, inside[i], strict=True))
        if place.has_absent:
            only, held = (np.where(rows == stop - start - 1, dtype(-1), rows) for rows in (only, held))
        is_whole = len(only) == stop - start and not place.has_absent  # they ascend
        given = (number + len(parts), block, place.client, place.scan, place.columns)
        parts.append(Part(*given, None if is_whole else freeze(only), freeze(held), *inside[i]))
    return parts


_STREAM = 0x6B61707061


def within_cap(blocks: Sequence[RowNumbers], caps: Sequence[int | None], seed: int) -> NDArray[np.int64]:
    """The joined rows that stay, ascending; `blocks[i]` is p_i, −1 where there is no row.

    >>> within_cap([np.array([0, 0, 0, 1, -1, -1])], [2], seed=0).tolist()
    [0, 1, 3, 4, 5]
    """
    kept: NDArray[np.int64] = np.random.default_rng((seed, _STREAM)).permutation(len(blocks[0]))
    for rows, cap in zip(blocks, caps, strict=True):
        if cap is None:
            continue
        base = rows[kept]
        order = np.argsort(base, kind="stable")
        grouped = base[order]
        first = np.flatnonzero(np.concatenate([[True], grouped[1:] != grouped[:-1]])) if len(grouped) else grouped
        rank = np.arange(len(grouped)) - np.repeat(first, np.diff(np.append(first, len(grouped))))
        stays = np.zeros(len(kept), np.bool_)
        stays[order[(rank < cap) | (grouped < 0)]] = True
        kept = kept[stays]
    return np.sort(kept)


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Which rows of the label space are mapped, all as training rows: those that a model is measured on."""

    marks: Callable[[LabelSpace, Sequence[dict[str, int]]], NDArray[np.bool_]]
    nothing_left: str  # the error message if no joined row has a marked one


def map_tables(
    bound: BoundQuery,
    link: Link,
    request: MappingRequest,
    *,
    cluster: Cluster | None = None,
    choice: RowChoice | None = None,
) -> TableMapping:
    """The table mapping of a bound query; with a cluster, its joined rows lie there."""
    privacy = request.privacy
    caps = [None if privacy.features is None else privacy.features.cap_of(block.table) for block in bound.blocks]
    keys, client_rows = gather_keys(bound, link, request.job, privacy, request.seed)
    trim_heap(max(sum(own.values()) for own in client_rows))  # in one process: memory that owners freed meanwhile
    merged = tuple(scan.merged for scan in keys)
    cutoffs = {number: scan.cutoffs for number, scan in enumerate(keys) if scan.cutoffs is not None}
    found = join_branches(bound, keys, request, None if any(caps) else cluster)
    joins = found.joins
    del keys
    has_label = bound.branches[0].label_column >= 0
    labels = read_labels(bound, link, request, client_rows) if has_label else no_labels(bound, client_rows)
    of_labels = _label_span(bound, labels)
    is_trained, is_held = _mark_rows(bound, labels, choice, client_rows, may_be_none=request.analyst_cap is not None)
    walk = found.choose(request, labels.info)
    marks = (is_trained, is_held & ~labels.is_validation, is_held & labels.is_validation)
    if request.analyst_cap is None:
        train, test, validation = (_side(joins, of_labels, own) for own in marks)
    else:
        chosen = is_trained | is_held  # rows without one are left out: a job must not fail for one of them
        if labels.values.dtype != np.int8:
            chosen &= ~np.isnan(labels.values)
        kept = _cap_analyst(bound, joins, _side(joins, of_labels, chosen), request.analyst_cap)
        rows = of_labels.numbers([kept])
        train, test, validation = (list[BranchSide]([kept.only(np.flatnonzero(own[rows]))]) for own in marks)
    whole = SideSizes(_rows(train), _rows(test), _rows(validation))
    if walk == "drawn":
        draw = partial(
            draw_side, sizes=[join.sizes for join in joins], seed=request.seed, most=found.most_drawn(request)
        )
        train, test, validation = draw(train), draw(test), draw(validation)
    counts = [_counts(train), _counts(test)]
    if _rows(validation):
        counts[1] = _add_counts(counts[1], _counts(validation))
    fits = _fits(bound, counts, client_rows)
    _check_labels(bound, labels, [of_labels.total(own) for own in counts])
    if choice is not None and not _rows(train):
        raise MappingError(choice.nothing_left)
    if request.test_fraction < 1 and not _rows(train):
        is_tested = not bool(labels.is_validation[of_labels.total(counts[1]) > 0].any())
        raise MappingError(_nothing_left(_rows(test) + _rows(validation), is_tested))
    spans = [block_span(bound, block, client_rows) for block in bound.blocks]
    if privacy.features is not None:
        _check_absent([span for span, _ in spans])
    dropped = _rows(train)
    if any(caps):
        train = _within_caps(train, joins, [span for span, _ in spans], caps, request.seed)
        counts[0] = _counts(train)
    dropped -= _rows(train)

    columns = [span for span, _ in spans]
    label = _label_column(columns, of_labels)
    columns += [of_labels] if label == len(spans) else []
    occurring = [[span.occurring(count) for span in columns] for count in counts]
    multiplicity = tuple(
        _count_occurrences(span.total(counts[0]), rows) for (span, _), rows in zip(spans, occurring[0], strict=False)
    )
    del counts
    trim_heap()
    parts: list[Part] = []
    for number, (_, places) in enumerate(spans):
        own = (occurring[0][number], occurring[1][number])
        parts += parts_of_block(number, places, own, len(parts), request.privacy.masks)
    trees = None if walk != "factorised" else tuple(Tree.of(join) for join in joins if isinstance(join, TreeJoin))
    writer = Writer(len(spans), columns, label, [join.sizes for join in joins], labels, cluster, trees, request.seed)
    joined = writer.write("train", train, occurring[0], multiplicity[label] if label < len(spans) else None)
    mapping = TableMapping(
        bound=bound,
        label=labels.info,
        fits=fits,
        parts=tuple(parts),
        multiplicity=multiplicity,
        train=joined,
        test=writer.write("test", test, occurring[1]),
        validation=writer.write("validation", validation, occurring[1]),
        dropped=dropped,
        placement=writer.placement(joined, train),
        folds=None if labels.folds is None else labels.folds[occurring[0][label]],
        label_rows=tuple(
            LabelRows(labels.offsets[branch.label_place], dict(client_rows[branch.label_place.scan]))
            for branch in bound.branches
        ),
        merged=merged,
        cutoffs=cutoffs,
        walk=walk,
        whole=whole if walk == "drawn" else None,
    )
    trim_heap()
    return mapping


def _mark_rows(
    bound: BoundQuery,
    labels: LabelSpace,
    choice: RowChoice | None,
    client_rows: Sequence[dict[str, int]],
    *,
    may_be_none: bool,
) -> tuple[Marks, Marks]:
    """The rows of the label space that are trained on, and those that are held out."""
    is_held = labels.is_test | labels.is_validation
    if choice is not None:
        return choice.marks(labels, client_rows), np.zeros_like(is_held)
    if any(b.test_column >= 0 for b in bound.branches) and not may_be_none and not labels.is_test.any():
        raise MappingError("test_where matches no rows left by WHERE; change the condition, or leave it out")
    return ~is_held, is_held


def _check_absent(spans: Sequence[Span]) -> None:
    if any(any(span.has_absent) for span in spans):
        raise PrivacyError(
            "a feature has a value where a LEFT JOIN finds no row (COALESCE, IS NULL, CASE), and one row more or less "
            "moves its joined rows to that value, which privacy.features does not account for; select the plain column"
        )


def _label_column(spans: Sequence[Span], of_labels: Span) -> int:
    """The block whose rows are the label's; as many as there are blocks if none is."""
    same = [span.relations == of_labels.relations and len(span.relations) == 1 for span in spans]
    return same.index(True) if True in same else len(spans)


def _label_span(bound: BoundQuery, labels: LabelSpace) -> Span:
    """The rows of the label space that joined rows have their labels from."""
    relations = tuple(branch.label_relation for branch in bound.branches)
    offsets = tuple(labels.offsets[branch.label_place] for branch in bound.branches)
    return Span(relations, offsets, len(labels.values))


def _side(joins: Sequence[BranchJoin], of_labels: Span, marks: Marks) -> list[BranchSide]:
    """The joined rows whose rows of the label space are marked."""
    found: list[BranchSide] = []
    for join, relation, offset in zip(joins, of_labels.relations, of_labels.offsets, strict=True):
        found.append(join.side(marks[offset : offset + join.sizes[relation]]))
    return found


def _rows(side: Sequence[BranchSide]) -> int:
    return sum(branch.rows for branch in side)


def _counts(side: Sequence[BranchSide]) -> list[list[Counts]]:
    """Joined rows per row of each relation of each branch."""
    return [branch.counts() for branch in side]


def _add_counts(first: list[list[Counts]], second: list[list[Counts]]) -> list[list[Counts]]:
    """Adds the counts of two sides."""
    return [[a + b for a, b in zip(*own, strict=True)] for own in zip(first, second, strict=True)]


def _count_occurrences(counts: Counts, rows: RowNumbers) -> RowNumbers:
    """How often some rows occur; where all of them do once, a number that takes no room."""
    found = counts if len(rows) == len(counts) else counts[rows]  # all of them: they come ascending
    return np.broadcast_to(found.dtype.type(1), found.shape) if bool((found == 1).all()) else found


def _within_caps(
    train: Sequence[BranchSide],
    joins: Sequence[BranchJoin],
    spans: Sequence[Span],
    caps: Sequence[int | None],
    seed: int,
) -> list[BranchSide]:
    """The joined training rows that the caps on multiplicity leave."""
    listed = [ListedSide.of(side, join.sizes) for side, join in zip(train, joins, strict=True)]
    kept = within_cap([span.numbers(listed) for span in spans], caps, seed)
    ends = np.cumsum([0, *(side.rows for side in listed)])
    inside = np.split(kept, np.searchsorted(kept, ends[1:-1]))
    return [side.only(own - end) for side, own, end in zip(listed, inside, ends[:-1].tolist(), strict=True)]


def _cap_analyst(bound: BoundQuery, joins: Sequence[BranchJoin], sides: Sequence[BranchSide], cap: int) -> ListedSide:
    """The joined rows of the one branch that a cap on those of each row of a table with an analyst budget leaves. Which
    of them is nobody's to know: each row's are drawn apart from all others."""
    relation = next(n for n, own in enumerate(bound.branches[0].relations) if bound.scans[own.scan].budgeted)
    listed = ListedSide.of(sides[0], joins[0].sizes)
    return listed.only(within_cap([listed.numbers(relation)], [cap], secrets.randbits(128)))


def _check_labels(bound: BoundQuery, labels: LabelSpace, counts: Sequence[Counts]) -> None:
    """Every joined row has a label, and a weight where the job has any; `counts`: of both sides, joined rows per label
    row."""

    def without(values: NDArray[Any] | None) -> int:
        if values is None or values.dtype == np.int8:
            return 0
        rows = np.flatnonzero(np.isnan(values))
        return sum(int(own[rows].sum()) for own in counts)

    total = sum(int(own.sum()) for own in counts)
    missing = without(labels.values)
    if missing:
        raise MappingError(
            f"label {bound.label} is NULL or NaN in {missing:,} of {total:,} joined rows; add WHERE {bound.label} "
            f"IS NOT NULL, and of floats AND NOT isnan({bound.label}) (on the table's own column)"
        )
    missing = without(labels.weights)
    if missing:
        raise MappingError(
            f"the weight is NULL in {missing:,} of {total:,} joined rows; "
            'leave such rows out by WHERE, or give them one: weight = "coalesce(w, 1)"'
        )


def _nothing_left(rows: int, is_tested: bool) -> str:
    where = "test side" if is_tested else "test and the validation side"
    return (
        f"all {rows} joined rows fell on the {where}; lower test_fraction, keep fewer rows out by "
        "test_where or validation_where, or bring more rows"
    )


def _fits(
    bound: BoundQuery, counts: Sequence[Sequence[Sequence[Counts]]], client_rows: Sequence[dict[str, int]]
) -> tuple[RelationStats, ...]:
    """How the relations met, from joined rows per row on both sides."""
    fits = []
    for number, branch in enumerate(bound.branches):
        kinds = {join.relation: join for join in branch.joins}
        for i, relation in enumerate(branch.relations):
            scan, join = bound.scans[relation.scan], kinds.get(i)
            sides = [counts[0][number][i], counts[1][number][i]]
            rows = len(sides[0])
            if join is not None and join.is_lookup:  # no joined row has a row of it
                rows, sides = sum(client_rows[relation.scan].values()), [own[:0] for own in sides]
            matched = most = total = 0
            for here in pieces(len(sides[0])):
                joined = sides[0][here] + sides[1][here]
                matched, total = matched + int(np.count_nonzero(joined)), total + int(joined.sum())
                most = max(most, int(joined.max()))
            fits.append(
                RelationStats(
                    alias=relation.alias,
                    table=scan.table,
                    clients=len(scan.clients),
                    rows=rows,
                    matched=matched,
                    max_fan_out=most,
                    mean_fan_out=total / matched if matched else 0.0,
                    is_outer=join is not None and join.kind == "left",
                    is_anti=join is not None and join.is_anti,
                    is_semi=join is not None and join.kind == "semi",
                )
            )
    return tuple(fits)
