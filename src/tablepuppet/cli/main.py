"""The command `tablepuppet`: its commands put together, and errors turned into exit codes.

    0  done
    1  the run failed
    2  the user's input is wrong: the message says what, and what to do
    130  interrupted from the keyboard

A new command is a function in a file of its own and one line below. It raises TablePuppetError like
any other code; it never prints an error and never chooses an exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from tablepuppet import __version__
from tablepuppet.cli import certs, processes
from tablepuppet.cli.bench import bench
from tablepuppet.cli.demo import demo
from tablepuppet.cli.explain import explain
from tablepuppet.cli.predict import predict
from tablepuppet.cli.report import report
from tablepuppet.cli.screen import Screen, drop_output
from tablepuppet.cli.train import train
from tablepuppet.errors import TablePuppetError, TrainingError, TransportError

_INTERRUPTED = 130

app = typer.Typer(
    name="tablepuppet",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(explain)
app.command()(train)
app.command()(predict)
app.command()(report)
app.command()(bench)
app.command()(processes.serve)
app.command()(processes.join)
app.command()(processes.status)
app.command()(processes.cancel)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    screen = Screen(wants_json="--json" in given)
    try:
        app(given, prog_name="tablepuppet")
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
        if code == _INTERRUPTED:  # typer keeps silent about it
            screen.error("Interrupted", "interrupted from the keyboard")
        return code
    except KeyboardInterrupt:
        screen.error("Interrupted", "interrupted from the keyboard")
        return _INTERRUPTED
    except TablePuppetError as error:
        screen.error(type(error).__name__, str(error))
        return 1 if isinstance(error, TrainingError | TransportError) else 2
    except BrokenPipeError:  # the reader of our output has left; Python must not complain again at exit
        drop_output()
        return 1
    except MemoryError:
        screen.error("MemoryError", "the machine has not enough memory; add a WHERE or set max_joined_rows")
        return 1
    except Exception as error:
        if os.environ.get("TABLEPUPPET_TRACEBACK"):
            raise
        screen.error(
            "InternalError",
            f"an error of TablePuppet's own ({type(error).__name__}); please report it with what "
            "TABLEPUPPET_TRACEBACK=1 shows",
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
