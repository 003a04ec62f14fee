"""tablepuppet compare and drift: is the new model worse, are the rows still those it was trained on? For cron.

Both end with code 3 where they find what they look for, so that a script can retrain, or keep the old model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tablepuppet.cli.job_file import FederationOption, JobArgument, read_job
from tablepuppet.cli.predict import ModelArgument
from tablepuppet.cli.screen import JsonOption, Screen, table
from tablepuppet.prediction.saved import load

FOUND = 3  # exit code

SecondArgument = Annotated[Path, typer.Argument(metavar="NEW", help="The folder of the model to compare with it.")]
ShiftOption = Annotated[float, typer.Option("--shift", help="How many standard deviations a mean may move.")]
SpreadOption = Annotated[float, typer.Option("--spread", help="By which factor a standard deviation may change.")]
MatchedOption = Annotated[
    float, typer.Option("--matched", help="By which share the rows that find partners may change.")
]


def compare(
    model: ModelArgument,
    new: SecondArgument,
    job: JobArgument,
    federation: FederationOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two saved models on the labelled rows of a job's query; code 3: the second is worse, beyond chance.

    [bold]Example:[/bold] tablepuppet compare model/ new/ returns.toml && mv new model
    """
    screen = Screen(as_json)
    first, second, asked = load(model), load(new), read_job(job)
    with screen.progress("comparing"), asked.open_federation(federation) as tables:
        found = tables.compare(first, second, asked.query)
    shown = table("metric", "first", "second", "difference", title=f"{found.rows:,} rows")
    for row in found.table.itertuples(index=False):
        shown.add_row(str(row[0]), *(f"{value:.6g}" for value in row[1:]))
    screen.show(shown, str(found))
    screen.show_json(found.to_dict)
    if found.is_worse:
        raise typer.Exit(FOUND)


def drift(
    model: ModelArgument,
    job: JobArgument,
    federation: FederationOption = None,
    shift: ShiftOption = 0.25,
    spread: SpreadOption = 2.0,
    matched: MatchedOption = 0.05,
    as_json: JsonOption = False,
) -> None:
    """Compare the rows of a job's query with those that a model was trained on; code 3: they have drifted.

    [bold]Example:[/bold] tablepuppet drift model/ returns.toml || tablepuppet train returns.toml --warm-start model/
    """
    screen = Screen(as_json)
    loaded, asked = load(model), read_job(job)
    with screen.progress("looking at the rows"), asked.open_federation(federation) as tables:
        found = tables.drift(loaded, asked.query)
    said = found.found(shift=shift, spread=spread, matched=matched)
    screen.show(*(said or ["The rows are like those that the model was trained on."]))
    screen.show_json(lambda: {"drifted": bool(said), "found": said, **found.to_dict()})
    if said:
        raise typer.Exit(FOUND)
