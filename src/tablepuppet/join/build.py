"""BoundQuery → TableMapping: gather keys, join them, split, and keep only rows that matter.

Three rounds: keys; label summaries; labels. A client's rows that no joined training (or test) row
comes from take no part in training (or testing): they are neither sent nor computed. All that is counted per row of
the tables; the joined rows themselves are made last, those of each side apart.

Under a cap on multiplicity at most κ joined rows per base row take part in training. If a base row has more, a seeded
choice stays. Blocks are capped one after the other, and dropping a joined row never raises another's multiplicity.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import MappingError, PrivacyError
from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.cluster.rows import ClusterRows
from tablepuppet.join.duckdb_join import Counts, ListedRows, Marks
from tablepuppet.join.factorised.tree import Tree
from tablepuppet.join.join import Span, block_span, parts_of_block
from tablepuppet.join.keys import ScanKeys, gather_keys
from tablepuppet.join.labels import LabelSpace, MappingRequest, read_labels
from tablepuppet.join.mapping import LabelRows, Part, Placement, RelationStats, SideSizes, TableMapping
from tablepuppet.join.materialize import Writer
from tablepuppet.join.tree_join import BranchJoin, BranchSide, TreeJoin, TreeSide
from tablepuppet.join.walk_choice import MAX_DRAWN, draw_side, join_branches
from tablepuppet.memory import trim_heap
from tablepuppet.sql.bound import BoundQuery, Branch
from tablepuppet.transport.link import Link

_STREAM = 0x6B61707061
_MOST_REACHED = 10_000  # joined rows that one row may make; the memory that is free differs by more from job to job


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
        rank = np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
        kept = kept[np.sort(order[(rank < cap) | (grouped < 0)])]
    return np.sort(kept)


class RowChoice(msgspec.Struct, frozen=True):
    """Which rows of the label space are mapped, all as training rows: those that a model is measured on."""

    marks: Callable[[LabelSpace, Sequence[dict[str, int]]], NDArray[np.bool_]]
    nothing_left: str  # the error message if no joined row has a marked one


Side = list[BranchSide]  # joined rows of each branch


def map_tables(
    bound: BoundQuery,
    link: Link,
    request: MappingRequest,
    *,
    cluster: Cluster | None = None,
    choice: RowChoice | None = None,
) -> TableMapping:
    """The table mapping of a bound query, in three rounds; with a cluster, its joined rows lie there."""
    privacy = request.privacy
    caps = [None if privacy.features is None else privacy.features.cap_of(block.table) for block in bound.blocks]
    keys, client_rows = gather_keys(bound, link, request.job, privacy, is_ordered=True)
    trim_heap()  # in one process: memory that owners freed meanwhile
    if request.analyst_cap is not None:
        _check_reach(bound.branches[0], _budgeted_relation(bound), keys)
    found = join_branches(bound, keys, request, None if any(caps) else cluster)
    cutoffs = {number: scan.cutoffs for number, scan in enumerate(keys) if scan.cutoffs is not None}
    merged = tuple(scan.merged for scan in keys)
    del keys
    labels = read_labels(bound, link, request, client_rows)
    joins, walk = found.joins, found.choose(request, labels.info)
    sides = _split(bound, joins, labels, _mark_rows(bound, labels, choice, client_rows, request), request.analyst_cap)
    whole = SideSizes(*map(_rows, sides))
    if walk == "drawn":
        most = request.max_joined_rows or min(MAX_DRAWN, found.limit)
        sides = [draw_side(side, most, request.seed) for side in sides]
    of_labels, sizes = _label_span(bound, labels), [join.sizes for join in joins]
    of_branches = [branch.label_place for branch in bound.branches]
    counts = [_counts(sides[0]), _counts(*sides[1:])]
    fits = _fits(bound, counts, client_rows)
    _check_sides(bound, labels, [of_labels.total(own) for own in counts], request, choice)
    spans = [block_span(bound, block, client_rows) for block in bound.blocks]
    columns, dropped = [span for span, _ in spans], _rows(sides[0])
    if privacy.features is not None and request.analyst_cap is None and any(any(s.has_absent) for s in columns):
        raise PrivacyError(
            "a feature has a value where a LEFT JOIN finds no row (COALESCE, IS NULL, CASE), and one row more or less "
            "moves its joined rows to that value, which privacy.features does not account for; select the plain column"
        )
    if any(caps):
        sides[0] = _within_caps(sides[0], joins, columns, caps, request.seed)
        counts[0] = _counts(sides[0])
    same = [span.relations == of_labels.relations and len(span.relations) == 1 for span in columns]
    label = same.index(True) if True in same else len(spans)  # the block whose rows are the label's
    columns += [] if True in same else [of_labels]
    occurring = [[span.occurring(count) for span in columns] for count in counts]
    multiplicity = tuple(
        _count_occurrences(*own, counts[0]) for own in zip(columns[: len(spans)], occurring[0], strict=False)
    )
    del counts
    trim_heap()
    parts: list[Part] = []
    for number, (_, places) in enumerate(spans):
        own = (occurring[0][number], occurring[1][number])
        parts += parts_of_block(number, places, own, len(parts), privacy.masks)
    trees = tuple(Tree.of(join) for join in joins if isinstance(join, TreeJoin)) if walk == "factorised" else None
    writer = Writer(len(spans), columns, label, sizes, labels, cluster, trees, request.seed)
    joined = writer.write("train", sides[0], occurring[0], multiplicity[label] if label < len(spans) else None)
    is_tree = all(isinstance(branch, TreeSide) for branch in sides[0])
    mapping = TableMapping(
        bound=bound,
        label=labels.info,
        fits=fits,
        parts=tuple(parts),
        multiplicity=multiplicity,
        train=joined,
        test=writer.write("test", sides[1], occurring[1]),
        validation=writer.write("validation", sides[2], occurring[1]),
        dropped=dropped - _rows(sides[0]),
        placement=Placement(len(joined.partitions), is_tree) if isinstance(joined, ClusterRows) else None,
        folds=None if labels.folds is None else labels.folds[occurring[0][label]],
        label_rows=tuple(LabelRows(labels.offsets[place], dict(client_rows[place.scan])) for place in of_branches),
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
    request: MappingRequest,
) -> tuple[Marks, Marks, Marks]:
    """The rows of the label space that are trained on, tested on, and validated on."""
    is_held = labels.is_test | labels.is_validation
    if choice is not None:
        nobody = np.zeros_like(is_held)
        return choice.marks(labels, client_rows), nobody, nobody
    asks = any(branch.label_place.test >= 0 for branch in bound.branches) and request.analyst_cap is None
    if asks and not labels.is_test.any():
        raise MappingError("test_where matches no rows left by WHERE; change the condition, or leave it out")
    return ~is_held, is_held & ~labels.is_validation, labels.is_validation


def _split(
    bound: BoundQuery,
    joins: Sequence[BranchJoin],
    labels: LabelSpace,
    marks: tuple[Marks, Marks, Marks],
    analyst_cap: int | None,
) -> list[Side]:
    """The joined rows of each side, whose rows of the label space are marked.

    A cap leaves some of those of each row of a table with an analyst budget, in the one branch. Which of them is
    nobody's to know: each row's are drawn apart from all others.
    """
    of_labels = _label_span(bound, labels)
    places = list(zip(joins, of_labels.relations, of_labels.offsets, strict=True))

    def choose(own: Marks) -> Side:
        return [join.side(own[offset : offset + join.sizes[relation]]) for join, relation, offset in places]

    if analyst_cap is None:
        return [choose(own) for own in marks]
    chosen = np.logical_or.reduce(marks)
    if labels.values.dtype != np.int8:
        chosen &= ~np.isnan(labels.values)  # rows without one are left out: a job must not fail for one of them
    relation = _budgeted_relation(bound)
    listed = ListedRows.of(choose(chosen)[0], joins[0].sizes)
    kept = listed.only(within_cap([listed.numbers(relation)], [analyst_cap], secrets.randbits(128)))
    rows = of_labels.numbers([kept])
    return [[kept.only(np.flatnonzero(own[rows]))] for own in marks]


def _budgeted_relation(bound: BoundQuery) -> int:
    return next(n for n, own in enumerate(bound.branches[0].relations) if bound.scans[own.scan].budgeted)


def _check_reach(branch: Branch, budgeted: int, keys: Sequence[ScanKeys]) -> None:
    """Refuses a join that one row of a table with an analyst budget could make too large for the server: a job that
    fails would reveal the row. Rows of the other tables alone decide on it."""
    known, most = {budgeted}, 1
    ends = [((p.left, p.left_column), (p.right, p.right_column)) for p in branch.pairs]
    ends += [(right, left) for left, right in ends]
    while beyond := [right[0] for left, right in ends if left[0] in known and right[0] not in known]:
        relation = beyond[0]
        names = sorted({f"k{right[1]}" for left, right in ends if left[0] in known and right[0] == relation})
        rows = keys[branch.relations[relation].scan].table.select(names).drop_null()
        repeats = rows.group_by(names).aggregate([([], "count_all")]).column("count_all")
        most *= int(repeats.to_numpy().max(initial=1))
        known.add(relation)
    if most > _MOST_REACHED:
        raise PrivacyError(
            f"a row of the table with an analyst budget could be in {most:,} joined rows, for keys of other tables "
            f"repeat, and at most {_MOST_REACHED:,} are joined; join on more keys, or leave a table out"
        )


def _label_span(bound: BoundQuery, labels: LabelSpace) -> Span:
    """The rows of the label space that joined rows have their labels from."""
    relations = tuple(branch.label_relation for branch in bound.branches)
    offsets = tuple(labels.offsets[branch.label_place] for branch in bound.branches)
    return Span(relations, offsets, len(labels.values))


def _rows(side: Side) -> int:
    return sum(branch.rows for branch in side)


def _counts(*sides: Side) -> list[list[Counts]]:
    """Joined rows of all these sides per row of each relation of each branch."""
    found = [branch.counts() for branch in sides[0]]
    for side in sides[1:]:
        if _rows(side):
            pairs = zip(found, side, strict=True)
            found = [[a + b for a, b in zip(own, branch.counts(), strict=True)] for own, branch in pairs]
    return found


def _count_occurrences(span: Span, rows: RowNumbers, counts: Sequence[Sequence[Counts]]) -> RowNumbers:
    """How often some rows occur; where all of them do once, a number that takes no room."""
    total = span.total(counts)
    found = total if len(rows) == len(total) else total[rows]  # all of them: they come ascending
    return np.broadcast_to(found.dtype.type(1), found.shape) if bool((found == 1).all()) else found


def _within_caps(
    train: Side, joins: Sequence[BranchJoin], spans: Sequence[Span], caps: Sequence[int | None], seed: int
) -> Side:
    """The joined training rows that the caps on multiplicity leave."""
    listed = [ListedRows.of(side, join.sizes) for side, join in zip(train, joins, strict=True)]
    kept = within_cap([span.numbers(listed) for span in spans], caps, seed)
    ends = np.cumsum([0, *(side.rows for side in listed)])
    inside = np.split(kept, np.searchsorted(kept, ends[1:-1]))
    return [side.only(own - end) for side, own, end in zip(listed, inside, ends[:-1].tolist(), strict=True)]


def _check_sides(
    bound: BoundQuery, labels: LabelSpace, counts: Sequence[Counts], request: MappingRequest, choice: RowChoice | None
) -> None:
    """Every joined row has a label, and a weight where the job has any; some are left to train on.

    `counts`: joined rows per label row, of those that are trained on and of those held out.
    """

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
    if counts[0].any():
        return
    if choice is not None:
        raise MappingError(choice.nothing_left)
    if request.test_fraction < 1:
        where = "test and the validation side" if labels.is_validation[counts[1] > 0].any() else "test side"
        raise MappingError(
            f"all {total} joined rows fell on the {where}; lower test_fraction, shorten gap, keep fewer rows out by "
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
            joined = counts[0][number][i] + counts[1][number][i]
            if join is not None and join.is_lookup:  # no joined row has a row of it
                joined = joined[:0]
            matched = int(np.count_nonzero(joined))
            fits.append(
                RelationStats(
                    alias=relation.alias,
                    table=scan.table,
                    clients=len(scan.clients),
                    rows=sum(client_rows[relation.scan].values()),
                    matched=matched,
                    max_fan_out=int(joined.max(initial=0)),
                    mean_fan_out=int(joined.sum()) / max(1, matched),
                    is_outer=join is not None and join.kind == "left",
                    is_anti=join is not None and join.is_anti,
                    is_semi=join is not None and join.kind == "semi",
                )
            )
    return tuple(fits)
