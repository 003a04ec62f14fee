"""Metrics as they leave the server: rounded such that no two of them reveal one row's label.

An exact metric counts labels. If two models differ in one row's prediction, their accuracies reveal that row's label,
and so do a curve's neighbouring points. Where an owner asks for `minimum_rows`, metrics are multiples of the
contribution of so many label rows, or of √n / 2 of n rows where that is less. The latter is about the standard error
that a share of n rows has in any case (privacy/options.py). Shares of fewer rows than `minimum_rows` are left out.

In: Measured, Result, Comparison. Out: the same, to be shown. Decisions in training (early stopping, the best epoch) use
exact numbers.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.arrays import Array, effective_rows
from tablepuppet.errors import DisconnectedError, PolicyError, PrivacyError, RunInterruptedError
from tablepuppet.job import Job
from tablepuppet.join.joined_rows import Joined
from tablepuppet.join.mapping import TableMapping
from tablepuppet.models.losses import Loss
from tablepuppet.models.metrics import binary_sums, class_sums
from tablepuppet.plan.analyst import AnalystNoise
from tablepuppet.plan.prepare import Prepared
from tablepuppet.privacy.options import Rounding
from tablepuppet.training.curves import Curves
from tablepuppet.training.evaluate import Comparison, likely_error
from tablepuppet.training.metrics import Measured, Metrics
from tablepuppet.training.result import EpochRecord, Result, RoundEvent
from tablepuppet.training.search import SearchResult

log = logging.getLogger(__name__)
_POINTS = 200  # of a curve, at the most


class SupportCounts(msgspec.Struct, frozen=True):
    """The rows behind metrics: joined ones, the label's rows among them, how often one is joined at most, classes."""

    joined: float
    rows: float
    most: int
    classes: tuple[float, ...] = ()  # joined rows of each

    @classmethod
    def of(cls, side: Joined, *, has_classes: bool, has_negatives: bool = False) -> "SupportCounts":
        counts = np.asarray(side.label_counts())
        seen = counts > 0
        by_class: tuple[float, ...] = ()
        if has_classes and side.rows:
            by_class = tuple(np.bincount(side.labels[seen].astype(np.intp), counts[seen]).tolist())
        if has_negatives:  # a row and the pairs drawn for it are one witness
            counts = counts.reshape(2, -1).sum(axis=0)
        return cls(side.rows, effective_rows(counts), int(counts.max(initial=1)), by_class)

    def part(self, joined: float) -> "SupportCounts":
        """So many of the joined rows, as if they were like the others."""
        share = joined / max(1.0, self.joined)
        return replace(self, joined=joined, rows=share * self.rows, classes=tuple(share * c for c in self.classes))


@contextmanager
def hide_rows(noise: AnalystNoise | None) -> Iterator[None]:
    """Gives one and the same error for every failure on rows of a table with an analyst budget; the server's log has
    the reason. The job was charged when it was agreed to. Privacy errors are about terms, and are shown."""
    try:
        yield
    except (PrivacyError, DisconnectedError, RunInterruptedError):
        raise
    except Exception as error:
        if noise is None:
            raise
        log.info("a job over %s failed: %s: %s", noise.terms.table, type(error).__name__, error)
        raise PrivacyError(
            f"the job fails on its rows, or they are too few for its noise, or most of them meet few rows of a partner "
            f"that has a rule minimum_rows; more would tell of {noise.terms.table}, which has an analyst budget. Take "
            "more rows or a larger epsilon, or try the job on tables of your own"
        ) from None


def check_label_rows(mapping: TableMapping, job: Job, rounding: Rounding) -> None:
    """Refuses training on few rows of the label's table, or on few that are most of all joined rows. The owner of
    features counts their rows itself, and learns nothing about labels."""
    owners = {c for b in mapping.bound.branches for c in mapping.bound.scans[b.label_place.scan].clients}
    least = max((rows for client, rows in rounding.by_client if client in owners), default=1)
    if least <= 1 or not mapping.train.rows:
        return
    rows = SupportCounts.of(mapping.train, has_classes=False, has_negatives=bool(job.data.negatives))
    if rows.rows < least - 1e-6:
        raise PolicyError(
            f"the labels' rows that are joined count as fewer than {least:,} that are joined alike, and a model would "
            "learn these; join such that no label is met by most others (an owner's rule minimum_rows)"
        )
    weight = getattr(job.options, "min_child_weight", None)
    due = rows.most * (least / 4 if mapping.label.classes else least)
    if weight is not None and rows.most > 1 and weight < due and job.privacy.label is None:
        raise PolicyError(
            f"labels' rows are joined up to {rows.most:,} times, and leaves of trees may have fewer than {least:,} of "
            f"them; train with min_child_weight={due:g} (an owner's rule minimum_rows)"
        )


def partner_rules(mapping: TableMapping, rounding: Rounding) -> tuple[list[int], list[tuple[int, int, int]]]:
    """The rows that owners of each block ask for, then those of a label's table without features; 1: any. And of other
    tables, with the joined rows that have a row of it and the most of one row."""
    asked, bound = dict(rounding.by_client), mapping.bound
    branch = bound.branches[0]
    scans = [branch.relations[block.members[0].relation].scan for block in bound.blocks]
    scans += [] if branch.label_place.scan in scans else [branch.label_place.scan]

    def least(scan: int) -> int:
        own = bound.scans[scan]
        return 1 if own.budgeted else max(asked.get(client, 1) for client in own.clients)

    others = [(own.scan, fit) for own, fit in zip(branch.relations, mapping.fits, strict=True) if own.scan not in scans]
    lookups = [(least(scan), round(fit.mean_fan_out * fit.matched), fit.max_fan_out) for scan, fit in others]
    return [least(scan) for scan in scans], lookups


class SideRounding(msgspec.Struct, frozen=True):
    """Rounds metrics of the rows of one side of the split, as the owners of a job ask for."""

    rounding: Rounding
    rows: SupportCounts
    loss: Loss

    @property
    def least(self) -> int:
        return self.rounding.least

    def step(self, of: float | None = None) -> float:
        """The number of joined rows (of `of`, by default all) that a metric cannot distinguish."""
        rows = self.rows
        own = rows.rows if of is None else of * rows.rows / max(1.0, rows.joined)
        return float(min(self.least, math.ceil(math.sqrt(own) / 2)) if own >= self.least else self.least) * rows.most

    def unit(self, mean: float) -> float:
        """The contribution of a step's rows to a mean, as a power of two, which hides the mean itself."""
        share = abs(mean) * self.step() / max(1.0, self.rows.joined)
        return 2.0 ** round(math.log2(share)) if 0 < share < math.inf else 0.0

    def relative(self, name: str, value: float) -> float:
        """A mean over rows to which each contributes about as much."""
        return max(0.0, self.rounding.number(name, value, self.unit(value)))

    def share(self, name: str, value: float, unit: float | None = None) -> float:
        """A share of the rows, in units of a step's share."""
        unit = self.step() / self.rows.joined if unit is None else unit
        return min(max(self.rounding.number(name, value, unit), 0.0), 1.0)

    def metrics(self, found: Metrics, confusion: Array | None = None) -> Metrics:
        """Without a confusion matrix, of its metrics accuracy alone."""
        rows, loss = self.rows, self.loss
        of_classes = {m.name: m for m in loss.metrics if m.sums in (binary_sums, class_sums)}
        ranked = {m.name for m in loss.metrics if m.is_ranked}
        fewest = min((c for c in rows.classes if c > 0), default=0.0)
        is_enough = fewest * rows.rows / max(1.0, rows.joined) >= self.least
        shown: Metrics = {}
        for name, value in found.items():
            if name in ranked:
                if is_enough:
                    shown[name] = self.share(name, value, self.step(fewest) / fewest / 2)  # two sides
            elif name == "accuracy":
                if rows.rows >= self.least:
                    shown[name] = self.share(name, value)
            elif name == "coverage":
                shown[name] = self.share(name, value)
            elif name in of_classes:
                known = None if confusion is None else of_classes[name].value({"confusion": confusion})
                if known is not None and confusion is not None and self._has_all(confusion):
                    shown[name] = known
            elif name == "r2":
                shown[name] = 1.0 - self.relative(name, 1.0 - value)
            else:
                shown[name] = self.relative(name, value)
        return shown

    def _has_all(self, confusion: Array) -> bool:
        """Whether every class is predicted for enough rows, or for none, and enough rows are of every class."""
        sizes = np.concatenate([confusion.sum(axis=0), confusion.sum(axis=1)])
        return bool((sizes[sizes > 0] * self.rows.rows / max(1.0, self.rows.joined) >= self.least).all())

    def confusion(self, exact: Array) -> Array:
        """As many rows are predicted to be of a class as are; how many of them are of which class is rounded."""
        counts, unit = np.asarray(exact, np.float64), self.step()
        if len(counts) != 2:
            return self.rounding.counts("confusion", counts, unit).round().astype(np.int64)
        total, predicted = counts.sum(), counts[:, 1].sum()
        positives = min(max(self.rounding.number("positives", float(counts[1].sum()), unit), 0.0), total)
        right = total * self.share("accuracy", float(np.trace(counts) / total))
        most, least = min(predicted, positives), max(0.0, predicted + positives - total)
        true = min(max((right - total + positives + predicted) // 2, least), most)
        found = [[total - predicted - positives + true, predicted - true], [positives - true, true]]
        return np.array(found).round().astype(np.int64)

    def curves(self, exact: Curves) -> Curves:
        """Points between which at least `least` label rows lie."""
        confusion = self.confusion(exact.confusion)
        apart = self.least * self.rows.joined / max(1.0, self.rows.rows)
        found = replace(exact, confusion=confusion)
        if exact.calibration is not None:
            found = replace(found, calibration=self._calibration(exact.calibration, apart))
        if exact.predicted is None or exact.true_positives is None or exact.thresholds is None:
            return found
        kept = _apart(exact.predicted, max(apart, self.rows.joined / _POINTS))
        predicted = exact.predicted[kept]
        pairs = zip(predicted.tolist(), exact.true_positives[kept].tolist(), strict=True)
        unit = self.step()
        true = np.array([self.rounding.number(f"true {count}", value, unit) for count, value in pairs])
        true = np.clip(np.minimum.accumulate(true), 0.0, np.minimum(predicted, confusion[1].sum()))
        return replace(found, thresholds=exact.thresholds[kept], true_positives=true, predicted=predicted)

    def _calibration(self, exact: Array, apart: float) -> Array:
        """Neighbouring bins with few rows become one."""
        found, held = np.zeros_like(exact), np.zeros(3)
        last = -1
        for place in range(exact.shape[1]):
            held += exact[:, place]
            if held[0] >= apart:
                found[:, place], held, last = held, np.zeros(3), place
        if last >= 0:
            found[:, last] += held
        unit = math.ceil(self.least / 4) * self.rows.most
        found[2] = np.minimum(self.rounding.counts("calibration", found[2], unit) * (found[0] > 0), found[0])
        return found

    def measured(self, found: Measured) -> Measured:
        is_of_classes = found.curves is not None and found.curves.numbers is None  # cells of numbers hold few rows
        curves = self.curves(found.curves) if found.curves is not None and is_of_classes else None
        metrics = self.metrics(found.metrics, None if curves is None else curves.confusion)
        return Measured(self.relative("loss", found.loss), metrics, curves)


def _apart(predicted: Array, apart: float) -> list[int]:
    """Which thresholds of a curve to keep, from the highest down: each adds at least `apart` rows."""
    kept: list[int] = []
    seen = 0.0
    for place in range(len(predicted) - 1, -1, -1):
        if predicted[place] - seen >= apart and (predicted[0] - predicted[place] >= apart or place == 0):
            kept.append(place)
            seen = float(predicted[place])
    return kept[::-1]


class RoundedResults(msgspec.Struct, frozen=True):
    """The metrics of a job, as the person who asked for it sees them."""

    train: SideRounding
    validation: SideRounding
    test: SideRounding

    @classmethod
    def of(cls, prepared: Prepared, loss: Loss) -> "RoundedResults | None":
        """None: metrics are shown as they are. Under label noise they are those of the noisy labels."""
        rounding, mapping = prepared.rounding, prepared.mapping
        if not rounding.is_on or mapping.label.channel is not None or prepared.noise is not None:
            return None
        given = {"has_classes": loss.task != "number", "has_negatives": mapping.label.negatives > 0}
        sides = (SupportCounts.of(side, **given) for side in (mapping.train, mapping.validation, mapping.test))
        return cls(*(SideRounding(rounding, rows, loss) for rows in sides))

    def side(self, name: str) -> SideRounding:
        return cast(SideRounding, getattr(self, name))

    def record(self, record: EpochRecord) -> EpochRecord:
        metrics = {side: self.side(side).metrics(own) for side, own in record.metrics.items()}
        objective = self.train.relative("objective", record.objective)
        return dataclasses.replace(record, objective=objective, metrics=metrics)

    def following(self, on_round: Callable[[RoundEvent], None] | None) -> Callable[[RoundEvent], None] | None:
        """The callback after a round, with rounded metrics."""
        if on_round is None:
            return None
        return lambda e: on_round(e if e.record is None else replace(e, record=self.record(e.record)))

    def result(self, found: Result) -> Result:
        of_classes = {side: own for side, own in found.curves.items() if own.numbers is None}  # cells hold few rows
        curves = {side: self.side(side).curves(own) for side, own in of_classes.items()}
        confusions = {side: own.confusion for side, own in curves.items()}
        return replace(
            found,
            objective=self.train.relative("objective", found.objective),
            metrics={side: self.side(side).metrics(own, confusions.get(side)) for side, own in found.metrics.items()},
            baseline=(self.test if self.test.rows.rows else self.train).metrics(found.baseline),
            history=tuple(self.record(record) for record in found.history),
            curves=curves,
            measured={name: replace(on, standard_errors={}) for name, on in found.measured.items()},
        )

    def search(self, found: "SearchResult") -> "SearchResult":
        fits = []
        for fit in found.fits:
            side = replace(self.train, rows=self.train.rows.part(fit.test_rows))
            fits.append(replace(fit, metrics=side.metrics(fit.metrics)))
        return replace(found, fits=tuple(fits))

    def comparison(self, found: Comparison, first: Measured, second: Measured) -> Comparison:
        """Rounds a difference as the losses are rounded: a difference that few rows make is none. A single
        step, which chance adds one time in four, stays within the stated error."""
        unit, rounding = self.train.unit(first.loss), self.train.rounding
        error = rounding.number("error", math.hypot(found.standard_error, unit / 2), unit / 2)
        return replace(
            found,
            first=self.train.measured(first).metrics,
            second=self.train.measured(second).metrics,
            baseline=self.train.metrics(found.baseline),
            difference=rounding.number("difference", found.difference, unit),
            standard_error=(shown := max(error, unit)),
            margin=likely_error(shown, int(self.train.rows.rows)),
        )

    def rises(self, found: list[dict[str, Any]], loss: float) -> list[dict[str, Any]]:
        unit, rounding = self.train.unit(loss), self.train.rounding
        shown = []
        for row in found:
            rise = rounding.number(f"importance {row['table']}", row["importance"], unit)
            shown.append(row | {"importance": rise, "std": abs(rounding.number("std", row["std"], unit))})
        return sorted(shown, key=lambda row: -row["importance"])
