"""Progress of long calls on standard error, drawn by rich: on terminals, in notebooks and in logs.

    with show_progress("training", progress) as bar:
        bar.on_round(event)

`progress=None`: on a terminal or in a notebook, from two seconds on. True: at once, and anywhere; a log gets a line now
and then. False: never.
"""

import io
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO, cast

from tablepuppet.errors import JobError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from tablepuppet.training.result import RoundEvent

_PATIENCE = 2.0  # seconds before anything is shown, unless it was asked for
_LOG_INTERVAL = 10.0  # seconds between two lines of a log


class RoundProgress:
    """Counts rounds on a bar and shows the objective; without a bar, it does nothing."""

    def __init__(self, bar: "Progress | None", doing: str) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task(doing, total=None, rounds="…", note="")
        self._logged = time.monotonic()

    def on_round(self, event: "RoundEvent") -> None:
        if self._bar is None or self._task is None:
            return
        rounds = f"{event.round} of {event.rounds} rounds"
        self._bar.update(self._task, completed=event.round, total=event.rounds, rounds=rounds)
        if event.record is not None and not math.isnan(event.record.objective):
            self._bar.update(self._task, note=f"objective {event.record.objective:.6g}")
        if not self._bar.console.is_terminal and time.monotonic() - self._logged > _LOG_INTERVAL:
            self._logged = time.monotonic()
            self._bar.console.print(self._bar.get_renderable())

    def chain_callback(self, other: "Callable[[RoundEvent], None] | None") -> "Callable[[RoundEvent], None] | None":
        """One callback for the bar and another one; None where there is neither."""
        if self._bar is None or other is None:
            return other if self._bar is None else self.on_round

        def both(event: "RoundEvent") -> None:
            self.on_round(event)
            other(event)

        return both


@contextmanager
def show_progress(doing: str, progress: bool | None) -> Iterator[RoundProgress]:
    """While inside, shows progress."""
    if progress not in (True, False, None):
        raise JobError(f"progress must be True, False or None (where somebody is watching), not {progress!r}")
    ipython = sys.modules.get("IPython")
    is_notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    is_terminal = not sys.stderr.closed and sys.stderr.isatty()
    is_watched = is_terminal or is_notebook
    if not (is_watched if progress is None else progress):
        yield RoundProgress(None, doing)
        return
    from rich.console import Console  # loaded where something is shown

    console = Console(file=cast(TextIO, _LenientStream(sys.stderr)), force_terminal=is_watched, force_jupyter=False)
    with show_rounds(doing, console, 0.0 if progress else _PATIENCE, is_kept=not is_terminal) as rounds:
        yield rounds


@contextmanager
def show_rounds(
    doing: str, console: "Console", patience: float = 0.0, is_kept: bool = False
) -> Iterator[RoundProgress]:
    """A bar on a console, once `patience` has passed; at the end it is cleared, unless it is kept."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    texts = [TextColumn(f"{{task.{name}}}") for name in ("description", "fields[rounds]", "fields[note]")]
    columns = (texts[0], BarColumn(24), texts[1], TimeElapsedColumn(), texts[2])
    bar = Progress(*columns, console=console, transient=not is_kept)
    rounds = RoundProgress(bar, doing)
    delay = threading.Timer(patience, bar.start)
    delay.daemon = True
    delay.start() if patience else bar.start()
    try:
        yield rounds
    finally:
        delay.cancel()
        if patience:
            delay.join()
        if bar.live.is_started:
            bar.stop()


class _LenientStream(io.TextIOBase):
    """A reader that has left is no reason to stop training."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._out, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._out.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._out.flush()
