"""Cross-validation of several settings over one mapping: every model is trained on all folds but one.

In: a prepared job whose `search` says which settings and folds. Out: SearchResult. Keys, labels, statistics and
encoders are asked for once. A fold is some of the joined rows, with the tables' rows numbered as before: a client is
told how often its rows occur in them, and predicts all of its rows, those of the fold that is held out among them.
Where an algorithm reaches the optimum wherever it begins, it goes on from the model before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.engine.encoders import agree_on_encoders
from tablepuppet.engine.metrics import Metrics, measure
from tablepuppet.engine.run import OnRound, Run, make_problem
from tablepuppet.errors import JobError, MappingError
from tablepuppet.mapping.mapping import TableMapping, rows_here
from tablepuppet.mapping.rows.index import RowIndex
from tablepuppet.mapping.rows.joined import JoinedRows
from tablepuppet.memory import give_back
from tablepuppet.models.heads.base import headed
from tablepuppet.models.losses import metrics_by_name
from tablepuppet.models.metrics import Moment
from tablepuppet.plan.plan import Plan
from tablepuppet.plan.prepare import Prepared
from tablepuppet.server.union import UnionOperator
from tablepuppet.transport.link import Link
from tablepuppet.transport.meter import Traffic

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Fit:
    """One setting, trained without one fold and measured on it."""

    setting: int
    fold: int
    train_rows: int  # joined ones
    test_rows: int
    metrics: Metrics  # of the fold that was held out; `loss` is the mean loss
    epochs: int
    seconds: float


@dataclass(frozen=True, eq=False)
class SearchResult:
    """How good settings are on rows that they were not trained on."""

    plan: Plan
    settings: tuple[dict[str, Any], ...]
    fits: tuple[Fit, ...]
    traffic: Traffic
    metric: str = "loss"  # that settings are compared by

    def released(self) -> SearchResult:
        """What leaves the server: all of it, for a search takes no private job."""
        return self

    @property
    def folds(self) -> pd.DataFrame:
        """A row for every model: its setting, its fold, and the metrics of the rows that were held out."""
        import pandas as pd  # not to be loaded with every run

        rows = [
            {**self.settings[fit.setting], "fold": fit.fold, "rows": fit.test_rows, **fit.metrics, "epochs": fit.epochs}
            for fit in self.fits
        ]
        return pd.DataFrame(rows)

    @property
    def table(self) -> pd.DataFrame:
        """A row for every setting: the mean of each metric over folds and its spread (`…_std`), the best first."""
        import pandas as pd

        rows = []
        for number, setting in enumerate(self.settings):
            own = [fit.metrics for fit in self.fits if fit.setting == number]
            figures: dict[str, float] = {}
            for name in own[0]:
                values = [metrics[name] for metrics in own]
                figures |= {name: float(np.mean(values)), f"{name}_std": float(np.std(values))}
            rows.append({**setting, **figures, "rank": 0})
        ranks = np.argsort(np.argsort([self._sign * row[self.metric] for row in rows], kind="stable"), kind="stable")
        for row, rank in zip(rows, ranks.tolist(), strict=True):
            row["rank"] = rank + 1
        return pd.DataFrame(rows).sort_values("rank").reset_index(drop=True)

    @property
    def best(self) -> dict[str, Any]:
        """The setting with the best mean: `federation.train(query, label=…, **found.best)` trains it on all rows."""
        means = [self._sign * self._mean(number) for number in range(len(self.settings))]
        return self.settings[int(np.argmin(means))]

    def by(self, metric: str) -> SearchResult:
        """The same, compared by another metric."""
        known = list(self.fits[0].metrics)
        if metric not in known:
            raise JobError(f"metric must be one of {', '.join(known)}, not {metric!r}")
        return replace(self, metric=metric)

    def _mean(self, setting: int) -> float:
        return float(np.mean([fit.metrics[self.metric] for fit in self.fits if fit.setting == setting]))

    @property
    def _sign(self) -> float:
        metric = metrics_by_name().get(self.metric)
        return -1.0 if metric is not None and metric.is_higher_better else 1.0

    def __repr__(self) -> str:
        folds = len({fit.fold for fit in self.fits})
        means = [self._mean(number) for number in range(len(self.settings))]
        best = min(means, key=lambda mean: self._sign * mean)
        spread = np.std([fit.metrics[self.metric] for fit in self.fits if self.settings[fit.setting] == self.best])
        chosen = ", ".join(f"{name}={value!r}" for name, value in self.best.items())
        return (
            f"SearchResult({len(self.settings)} settings on {folds} folds: {self.metric} {best:.4g} ± {spread:.2g}"
            f"{f' with {chosen}' if chosen else ''}; {self.traffic.rounds:,} rounds, {self.traffic.bytes / 1e6:.3g} MB)"
        )

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False, float_format="%.4g"))


def run_search(prepared: Prepared, link: Link, job_id: str, on_round: OnRound | None = None) -> SearchResult:
    """Trains every setting on all folds but one, in turn."""
    plan, mapping = prepared.plan, prepared.training
    search = plan.job.search
    assert search is not None
    union = UnionOperator(link, job_id, mapping, plan.head.widths, plan.job.privacy)
    encoders = agree_on_encoders(union, mapping, plan.job)
    give_back()
    fits: list[Fit] = []
    before: Run | None = None
    for fold in range(search.folds.count):
        inside, outside = _sides(mapping, fold, is_time=search.folds.by == "time")
        for number, job in enumerate(search.jobs):
            began = time.perf_counter()
            given = msgspec.structs.replace(job, model=plan.job.model, loss=plan.job.loss, options=job.blinded_options)
            own = replace(prepared, plan=replace(plan, job=given), training=inside)
            problem = make_problem(own.plan, inside, union, encoders)
            server = own.plan.algorithm.server(problem, given.options)
            continues = before is not None and own.plan.algorithm.can_continue(problem)
            moves = before.server.settle() if before is not None else ()
            run = Run(own, union, problem, server, on_round, None, is_fold=True, continues=continues, last_moves=moves)
            run.start()
            run.loop()
            rows = headed(outside, problem.head)
            measured = measure(rows, run.predicted(), plan.loss, run.intercept, moment=Moment.FINISHED)
            metrics = {"loss": measured.loss} | measured.metrics
            seconds = time.perf_counter() - began
            fits.append(Fit(number, fold, inside.train.rows, outside.rows, metrics, run.epochs, seconds))
            before = run
    return SearchResult(plan, search.settings, tuple(fits), link.meter.traffic())


def _sides(mapping: TableMapping, fold: int, *, is_time: bool) -> tuple[TableMapping, JoinedRows]:
    """The mapping without a fold (by time: of what comes before it), and the fold."""
    train = rows_here(mapping.train)
    assert mapping.folds is not None
    index = train.label_index.index
    folds = mapping.folds if index is None else mapping.folds[train.label_index.numbers(train.rows)]
    held, kept = (folds == fold + 1, folds <= fold) if is_time else (folds == fold, folds != fold)
    if not held.any() or not kept.any():
        what = "measure" if kept.any() else "train"
        raise MappingError(f"fold {fold + 1} has no row to {what} on; use fewer folds, or bring more rows")
    inside, outside = (_only(train, np.flatnonzero(marks)) for marks in (kept, held))
    multiplicity = tuple(_counted(p) for p in inside.indices)
    return replace(mapping, train=inside, multiplicity=multiplicity), outside.weighted(None)


def _only(rows: JoinedRows, joined: NDArray[np.int64]) -> JoinedRows:
    """Some joined rows, with the tables' rows numbered as they are."""
    indices = tuple(RowIndex.of(p.take(joined), p.rows) for p in rows.indices)
    label = RowIndex.of(rows.label_index.take(joined), rows.label_index.rows)
    return JoinedRows(len(joined), indices, label, rows.labels, weights=_rescaled(rows, joined))


def _rescaled(rows: JoinedRows, joined: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Weights of mean 1 over these rows."""
    if rows.weights is None:
        return None
    total = float(rows.weights[rows.label_index.take(joined)].sum())
    return rows.weights * (len(joined) / total) if total > 0 else rows.weights


def _counted(index: RowIndex) -> NDArray[np.int64]:
    numbers: Sequence[int] | NDArray[Any] = np.arange(index.rows) if index.index is None else index.index
    found = np.asarray(numbers)
    return np.bincount(found[found >= 0], minlength=index.rows)
