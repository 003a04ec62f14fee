"""cross_validate, search and path: which settings are best on rows that were not trained on.

    tp.cross_validate(federation, query, label="returned", folds=5, group="customer_id").table
    tp.search(federation, query, {"l2": [1e-4, 1e-2], "l1": [0, 1e-3]}, label="returned").best

In: a federation, a query and the settings to try. Out: SearchResult, a table with mean and spread. All models share one
mapping of the tables, and owners agree to all of them in one contract.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from tablepuppet.algorithms.registry import own_model
from tablepuppet.api.federation import Federation
from tablepuppet.calls import check_calls
from tablepuppet.errors import JobError
from tablepuppet.job import Job, make_job, search_job
from tablepuppet.job.make import plain_value
from tablepuppet.progress import show_progress
from tablepuppet.protocol.contract import FoldBy, Folds
from tablepuppet.training.result import Result
from tablepuppet.training.search import SearchResult, check_apart, search_apart

if TYPE_CHECKING:
    import pandas as pd

PATH = tuple(10.0 ** (-k / 2) for k in range(9))  # from 1 to 1e-4


@check_calls
def cross_validate(
    federation: Federation, query: str, label: str = "", *, folds: int = 5, **options: Any
) -> SearchResult:
    """Measures one setting: trains `folds` times without a fold, and measures each model on its fold (docs/search.md).

    - `federation`, `query`, `label` and `options`: as in `Federation.train`.
    - `group`: rows with the same value of this column stay in one fold; `time`: folds follow this column's order, each
      measured by a model of all rows before it.

    >>> tp.cross_validate(federation, query, label="returned", folds=3).folds["fold"].tolist()
    [0, 1, 2]
    """
    return search(federation, query, [{}], label=label, folds=folds, **options)


@check_calls
def search(
    federation: Federation,
    query: str,
    grid: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    label: str = "",
    folds: int = 5,
    samples: int | None = None,
    metric: str | None = None,
    **options: Any,
) -> SearchResult:
    """Finds the best of several settings by cross-validation (docs/search.md).

    - `federation`, `query`, `label` and `options`: as in `Federation.train`; `folds`, `group`, `time`: as in
      `cross_validate`.
    - `grid`: values for each option, or a list of whole settings.
    - `samples`: draw so many settings by `seed` instead of all; a value may then be a distribution, anything with
      `rvs`.
    - `metric`: the metric that decides; by default the model's loss.

    >>> found = tp.search(federation, query, {"l2": [1e-3, 1.0]}, label="returned", folds=3)
    >>> found.best in ({"l2": 1e-3}, {"l2": 1.0})
    True
    """
    settings = drawn_settings(grid, samples, options.get("seed", 0)) or [{}]
    fixed = sorted({"query", "label", "model", "algorithm"} & {name for setting in settings for name in setting})
    if fixed:
        raise JobError(
            f"a search compares settings of one model, and {fixed[0]} makes another; run one search for each"
        )
    group, time = options.pop("group", None), options.pop("time", None)
    if group is not None and time is not None:
        raise JobError("folds are drawn by group or by time, not by both")
    by: FoldBy = "group" if group is not None else "time" if time is not None else "row"
    drawn = Folds(count=folds, by=by, column=group or time)
    progress = options.pop("progress", None)
    model, algorithm = options.pop("model", "auto"), options.pop("algorithm", None)
    with federation._name_modules(model, {"test_fraction": 0.0, **options}) as (named, shared):

        def jobs(solver: Any) -> list[Job]:
            return [make_job(query, label=label, model=named, algorithm=solver, given=shared | s) for s in settings]

        made = jobs(algorithm)
        if algorithm is None and len({job.algorithm for job in made}) > 1:  # that of kinks trains without them too
            made = jobs(next((job.algorithm for job in made if job.model.l1 or job.model.signs), None))
        with show_progress("searching", progress) as bar:
            on_round = bar.chain_callback(None)
            if all(own_model(job.model.spec) is not None for job in made):
                check_apart(made, drawn)
                found = search_apart(made, settings, drawn, lambda job: federation._train(job, on_round, False))
            else:
                found = cast("SearchResult", federation._train(search_job(made, settings, drawn), on_round, False))
    return found.by(found.metric if metric is None else metric)


class PathResult(msgspec.Struct, frozen=True, eq=False):
    """Models of one query under less and less l1, each begun with the one before."""

    results: tuple[Result, ...]

    @property
    def table(self) -> "pd.DataFrame":
        """A row for every model: its l1, how many weights are not 0, the objective, and metrics of the test rows."""
        import pandas as pd

        rows = []
        for result in self.results:
            counts = {"l1": result.plan.job.model.l1, "weights": int((result.coefficients()["weight"] != 0).sum())}
            side = result.metrics["test"] or result.metrics["train"]
            rows.append({**counts, "objective": result.objective, **side})
        return pd.DataFrame(rows)

    @property
    def coefficients(self) -> "pd.DataFrame":
        """Weights on the original scale: a row for every feature, a column for every l1."""
        import pandas as pd

        found = {
            r.plan.job.model.l1: r.coefficients().set_index(["table", "feature", "class_"])["weight"]
            for r in self.results
        }
        return pd.concat(found, axis=1)

    def __repr__(self) -> str:
        counts = self.table["weights"].tolist()
        return f"PathResult({len(self.results)} models, with {counts[0]} to {counts[-1]} weights)"


@check_calls
def path(
    federation: Federation, query: str, label: str = "", *, l1: Sequence[float] = PATH, **options: Any
) -> PathResult:
    """An elastic-net path: a model for each `l1`, the largest first, each started from the one before.

    `federation`, `query`, `label` and `options`: as in `Federation.train`; with `l2=0` it is the lasso's path.

    >>> tp.path(federation, query, label="returned", l1=[1.0, 1e-3]).table["weights"].tolist()[0]
    0
    """
    results: list[Result] = []
    if not l1 or not all(isinstance(value, int | float) for value in l1):
        raise JobError("l1 lists one penalty or more, as in l1=[1, 0.1, 0.01]")
    for value in sorted(l1, reverse=True):
        before = results[-1] if results else None
        results.append(federation.train(query, label=label, l1=float(value), warm_start=before, **options))
    return PathResult(tuple(results))


def drawn_settings(
    grid: Mapping[str, Any] | Sequence[Mapping[str, Any]], samples: int | None, seed: int
) -> list[dict[str, Any]]:
    """The settings that a grid stands for.

    >>> drawn_settings({"l2": [0.1, 0.2], "l1": [0]}, None, 0)
    [{'l2': 0.1, 'l1': 0}, {'l2': 0.2, 'l1': 0}]
    """
    listed = [grid] if isinstance(grid, Mapping) else grid
    is_list = isinstance(listed, Sequence) and not isinstance(listed, str)
    if not is_list or not all(isinstance(setting, Mapping) for setting in listed):
        raise JobError('the grid gives values by option, {"l2": [0.01, 0.1]}, or lists settings, [{"l2": 0.01}, …]')
    if samples is not None and samples < 1:
        raise JobError("samples must be a whole number from 1 up")
    if not isinstance(grid, Mapping):
        return [dict(setting) for setting in grid]
    for name, values in grid.items():
        if samples is not None and hasattr(values, "rvs"):
            continue
        if isinstance(values, str | Mapping) or not isinstance(values, Sequence | np.ndarray) or not len(values):
            hint = "; samples=20 draws from it" if hasattr(values, "rvs") else ""
            raise JobError(f"the grid gives a list of values for each option, and {name} has none{hint}")
    if samples is not None:
        rng = np.random.default_rng(seed)
        return [{name: _draw(values, rng) for name, values in grid.items()} for _ in range(samples)]
    combined = itertools.product(*grid.values())
    return [dict(zip(grid, map(plain_value, values), strict=True)) for values in combined]


def _draw(values: Any, rng: np.random.Generator) -> Any:
    if hasattr(values, "rvs"):
        return plain_value(values.rvs(random_state=rng))
    listed = list(values)
    return plain_value(listed[int(rng.integers(len(listed)))])
