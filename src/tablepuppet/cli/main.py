"""The command `tablepuppet`: runs one command and turns errors into exit codes.

    0  done
    1  the run failed
    2  the user's input is wrong: the message says what, and what to do
    130  interrupted from the keyboard

Libraries are loaded inside `main`: `--version` needs none, and whoever interrupts the loading gets a message, too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from tablepuppet.errors import TablePuppetError, TrainingError, TransportError
from tablepuppet.version import __version__

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"tablepuppet {__version__}")
        return 0
    try:
        return _run(given)
    except KeyboardInterrupt:
        return _interrupted("--json" in given)


def _run(given: list[str]) -> int:
    from tablepuppet.cli import app as commands
    from tablepuppet.cli.screen import Screen, drop_output

    screen = Screen(wants_json="--json" in given)
    try:
        commands.app(given, prog_name="tablepuppet")
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
        if code == _INTERRUPTED:  # typer keeps silent about it
            return _interrupted(screen.wants_json)
        return code
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


def _interrupted(wants_json: bool) -> int:
    """Says so without any library, which may be half loaded."""
    message = "interrupted from the keyboard"
    if wants_json:
        print(json.dumps({"error": {"kind": "Interrupted", "message": message}}, indent=2))
    print(f"Error: {message}", file=sys.stderr)
    return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
