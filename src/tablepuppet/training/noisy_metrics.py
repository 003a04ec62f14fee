"""Metrics for an analyst of a table with a budget: made of sums that carry noise, and of nothing else.

    two classes    rows, right ones, how many of each class have a score in each of 32 bins; the loss, cut at 6
    more classes   rows, right ones, how many of each class are predicted to be of each; the loss, cut at 6
    a number       rows, |error|, error², label and label², with label and prediction cut to public bounds
    two models     both of these, and the difference of their losses, cut at 6, and its square
    drift          rows, and the curvature of the loss on each side of every tree's first split

A joined row contributes a vector of bounded length, whatever its prediction. Accuracy, AUC, RMSE and the others
follow from the noisy sums, as the same metrics of exact sums do (models/metrics.py).
"""

import math
from functools import reduce

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.algorithms.registry import own_model
from tablepuppet.arrays import JOINED_ROWS_PER_PIECE, Array, pieces
from tablepuppet.errors import JobError
from tablepuppet.join.mapping import rows_here
from tablepuppet.models.losses import Loss
from tablepuppet.models.metrics import Moment, Spread, Sums
from tablepuppet.plan.analyst import AnalystNoise
from tablepuppet.prediction.split_record import MeasuredRows
from tablepuppet.training.evaluate import Comparison, Scored, likely_error
from tablepuppet.training.inspection import Drift, FeatureDrift
from tablepuppet.training.metrics import Criterion, Measured, MeasuredOn, Metrics
from tablepuppet.training.result import EpochRecord, Result
from tablepuppet.transport.meter import Traffic

_BINS, _FARTHEST = 32, 4.0  # of scores; the middle border is 0, where the predicted class changes
_MOST_LOSS = 6.0
_CLASS_NORM = 2.0  # a cell, the loss, the row itself, and whether it is predicted rightly
_NUMBER_NORM = math.sqrt(1 + 1 + 1 + 1 / 4 + 1 / 16)
_PAIR_NORM = math.sqrt(2.0)  # of a difference of losses and its square, each at most 1
_DEVIATIONS_OF_A_CHANGE = 4.0  # deviations, beyond which a change of a share is no noise
_SHARES = ("accuracy", "precision", "recall", "f1", "auc")


class NoisyMetrics(msgspec.Struct, frozen=True):
    """Measures joined rows under an analyst's terms; one release, over however many sides a job measures once."""

    noise: AnalystNoise

    def __call__(self, criterion: Criterion, scores: Array, labels: Array) -> Measured:
        """The metrics of a finished model; during training nothing is measured."""
        if criterion.moment is not Moment.FINISHED:
            return Measured(float("nan"), {})
        norm = _norm(criterion.loss)
        sums = self.noise.add("metrics", _contributions(criterion.loss, scores, labels, self.noise), norm)
        try:
            return _summarise(criterion.loss, sums, self.noise, norm)
        except JobError:  # too few rows
            return Measured(float("nan"), {})

    def compare(self, first: Scored, second: Scored, wanted: MeasuredRows) -> Comparison:
        loss, labels = first.model.loss, rows_here(first.rows).joined_labels()
        scores = [one.scores() for one in (first, second)]
        each = [_contributions(loss, own, labels, self.noise) for own in scores]
        values = [np.nan_to_num(loss.value(own, labels), nan=_MOST_LOSS) for own in scores]
        gained = np.clip((values[1] - values[0]) / _MOST_LOSS, -1.0, 1.0)
        pair = np.array([gained.sum(), gained @ gained])
        norm = math.hypot(*(2 * [_norm(loss)]), _PAIR_NORM)
        found = self.noise.add("metrics", np.concatenate([*each, pair]), norm)
        size, deviation = len(each[0]), self.noise.deviation("metrics", norm)
        before, after = (_summarise(loss, own, self.noise, norm) for own in (found[:size], found[size : 2 * size]))
        assert before.on is not None
        rows = max(1, before.on.rows)
        difference, squares = _MOST_LOSS * found[-2] / rows, max(0.0, float(found[-1])) / rows
        error = _MOST_LOSS * math.hypot(math.sqrt(squares / rows), deviation / rows)
        margin = likely_error(error, rows)
        shown = replace(wanted, joined=before.on.rows)
        return Comparison(before.metrics, after.metrics, shown, difference, error, margin)

    def drift(self, scored: Scored) -> Drift:
        """Of each feature, the largest change of a share beyond a border that a tree begins with."""
        model, rows, own = scored.model, rows_here(scored.rows), own_model(scored.model.spec)
        assert own is not None
        roots = own.root_sums(model, scored.blocks, [p.numbers(rows.rows) for p in rows.indices], rows.rows)
        norm = math.hypot(1.0, model.loss.bound * math.sqrt(len(roots)))
        found = self.noise.add("metrics", np.array([rows.rows, *(side for root in roots for side in root.now)]), norm)
        self.noise.check_rows(float(found[0]), "metrics", norm)
        now, then = np.maximum(found[1:].reshape(-1, 2), 1e-9), np.array([root.then for root in roots]).reshape(-1, 2)
        totals = [own.sum(axis=1) for own in (now, np.maximum(then, 1e-9))]
        jumps = np.abs(np.diff(totals[1]))  # from tree to tree: of noise a third more than that of a side
        deviations = (self.noise.deviation("metrics", norm), float(np.median(jumps)) if len(jumps) else math.inf)
        margins = _DEVIATIONS_OF_A_CHANGE * sum(own / total for own, total in zip(deviations, totals, strict=True))
        changes = now[:, 1] / totals[0] - then[:, 1] / totals[1]
        moved = np.sign(changes) * np.maximum(np.abs(changes) - margins, 0.0)
        most: dict[tuple[int, int], float] = {}
        for root, change in zip(roots, moved.tolist(), strict=True):
            most[root.block, root.feature] = max(most.get((root.block, root.feature), 0.0), change, key=abs)
        blocks = model.blocks
        known = [FeatureDrift(blocks[b].table, blocks[b].features[f], moved=m) for (b, f), m in sorted(most.items())]
        return Drift(tuple(known), ())

    def result(self, found: Result) -> Result:
        """A run's result without all that was counted exactly."""
        last = found.history[-1]
        record = EpochRecord(last.epoch, found.objective, found.metrics, rounds=0, bytes=0, seconds=0.0)
        known = replace(found, history=(record,), notes=self.noise.lines(), traffic=Traffic(), converged=True)
        return replace(known, baseline={}, curves={}, measured={})


def _norm(loss: Loss) -> float:
    """The largest length of a joined row's contribution."""
    return _NUMBER_NORM if loss.task == "number" else _CLASS_NORM


def _contributions(loss: Loss, scores: Array, labels: Array, noise: AnalystNoise) -> Array:
    """The sums of all rows' vectors."""
    views = pieces(max(1, len(scores)), JOINED_ROWS_PER_PIECE)
    return reduce(np.add, (_sum_rows(loss, np.ascontiguousarray(scores[some]), labels[some], noise) for some in views))


def _sum_rows(loss: Loss, scores: Array, labels: Array, noise: AnalystNoise) -> Array:
    if loss.task == "number":
        label, predicted = noise.within(labels)[0], noise.within(loss.predict(scores))[0]
        error = predicted - label
        return np.array([len(labels), np.abs(error).sum(), error @ error, label.sum(), label @ label])
    seen = labels.astype(np.intp)
    if loss.outputs == 1:
        width = 2 * _FARTHEST / _BINS
        place = np.floor((np.nan_to_num(scores[:, 0]) + _FARTHEST) / width)
        cells, count = np.clip(place, 0, _BINS - 1).astype(np.intp), _BINS
        seen, classes = np.minimum(seen, 1), 2
    else:
        cells, count = loss.predict(scores).astype(np.intp), int(loss.outputs)
        classes = count
    counted = np.bincount(seen * count + cells, minlength=classes * count)
    lost = np.clip(np.nan_to_num(loss.value(scores, labels), nan=_MOST_LOSS), 0.0, _MOST_LOSS)
    right = int(np.trace(counted.reshape(classes, classes, -1).sum(axis=2)))
    return np.array([*counted, lost.sum() / _MOST_LOSS, len(labels), right])


def _summarise(loss: Loss, found: Array, noise: AnalystNoise, norm: float) -> Measured:
    """Metrics that follow from noisy sums, whose noise is for vectors of this length."""
    if loss.task == "number":
        return _summarise_number(loss, found, noise, norm)
    classes = 2 if loss.outputs == 1 else int(loss.outputs)
    cells, (lost, counted, right) = found[:-3].reshape(classes, -1), found[-3:].tolist()
    noise.check_rows(counted, "metrics", norm)
    rows = max(1.0, counted)
    sums: Sums = {"rows": rows, "loss": max(0.0, _MOST_LOSS * lost), "correct": right}
    if loss.outputs == 1:
        confusion = cells.reshape(2, 2, -1).sum(axis=2)
        sums |= {"area": _area(cells), "share": max(0.0, float(cells[1].sum())) / rows}
    else:
        confusion = cells
    sums["confusion"] = np.maximum(confusion, 0.0)
    known = {m.name: m for m in loss.metrics}
    names = [name for name in (*_SHARES, "log_loss") if name in known and (name != "auc" or "area" in sums)]
    values = {name: known[name].value(sums) for name in names}
    metrics = {n: min(max(v, 0.0), 1.0) if n in _SHARES else v for n, v in values.items() if v is not None}
    deviation = noise.deviation("metrics", norm)
    errors = {"accuracy": deviation / rows, "log_loss": deviation * _MOST_LOSS / rows}
    return Measured(sums["loss"] / rows, metrics, on=MeasuredOn(round(rows), round(rows), errors))


def _summarise_number(loss: Loss, found: Array, noise: AnalystNoise, norm: float) -> Measured:
    assert noise.bounds is not None
    low, high = noise.bounds
    noise.check_rows(float(found[0]), "metrics", norm)
    apart, rows = high - low, max(1.0, float(found[0]))
    absolute, squared, total, squares = found[1:].tolist()
    spread = Spread(round(rows), (low + high) / 2, apart * total, apart**2 * max(squares, 0.0))
    sums: Sums = {"rows": rows, "absolute": apart * max(absolute, 0.0), "squared": apart**2 * max(squared, 0.0)}
    known = {m.name: m for m in loss.metrics}
    values = {n: known[n].value(sums | {"spread": spread}) for n in ("rmse", "mae", "r2") if n in known}
    metrics: Metrics = {name: value for name, value in values.items() if value is not None}
    error = apart * noise.deviation("metrics", norm) / rows
    on = MeasuredOn(round(rows), round(rows), {"mae": error})
    return Measured(0.5 * sums["squared"] / rows, metrics, on=on)


def _area(cells: Array) -> float:
    """Under the curve of two classes' scores in bins; rows of one bin count half. Cells below 0 stay: noise on two
    classes is independent, and its products are 0 on average.

    >>> _area(np.array([[2.0, 0.0], [0.0, 2.0]])), _area(np.array([[1.0, 1.0], [1.0, 1.0]]))
    (1.0, 0.5)
    """
    below = np.cumsum(cells[0]) - cells[0] / 2
    pairs = float(cells[0].sum() * cells[1].sum())
    return float(cells[1] @ below) / pairs if pairs > 0 else 0.5
