"""A command's output: results on standard output, progress and errors on standard error.

With --json a command writes one JSON document and nothing else to standard output. Progress appears only on a terminal.
"""

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, get_type_hints

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tablepuppet.errors import JobError
from tablepuppet.formatting import printable
from tablepuppet.output_files import reason
from tablepuppet.progress import show_rounds
from tablepuppet.training.result import RoundEvent

_ENDLESS = 10_000  # columns


def option(names: str, help: str, **limits: Any) -> Any:
    """An option of a command; after its names, what stands for its value: "--save DIR"."""
    words = names.split()
    flags = [word for word in words if word.startswith("-")]
    return typer.Option(*flags, metavar=" ".join(words[len(flags) :]) or None, help=help, **limits)


def argument(metavar: str, help: str) -> Any:
    """An argument of a command, and what stands for it in the help."""
    return typer.Argument(metavar=metavar, help=help)


JsonOption = Annotated[bool, option("--json", "Write one JSON document for machines, no progress.")]


def add_commands(app: typer.Typer, *commands: Callable[..., None], **named: Callable[..., None]) -> typer.Typer:
    """The app with commands, under their own names or these. Each takes a Screen first, and has the option --json."""
    for name, command in [*((None, command) for command in commands), *named.items()]:
        app.command(name)(_with_screen(command))
    return app


def _with_screen(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run(*, as_json: bool, **given: Any) -> None:
        command(Screen(as_json), **given)

    hints = get_type_hints(command, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(command).parameters.values()][1:]
    json_option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)
    run.__signature__ = inspect.Signature([*own, json_option])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*own, json_option)}
    return run


class Screen:
    """Standard output and standard error of one command."""

    def __init__(self, wants_json: bool) -> None:
        self.wants_json = wants_json
        self.out = Console(highlight=False, soft_wrap=True)
        if not self.out.is_terminal:
            self.out.width = _ENDLESS  # a file has no edge; rich would cut a table at 80 columns
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)

    def show(self, *shown: RenderableType) -> None:
        """A result for people; nothing with --json."""
        if not self.wants_json:
            with _refuse_full_disk():
                for one in shown:
                    # Plain text may hold brackets, which rich would take for mark-up.
                    self.out.print(Text(printable(one, keep="\n\t")) if isinstance(one, str) else one)

    def show_json(self, document: Any) -> None:
        """A result for machines; nothing without --json. Numbers that JSON does not have become null."""
        if self.wants_json:
            text = msgspec.json.format(msgspec.json.encode(document, enc_hook=lambda value: value.item()), indent=2)
            with _refuse_full_disk():
                typer.echo(text.decode())

    def error(self, kind: str, message: str) -> None:
        """One clear message on standard error, and with --json as a document on standard output."""
        message = printable(message, keep="\n\t")
        self.show_json({"error": {"kind": kind, "message": message}})
        self.err.print(Text.assemble(("Error: ", "bold red"), message))

    @contextmanager
    def progress(self, doing: str) -> Iterator[Callable[[RoundEvent], None]]:
        """A bar that counts rounds and shows the objective; gives a callback for `on_round`."""
        if self.wants_json or not self.err.is_terminal:
            yield lambda event: None
            return
        with show_rounds(doing, self.err) as rounds:
            yield rounds.on_round


@contextmanager
def _refuse_full_disk() -> Iterator[None]:
    """Standard output may lead to a disk that is full; Python must not complain of that again at exit."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise JobError(f"cannot write to standard output: {reason(error)}; send it elsewhere") from None


def drop_output() -> None:
    """Discards all further writes to standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(*columns: str, title: str | None = None, rows: Iterable[Iterable[object]] = ()) -> Table:
    """A table in our style: the first column and notes without a title to the left, numbers to the right."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i and column else "left", no_wrap=True)
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else "–"
    return printable(str(value))
