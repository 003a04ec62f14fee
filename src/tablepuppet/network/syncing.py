"""When a file is forced to the disk: at once after a pause, and at most every 50 ms in a rush.

In: "something was written to this file". What was written is with the operating system already, so no death of a
process loses it; only a machine that goes down can. Rounds that take longer than 50 ms, as all do between distant
organisations, are on the disk before their answer leaves. In quicker ones, up to 50 ms of steps are not, and a machine
that goes down then ends the run (decision 0024).
"""

from __future__ import annotations

import os
import threading
import time
from typing import IO

PERIOD = 0.05  # seconds


class Syncing:
    """The syncs of one file; any thread may call."""

    def __init__(self) -> None:
        self._last = -PERIOD
        self._pending: IO[bytes] | None = None
        self._lock = threading.Lock()

    def written(self, file: IO[bytes], *, is_urgent: bool = False) -> None:
        """The file has new content, which must be on the disk soon, or when this returns."""
        with self._lock:
            self._pending = file
            if is_urgent or time.monotonic() - self._last >= PERIOD:
                self._sync()

    def finish(self) -> None:
        """Whatever was written is on the disk when this returns."""
        with self._lock:
            self._sync()

    def forget(self) -> None:
        """The file is closed or replaced."""
        with self._lock:
            self._pending = None

    def _sync(self) -> None:
        if self._pending is not None:
            sync(self._pending)
            self._pending = None
            self._last = time.monotonic()

    @property
    def is_finished(self) -> bool:
        return self._pending is None


def sync(file: IO[bytes]) -> None:
    """Waits until a file's content is on the disk; not for the time of its last change, where the system can tell."""
    getattr(os, "fdatasync", os.fsync)(file.fileno())
