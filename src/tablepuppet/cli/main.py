"""The command `tablepuppet`: runs one command and turns errors into exit codes.

    0  done
    1  the run failed
    2  the user's input is wrong: the message says what, and what to do
    3  compare, drift: the second model is worse, or the rows have drifted
    130  interrupted from the keyboard

A new command is a function in one of the files of this folder and one line in `make_app`. It raises TablePuppetError
like any other code; it never prints an error and never chooses an exit code.

Libraries are loaded inside `main`: `--version` needs none, and an interruption of the loading gives a message, too.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from tablepuppet import __version__
from tablepuppet.errors import TablePuppetError, TrainingError, TransportError

if TYPE_CHECKING:
    import typer

    from tablepuppet.cli.screen import Screen

_INTERRUPTED = 130
_WRONG_CALL = 2
_WITH_JOB = ("train", "explain", "search", "submit")
_WORDS = {  # of the library that reads a call, and ours
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "it must be a whole number",
    "Input should be": "it must be",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"tablepuppet {__version__}")
        return 0
    before = signal.getsignal(signal.SIGINT)
    is_ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    try:
        if is_ours:
            signal.signal(signal.SIGINT, partial(_on_interrupt, "--json" in given))
        return _run(given)
    except KeyboardInterrupt:
        return _report_interrupt("--json" in given)
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, before)


def _on_interrupt(wants_json: bool, number: int, frame: FrameType | None) -> None:
    """Ends a process that is loading a library at once: there Python may show a traceback, or lose the interrupt."""
    at = frame
    while at is not None:
        if at.f_code.co_filename.startswith("<frozen importlib"):
            code = _report_interrupt(wants_json)
            sys.stdout.flush()
            os._exit(code)
        at = at.f_back
    signal.default_int_handler(number, frame)


def _run(given: list[str]) -> int:
    from tablepuppet.cli.screen import Screen, drop_output

    screen = Screen(wants_json="--json" in given)
    try:
        code = make_app()(given, prog_name="tablepuppet", standalone_mode=False) or 0
        return _report_interrupt(screen.wants_json) if code == _INTERRUPTED else int(code)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
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
        if hasattr(error, "format_message"):  # of typer: the call is wrong
            return _report_wrong_call(screen, error)
        if os.environ.get("TABLEPUPPET_TRACEBACK"):
            raise
        screen.error(
            "InternalError",
            f"an error of TablePuppet's own ({type(error).__name__}); please report it with what "
            "TABLEPUPPET_TRACEBACK=1 shows",
        )
        return 1


def _report_wrong_call(screen: "Screen", wrong: Any) -> int:
    """An unknown command or option, or a value that it does not take."""
    if type(wrong).__name__ == "NoArgsIsHelpError":
        print(wrong.ctx.get_help())
        return _WRONG_CALL
    message = " ".join(wrong.format_message().split()).rstrip(".")
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    command = "tablepuppet" if wrong.ctx is None else wrong.ctx.command_path
    key = str(getattr(wrong, "option_name", "")).lstrip("-").replace("-", "_")
    if key and command.endswith(_WITH_JOB):
        message += f"; if it is an option of training, write {key} = … in the job file"
    screen.error(type(wrong).__name__, message if message.endswith("?") else f"{message}; see {command} --help")
    while wrong is not None:  # frames hold modules, of which compiled ones complain at exit
        wrong.__traceback__, wrong = None, wrong.__cause__ or wrong.__context__
    return _WRONG_CALL


def make_app() -> "typer.Typer":
    import typer

    from tablepuppet.cli import certs, models, processes, report, train
    from tablepuppet.cli.screen import add_commands

    app = typer.Typer(
        name="tablepuppet",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    add_commands(
        app,
        *(report.demo, train.explain, train.train, train.search, train.history),
        *(models.predict, models.evaluate, models.export, models.importance, models.dependence),
        *(models.compare, models.drift, report.report),
        *(processes.serve, processes.join, processes.status, processes.cancel, processes.resume),
        *(processes.submit, processes.wait, processes.contracts, processes.approve, processes.deny),
    )
    log = typer.Typer(help="The owner's log: proposals, decisions, disclosures and refusals.")
    app.add_typer(add_commands(log, processes.show, processes.verify, processes.accept), name="log")
    authority = typer.Typer(no_args_is_help=True, help="Create, renew and revoke the certificates of a federation.")
    add_commands(authority, certs.init, certs.server, certs.party, certs.asker, certs.renew, certs.revoke, certs.secret)
    add_commands(authority, certs.request, certs.sign, certs.share, open=certs.open_secret)
    app.add_typer(add_commands(authority, list=certs.list_certificates), name="certs")

    option = typer.Option(False, "--version", help="Print the version.")  # which `main` does without any library

    @app.callback()
    def about(version: bool = option) -> None:
        """Train on a SQL join whose tables never leave their owners."""

    return app


def _report_interrupt(wants_json: bool) -> int:
    """Says so without any library, which may be half loaded."""
    message = "interrupted from the keyboard"
    if wants_json:
        print(f'{{\n  "error": {{\n    "kind": "Interrupted",\n    "message": "{message}"\n  }}\n}}')
    print(f"Error: {message}", file=sys.stderr)
    return _INTERRUPTED
