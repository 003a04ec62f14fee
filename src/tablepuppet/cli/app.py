"""The commands, put together.

A new command is a function in a file of its own and one line below. It raises TablePuppetError like
any other code; it never prints an error and never chooses an exit code (main.py does).
"""

from __future__ import annotations

import typer

from tablepuppet.cli import certs, contracts, processes
from tablepuppet.cli.demo import demo
from tablepuppet.cli.models import compare, dependence, drift, evaluate, export, importance, predict
from tablepuppet.cli.report import report
from tablepuppet.cli.search import search
from tablepuppet.cli.train import explain, submit, train, wait
from tablepuppet.version import __version__

app = typer.Typer(
    name="tablepuppet",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(explain)
app.command()(train)
app.command()(search)
app.command()(predict)
app.command()(evaluate)
app.command()(export)
app.command()(importance)
app.command()(dependence)
app.command()(compare)
app.command()(drift)
app.command()(report)
app.command()(processes.serve)
app.command()(processes.join)
app.command()(processes.status)
app.command()(processes.cancel)
app.command()(processes.resume)
app.command()(submit)
app.command()(wait)
app.command()(contracts.contracts)
app.command()(contracts.approve)
app.command()(contracts.deny)
app.add_typer(contracts.log_app, name="log")
app.add_typer(certs.app, name="certs")


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tablepuppet {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: bool = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Print the version."),
) -> None:
    """Train on a SQL join whose tables never leave their owners."""
