"""tablepuppet search JOB: a job cross-validated, under one setting or several, over one mapping of its keys."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tablepuppet.api.search import search as search_settings
from tablepuppet.cli.job_file import FederationOption, JobArgument, read_job
from tablepuppet.cli.screen import JsonOption, Screen, table
from tablepuppet.errors import JobError

TryOption = Annotated[
    list[str] | None,
    typer.Option("--try", metavar="NAME=V,V…", help="Values of an option of the job; may be repeated: all pairs."),
]
FoldsOption = Annotated[int, typer.Option("--folds", help="How many folds.")]
MetricOption = Annotated[
    str, typer.Option("--metric", metavar="NAME", help="What settings are compared by: loss, auc, rmse, …")
]
SamplesOption = Annotated[int | None, typer.Option("--samples", help="Draw so many settings instead of trying all.")]
GroupOption = Annotated[
    str | None, typer.Option("--group", metavar="COLUMN", help="Rows that are equal in it stay in one fold.")
]
TimeOption = Annotated[
    str | None, typer.Option("--time", metavar="COLUMN", help="Folds follow each other in its order.")
]


def search(
    job: JobArgument,
    given: TryOption = None,
    folds: FoldsOption = 5,
    metric: MetricOption = "loss",
    samples: SamplesOption = None,
    group: GroupOption = None,
    time: TimeOption = None,
    federation: FederationOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cross-validate a job, or compare settings of it; the best comes first.

    [bold]Example:[/bold] tablepuppet search returns.toml --try l2=0.001,0.01,0.1 --try l1=0,0.001 --metric auc
    """
    screen = Screen(as_json)
    asked = read_job(job)
    grid = read_grid(given or ())
    arguments = {name: value for name, value in asked.arguments.items() if name not in grid}
    chosen: dict[str, Any] = {"folds": folds, "metric": metric, "samples": samples, "group": group, "time": time}
    with screen.progress(f"searching {asked.path.stem}"), asked.open_federation(federation) as tables:
        found = search_settings(tables, asked.query, grid or [{}], **arguments, **chosen)
    names = list(grid)
    metrics = [name for name in found.table.columns if f"{name}_std" in found.table.columns]
    shown = table(*names, *metrics, title=f"{len(found.settings):,} settings on {folds} folds, mean ± spread")
    for row in found.table.to_dict("records"):
        figures = (f"{row[name]:.4g} ± {row[f'{name}_std']:.2g}" for name in metrics)
        shown.add_row(*(str(row[name]) for name in names), *figures)
    best = ", ".join(f"{name} = {json.dumps(value)}" for name, value in found.best.items())
    screen.show(shown, *([f"Best by {metric}: {best}. Write it into {asked.path.name} and train."] if best else []))
    screen.show_json(
        lambda: {
            "metric": metric,
            "best": found.best,
            "settings": found.table.to_dict("records"),
            "folds": found.folds.to_dict("records"),
        }
    )


def read_grid(given: Sequence[str]) -> dict[str, list[Any]]:
    """NAME=V,V as the values of each name, written as in a job file; a word need not be quoted.

    >>> read_grid(["l2=0.1,1", "activation=relu,tanh"])
    {'l2': [0.1, 1], 'activation': ['relu', 'tanh']}
    """
    grid: dict[str, list[Any]] = {}
    for text in given:
        name, sign, values = text.partition("=")
        if not sign or not name.strip() or not values.strip():
            raise JobError(f"--try takes a name and its values, as in --try l2=0.01,0.1, and not {text!r}")
        try:
            listed = tomllib.loads(f"v = [{values}]")["v"]
        except tomllib.TOMLDecodeError:
            listed = [value.strip() for value in values.split(",")]
        grid[name.strip()] = listed
    return grid
