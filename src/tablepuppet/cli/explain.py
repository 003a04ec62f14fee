"""tablepuppet explain JOB: what training would do and cost, before it does."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tablepuppet.cli.job_file import FederationOption, JobArgument, read_job
from tablepuppet.cli.screen import JsonOption, Screen

ProfileOption = Annotated[
    bool, typer.Option("--profile", help="Show how the keys meet instead: orphans, duplicates, NULL keys.")
]


def explain(
    job: JobArgument, federation: FederationOption = None, profile: ProfileOption = False, as_json: JsonOption = False
) -> None:
    """Show the plan of a job: operators, rows, rounds, bytes, seconds, memory, and who learns what.

    Nothing is trained.

    [bold]Example:[/bold] tablepuppet explain returns.toml
    """
    screen = Screen(as_json)
    asked = read_job(job)
    if profile:
        with screen.progress("counting the keys"), asked.open_federation(federation) as tables:
            found = tables.profile(asked.query, label=asked.arguments["label"])
        screen.show(str(found))
        screen.show_json(found.to_dict)
        return
    with screen.progress("joining the keys"), asked.open_federation(federation) as tables:
        plan = tables.explain(asked.query, **asked.arguments, progress=False)
    screen.show(str(plan))
    screen.show_json(lambda: json.loads(plan.to_json()))
