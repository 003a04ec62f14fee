"""Progress in plain text on standard error: for terminals, notebooks and logs alike, without any widget.

    with showing("training", progress) as bar:
        bar.on_round(event)

In: what is being done, and rounds as they end. Out: one line that is written over,

    training ━━━━━━━━━╺━━━━━━━━━━ 12 of 27 rounds, 8 s, objective 0.4123

`progress=None`: on a terminal or in a notebook, from two seconds on; True: from the start, and anywhere (a log gets a
line now and then); False: never. A thread writes, so that time is seen to pass also where no round ends.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TextIO

from tablepuppet.errors import JobError

if TYPE_CHECKING:
    from tablepuppet.engine.result import RoundEvent

_PATIENCE = 2.0  # seconds before anything is shown, unless it was asked for
_EVERY = {"terminal": 0.25, "notebook": 1.0, "log": 10.0}  # seconds between two lines
_Place = Literal["terminal", "notebook", "log"]
_CELLS = 24  # of the bar


class Bar:
    """What is known so far; any thread may read it."""

    def __init__(self, doing: str, is_shown: bool = True) -> None:
        self.doing = doing
        self.is_shown = is_shown
        self.began = time.monotonic()
        self.note = ""
        self._done, self._total = 0, 0

    def on_round(self, event: RoundEvent) -> None:
        """Takes note of a round."""
        self._done, self._total = event.round, event.rounds
        if event.record is not None and not math.isnan(event.record.objective):
            self.note = f", objective {event.record.objective:.6g}"

    def beside(self, other: Callable[[RoundEvent], None] | None) -> Callable[[RoundEvent], None] | None:
        """One callback for the bar and another one; None where there is none, so that nobody is told in vain."""
        if not self.is_shown or other is None:
            return self.on_round if self.is_shown else other

        def both(event: RoundEvent) -> None:
            self.on_round(event)
            other(event)

        return both

    def line(self) -> str:
        """
        >>> Bar("predicting").line()
        'predicting … 0 s'
        """
        took = f"{time.monotonic() - self.began:.0f} s"
        if not self._total:
            return f"{self.doing} … {took}"
        return (
            f"{self.doing} {_drawn(self._done / self._total)} {self._done} of {self._total} rounds, {took}{self.note}"
        )


@contextmanager
def showing(doing: str, progress: bool | None) -> Iterator[Bar]:
    """While inside, shows what is being done."""
    if progress not in (True, False, None):
        raise JobError(f"progress must be True, False or None (where somebody is watching), not {progress!r}")
    out = sys.stderr
    where: _Place = "terminal" if _is_terminal(out) else "notebook" if _is_notebook() else "log"
    bar = Bar(doing, is_shown=where != "log" if progress is None else progress)
    if not bar.is_shown:
        yield bar
        return
    over = threading.Event()
    patience = 0.0 if progress else _PATIENCE
    writer = threading.Thread(target=_write, args=(bar, out, over, patience, where), daemon=True)
    writer.start()
    try:
        yield bar
    finally:
        over.set()
        writer.join()


def _write(bar: Bar, out: TextIO, over: threading.Event, patience: float, where: _Place) -> None:
    """Writes the line until it is over; then it goes from a terminal, and stays in a notebook and in a log."""
    if over.wait(patience):
        return
    shown = ""
    while True:
        line = bar.line()
        if where == "log" and line != shown:
            _put(out, f"{line}\n")
        elif where != "log":
            _put(out, f"\r{line}{' ' * (len(shown) - len(line))}")
        shown = line
        if over.wait(_EVERY[where]):
            break
    rest = " " * len(shown)
    _put(
        out, {"terminal": f"\r{rest}\r", "notebook": f"\r{rest}\r{bar.line()}\n", "log": f"{bar.line()}, done\n"}[where]
    )


def _put(out: TextIO, text: str) -> None:
    """A reader that has left is no reason to stop training."""
    try:
        out.write(text)
        out.flush()
    except (OSError, ValueError, UnicodeEncodeError):
        return


def _drawn(share: float) -> str:
    """
    >>> _drawn(0.5)
    '━━━━━━━━━━━━────────────'
    """
    full = round(min(1.0, share) * _CELLS)
    return "━" * full + "─" * (_CELLS - full)


def _is_terminal(out: TextIO) -> bool:
    try:
        return out.isatty()
    except ValueError:  # it is closed
        return False


def _is_notebook() -> bool:
    """Whether a Jupyter kernel runs this code; IPython need not be installed."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
