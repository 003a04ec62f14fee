"""Every error that TablePuppet raises.

    TablePuppetError
    ├── JobError          an option of the job is missing, unknown or out of range
    ├── QueryError        the SQL text cannot be accepted (carries line and column)
    ├── CatalogError      a name or a type does not fit the federation's tables
    ├── SourceError       an owner's table cannot be read
    ├── MappingError      the join is empty, too large, or its labels are unusable
    ├── PrivacyError      the job would break a privacy promise or a budget
    ├── PolicyError       an owner's own policy refuses the request
    ├── TrainingError     a run cannot start or go on
    ├── TransportError    a client cannot be reached or answers out of protocol
    │   ├── DisconnectedError    a connection ended
    │   └── RunInterruptedError  a run stopped, and can be resumed from its checkpoint
    └── ModelError        a saved model cannot be read or does not fit

A message says what is wrong, what was found and what to do next. It never holds a
row's value, a key, a label or a secret.
"""

from __future__ import annotations

import os

_PACKAGE = os.path.dirname(__file__)


class TablePuppetError(Exception):
    """Base class of every error that TablePuppet raises."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message, and the user's own lines that led to it; no frame of ours.

        IPython calls this by its name. TABLEPUPPET_TRACEBACK=1 in the environment shows every frame.
        """
        import traceback  # not above: every command loads this module before it can answer an interrupt

        if os.environ.get("TABLEPUPPET_TRACEBACK"):
            return traceback.format_exception(self)
        frames = traceback.extract_tb(self.__traceback__)
        own = [frame for frame in frames if frame.line and not _is_library(frame.filename)]
        lines = [f"  at line {frame.lineno}: {frame.line}" for frame in own]
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}", *(["", *lines] if lines else [])]


class JobError(TablePuppetError):
    """An option of the job is missing, unknown or out of range."""


class QueryError(TablePuppetError):
    """The SQL text cannot be accepted; the message shows where, with a caret."""

    def __init__(self, message: str, *, text: str = "", line: int | None = None, column: int | None = None) -> None:
        self.line = line
        self.column = column
        super().__init__(message + _excerpt(text, line, column))


class CatalogError(QueryError):
    """A name or a type in the query does not fit the federation's tables."""


class SourceError(TablePuppetError):
    """An owner's table cannot be read."""


class MappingError(TablePuppetError):
    """The join is empty or too large, or its labels cannot be used."""


class PrivacyError(TablePuppetError):
    """The job would break a privacy promise or go past a budget."""


class PrivacyWarning(UserWarning):
    """A job asks for less privacy than its author may think."""


class PolicyError(TablePuppetError):
    """An owner's own policy refuses the request."""


class ApprovalError(TablePuppetError):
    """A person must approve the job first."""


class TrainingError(TablePuppetError):
    """A run cannot start or cannot go on."""


class TransportError(TablePuppetError):
    """A client cannot be reached or answers out of protocol."""


class DisconnectedError(TransportError):
    """A connection ended before the other side answered."""


class RunInterruptedError(TransportError):
    """A run stopped before its end; its checkpoints stay, and it can be resumed."""


class ModelError(TablePuppetError):
    """A saved model cannot be read or does not fit the federation."""


def _is_library(file: str) -> bool:
    """Whether a frame's file is TablePuppet's, IPython's or another library's, and not the user's."""
    import sysconfig

    return file.startswith((_PACKAGE, *(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib"))))


def _excerpt(text: str, line: int | None, column: int | None) -> str:
    """The line of SQL that an error points at, with a caret below the column (both 1-based)."""
    if line is None or column is None or not 1 <= line <= len(text.splitlines()):
        return ""
    source = text.splitlines()[line - 1]
    margin = f"  line {line}: "
    lead = "".join("\t" if c == "\t" else " " for c in source[: column - 1])
    return f"\n{margin}{source}\n{' ' * len(margin)}{lead}^"
