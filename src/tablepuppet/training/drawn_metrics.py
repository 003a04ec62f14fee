"""Metrics of joined rows that nobody has written down: what sums give is exact, the rest is of rows that were drawn.

In: a side's joined rows, all of them as trees or some as a list, and predictions. Out: Measured, with how many rows it
was measured on and the standard error of each metric, from twenty batches of them. That is the error of the draw alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.formatting import format_count
from tablepuppet.join.factorised.rows import FactorisedRows
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.models.losses import Loss
from tablepuppet.models.metrics import R2, RMSE, Moment, Spread, Sums
from tablepuppet.training.metrics import Criterion, Measured, MeasuredOn, Metrics, measure

_BATCHES = 20


@dataclass(frozen=True, slots=True, eq=False)
class SideRows:
    """The joined rows of a side; `whole`: how many they were drawn from, None: they are all."""

    joined: Any
    whole: int | None = None

    def measure(
        self, per_row: Sequence[Array], intercept: Array, criterion: Criterion, known: Sums | None = None
    ) -> Measured:
        """A model's predictions on them."""
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
        rows = self.joined
        if self.whole is None or self.whole <= rows.rows or criterion.moment is not Moment.FINISHED:
            return found

        def measure_some(some: NDArray[np.int64]) -> Metrics:
            batch, occurring = rows.take(some)
            own = [values[here] for values, here in zip(per_row, occurring, strict=True)]
            return measure(batch, own, intercept, criterion).metrics

        return replace(found, on=MeasuredOn(rows.rows, self.whole, standard_errors(measure_some, rows.rows)))


def standard_errors(measure_some: Callable[[NDArray[np.int64]], Metrics], rows: int) -> Metrics:
    """Of metrics on so many drawn rows, from how they differ between batches of them."""
    batches = np.array_split(np.random.default_rng(0).permutation(rows), _BATCHES)
    found = [measure_some(np.sort(own)) for own in batches]
    names = set.intersection(*(set(own) for own in found))
    return {name: float(np.std([own[name] for own in found], ddof=1)) / sqrt(_BATCHES) for name in sorted(names)}


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
        metrics |= {metric.name: metric.value(sums, None) or 0.0 for metric in (RMSE, R2)}
    return metrics


def describe_walk(
    mapping: MappingSummary, measured: Mapping[str, MeasuredOn], metrics: Mapping[str, Metrics]
) -> list[str]:
    """What a result was trained and measured on, where that is not every joined row."""
    found = []
    if mapping.walk == "drawn" and mapping.whole is not None and mapping.whole.train > mapping.train_rows:
        found.append(f"trained on {_share(mapping.train_rows, mapping.whole.train)}, drawn with replacement")
    return [*found, *_describe_sides(measured, metrics)]


def _describe_sides(measured: Mapping[str, MeasuredOn], metrics: Mapping[str, Metrics]) -> Iterator[str]:
    for side, on in measured.items():
        pairs = [
            (name, metrics[side][name], error) for name, error in on.standard_errors.items() if name in metrics[side]
        ]
        errors = ", ".join(f"{name} {value:.4g} ± {error:.1g}" for name, value, error in pairs)
        yield f"{side} metrics are measured on {_share(on.rows, on.of)}" + (
            f": {errors} (standard error)" if errors else ""
        )


def _share(rows: int, whole: int) -> str:
    return f"{rows:,} of {format_count(whole)} joined rows"
