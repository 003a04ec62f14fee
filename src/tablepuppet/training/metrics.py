"""How good a model is on some joined rows: sums over shards, scores in order, and the curves of a finished model.

In: predictions of each block's rows, and labels. Out: Measured. Expensive metrics are measured when they matter
(Moment).

`SideRows`: joined rows that are not materialised. Metrics that follow from sums are exact. The others come from a
sample of rows, with its size and a standard error from twenty batches of it. That is the error of the draw alone.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Summable, Walkable
from tablepuppet.arrays import Array
from tablepuppet.formatting import format_count
from tablepuppet.join.factorised.rows import FactorisedRows
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.mapping import Class, MappingSummary
from tablepuppet.join.row_index import RowIndex
from tablepuppet.models.losses import Loss, Weighted
from tablepuppet.models.metrics import R2, RMSE, Moment, Spread, Sums
from tablepuppet.privacy.labels import Channel
from tablepuppet.training.curves import Curves, Grid, NumberCounts, count_numbers, curves_of
from tablepuppet.training.ranking import Probabilities, Ranking, pack_labels, rank

Metrics = dict[str, float]
_BATCHES = 20
_CLASSES = 20  # with more, the area under each one's curve is not measured


class MeasuredOn(msgspec.Struct, frozen=True):
    """Drawn joined rows that metrics were measured on, and the standard errors of those that no sum gives exactly."""

    rows: int
    of: int  # all joined rows of the side
    standard_errors: Metrics

    def without(self, exact: Metrics) -> "MeasuredOn":
        return replace(self, standard_errors={n: e for n, e in self.standard_errors.items() if n not in exact})


class Measured(msgspec.Struct, frozen=True, eq=False):
    """The mean loss and the metrics of some rows; of classes that a finished model predicts, the curves."""

    loss: float
    metrics: Metrics
    curves: Curves | None = None
    on: MeasuredOn | None = None  # None: all rows


class Criterion(msgspec.Struct, frozen=True):
    """How rows are measured: by a loss and its metrics, as far as the moment needs them; `channel`: noise on labels."""

    loss: Loss
    moment: Moment
    channel: Channel | None = None
    noisy: "NoisyMeasure | None" = None  # for analysts (training/noisy_metrics.py)

    @property
    def is_ranked(self) -> bool:
        return any(metric.is_ranked and metric.since <= self.moment for metric in self.loss.metrics)


NoisyMeasure = Callable[[Criterion, Array, Array], Measured]  # of all scores and labels


def by_side(
    found: Mapping[str, Measured], classes: tuple[Class, ...]
) -> tuple[dict[str, Metrics], dict[str, Curves], dict[str, MeasuredOn]]:
    """The metrics, the curves and the drawn rows of each side of the split; validation rows also have the loss."""
    metrics = {side: ({"loss": m.loss} if side == "validation" else {}) | m.metrics for side, m in found.items()}
    curves = {side: replace(m.curves, classes=classes) for side, m in found.items() if m.curves is not None}
    return metrics, curves, {side: m.on for side, m in found.items() if m.on is not None}


def measure_step(
    shard: Any, *, loss: Loss, intercept: Array, channel: Channel | None, moment: Moment
) -> tuple[Sequence[Array], dict[str, Any]]:
    """Sums from which all metrics but those of ranks follow; scores are kept where the state has room."""
    scores = shard.scores + intercept
    sums = loss.tally(scores, shard.labels, channel, moment=moment)
    plain = loss.plain if isinstance(loss, Weighted) else loss
    if plain.task != "number" and plain.outputs == 1:
        sums["positives"] = int(np.count_nonzero(shard.labels > 0.5))
    if "scores" in shard.state:
        shard.state["scores"][...] = pack_labels(scores, shard.labels[:, None])
    return (), sums


def class_step(shard: Any, *, loss: Loss, intercept: Array, number: int) -> tuple[Sequence[Array], dict[str, Any]]:
    """Keeps the probability of one class, with whether it is the row's."""
    plain = loss.plain if isinstance(loss, Weighted) else loss
    probabilities = plain.probabilities(shard.scores + intercept)
    assert probabilities is not None
    shard.state["scores"][...] = pack_labels(probabilities[:, [number]], shard.labels[:, None] == number)
    return (), {"positives": int(np.count_nonzero(shard.labels == number))}


def number_step(
    shard: Any, *, loss: Loss, intercept: Array, grids: tuple[Grid, Grid]
) -> tuple[Sequence[Array], dict[str, Any]]:
    """Counts predictions of a number against labels."""
    plain = loss.plain if isinstance(loss, Weighted) else loss
    return (), count_numbers(plain.predict(shard.scores + intercept), shard.labels, grids)


def measure(
    joined: Walkable, per_row: Sequence[Array], intercept: Array, criterion: Criterion, *, known: Sums | None = None
) -> Measured:
    """A model's predictions on some joined rows, as far as they are measured at the moment.

    The loss is the mean weighted by the rows' weights, if any; metrics count every row alike.

    `known`: the sums of an epoch, where an algorithm's own walk has counted them.
    """
    if joined.rows == 0:
        return Measured(float("nan"), {})
    if known is not None and criterion.moment is Moment.EPOCH:
        return _summarise(known, criterion)
    loss = criterion.loss
    given: dict[str, Any] = {"loss": loss, "intercept": intercept}
    writes = ("scores",) if criterion.is_ranked and loss.outputs == 1 else ()  # kept for ranking
    for name in writes:
        joined.allocate(name, 1)
    wanted: dict[str, Any] = {"channel": criterion.channel, "moment": criterion.moment}
    sums: Sums = joined.run(measure_step, per_row, writes=writes, **given, **wanted).sums | (known or {})
    found: list[Ranking] = []
    if criterion.is_ranked and loss.outputs == 1:
        found = [rank(joined.iterate_sorted("scores"), joined.rows, sums["positives"], _second(criterion))]
    elif criterion.is_ranked and loss.outputs <= _CLASSES:
        for number in range(loss.outputs):
            joined.allocate("scores", 1)
            count = joined.run(class_step, per_row, writes=("scores",), number=number, **given).sums["positives"]
            found.append(rank(joined.iterate_sorted("scores"), joined.rows, count))
    elif "spread" in sums and _draws_curves(criterion):
        grids = NumberCounts.grids(sums["spread"], sums["squared"])
        sums = sums | joined.run(number_step, per_row, grids=grids, **given).sums | {"grids": grids}
    return _summarise(sums, criterion, found)


def measure_constant(joined: Walkable, constant: Array, criterion: Criterion) -> Metrics:
    """The metrics of a constant, the majority class or the mean, on some joined rows."""
    rows = joined.sample if isinstance(joined, Summable) else joined
    nothing = [np.zeros((index.rows, criterion.loss.outputs)) for index in rows.indices]
    return measure(rows, nothing, constant, criterion).metrics


def measure_scores(side: JoinedRows, scores: Array, criterion: Criterion, whole: int | None = None) -> Measured:
    """The same from the score of every joined row, where an algorithm keeps them; `scores` is (rows, outputs).

    `whole`: how many rows these were drawn from; None: they are all.
    """
    if criterion.noisy is not None:
        return criterion.noisy(criterion, scores, side.joined_labels())
    own = replace(side, indices=(RowIndex(side.rows, None, is_sorted=True),), state={}, lanes=None)
    return SideRows(own, whole).measure([scores], np.zeros(scores.shape[1]), criterion)


def _second(criterion: Criterion) -> Probabilities | None:
    """The probability of the second class, where a finished model's curves are wanted."""
    loss = criterion.loss
    if not _draws_curves(criterion) or loss.probabilities(np.zeros((1, 1))) is None:
        return None
    return lambda scores: cast("Array", loss.probabilities(scores[:, None]))[:, 1]


def _draws_curves(criterion: Criterion) -> bool:
    return criterion.moment is Moment.FINISHED and criterion.channel is None


def _summarise(sums: Sums, criterion: Criterion, ranked: Sequence[Ranking] = ()) -> Measured:
    """The metrics that follow from sums, and from the ranks of the second class, or of each of several."""
    loss, channel = criterion.loss, criterion.channel
    mean_loss = loss.mean(sums, is_noisy=channel is not None)
    if "weighted" in sums:
        mean_loss = sums["weighted"] / max(sums["weight"], 1e-300)
    areas = [ranking.area for ranking in ranked if not np.isnan(ranking.area)]
    if ranked:
        area = float(np.mean(areas)) if areas else float("nan")
        first = ranked[0]
        sums = {**sums, "area": area, "share": first.share, "average_precision": first.average_precision}
    found = {m.name: m.of(sums, channel) for m in loss.metrics if m.since <= criterion.moment}
    metrics = {name: value for name, value in found.items() if value is not None}
    is_drawn = _draws_curves(criterion) and ("confusion" in sums or "cells" in sums)
    return Measured(mean_loss, metrics, curves_of(sums, loss, ranked) if is_drawn else None)


class SideRows(msgspec.Struct, frozen=True, eq=False):
    """The joined rows of a side; `whole`: how many they were drawn from, None: they are all."""

    joined: Any
    whole: int | None = None

    def measure(
        self, per_row: Sequence[Array], intercept: Array, criterion: Criterion, known: Sums | None = None
    ) -> Measured:
        if not isinstance(self.joined, FactorisedRows):
            found = measure(self.joined, per_row, intercept, criterion, known=known)
            return self._add_errors(found, per_row, intercept, criterion)
        drawn = SideRows(self.joined.sample, self.joined.rows)
        found = measure(drawn.joined, per_row, intercept, criterion)
        if (known is None and criterion.moment is not Moment.FINISHED) or not self.joined.rows:
            return found
        exact = _measure_exactly(self.joined, per_row, intercept, criterion, known)
        found = drawn._add_errors(found, per_row, intercept, criterion)
        on = None if found.on is None else found.on.without(exact.metrics)
        return replace(found, loss=exact.loss, metrics=found.metrics | exact.metrics, on=on)

    def _add_errors(
        self, found: Measured, per_row: Sequence[Array], intercept: Array, criterion: Criterion
    ) -> Measured:
        """With standard errors of metrics on drawn rows, from their spread between batches of these."""
        rows = self.joined
        if self.whole is None or self.whole <= rows.rows or criterion.moment is not Moment.FINISHED:
            return found

        def measure_some(some: NDArray[np.int64]) -> Metrics:
            batch, occurring = rows.take(some)
            own = [values[here] for values, here in zip(per_row, occurring, strict=True)]
            return measure(batch, own, intercept, criterion).metrics

        batches = np.array_split(np.random.default_rng(0).permutation(rows.rows), _BATCHES)
        each = [measure_some(np.sort(own)) for own in batches]
        names = sorted(set.intersection(*map(set, each)))
        errors = {name: float(np.std([own[name] for own in each], ddof=1)) / sqrt(_BATCHES) for name in names}
        return replace(found, on=MeasuredOn(rows.rows, self.whole, errors))


def _measure_exactly(
    joined: FactorisedRows, per_row: Sequence[Array], intercept: Array, criterion: Criterion, known: Sums | None
) -> Measured:
    """The mean loss, and the metrics that follow from it, over all joined rows."""

    def total_of(rows: FactorisedRows) -> float:
        return rows.differentiate(criterion.loss, per_row, float(intercept[0])).loss

    total = total_of(joined) if known is None else float(known["exact"])
    if joined.weights is None:
        return Measured(total / joined.rows, _exact_metrics(joined, total, criterion.loss))
    mean = total / max(float(joined.label_counts() @ joined.weights), 1e-300)
    if criterion.moment is not Moment.FINISHED:
        return Measured(mean, {})
    plain = joined.with_weights(None)  # metrics count every row alike
    return Measured(mean, _exact_metrics(plain, total_of(plain), criterion.loss))


def _exact_metrics(joined: FactorisedRows, total: float, loss: Loss) -> Metrics:
    metrics = {metric.name: metric.of_loss * total / joined.rows for metric in loss.metrics if metric.of_loss}
    if loss.is_quadratic:
        counts, labels = joined.label_counts(), joined.labels
        apart = labels - float(counts @ labels) / joined.rows
        spread = Spread(joined.rows, 0.0, 0.0, float(counts @ (apart * apart)))
        sums = {"rows": joined.rows, "squared": 2.0 * total, "spread": spread}
        metrics |= {metric.name: metric.value(sums) or 0.0 for metric in (RMSE, R2)}
    return metrics


def describe_walk(
    mapping: MappingSummary, measured: Mapping[str, MeasuredOn], metrics: Mapping[str, Metrics]
) -> list[str]:
    """The rows that a result was trained and measured on, where these are not all joined rows."""
    found = []
    if mapping.walk == "drawn" and mapping.whole is not None and mapping.whole.train > mapping.train_rows:
        found.append(f"trained on {_share(mapping.train_rows, mapping.whole.train)}, drawn with replacement")
    for side, on in measured.items():
        known = {name: error for name, error in on.standard_errors.items() if name in metrics[side]}
        errors = ", ".join(f"{name} {metrics[side][name]:.4g} ± {error:.1g}" for name, error in known.items())
        shown = f": {errors} (standard error)" if errors else ""
        found.append(f"{side} metrics are measured on {_share(on.rows, on.of)}{shown}")
    return found


def _share(rows: int, whole: int) -> str:
    return f"{rows:,} of {format_count(whole)} joined rows"
