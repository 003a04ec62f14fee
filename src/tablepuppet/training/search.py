"""Cross-validation of several settings over one mapping: every model is trained on all folds but one.

In: a prepared job whose `search` says which settings and folds. Out: SearchResult. Keys, labels, statistics and
encoders are asked for once. A fold is some of the joined rows, with the tables' rows numbered as before. A client
learns how often its rows occur in them, and predicts all of its rows, including those of the held-out fold. Some
algorithms train all settings of a fold at once (algorithms/base.py: MultiModelServer). An algorithm that reaches the
optimum from any start continues from the model before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Problem, Server, Walkable
from tablepuppet.arrays import Array, RowNumbers, floats
from tablepuppet.errors import JobError, MappingError, PrivacyError
from tablepuppet.formatting import plural
from tablepuppet.job import Job
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.mapping import TableMapping, rows_here
from tablepuppet.join.row_index import RowIndex, count_rows
from tablepuppet.memory import trim_heap
from tablepuppet.models.heads.base import apply_head
from tablepuppet.models.losses import metrics_by_name
from tablepuppet.models.metrics import Moment
from tablepuppet.plan.plan import Plan
from tablepuppet.plan.prepare import Prepared
from tablepuppet.protocol.columns import Encoder
from tablepuppet.protocol.contract import Folds
from tablepuppet.training.metrics import Criterion, Metrics, measure
from tablepuppet.training.result import Result
from tablepuppet.training.run import OnRound, Run
from tablepuppet.training.server import UnionOperator
from tablepuppet.training.start import agree_on_encoders, make_problem
from tablepuppet.transport.link import Link
from tablepuppet.transport.meter import Traffic, all_of

if TYPE_CHECKING:
    import pandas as pd


class Fit(msgspec.Struct, frozen=True):
    """One setting, trained without one fold and measured on it."""

    setting: int
    fold: int
    train_rows: int  # joined ones
    test_rows: int
    metrics: Metrics  # of the fold that was held out; `loss` is the mean loss
    epochs: int


class SearchResult(msgspec.Struct, frozen=True, eq=False):
    """Metrics of settings on rows that they were not trained on. `tp.search` and `tp.cross_validate` return it.

    >>> found = tp.search(federation, query, {"l2": [1e-3, 1.0]}, label="returned", folds=3)
    >>> len(found.table), len(found.folds), list(found.best)
    (2, 6, ['l2'])
    """

    plan: Plan
    settings: tuple[dict[str, Any], ...]
    fits: tuple[Fit, ...]
    traffic: Traffic
    metric: str = "loss"  # that settings are compared by

    def for_release(self) -> "SearchResult":
        """The result that leaves the server: all of it, for a search takes no private job."""
        return self

    @property
    def folds(self) -> "pd.DataFrame":
        """A row for every model: its setting, its fold, and the metrics of the rows that were held out."""
        import pandas as pd  # not to be loaded with every run

        rows = [
            {**self.settings[fit.setting], "fold": fit.fold, "rows": fit.test_rows, **fit.metrics, "epochs": fit.epochs}
            for fit in self.fits
        ]
        return pd.DataFrame(rows)

    @property
    def table(self) -> "pd.DataFrame":
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
        return self.settings[self._best]

    @property
    def _best(self) -> int:
        return int(np.argmin([self._sign * np.mean(self._values(number)) for number in range(len(self.settings))]))

    def by(self, metric: str) -> "SearchResult":
        """The same result, ranked by another `metric`."""
        known = list(self.fits[0].metrics)
        if metric not in known:
            raise JobError(f"metric must be one of {', '.join(known)}, not {metric!r}")
        return replace(self, metric=metric)

    def _values(self, setting: int) -> list[float]:
        return [fit.metrics[self.metric] for fit in self.fits if fit.setting == setting]

    @property
    def _sign(self) -> float:
        metric = metrics_by_name().get(self.metric)
        return -1.0 if metric is not None and metric.is_higher_better else 1.0

    def __repr__(self) -> str:
        folds = len({fit.fold for fit in self.fits})
        values = self._values(self._best)
        chosen = ", ".join(f"{name}={value!r}" for name, value in self.best.items())
        return (
            f"SearchResult({plural(len(self.settings), 'setting')} on {plural(folds, 'fold')}: "
            f"{self.metric} {np.mean(values):.4g} ± {np.std(values):.2g}"
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
    trim_heap()
    folds = FoldRows.of(mapping, search.folds.count, is_time=search.folds.by == "time")
    runs = _Runs(prepared, union, encoders, folds, on_round)
    fits = tuple(fit for fold in range(search.folds.count) for fit in runs.fold(fold))
    return SearchResult(plan, search.settings, fits, link.meter.traffic())


def check_apart(jobs: Sequence[Job], folds: Folds) -> None:
    """Models that are trained apart hold rows out by chance, and by nothing else."""
    if folds.by != "row":
        raise JobError("boosted trees are searched with rows held out by chance; leave group and time out")
    if not isinstance(folds.count, int) or not 2 <= folds.count <= 1000:
        raise JobError("folds must be a whole number from 2 to 1,000")
    if any(job.split.test_fraction or job.split.test_where is not None for job in jobs):
        raise JobError("a search of boosted trees holds rows out by itself; leave test_fraction and test_where out")


def search_apart(
    jobs: Sequence[Job], settings: Sequence[dict[str, Any]], folds: Folds, train: Callable[[Job], Result]
) -> SearchResult:
    """A search of models that cannot share a mapping. Each setting is trained `folds` times without a share of 1/folds
    of the rows. Another seed draws them each time, the same for every setting. For an analyst, all of them share ε."""
    fits: list[Fit] = []
    results: list[Result] = []
    total = folds.count * len(jobs)
    for fold in range(folds.count):
        for number, job in enumerate(jobs):
            own = job.replace(test_fraction=1.0 / folds.count, seed=job.seed + fold)
            if (asked := own.privacy.analyst) is not None:
                part = msgspec.structs.replace(asked, fits=total, ahead=total - 1 - len(fits))
                own = own.replace(privacy=msgspec.structs.replace(own.privacy, analyst=part))
            result = train(own)
            if not result.metrics["test"]:
                raise PrivacyError("the rows of a fold are too few for the noise on its metrics; try fewer settings")
            rows = result.plan.mapping
            metrics = {"loss": _loss_of(result), **result.metrics["test"]}
            fits.append(Fit(number, fold, rows.train_rows, rows.test_rows, metrics, len(result.history)))
            results.append(result)
    return SearchResult(results[0].plan, tuple(settings), tuple(fits), all_of([result.traffic for result in results]))


def _loss_of(result: Result) -> float:
    """The mean loss of the test rows, by the metric that is one, or follows from it."""
    found = result.metrics["test"]
    if "rmse" in found:
        return 0.5 * found["rmse"] ** 2
    return next((found[name] for name in ("log_loss", "deviance", "pinball") if name in found), float("nan"))


@dataclass
class _Runs:
    """The models of a search, one fold after the other."""

    prepared: Prepared
    union: UnionOperator
    encoders: list[list[Encoder]]
    folds: "FoldRows"
    on_round: OnRound | None

    def __post_init__(self) -> None:
        self.before: Run | None = None
        plan = self.prepared.plan
        search = plan.job.search
        assert search is not None
        rows = self.prepared.mapping.train.rows
        decided = {"model": plan.job.model.name, "loss": plan.job.model.loss}  # by the label, for all settings
        jobs = [job.replace(**decided, options=job.options_for_run).over(rows) for job in search.jobs]
        self.plans = [replace(plan, job=job) for job in jobs]
        first = self.plans[0]
        problem = make_problem(first, self.prepared.training, self.union, self.encoders)
        may_share = len({msgspec.json.encode(job.replace(l2=0.0, l2_by_rows=0.0)) for job in jobs}) == 1
        self.multi_models = (
            first.algorithm.multi_model_server(problem, first.job.options, self.folds.pieces) if may_share else None
        )

    def fold(self, fold: int) -> list[Fit]:
        """Every setting, trained without a fold and measured on it."""
        inside, outside = self.folds.sides(fold)
        numbers = range(len(self.plans))
        if self.multi_models is None:
            return [self._one(number, fold, inside, outside) for number in numbers]
        size = min(len(numbers), self.multi_models.most)
        several = (numbers[first : first + size] for first in range(0, len(numbers), size))
        return [fit for own in several for fit in self._several(own, size, fold, inside, outside)]

    def _one(self, number: int, fold: int, inside: TableMapping, outside: JoinedRows) -> Fit:
        before, plan = self.before, self.plans[number]
        problem = make_problem(plan, inside, self.union, self.encoders)
        server = plan.algorithm.server(problem, plan.job.options)
        continues = before is not None and plan.algorithm.can_continue(problem)
        moves = before.server.settle() if before is not None else ()
        run = self.before = self._train(plan, inside, problem, server, continues=continues, last_moves=moves)
        metrics = _measure(apply_head(outside, problem.head), run.predict_train(), plan, run.intercept)
        return Fit(number, fold, inside.train.rows, outside.rows, metrics, run.epochs)

    def _train(self, plan: Plan, inside: TableMapping, problem: Problem, server: Server, **given: Any) -> Run:
        own = replace(self.prepared, plan=plan, training=inside)
        run = Run(own, self.union, problem, server, self.on_round, None, is_fold=True, **given)
        run.start()
        run.loop()
        return run

    def _several(
        self, numbers: Sequence[int], size: int, fold: int, inside: TableMapping, outside: JoinedRows
    ) -> list[Fit]:
        """Some settings at once; where they are fewer than others were, the last one stands in for the rest."""
        server, found = self.multi_models, []
        assert server is not None
        padded = [*numbers, *[numbers[-1]] * (size - len(numbers))]
        problems = [make_problem(self.plans[number], inside, self.union, self.encoders) for number in padded]
        server.turn(problems, self.folds.kept_folds(fold))
        first = self.plans[numbers[0]]
        run = self._train(first, inside, problems[0], server, models=size, continues=server.continues)
        for place, number in enumerate(numbers):
            predictions, intercept = server.model(place)
            metrics = _measure(outside, predictions, self.plans[number], intercept)
            found.append(Fit(number, fold, inside.train.rows, outside.rows, metrics, run.epochs))
        return found


def _measure(rows: Walkable, predictions: Sequence[Array], plan: Plan, intercept: Array) -> Metrics:
    found = measure(rows, predictions, intercept, Criterion(plan.loss, Moment.FINISHED))
    return {"loss": found.loss} | found.metrics


class FoldRows(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Joined rows by fold; by time there is one more, which is never held out."""

    mapping: TableMapping
    train: JoinedRows
    numbers: NDArray[Any]  # the fold of each joined row
    pieces: tuple[JoinedRows, ...]
    is_time: bool

    @classmethod
    def of(cls, mapping: TableMapping, count: int, *, is_time: bool) -> "FoldRows":
        train = rows_here(mapping.train)
        assert mapping.folds is not None
        index = train.label_index.index
        folds = mapping.folds if index is None else mapping.folds[train.label_index.numbers(train.rows)]
        pieces = tuple(_only(train, np.flatnonzero(folds == fold)) for fold in range(count + is_time))
        return cls(mapping, train, folds, pieces, is_time)

    @cached_property
    def counts(self) -> list[list[RowNumbers]]:
        return [[count_rows(p.numbers(piece.rows), p.rows) for p in piece.indices] for piece in self.pieces]

    def kept_folds(self, fold: int) -> list[int]:
        """The folds to train on while a fold is held out (by time: those before it)."""
        return list(range(fold + 1)) if self.is_time else [n for n in range(len(self.pieces)) if n != fold]

    def sides(self, fold: int) -> tuple[TableMapping, JoinedRows]:
        held = self.pieces[fold + self.is_time]
        kept = np.flatnonzero(self.numbers <= fold if self.is_time else self.numbers != fold)
        if not held.rows or not len(kept):
            what = "measure" if len(kept) else "train"
            raise MappingError(f"fold {fold + 1} has no row to {what} on; use fewer folds, or bring more rows")
        inside, weights = _only(self.train, kept), self.train.weights
        if weights is not None:  # of mean 1 over these rows
            total = float(weights[self.train.label_index.take(kept)].sum())
            inside = inside.with_weights(weights * (len(kept) / total) if total > 0 else weights)
        counts = [self.counts[number] for number in self.kept_folds(fold)]
        multiplicity = tuple(reduce(np.add, own) for own in zip(*counts, strict=True))
        return replace(self.mapping, train=inside, multiplicity=multiplicity), held.with_weights(None)


def _only(rows: JoinedRows, joined: NDArray[np.int64]) -> JoinedRows:
    indices = tuple(RowIndex.of(p.take(joined), p.rows) for p in rows.indices)
    label = RowIndex.of(rows.label_index.take(joined), rows.label_index.rows)
    return JoinedRows(len(joined), indices, label, floats(rows.labels), weights=rows.weights)
