"""A folder for what does not fit in memory: gone at the end, and at the next start if its process was killed.

A process holds a lock on its folder, which the system takes away when the process dies, however it dies. So a folder
whose lock nobody holds belongs to the dead; it may lie in a /tmp that several containers share.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)
_PREFIX = "tablepuppet-join-"
_YOUNG = 60.0  # seconds in which a folder may not have its lock yet


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, once those of the dead are removed."""
    remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, (Path(name) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def remove_abandoned() -> None:
    """Removes folders of processes that were killed; those of other users stay theirs."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _YOUNG:
                continue
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError as error:
            log.debug("%s stays: %s", folder, error.strerror)
        else:
            log.info("removed %s, which a process that was killed had left", folder)
