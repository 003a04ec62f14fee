"""Files that change under a federation: read anew by the next job, and named where a job is under way.

In: how to find the files of a table, and how to open them. Out: a Source that is opened again when a job begins and the
files are not what they were, and that refuses to read when they changed after the job began.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.protocol import ColumnInfo
from tablepuppet.tables.source import Source

log = logging.getLogger(__name__)
Find = Callable[[], list[str]]
Open = Callable[[list[str]], Source]


class FileSource:
    """A table in files."""

    def __init__(self, name: str, find: Find, open: Open) -> None:
        self._name, self._find, self._open = name, find, open
        files = find()
        self._stamp = stamp_of(files)
        self._source = open(files)
        self._is_closed = False

    def describe(self) -> list[ColumnInfo]:
        """The columns as they are now: what a job begins with."""
        if not self._is_closed and self.stamp() != self._stamp:
            self._open_again()
        return self._source.describe()

    def _open_again(self) -> None:
        try:
            files = self._find()
            stamp = stamp_of(files)
            fresh = self._open(files)
        except SourceError as error:
            log.warning("%s", error)  # where the owner keeps its files is for the owner's own log
            why = "the file is missing, changed or damaged; its log says more"
            raise SourceError(f"table {self._name}: {why}") from None
        self._source.close()
        self._stamp, self._source = stamp, fresh

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        return self._source.describe_scan(expressions, filter)

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        self._check_unchanged()
        found = self._source.read(expressions, filter)
        self._check_unchanged()  # it may have been written meanwhile
        return found

    def stamp(self) -> str | None:
        try:
            return stamp_of(self._find())
        except SourceError:
            return "gone"

    def close(self) -> None:
        self._is_closed = True
        self._source.close()

    def _check_unchanged(self) -> None:
        if not self._is_closed and self.stamp() != self._stamp:
            raise SourceError(
                f"table {self._name} has changed since the job began: its files were written, added or removed; "
                "run the job again"
            )


def stamp_of(files: Sequence[str]) -> str:
    """Which files there are, and when each was last written; a file that is gone counts too."""
    return ";".join(f"{file}:{_state(file)}" for file in files)


def _state(file: str) -> str:
    try:
        found = os.stat(file)
    except OSError:
        return "gone"
    return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}"
