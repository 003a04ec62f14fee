"""An owner's log and account on the disk.

The log: every proposal, decision, disclosure count and refusal, each line bound to the one before by a hash.

    {"number": 3, "time": "2026-11-16T14:20:11+00:00", "event": "agreed", "job": "…", "contract": "…", "detail": {…},
     "previous": "9f…", "hash": "c1…"}

In: events. Out: a file of JSON lines that is only ever added to; `verify` finds a line that was changed, removed or put
in between. Whoever may write the file can cut off its end: keep the last hash elsewhere to notice that.

The account: what jobs have spent; nothing leaves before it is written. It outlives jobs and processes, as does the
owner's own secret, from which the noise of labels follows, so that a repeated job gets the noise it got.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from tablepuppet.errors import PolicyError
from tablepuppet.privacy.ledger import Account, Spending, TableBudget

Event = Literal["proposed", "agreed", "refused", "waiting", "approved", "denied", "disclosed"]
_FIRST = "0" * 64
_MOST_AN_HOUR = 10_000  # lines: about 3 MB, so that nobody fills the owner's disk by asking what is refused


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line."""

    number: int
    time: str
    event: Event
    job: str
    contract: str
    detail: dict[str, Any]
    previous: str
    hash: str = ""

    def digest(self) -> str:
        """SHA-256 over the line without its own hash."""
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, hash=""), order="sorted")).hexdigest()


# Made before any thread asks: two threads that study a type at once would end the process.
_ENTRY, _ACCOUNT = msgspec.json.Decoder(Entry), msgspec.json.Decoder(Account)


class OwnerLog:
    """One owner's log; without a path it lasts as long as the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.entries: list[Entry] = []  # of this process, where there is no file
        self._last = (0, _FIRST)
        self._hour, self._lines, self._unsaid = "", 0, 0  # lines of this hour, and refusals that found no room in it
        if path is not None and path.exists():
            entries = read_log(path)
            self._last = (entries[-1].number, entries[-1].hash) if entries else self._last

    def write(self, event: Event, job: str = "", contract: str = "", detail: Mapping[str, Any] | None = None) -> None:
        """Adds a line; it is on the disk when this returns. Refusals beyond an hour's lines are counted later."""
        with self._lock:
            number, previous = self._last
            now = datetime.now(UTC).isoformat(timespec="seconds")
            if event != "disclosed" and not self._has_room(now):  # what left was agreed to, and is always written
                if event == "refused":
                    self._unsaid += 1
                    return
                raise PolicyError(
                    f"the owner's log takes {_MOST_AN_HOUR:,} lines an hour and is full; nothing leaves before it is "
                    "logged: wait for the next hour, and ask the owner who asks so much"
                )
            unsaid = {"refusals not written": self._unsaid} if self._unsaid else {}
            entry = Entry(number + 1, now, event, job, contract, {**(detail or {}), **unsaid}, previous)
            entry = msgspec.structs.replace(entry, hash=entry.digest())
            if self._path is None:
                self.entries.append(entry)
            else:
                _append(self._path, msgspec.json.encode(entry) + b"\n")
            self._last, self._unsaid, self._lines = (entry.number, entry.hash), 0, self._lines + 1

    def _has_room(self, now: str) -> bool:
        hour = now[:13]
        if hour != self._hour:
            self._hour, self._lines = hour, 0
        return self._lines < _MOST_AN_HOUR


def read_log(path: Path) -> list[Entry]:
    """All lines of a log."""
    try:
        lines = path.read_bytes().splitlines()
        return [_ENTRY.decode(line) for line in lines if line.strip()]
    except (OSError, msgspec.MsgspecError):
        raise PolicyError(f"the log {path} cannot be read, or a line of it is damaged; restore it") from None


def verify(path: Path) -> int:
    """How many lines there are; an error names the first that does not follow from the one before."""
    previous, number = _FIRST, 0
    for entry in read_log(path):
        if (entry.previous, entry.number) != (previous, number + 1) or entry.digest() != entry.hash:
            raise PolicyError(
                f"the log {path} was changed: line {number + 1} does not follow from the line before; restore it from "
                "a copy, and find out who can write there"
            )
        previous, number = entry.hash, entry.number
    return number


def _append(path: Path, line: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise PolicyError(f"cannot write {path}: {error.strerror}; nothing leaves before it is logged") from None


_SECRET_BYTES = 32


class AccountFile:
    """One owner's account; without a path it lasts as long as the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.account = Account() if path is None or not path.exists() else _read(path)

    def spend(self, *spendings: Spending, budget: TableBudget | None = None) -> None:
        """Writes releases of one kind down, or refuses them."""
        with self._lock:
            if budget is not None:
                self.account.check(spendings, budget)
            after = self.account.plus(*spendings)
            if after is not self.account and self._path is not None:
                _replace(self._path, msgspec.json.encode(after))
            self.account = after


def own_secret(path: Path) -> bytes:
    """The owner's secret; made where there is none."""
    if not path.exists():
        _replace(path, secrets.token_bytes(_SECRET_BYTES))
    found = path.read_bytes()
    if len(found) != _SECRET_BYTES:
        raise PolicyError(f"{path} is damaged; restore it, or remove it: labels then get new noise, which costs anew")
    return found


def _read(path: Path) -> Account:
    try:
        return _ACCOUNT.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        raise PolicyError(
            f"the account {path} of what was spent cannot be read; without it, nothing is answered. Restore it"
        ) from None


def _replace(path: Path, content: bytes) -> None:
    """The file is the old one or the new one, whatever happens; only its owner can read it."""
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".account-")  # readable by its owner alone
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise PolicyError(f"cannot write {path}: {error.strerror}; nothing leaves before it is kept") from None
