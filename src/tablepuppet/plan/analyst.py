"""A job over a table with an analyst budget: its price, and sizes as the analyst sees them.

In: a bound query and a job. Out: its terms, or a refusal of anything without a bound; the job as it is run under them;
the sizes of a mapping under noise. Plans and printed output follow from noisy sizes alone, and reveal nothing more.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.algorithms.shape import FanOutHistogram
from tablepuppet.arrays import Array
from tablepuppet.errors import JobError, PrivacyError
from tablepuppet.job import Job
from tablepuppet.join.joined_rows import Joined
from tablepuppet.join.mapping import LabelRows, MappingSummary, TableMapping, rows_here, summarise
from tablepuppet.privacy.analyst import SHARES, AnalystTerms, Part
from tablepuppet.privacy.gaussian import noised, secure_generator
from tablepuppet.privacy.options import FeaturePrivacy
from tablepuppet.protocol.contract import Purpose
from tablepuppet.sources.columns import STRING_KINDS
from tablepuppet.sql.bound import BoundQuery

_NO_ROWS = 6.5  # deviations of noise, which pass for rows once in 10^10
_DEVIATIONS = 3.0  # too few rows of a partner pass for enough at most once in 700 jobs


def analyst_terms(bound: BoundQuery, job: Job, purpose: Purpose) -> AnalystTerms | None:
    """The terms that a job pays; None: no table has such a budget, or the job offers none, which owners refuse."""
    places = [number for number, scan in enumerate(bound.scans) if scan.budgeted]
    asked = job.privacy.analyst
    if asked is None:
        return None
    if not places:
        raise PrivacyError("no owner of these tables keeps a budget for analysts; leave privacy.analyst out")
    tables = sorted({table for place in places for table in bound.scans[place].budgeted})
    for is_met, why in _conditions(bound, job, purpose, places):
        if not is_met:
            raise PrivacyError(f"{', '.join(tables)}: what an analyst sees of it is noisy, and {why}")
    table = tables[0]
    rows = bound.scans[places[0]].stability.get(table, 1)
    if rows is None:
        raise PrivacyError(
            f"{table}: one of its rows may change any number of the subquery's rows; use the table itself"
        )
    return AnalystTerms(
        table=table,
        epsilon=asked.epsilon,
        delta=asked.delta,
        shares=SHARES[purpose],
        subject=bound.scans[places[0]].subject,
        rows=rows,
        cap=asked.cap,
        fits=asked.fits,
        ahead=asked.ahead,
    )


def _conditions(bound: BoundQuery, job: Job, purpose: Purpose, places: list[int]) -> Iterator[tuple[bool, str]]:
    """Conditions that bound how far one row of the table reaches."""
    relations = [relation.scan for branch in bound.branches for relation in branch.relations]
    kinds = {
        (join.kind, branch.relations[join.relation].scan in places)
        for branch in bound.branches
        for join in branch.joins
    }
    is_once = len(bound.branches) == 1 and sum(scan in places for scan in relations) == 1
    yield (
        is_once and len(bound.scans[places[0]].budgeted) == 1,
        "a job reads one such table, once; leave the others out",
    )
    yield (
        kinds <= {("inner", False), ("inner", True), ("left", False)},  # so that every joined row has a row of it
        "a row of it may bring or take any number of rows without a partner; use inner JOIN, or LEFT JOIN others to it",
    )
    yield not bound.moments, "histories have no noisy form; train without them"
    yield (
        job.privacy.label is None and not job.is_private,
        "privacy.analyst brings all noise; leave the rest of privacy out",
    )
    yield (
        not job.data.has_weights and not job.data.negatives,
        "weights and negatives have no noisy form; leave them out",
    )
    yield job.data.max_joined_rows is None, "max_joined_rows would compare its exact size; leave it out"
    place = bound.branches[0].label_place
    kind = bound.scans[place.scan].columns[place.label].kind
    is_number = kind not in STRING_KINDS and label_bounds(job) is not None
    yield (
        is_number or kind == "boolean",
        "values of a label may not decide what it is: write it as a condition, such as y = 1 AS y, or give bounds of a "
        'number, privacy={"analyst": {"bounds": {"<label>": (low, high)}, …}}',
    )
    yield (
        job.search is None and not job.probe,
        'a search has a noisy form with trees only; use model="boosted", splits="random"',
    )
    if purpose == "evaluate":
        return
    options, split = job.options, job.split
    texts = [
        name for b in bound.blocks for name, c in zip(b.features, b.columns, strict=True) if c.kind in STRING_KINDS
    ]
    yield (
        not texts,
        f"names of {', '.join(texts)} would leave as they are; write CASE WHEN … THEN 1 ELSE 0 END for each",
    )
    yield (
        job.model.loss_name in ("auto", _loss(job)),
        f"its loss is {_loss(job)}, by privacy.analyst.bounds of the label",
    )
    is_sums = algorithm_of(options).noisy_sums(options) is not None
    yield is_sums, 'only trees that are drawn hide whether a row is there; use model="boosted", splits="random"'
    yield job.warm_start is None and job.patience is None, "warm_start and patience look at exact rows; leave them out"
    yield not split.validation_fraction and split.validation_where is None, "no rows validate; leave validation out"
    clients = bound.scans[bound.branches[0].label_place.scan].clients
    is_told = split.test_where is not None or not split.test_fraction or len(clients) == 1
    yield is_told, "rows of several owners are split by their exact numbers; use test_where, or test_fraction=0"


def label_bounds(job: Job) -> tuple[float, float] | None:
    """The bounds of a label that is a number; None: it is a condition, or 0 and 1."""
    asked, label = job.privacy.analyst, job.data.label
    return None if asked is None else asked.bounds.get(label) or asked.bounds.get(label.rpartition(".")[2])


def _loss(job: Job) -> str:
    """The kind of label follows from the job, never from the label's values."""
    return "logistic" if label_bounds(job) is None else "squared"


def analyst_job(job: Job, terms: AnalystTerms) -> Job:
    """The job as it is run: with noise on the leaves of its trees, which the server adds."""
    asked = job.privacy.analyst
    assert asked is not None
    sums = algorithm_of(job.options).noisy_sums(job.options)
    assert sums is not None
    noise = terms.leaf_noise(sums) if "model" in terms.shares else 1.0
    features = FeaturePrivacy(noise=noise, delta=terms.delta, bounds=asked.bounds)
    privacy = msgspec.structs.replace(job.privacy, features=features, allow_reconstruction=True)
    return job.replace(privacy=privacy, loss=_loss(job))


@dataclass(frozen=True)
class AnalystNoise:
    """Noise on a job's answers to its analyst, by the terms that were agreed on."""

    terms: AnalystTerms
    least: int = 1  # rows that no metric distinguishes, by the rules of other owners
    left: float | None = None  # ε that the analyst has left
    bounds: tuple[float, float] | None = None  # of a label that is a number
    generator: np.random.Generator = field(default_factory=secure_generator, repr=False)

    def add(self, part: Part, sums: Array, norm: float) -> Array:
        """Sums to which each joined row contributes a vector of this length at the most."""
        return noised(sums, self.deviation(part, norm), self.generator)

    def deviation(self, part: Part, norm: float) -> float:
        """Of the noise on such sums."""
        return max(self.terms.deviation(part, norm), self.least if self.least > 1 else 0)

    def check_rows(self, rows: float, part: Part, norm: float) -> None:
        """Refuses a job with few noisy rows: with none it would fail, and must not fail for that alone."""
        if rows < _NO_ROWS * max(self.deviation(part, norm), self.least):
            raise JobError("too few rows are left for the noise on them; ask for more rows, or a larger epsilon")

    def check_partners(
        self, sides: Sequence[Joined], least: Sequence[int], lookups: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        """Refuses joined rows of which few rows of a partner are most. `least`: the rows that its owners ask for, of
        each block, and of the label's table; 1: any. `lookups`: the same of tables without features, with all joined
        rows and those of the row that has most.

        w: joined rows of each of the partner's rows. They count as (Σw)² / Σw², which is below k where Σw − √k ‖w‖ is
        below 0. A joined row moves Σw by 1 and ‖w‖ by 0 to 1, so this divided by √k − 1 by 1 at the most. The same
        holds of Σw − k max w, divided by k − 1, which is above 0 only if k rows count.
        """
        asked = [(place, math.sqrt(k)) for place, k in enumerate(least) if k > 1]
        found = [(joined - k * most) / max(1, k - 1) for k, joined, most in lookups if k > 1]
        norm = math.sqrt(len(asked) + len(found))
        for side in map(rows_here, sides):
            for place, root in asked:
                index = (*side.indices, side.label_index)[place]
                rows = index.numbers(side.rows)
                times = np.bincount(rows[rows >= 0], minlength=1)  # a LEFT JOIN may find none
                found.append((int(times.sum()) - root * float(np.linalg.norm(times))) / max(1.0, root - 1.0))
        if found and self.add("partners", np.array(found), norm).min() < _DEVIATIONS * self.deviation("partners", norm):
            raise JobError("few rows of a partner are most of all joined rows (rule minimum_rows)")

    def within(self, labels: Array) -> tuple[Array, float]:
        """Labels that are numbers, cut to their bounds and between −½ and ½; and how far the bounds are apart."""
        if self.bounds is None:
            raise PrivacyError(
                "the label is a number, and figures of it need public bounds: "
                'privacy={"analyst": {"bounds": {"<label>": (low, high)}, …}}'
            )
        low, high = self.bounds
        inside = np.clip(np.nan_to_num(labels, nan=low), low, high)
        return (inside - (low + high) / 2) / (high - low), high - low

    def lines(self) -> tuple[str, ...]:
        left = "" if self.left is None else f"; ε = {self.left:.3g} is left in this period"
        return tuple(line + left for line in self.terms.lines())


class NoisySizes(msgspec.Struct, frozen=True):
    """The sizes of a mapping under noise, and the distribution of its training labels."""

    summary: MappingSummary
    labels: tuple[Array, Array]  # values, and how many training rows have each

    @classmethod
    def of(cls, mapping: TableMapping, noise: AnalystNoise) -> Self:
        """One joined row counts on its side, for its class, for a row of each relation and of each block."""
        exact = summarise(mapping)
        scan = next(n for n, own in enumerate(mapping.bound.scans) if own.budgeted)
        values, sums = _label_sums(mapping.train, len(mapping.label.classes), noise)
        own_rows = [exact.fits[_places(exact).index(scan)].rows]
        matched = [fit.matched for fit in exact.fits]
        parts = [count for part in exact.parts for count in (part.train_rows, part.test_rows)]
        sides = [exact.train_rows, exact.test_rows]
        every = np.array([*sides, *own_rows, *matched, *parts, *sums], np.float64)
        norm = float(np.sqrt(3 + len(exact.fits) + len(exact.blocks)))
        found = noise.add("sizes", every, norm)
        noise.check_rows(float(found[0]), "sizes", norm)
        counts = np.maximum(0, np.rint(found)).astype(np.int64).tolist()
        margin = int(4 * noise.terms.deviation("sizes", norm))
        totals = found[len(every) - len(sums) :]
        if not mapping.label.classes:
            mean = np.clip(totals[:1] / max(1.0, found[0]), -0.5, 0.5)
            values, totals = values[:1] + mean * (values[1] - values[0]), np.ones(1)
        return cls(_noisy_summary(exact, scan, counts, noise.terms, margin), (values, np.maximum(totals, 1.0)))


def _label_sums(train: Joined, classes: int, noise: AnalystNoise) -> tuple[Array, list[float]]:
    """Training rows of each class; or the middle of a number's bounds, and the sum of its distances from that."""
    counts = np.asarray(train.label_counts(), np.float64)
    labels = np.where(counts > 0, train.labels, 0.0)
    if classes:
        return np.arange(classes, dtype=np.float64), np.bincount(labels.astype(np.intp), counts, classes).tolist()
    inside, apart = noise.within(labels)
    assert noise.bounds is not None
    middle = sum(noise.bounds) / 2
    return np.array([middle, middle + apart]), [float(counts @ inside)]


def _noisy_summary(
    exact: MappingSummary, scan: int, counts: list[int], terms: AnalystTerms, margin: int
) -> MappingSummary:
    """A summary from noisy sizes alone; tables without a budget keep their exact rows. `counts`: joined rows to train
    and to test on, rows of the table with the budget, matched rows of each relation, train and test rows of each part.
    """
    all_train, all_test, own_rows, *counts = counts
    joined = max(1, all_train + all_test)
    fits = []
    for fit, place, matched in zip(exact.fits, _places(exact), counts, strict=False):
        rows = own_rows if place == scan else fit.rows
        met = max(1, min(matched, rows))
        most = terms.cap if place == scan else -(-joined // met)
        fits.append(replace(fit, rows=rows, matched=min(matched, rows), max_fan_out=most, mean_fan_out=joined / met))
    parts = []
    for number, part in enumerate(exact.parts):
        train, test = counts[len(fits) + 2 * number :][:2]
        fan = FanOutHistogram((max(1, all_train // max(1, train)),), (train,))
        parts.append(replace(part, train_rows=train, test_rows=test, fan=fan, is_in_both=False))
    blocks = []
    for number, block in enumerate(exact.blocks):
        own = [part for part in parts if part.block == number]
        rows = sum(part.train_rows for part in own)
        most = terms.cap if any(part.scan == scan for part in own) else -(-all_train // max(1, rows))
        blocks.append(replace(block, rows=rows, joined=all_train, most=max(1, most), is_identity=False, is_outer=False))
    label_rows = exact.label_rows
    if exact.bound.branches[0].label_place.scan == scan:  # fewer than there are: rows behind them count as new
        label_rows = tuple(
            LabelRows(own.offset, dict.fromkeys(own.rows, max(0, own_rows - margin) // max(1, len(own.rows))))
            for own in label_rows  # in equal shares, for each client's own number is exact
        )
    return replace(
        exact,
        fits=tuple(fits),
        parts=tuple(parts),
        blocks=tuple(blocks),
        train_rows=all_train,
        test_rows=all_test,
        dropped=0,
        placement=None,
        label_rows=label_rows,
    )


def _places(exact: MappingSummary) -> list[int]:
    return [relation.scan for branch in exact.bound.branches for relation in branch.relations]
