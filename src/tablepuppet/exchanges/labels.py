"""Labels and weights of a table's rows, and each row's side of the split."""

from collections.abc import Collection
from functools import partial
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import Array, freeze
from tablepuppet.exchanges.base import SCORING, WITH_LABELS, Rules
from tablepuppet.owner import row_rules
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.labels import LabelNoise, read_labels, read_weights
from tablepuppet.owner.labels import describe_labels as describe
from tablepuppet.owner.policy import refused_by
from tablepuppet.owner.releases import reads
from tablepuppet.owner.split import Split, fold_numbers
from tablepuppet.owner.state import ClientState
from tablepuppet.privacy.options import LabelPrivacy
from tablepuppet.protocol import bounds
from tablepuppet.protocol.base import Count, Discloses, Finite, Message, ScanRequest, Text
from tablepuppet.protocol.bounds import Known, check_array, require
from tablepuppet.protocol.contract import SideTerms
from tablepuppet.sources.columns import STRING_KINDS

Mask = NDArray[np.bool_]
Classes = Annotated[list[Text | Finite], Meta(max_length=bounds.MOST_CLASSES)]


class DescribeLabels(ScanRequest, frozen=True):
    """Which classes, or which kind of number, is the label? → LabelSummary"""

    column: int
    wants_classes: bool = True  # the distinct values, where they are numbers


class LabelSummary(Message, frozen=True):
    kind: Literal["number", "boolean", "class"]
    # Distinct values; numbers only if there are at most 1000
    classes: Annotated[Classes, Discloses("label classes", if_empty=True)] = msgspec.field(default_factory=list)
    missing: Count = 0


class SplitRequest(ScanRequest, frozen=True, kw_only=True):
    """A request about rows that are split, by the seed and in the shares of the contract."""

    offset: Count  # this client's first row number in the label table
    test_column: int | None = None  # a predicate of the scan that holds for test rows, instead of a fraction
    validation_column: int | None = None


class SendLabels(SplitRequest, frozen=True, kw_only=True):
    """Send one label per row, as a class number or a number, and each row's side of the split. → Labels"""

    column: int
    classes: Annotated[list[str | float] | None, Discloses("label classes")]  # None: a number
    fold_column: int | None = None  # of undivided groups, or of a time, where rows are shared out in folds


class Labels(Message, frozen=True):
    # Class numbers or numbers; NaN where the label is missing
    values: Annotated[Array, Discloses("labels", is_per_row=True)]
    is_test: Annotated[Mask, Discloses("split", is_per_row=True)]
    is_validation: Mask | None = None  # None: no row
    # Which each row is in; by time, the first is never held out
    folds: Annotated[NDArray[np.int16] | None, Discloses("split", is_per_row=True)] = None


class SendSides(SplitRequest, frozen=True, kw_only=True):
    """Send each row's side of the split, as `SendLabels` draws it, without its label. → Sides"""

    terms: SideTerms  # one of the contract's
    known_rows: Count | None = None  # rows that there were when sides were drawn: later ones are on the test side


class Sides(Message, frozen=True):
    is_test: Annotated[Mask, Discloses("split", is_per_row=True)]
    is_validation: Annotated[Mask | None, Discloses("split", is_per_row=True)]  # None: no row


class SendWeights(ScanRequest, frozen=True):
    """Send the sample weight of each row of the label table. → Weights"""

    column: int


class Weights(Message, frozen=True):
    values: Annotated[Array, Discloses("weights", is_per_row=True)]  # NaN where it is missing


def _enforce_classes(job: JobUnderContract, request: DescribeLabels) -> None:
    job.check_role(request.scan, request.column, "label")
    if request.wants_classes and not job.agreed.wants_classes:
        raise breach("the distinct values of the label do not leave")
    job.count_once(f"classes {request.column}", request.scan)


def _check_classes(classes: Collection[str | float]) -> None:
    bounds.check_distinct(classes, "classes", "class")
    require(len({type(c) for c in classes}) <= 1, "classes", "mix texts and numbers")


def _check_summary(request: DescribeLabels, answer: LabelSummary, known: Known) -> None:
    scan = known.scan(request)
    bounds.check_count(answer.missing, "missing", bounds.LARGEST_COUNT if scan.rows is None else scan.rows)
    scan.missing[request.column] = answer.missing
    classes = answer.classes
    _check_classes(classes)
    require(answer.kind != "boolean" or classes == [0.0, 1.0], "classes", "of a boolean label are false and true")


@Rules(WITH_LABELS, enforce=_enforce_classes, check_answer=_check_summary, is_fixed=True)
def _describe_labels(own: ClientState, request: DescribeLabels) -> LabelSummary:
    column, info = own.scan(request).column(request.column)
    privacy = own.agreed(request.job).label_privacy
    if privacy is not None:
        return _describe_domain(own, request, privacy)
    if info.kind in STRING_KINDS:
        row_rules.check_classes(own, request, column)
    return LabelSummary(*describe(column, info, request.wants_classes))


def _describe_domain(own: ClientState, request: DescribeLabels, privacy: LabelPrivacy) -> LabelSummary:
    """The classes of a label under noise, which depend on no selected row: those of the contract, or of all rows of the
    label's one column. Rows without a label are randomised as well."""
    scan = own.scan(request)
    column, info = scan.column(request.column)
    if privacy.classes is not None and info.kind != "boolean":
        return LabelSummary("class" if info.kind in STRING_KINDS else "number", list(privacy.classes))
    if info.kind != "boolean" and (request.wants_classes or info.kind in STRING_KINDS):
        if len(scan.use().columns[request.column]) != 1:
            raise refused_by(
                "labels",
                "the label is computed from several columns, and which classes it has would tell of single rows; list "
                'them, privacy={"label": {"epsilon": …, "classes": […]}}, or make it a boolean, as in (x > 0) AS y',
            )
        column = scan.everywhere([request.column]).column(0)
        if info.kind in STRING_KINDS and own.policy.minimum_rows > 1:  # how many rows a class has is not for a rule
            raise refused_by(
                "minimum_rows",
                "rare classes stay here, and exact counts of labels that leave under noise would tell which are; list "
                'the classes, privacy={"label": {"epsilon": …, "classes": […]}}',
            )
    found = describe(column, info, request.wants_classes)
    return LabelSummary(found.kind, found.classes)


def _enforce_labels(job: JobUnderContract, request: SendLabels) -> None:
    scan = job.scan(request.scan)
    job.check_role(request.scan, request.column, "label")
    job.check_split(request)
    if request.offset and job.agreed.holds_all_labels:
        raise breach("rows with labels are all here, and numbered from 0")
    job.check_role(request.scan, request.fold_column, "split")
    job.count_once(f"labels {request.column}", request.scan, max(1, len(scan.numbers("split"))))


def _count_missing(labels: Array, classes: int | None) -> int:
    """How many are missing; none of the others is wrong."""
    is_there = ~np.isnan(labels)
    values = labels if is_there.all() else labels[is_there]
    require(not np.isinf(values).any(), "values", "hold infinity")
    if classes is None:
        require(not (np.abs(values) > bounds.LARGEST).any(), "values", bounds.TOO_LARGE)
    else:
        is_class = (values >= 0).all() and (values < classes).all() and (values == np.floor(values)).all()
        require(bool(is_class), "values", f"hold a number that is no class of {classes}")
    return len(labels) - len(values)


def _check_labels_answer(request: SendLabels, answer: Labels, known: Known) -> None:
    scan = known.scan(request)
    rows = scan.rows
    check_array(answer.values, "values", (rows,), kinds="f")
    check_array(answer.is_test, "is_test", (rows,), kinds="b")
    missing = _count_missing(answer.values, None if request.classes is None else len(request.classes))
    described = scan.missing.get(request.column)
    contract = known.contracts[request.job]
    is_as_described = described in (None, missing) or contract.label_privacy is not None
    require(is_as_described, "values", f"are missing in {missing:,} rows, and {described} were described")
    if answer.folds is not None:
        check_array(answer.folds, "folds", (rows,), kinds="i")
        folds = contract.folds
        last = -1 if folds is None else folds.count - (folds.by != "time")
        is_fold = not len(answer.folds) or (answer.folds.min() >= 0 and answer.folds.max() <= last)
        require(folds is not None and bool(is_fold), "folds", "hold a number that is no fold")
    _check_held_out(request, answer, rows, is_split=contract.split[0] > 0)


def _check_held_out(request: SplitRequest, answer: Labels | Sides, rows: int | None, *, is_split: bool) -> None:
    is_split = is_split or request.test_column is not None
    require(is_split or not answer.is_test.any(), "is_test", "names test rows where none were asked for")
    if answer.is_validation is not None:
        check_array(answer.is_validation, "is_validation", (rows,), kinds="b")
        require(not (answer.is_validation & answer.is_test).any(), "is_validation", "names rows that are for the test")


@Rules(
    WITH_LABELS,
    _enforce_labels,
    lambda own, request: _check_classes(request.classes or ()),
    _check_labels_answer,
    is_fixed=True,
)
def _send_labels(own: ClientState, request: SendLabels) -> Labels:
    scan, contract, noise = own.scan(request), own.agreed(request.job), None
    (column, info), order = scan.column(request.column), scan.order()
    if contract.label_privacy is None:
        for base in scan.use().bases:
            own.releases.check_plain_label(base.table, is_derived=scan.query is not None)
        if request.classes is not None and contract.purpose != "evaluate":
            row_rules.check_classes(own, request, column)
    else:
        behind = reads(scan, [request.column])
        epsilon = scan.rows_of_a_subject() * contract.label_privacy.epsilon
        spend = partial(own.releases.charge_label, scan.table, behind, epsilon)
        given = (spend, scan.expressions[request.column], scan.identity())
        noise = LabelNoise(contract.label_privacy, own.secret, scan.table, scan.row_ids(), *given)
    terms, folds = SideTerms(request.scan, *contract.split, contract.seed), contract.folds
    sides, is_test, is_validation = _split_rows(own, request, terms)
    values = read_labels(column, info, request.classes, noise)
    labels = Labels(values, freeze(is_test), is_validation)
    if folds is None:
        return labels
    by = None if request.fold_column is None else scan.column(request.fold_column)
    drawn = fold_numbers(len(column), sides, folds.count, folds.by, by, order, contract.holds_all_labels)
    row_rules.check_folds(own, request, drawn)
    return replace(labels, folds=drawn)


def _split_rows(own: ClientState, request: SplitRequest, terms: SideTerms) -> tuple[Split, Mask, Mask | None]:
    """How rows are shared out, if the owner has nothing against it: which are for the test, for validation."""
    test, validation = (
        None if c is None else own.scan(request).column(c)[0] for c in (request.test_column, request.validation_column)
    )
    known = request.known_rows if isinstance(request, SendSides) else None
    key = b"" if not terms.is_keyed or own.order_key is own.key is None else own.shared_key
    shares = (terms.test_fraction, terms.validation_fraction)
    sides = Split(request.offset, terms.seed, *shares, test, validation, key, known)
    rows, order = own.scan(request).rows().num_rows, own.scan(request).order()
    is_test = sides.test(rows, order)
    is_validation = sides.validation(rows, order, is_test)
    row_rules.check_split(own, request, {"test": is_test, "validation": is_validation})
    return sides, is_test, is_validation


def _enforce_sides(job: JobUnderContract, request: SendSides) -> None:
    terms = [own for own in job.agreed.sides if own.scan == request.scan]
    job.check_split(request)
    if request.terms not in terms:
        raise breach("rows are split by the seed and in the shares that were agreed on")
    job.count_once("sides", request.scan, len(terms))


def _check_sides(request: SendSides, answer: Sides, known: Known) -> None:
    rows = known.scan(request).rows
    check_array(answer.is_test, "is_test", (rows,), kinds="b")
    _check_held_out(request, answer, rows, is_split=request.terms.test_fraction > 0 or request.known_rows is not None)


@Rules(SCORING, enforce=_enforce_sides, check_answer=_check_sides)
def _send_sides(own: ClientState, request: SendSides) -> Sides:
    _, is_test, is_validation = _split_rows(own, request, request.terms)
    return Sides(is_test=is_test, is_validation=is_validation)


def _enforce_weights(job: JobUnderContract, request: SendWeights) -> None:
    scan = job.scan(request.scan)
    job.check_role(request.scan, request.column, "weight")
    job.count_once(f"weights {request.column}", request.scan, max(1, len(scan.numbers("split"))))


def _check_weights(request: SendWeights, answer: Weights, known: Known) -> None:
    check_array(answer.values, "values", (known.scan(request).rows,), kinds="f")
    require(not np.isinf(answer.values).any(), "values", "hold infinity")
    require(not (np.abs(answer.values) > bounds.LARGEST).any(), "values", bounds.TOO_LARGE)


@Rules(WITH_LABELS, enforce=_enforce_weights, check_answer=_check_weights, is_fixed=True)
def _send_weights(own: ClientState, request: SendWeights) -> Weights:
    return Weights(values=read_weights(*own.scan(request).column(request.column)))
