"""The rows of a job: never few of them, and never a set that differs by few rows from one of an earlier job.

In: a proposed contract, then splits and parts of its job. Out: the sets of rows, which are kept once the owner agrees,
and warnings for the person who approves. A job whose comparisons single out few rows (`id <> 7`) could be subtracted
from one without them; so could two jobs whose rows differ by few. Only the owner reads all of this: nothing of it
leaves, and a refusal names the rule and no number. Off unless `minimum_rows` is 2 or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import PolicyError
from tablepuppet.owner import singling_out
from tablepuppet.owner.policy import refused_by
from tablepuppet.owner.row_sets import Keys, Kind, RowSet, Sketch, joined_keys, smallest_group
from tablepuppet.owner.scans import Scan, TableConditions
from tablepuppet.owner.state import ClientState
from tablepuppet.owner.tokens import names_rows
from tablepuppet.protocol.columns import CategoryStatistics
from tablepuppet.protocol.contract import Contract, Role, ScanTerms
from tablepuppet.sources.columns import NUMBER_KINDS, STRING_KINDS, decode, numbers
from tablepuppet.sources.statistics import statistics

if TYPE_CHECKING:
    from tablepuppet.exchanges.features import OpenPart
    from tablepuppet.exchanges.labels import DescribeLabels, SendLabels, SplitRequest

_VALUES: tuple[Role, ...] = ("feature", "label", "weight", "key")  # of what sums over rows leave


def applies(own: ClientState) -> bool:
    return max(own.policy.minimum_rows, own.policy.difference) > 1


def is_on(own: ClientState) -> bool:
    """Whether these rules are checked now; a restored checkpoint passed them before."""
    return applies(own) and not own.releases.is_restoring


def _counts(own: ClientState, request: Any) -> bool:
    """Whether rows of a scan are counted: not under an analyst budget, where a refusal would reveal that one exists."""
    return is_on(own) and not own.shows_noise(request)


def review(own: ClientState, job: str, contract: Contract) -> tuple[list[RowSet], list[str]]:
    """The sets of rows of a contract, and objections to them."""
    sets: list[RowSet] = []
    notes: list[str] = []
    names = own.row_sets.names()
    if own.log.row_sets - {own.name_rows(name) for name in names}.union(names):  # as earlier releases named them
        raise refused_by(
            "minimum_difference",
            "row sets of earlier jobs, which the log names, are missing: row_sets.sqlite was deleted or restored from "
            "an older copy. Put the newest copy back; if it is lost, its owner runs `tablepuppet log accept`",
        )
    for scan in contract.scans:
        try:
            # Expressions that leave under noise, and by no other way, may compare anything.
            known = {*_exact(scan, contract), "split", "identifier", "cutoff"}
            noisy = {n for n, column in enumerate(scan.columns) if column.roles and not known & set(column.roles)}
            tables = own.tables.scan(job, scan.scan).conditions(_predicates(own, job, scan, contract), noisy)
            if any(moments.column < 0 for moments in scan.moments) and (scan.numbers("label") or scan.merges):
                raise singling_out.unclear("a history that has the label or groups of several owners")
            if contract.purpose != "predict":
                notes += _reach(own, job, scan, contract)
        except PolicyError as error:  # of a query whose conditions cannot be placed
            notes.append(str(error).partition("refuses the request: ")[2])
            tables = []
        for table in tables:
            if table.conditions or table.cuts:
                notes += _conditions(own, table, contract, sets)
        if not notes:  # objections to conditions hold whatever rows they pick
            _enough_rows(own, job, scan)
            if contract.purpose != "predict":
                notes += [*_near_constant(own, job, scan, contract), *_models_of_few(own, job, scan, contract)]
        if own.tables.scan(job, scan.scan).is_history:
            continue  # its base rows are compared
        if contract.purpose != "predict":  # which is for scores of single rows; other rules limit those
            sets.append(_compare_rows(own, scan.table, "rows", own.tables.scan(job, scan.scan).row_keys(), sets, notes))
    return sets, list(dict.fromkeys(notes))


def _predicates(own: ClientState, job: str, scan: ScanTerms, contract: Contract) -> list[int]:
    """The expressions that decide as a whole which rows are held out. Groups and times of folds do not: they are
    checked once the folds are known (`check_folds`)."""
    kinds, has_folds = own.tables.scan(job, scan.scan).columns, contract.folds is not None and contract.folds.column
    return [n for n in scan.numbers("split") if not has_folds or kinds[n].kind == "boolean"]


def check_texts(own: ClientState, job: str, contract: Contract) -> None:
    """Refuses a feature or label that names nearly every row: its values would leave as names."""
    for scan in contract.scans if contract.purpose in ("train", "explain", "evaluate") else ():
        features = scan.numbers("feature") if contract.training is not None else ()
        is_hidden = contract.label_privacy is not None
        is_listed = contract.label_privacy is not None and contract.label_privacy.classes is not None
        for number in {*features, *(() if is_listed else scan.numbers("label"))}:
            read, is_label = own.tables.scan(job, scan.scan), number in scan.numbers("label")
            values, info = read.names(number, is_noisy=is_hidden if is_label else contract.is_noisy)
            if info.kind not in STRING_KINDS:
                continue
            if is_label and is_hidden:  # NULL is a class, whether or not some row has it
                known = decode(values)
                values = pa.chunked_array([*pc.fill_null(known, "").chunks, pa.array([""], known.type)])
            if read.is_history:  # each value once for each of its base rows
                pairs = pa.table({"base": read.base_rows()[0], "value": decode(values)})
                values = pairs.group_by(["base", "value"]).aggregate([])["value"]
            has_names = names_rows(values) if is_label else _leaves(contract, scan, number, values)
            behind = {name.lower() for name in read.use().columns[number]}
            if has_names and not behind <= own.policy.find_granted(scan.table, "texts"):
                role, names = ("label", "classes") if is_label else ("feature", "categories")
                stay = "" if is_label else "let them stay (ids=[…] with its name), "
                raise refused_by(
                    "texts",
                    f"nearly every row of {scan.table} has its own {info.name}, and as a {role} the texts themselves "
                    f"would leave as names of {names}; {stay}make groups of them (CASE, left(…, 1)), embed them at "
                    f"their owner (tp.embed), or ask the owner to grant it under tables.{scan.table}",
                )


def least_of(own: ClientState, request: Any, rows: RowNumbers | None = None) -> int:
    """How many of some rows (None: of all) are no fewer than `minimum_rows` of the owner's table."""
    least, scan = own.policy.minimum_rows, own.scan(request)
    if least < 2 or not scan.is_history:
        return least
    names = scan.base_rows()[0] if rows is None else scan.base_rows()[0][rows[rows >= 0]]
    return least * int(np.unique(names, return_counts=True)[1].max(initial=1))


def find_names(own: ClientState, request: OpenPart, number: int, least: int | None = None) -> CategoryStatistics:
    """The names of a text feature under noise: those that `least` rows of the whole table hold, uncounted."""
    column, info = own.scan(request).names(number, is_noisy=True)
    rows = np.arange(len(column))
    rows = rows if info.absent is None else np.append(rows, -1)
    found = statistics(column, info, rows, None, least_of(own, request, rows) if least is None else least)
    assert isinstance(found, CategoryStatistics)
    return replace(found, weights=np.ones(len(found.categories)), missing=float(found.missing > 0))


def _count_base(scan: Scan, rows: NDArray[np.intp], times: NDArray[np.int64]) -> float:
    """How many base rows of the same weight reveal as little of one as these rows do."""
    names, most = scan.base_rows()
    _, places = np.unique(names[rows], return_inverse=True)
    behind, weight = np.ones(places.max(initial=-1) + 1), np.bincount(places, times)
    np.maximum.at(behind, places, most[rows])
    return float(weight.sum() ** 2 / max(1e-300, (weight * weight / behind).sum()))


def _leaves(contract: Contract, scan: ScanTerms, number: int, values: pa.ChunkedArray) -> bool:
    """Whether a column of texts would leave and names nearly every row; as ids the texts stay."""
    blocks = [block for block in contract.blocks if block.scan == scan.scan and number in block.columns]
    stay = [block.finds_ids or block.columns.index(number) in block.ids for block in blocks]
    return not (stay and all(stay)) and names_rows(values)


def check_split(own: ClientState, request: SplitRequest, sides: Mapping[str, NDArray[np.bool_] | None]) -> None:
    """Refuses test or validation rows that are few, or that differ by few from those of an earlier job."""
    scan, least = own.scan(request), own.policy.minimum_rows
    for name, held in sides.items() if _counts(own, request) else ():
        if held is not None and held.any():
            why = (
                f"fewer than {least:,} rows of {scan.table} would be {name} rows, and a metric over them tells of "
                f"single ones; keep more for it, or none ({name}_fraction = 0)"
            )
            _check_held_out(own, request, scan.row_keys()[held], why)


def check_folds(own: ClientState, request: SendLabels, folds: NDArray[np.int16]) -> None:
    """Refuses folds that are few rows, or that differ by few from rows that were held out in an earlier job."""
    scan = own.scan(request)
    why = (
        f"a fold would have fewer than {own.policy.minimum_rows:,} rows of {scan.table}, and a metric over them tells "
        "of single ones; use fewer folds"
    )
    for fold in np.unique(folds) if is_on(own) else ():
        _check_held_out(own, request, scan.row_keys()[folds == fold], why)


def _check_held_out(own: ClientState, request: SplitRequest, keys: Keys, why: str) -> None:
    if len(np.unique(keys) if own.scan(request).subject is not None else keys) < own.policy.minimum_rows:
        raise refused_by("minimum_rows", why)
    _check_set(own, request, "held out", keys)


def check_fold(own: ClientState, opened: OpenPart, multiplicity: NDArray[np.float64]) -> None:
    """Refuses the rows of a fold's training, as those of a job's."""
    rows, times = opened.train_rows, multiplicity.astype(np.int64)
    kept = np.flatnonzero(times)
    check_part(own, replace(opened, train_rows=kept if rows is None else rows[kept], multiplicity=times[kept]))


def check_part(own: ClientState, request: OpenPart) -> None:
    """Refuses rows that, each as often as it is joined, differ by few from those of an earlier job. Also refuses rows
    of which one dominates: the owner of the other table may name its key a million times.
    Exempts jobs for an analyst: multiplicities depend on tables with a budget."""
    if not is_on(own) or own.agreed(request.job).analyst is not None:
        return
    scan = own.scan(request)
    keys, table = scan.row_keys(), scan.table
    rows = np.arange(len(keys)) if request.train_rows is None else request.train_rows
    times = np.ones(len(rows), np.int64) if request.multiplicity is None else request.multiplicity.astype(np.int64)
    total = np.bincount(rows[rows >= 0], times[rows >= 0], len(keys)).astype(np.int64)
    if table in own.policy.subjects:  # all rows of one count as one
        keys, places = np.unique(keys, return_inverse=True)
        total = np.bincount(places, total, len(keys)).astype(np.int64)
    taken = np.flatnonzero(total)
    are_few = len(taken) and _count_base(scan, taken, total[taken]) < own.policy.minimum_rows - 1e-9
    note = (
        f"few rows of {table} are most of all joined rows, as few as fewer than {own.policy.minimum_rows:,} that are "
        "joined alike: means over them would be nearly their own values; join such that no row is met by most others "
        "(rule minimum_rows)"
    )
    _check_set(own, request, "part", joined_keys(keys[taken], total[taken]), [note] if are_few else [])


def _conditions(own: ClientState, table: TableConditions, contract: Contract, sets: list[RowSet]) -> list[str]:
    """Objections to the comparisons of a job in one table."""
    notes: list[str] = []
    least = own.policy.minimum_rows
    if not all(condition.is_plain for condition in table.conditions):
        notes.append(
            f"a condition on {table.table} computes with several columns, and how few rows it picks depends on all of "
            "them; compare single columns (rule minimum_rows)"
        )
    keys, holds = table.read()
    periods = table.read_periods()
    if 0 < smallest_group([*holds, *periods], None if table.subject is None else keys) < least:
        also = "; round the moments (date_trunc('month', t.ts))" if periods else "; leave them out"
        notes.append(
            f"its conditions on {table.table} tell fewer than {least:,} rows apart from the others{also}, or compare "
            "such that more rows are on each side (rule minimum_rows)"
        )
    if contract.purpose != "predict":
        for held in holds:
            if 0 < np.count_nonzero(held) < len(held):
                sets.append(_compare_rows(own, table.table, "rows", keys[held], sets, notes))
        for period in periods:
            for rows in own.row_sets.prefixes(keys, period, own.policy.difference):
                sets.append(_compare_rows(own, table.table, "rows", rows, sets, notes))
    return notes


def _exact(scan: ScanTerms, contract: Contract) -> list[Role]:
    """The roles in which values count as they are. No rule reads values that leave under noise: its refusal would
    reveal them, and noise covers few rows as well as many."""
    is_noisy = contract.training is not None and contract.feature_privacy is not None
    noisy = {"feature"} if is_noisy else set()
    noisy |= set() if contract.label_privacy is None else {"label"}
    return [role for role in _VALUES if role not in noisy and scan.numbers(role)]


def _reach(own: ClientState, job: str, scan: ScanTerms, contract: Contract) -> list[str]:
    """Objections to expressions that are about few rows, whatever they are written with."""
    roles = _exact(scan, contract)
    numbers = [number for role in roles for number in scan.numbers(role)]
    least = own.policy.minimum_rows
    return [
        f"an expression on {table} tells of fewer than {least:,} rows: it is the same for all others, or nearly, and a "
        "sum over all rows would be one over those; use columns as they are, or functions in which many rows differ "
        "(rule minimum_rows)"
        for table in (own.tables.scan(job, scan.scan).singles_out(numbers, least) if roles else ())
    ]


def _near_constant(own: ClientState, job: str, scan: ScanTerms, contract: Contract) -> list[str]:
    """Objections to numbers that are the same in all rows but few: their mean and weight depend on those few."""
    notes, least, read = [], own.policy.minimum_rows, own.tables.scan(job, scan.scan)
    for number in {n for role in _exact(scan, contract) if role in ("feature", "weight") for n in scan.numbers(role)}:
        column, info = read.column(number)
        if info.kind not in NUMBER_KINDS or info.kind == "vector" or not len(column):
            continue
        values = numbers(column, info)[:, 0]
        is_there = ~np.isnan(values)
        present, base = values[is_there], read.base_rows()[0][is_there]
        if not len(present):
            continue
        usual = np.median(present[:: max(1, len(present) // 101)])  # one of more than half of them, if there is one
        others, every = len(np.unique(base[present != usual])), len(np.unique(base))
        if 0 < others < min(least, every / 2):
            notes.append(
                f"all rows of {scan.table} but fewer than {least:,} have the same {info.name}, and what is learned of "
                "it would be of these; leave it out (rule minimum_rows)"
            )
    return notes


def _models_of_few(own: ClientState, job: str, scan: ScanTerms, contract: Contract) -> list[str]:
    """Objections to models that follow few labels: extreme quantiles, leaves of few rows."""
    notes: list[str] = []
    least, read = own.policy.minimum_rows, own.tables.scan(job, scan.scan)
    for training in (contract.training, *contract.others):
        if training is None or not scan.numbers("label") or contract.label_privacy is not None:
            continue
        share = training.loss_options.get("quantile")
        if share is not None and min(share, 1.0 - share) * read.rows().num_rows < least:
            notes.append(
                f"fewer than {least:,} labels of {scan.table} lie beyond this quantile, and it is nearly the last of "
                "them; use one further from 0 and 1 (rule minimum_rows)"
            )
        column, info = read.column(scan.numbers("label")[0])
        has_classes = info.kind in (*STRING_KINDS, "boolean") or len(pc.unique(decode(column).drop_null())) <= 2
        due = least / 4 if has_classes else least  # a row of a class adds p (1 − p) to the sum
        if training.most_splits and training.algorithm["min_child_weight"] < due:
            notes.append(
                f"leaves of trees may have fewer than {least:,} rows of {scan.table}, whose labels they would tell; "
                f"train with min_child_weight={due:g} (rule minimum_rows)"
            )
    return list(dict.fromkeys(notes))


def check_classes(own: ClientState, request: DescribeLabels | SendLabels, column: pa.ChunkedArray) -> None:
    """Refuses a label with a class of few rows: its name would leave, and a model would learn those rows."""
    if not _counts(own, request) or own.policy.minimum_rows < 2:
        return
    counts = np.asarray(pc.value_counts(decode(column).drop_null()).field("counts"))
    scan = own.scan(request)
    if scan.subject is not None and len(column) == len(scan.row_keys()):  # of the job's rows, and not of all
        rows = pa.table({"class": decode(column), "subject": scan.row_keys()})
        pairs = rows.group_by(["class", "subject"]).aggregate([])
        counts = np.asarray(pc.value_counts(pairs.column("class").drop_null()).field("counts"))
    if counts.min(initial=own.policy.minimum_rows) < own.policy.minimum_rows:
        note = (
            f"fewer than {own.policy.minimum_rows:,} rows of {scan.table} are of some class of the label, and a model "
            "would learn what these are like; make groups of classes (CASE), or leave out more rows than these (rule "
            "minimum_rows)"
        )
        _refuse(own, request.job, [note])


def check_subjects(own: ClientState, job: str, contract: Contract) -> None:
    """Refuses noise that would protect a row and not all rows of its subject."""
    has_trees = contract.training is not None and bool(contract.training.most_splits)
    for scan in contract.scans if contract.is_noisy else ():
        rules = own.policy.tables.get(scan.table)
        is_capped = rules is not None and rules.rows_per_subject is not None and not has_trees
        if not scan.numbers("feature") or is_capped:
            continue
        most = own.policy.rows_per_subject(scan.table)
        if own.tables.scan(job, scan.scan).rows_of_a_subject() > most:
            raise refused_by(
                f"tables.{scan.table}.rows_per_subject",
                f"noise on features would protect {most} {'row' if most == 1 else 'rows'} of a subject, and some "
                f"subjects of {scan.table} have more; ask its owner to set rows_per_subject to the largest number that "
                "noise should cover"
                + (", which is all of them where leaves of trees sum them up" if has_trees else ""),
            )


def _enough_rows(own: ClientState, job: str, scan: ScanTerms) -> None:
    read = own.tables.scan(job, scan.scan)
    every = np.arange(read.rows().num_rows)
    found = _count_base(read, every, np.ones_like(every)) if read.subject is None else len(np.unique(read.row_keys()))
    if found < own.policy.minimum_rows:
        raise refused_by(
            "minimum_rows",
            f"at least {own.policy.minimum_rows:,} distinct rows must take part, and fewer do; filter fewer rows out",
        )


def _compare_rows(
    own: ClientState, table: str, kind: Kind, rows: Keys | tuple[Keys, Sketch], others: list[RowSet], notes: list[str]
) -> RowSet:
    """A set, and a note if it differs by few rows from an earlier one or another one of its job."""
    limit = own.policy.difference
    if isinstance(rows, tuple):
        keys, sketch = rows
    else:
        keys = np.unique(rows) if table in own.policy.subjects else rows
        sketch = own.row_sets.sketch(keys, limit)
    near = own.row_sets.nearest(table, kind, keys, limit, sketch)
    same = [o.sketch for o in others if o[:2] == (table, kind) and abs(o.sketch.rows - sketch.rows) < limit]
    if near is not None or any(sketch.difference(other, limit) for other in same):
        notes.append(
            f"its rows of {table} differ from those of an earlier agreed job by fewer than {limit:,}, and the two "
            "together would tell of those rows; use the rows that were agreed to before (rule minimum_difference)"
        )
    return RowSet(table, kind, sketch)


def _check_set(
    own: ClientState, request: SplitRequest | OpenPart, kind: Kind, keys: Keys, against: Sequence[str] = ()
) -> None:
    """Keeps a set of rows of a job under way, or refuses it; a person who approves the contract excuses it."""
    notes = list(against)
    found = _compare_rows(own, own.scan(request).table, kind, keys, [], notes)
    _refuse(own, request.job, notes)
    own.row_sets.keep([found])


def _refuse(own: ClientState, job: str, notes: Sequence[str]) -> None:
    """Refuses what there is a note against in a job under way, unless a person approved it."""
    if notes and not own.contracts.jobs[job].is_excused:
        own.approvals.wait(own.agreed(job), tuple(notes))
        raise few_rows(notes[0])


def few_rows(note: str) -> PolicyError:
    """The refusal of a contract that a person may still approve."""
    return PolicyError(f"its policy refuses the request: {note}")
