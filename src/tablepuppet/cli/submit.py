"""tablepuppet submit, wait: hand a job in at a running server, and come back for its result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tablepuppet.api import ConnectedFederation
from tablepuppet.cli.job_file import JobArgument, read_job
from tablepuppet.cli.screen import JsonOption, Screen
from tablepuppet.cli.train import ReportOption, ResumeOption, SaveOption, as_document, show_result

_FederationOption = Annotated[Path, typer.Option("--federation", metavar="FILE", help="The federation file.")]
_FEDERATION = Path("federation.toml")


def submit(
    job: JobArgument,
    federation: _FederationOption = _FEDERATION,
    share: Annotated[
        list[str] | None, typer.Option("--share", metavar="USER", help="A user who may have the result too.")
    ] = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Hand in a job at a running server and do not wait: it is trained when its turn comes.

    [bold]Example:[/bold] tablepuppet submit returns.toml --federation federation.toml
    """
    screen = Screen(as_json)
    asked = read_job(job)
    run = ConnectedFederation(federation).submit(asked.query, **asked.arguments, share=share or (), resume=resume)
    screen.show(f"Run {run} is queued; `tablepuppet wait {run}` shows its result.")
    screen.show_json(lambda: {"run": run})


def wait(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name, as `tablepuppet submit` printed it.")],
    federation: _FederationOption = _FEDERATION,
    save: SaveOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait for a run that was handed in, and show its result; Ctrl-C ends the waiting, not the run.

    [bold]Example:[/bold] tablepuppet wait 0b2675b6aca85709 --save model/
    """
    screen = Screen(as_json)
    with screen.progress(f"run {run}") as on_round:
        result = ConnectedFederation(federation).wait(run, on_round=on_round)
    if save is not None:
        result.save(save)
    show_result(screen, result)
    if report is not None:
        screen.show(f"Report: {result.report(report)}")
    screen.show_json(lambda: as_document(result))
