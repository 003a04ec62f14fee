"""An owner's log: every proposal, decision, disclosure, refusal and expense of privacy, in a file that only grows.

    {"number": 3, "time": "2026-11-16T14:20:11+00:00", "event": "spent", "job": "", "contract": "",
     "detail": {"spendings": […]}, "previous": "9f…"}

A line is a leaf of a Merkle tree (protocol/evidence.py), and `previous` is the root of all lines before it. The account
of privacy spent is computed from the lines; nothing leaves before its line is on the disk.

Anyone who may write the file can cut off its end or put an older copy in its place. The last head is therefore kept
elsewhere: in a file next to the client's key, by the coordinator and by other clients, and in every result. A log that
does not continue a kept head is refused until a person accepts it (`tablepuppet log accept`).

A line that was being written when the machine died let nothing leave: it is cut off, and a new line records it. Earlier
releases wrote hashes of single lines and a file `account.json`; both are read in once.
"""

import getpass
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from tablepuppet.errors import PolicyError
from tablepuppet.output_files import write_whole
from tablepuppet.privacy.ledger import Account, Spending, TableBudget
from tablepuppet.protocol.evidence import ConsistencyProof, MerkleTree, TreeHead, head_of, prove_consistency

log = logging.getLogger(__name__)
Event = Literal[
    "proposed",
    "agreed",
    "refused",
    "waiting",
    "approved",
    "denied",
    "disclosed",
    "spent",  # detail: spendings
    "migrated",  # the account of an earlier release; detail: spendings
    "repaired",  # a line that was not whole was cut off
    "accepted",  # a person accepts that a kept head is no prefix; detail: lost
    "witnessed",  # heads of other owners' logs
]
_ALWAYS = ("disclosed", "spent", "migrated", "repaired", "accepted")  # releases were agreed to, and are always written
_MOST_AN_HOUR = 10_000  # lines: about 3 MB, so that refused requests cannot fill the owner's disk
_NO_HASH = "0" * 64


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    number: int
    time: str
    event: Event
    job: str
    contract: str
    detail: dict[str, Any]
    previous: str  # the root of all lines before; of an earlier release: the hash of the line before
    hash: str = ""  # of an earlier release: SHA-256 over the line without it

    @property
    def digest(self) -> str:
        """The hash that an earlier release wrote."""
        return hashlib.sha256(
            msgspec.json.encode(msgspec.structs.asdict(self) | {"hash": ""}, order="sorted")
        ).hexdigest()


# Made before any thread asks: two threads that study a type at once would end the process.
_ENTRY, _ACCOUNT = msgspec.json.Decoder(Entry), msgspec.json.Decoder(Account)
_HEAD = msgspec.json.Decoder(TreeHead)


def read_clock() -> datetime:
    return datetime.now(UTC)


class LostStateError(PolicyError):
    """A log does not continue the one whose head somebody kept."""


class OwnerLog:
    """One owner's log; without a path it lasts as long as the process. `anchor`: a file that keeps its head."""

    def __init__(
        self, path: Path | None = None, clock: Callable[[], datetime] = read_clock, anchor: Path | None = None
    ) -> None:
        self._path, self._clock = path, clock
        self._lock = threading.RLock()
        self.entries: list[Entry] = []  # of this process, where there is no file
        self._tree = MerkleTree()
        self._hour, self._written, self._unsaid = "", 0, 0  # lines of this hour, and refusals that found no room in it
        self._anchor: Path | None = None  # no head is kept before the log was compared with the last one
        self.row_sets = set[str]()  # their names, since a person accepted that some are lost
        kept = read_head(anchor) if anchor is not None and anchor.exists() else None
        found = [] if path is None or not path.exists() else self._read(path)
        spent = [entry.detail["spendings"] for entry in found if entry.event in ("spent", "migrated")]
        self.account = Account().plus(*(one for some in spent for one in msgspec.convert(some, list[Spending])))
        self._accepted = {msgspec.convert(e.detail["lost"], TreeHead) for e in found if e.event == "accepted"}
        for entry in found:
            self._name_row_sets(entry)
        self._has_migrated = any(entry.event == "migrated" for entry in found)
        self._anchor = anchor
        if kept is not None:
            self.expect(kept, str(anchor))
        self._keep_head(self.head)

    @property
    def now(self) -> datetime:
        return self._clock()

    @property
    def head(self) -> TreeHead:
        with self._lock:
            return self._tree.head

    @property
    def lasting_head(self) -> TreeHead | None:
        return None if self._path is None else self.head

    def write(self, event: Event, job: str = "", contract: str = "", detail: Mapping[str, Any] | None = None) -> None:
        """Adds a line; it is on the disk when this returns. Refusals beyond an hour's lines are counted later."""
        with self._lock:
            now = self._clock().isoformat(timespec="seconds")
            if now[:13] != self._hour:
                self._hour, self._written = now[:13], 0
            if event not in _ALWAYS and self._written >= _MOST_AN_HOUR:
                if event == "refused":
                    self._unsaid += 1
                    return
                raise PolicyError(
                    f"the owner's log takes {_MOST_AN_HOUR:,} lines an hour and is full; nothing leaves before it is "
                    "logged: wait for the next hour, and ask the owner who asks so much"
                )
            unsaid = {"refusals not written": self._unsaid} if self._unsaid else {}
            previous = self._tree.head
            entry = Entry(previous.size + 1, now, event, job, contract, {**(detail or {}), **unsaid}, previous.root)
            line = msgspec.json.encode(entry)
            if self._path is None:
                self.entries.append(entry)
            else:
                _append(self._path, line + b"\n")
            self._tree.append(line)
            self._name_row_sets(entry)
            self._unsaid, self._written = 0, self._written + 1
            self._keep_head(self._tree.head)

    def _name_row_sets(self, entry: Entry) -> None:
        if entry.event == "accepted":
            self.row_sets.clear()
        self.row_sets.update(entry.detail.get("rows", {}).values() if entry.event == "agreed" else ())

    def spend(self, *spendings: Spending, budget: TableBudget | None = None) -> None:
        """Writes releases of one kind down, or refuses them."""
        with self._lock:
            if budget is not None:
                self.account.check(spendings, budget)
            after = self.account.plus(*spendings)
            if after is not self.account:
                new = [s for s in spendings if s in after.spendings and s not in self.account.spendings]
                self.write("spent", detail={"spendings": msgspec.to_builtins(new)})
                self.account = after

    def follows(self, head: TreeHead) -> bool:
        """Whether the log continues one with this head, or a person accepted that it does not."""
        if head in self._accepted:
            return True
        lines = [msgspec.json.encode(entry) for entry in self.entries]
        if self._path is not None and self._path.exists():
            lines, _ = _lines(self._path)
        return head_of(lines[: head.size]) == head

    def expect(self, head: TreeHead, keeper: str) -> None:
        """Refuses to continue if the log does not continue a kept head; also after a restart."""
        if not self.follows(head):
            self._keep_head(head)
            raise LostStateError(
                f"the owner's log has {self.head.size:,} lines and does not continue the one of {head.size:,} lines "
                f"whose head {head.root[:16]} is kept by {keeper}: it was deleted, restored from an older copy or "
                "replaced, and with it the account of what was spent. Put the newest copy back; if it is lost, a "
                "person runs `tablepuppet log accept`, which is written down"
            )

    def accept(self, lost: TreeHead) -> None:
        self.write("accepted", detail={"lost": msgspec.to_builtins(lost), "by": getpass.getuser()})
        self._accepted.add(lost)

    def witness(self, heads: Mapping[str, TreeHead]) -> None:
        """Writes down the heads of other owners' logs, whose lines can then not be replaced unnoticed."""
        if heads:
            self.write("witnessed", detail={"heads": msgspec.to_builtins(dict(heads))})

    def _keep_head(self, head: TreeHead) -> None:
        if self._anchor is None:
            return
        try:
            self._anchor.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._anchor, lambda p: p.write_bytes(msgspec.json.encode(head)), "a head", PolicyError)
        except (OSError, PolicyError) as error:
            log.warning("%s: without it, only the coordinator notices a log that was deleted (`head` in CLIENT)", error)
            self._anchor = None

    def _read(self, path: Path) -> list[Entry]:
        """The lines of a file, without one at its end that was never whole."""
        lines, torn = _lines(path)
        entries = _check(path, lines, self._tree)
        if torn:
            os.truncate(path, path.stat().st_size - len(torn))
            self.write("repaired", detail={"bytes cut off": len(torn), "sha256": hashlib.sha256(torn).hexdigest()})
        elif lines and not path.read_bytes().endswith(b"\n"):
            _append(path, b"\n")
        return entries

    def read_earlier_account(self, path: Path) -> None:
        """Takes over, once, what jobs have spent under an earlier release, which kept it in a file of its own."""
        if not path.exists() or self._has_migrated:
            return
        try:
            content = path.read_bytes()
            earlier = _ACCOUNT.decode(content)
        except (OSError, msgspec.MsgspecError):
            raise PolicyError(
                f"the account {path} of what was spent cannot be read; without it, nothing is answered. Restore it"
            ) from None
        detail = {"spendings": msgspec.to_builtins(earlier.spendings), "sha256": hashlib.sha256(content).hexdigest()}
        self.write("migrated", detail=detail)
        self.account, self._has_migrated = self.account.plus(*earlier.spendings), True


def read_log(path: Path) -> list[Entry]:
    """All lines of a log, each verified against those before it."""
    return _check(path, _lines(path)[0], MerkleTree())


def verify(path: Path, expect: str = "") -> tuple[TreeHead, TreeHead | None]:
    """The head of a log, and that of the prefix whose root begins with `expect`; an error if no prefix does."""
    lines, _ = _lines(path)
    _check(path, lines, MerkleTree())
    tree = MerkleTree()
    found = tree.head if tree.head.root.startswith(expect) else None
    for line in lines:
        tree.append(line)
        if found is None and tree.head.root.startswith(expect):
            found = tree.head
    if expect and found is None:
        raise LostStateError(
            f"no beginning of the log {path} has the head {expect[:16]}…: it was cut, restored from an older copy or "
            "replaced since that head was kept; put the newest copy back, and find out who can write there"
        )
    return tree.head, found if expect else None


def write_proof(path: Path, head: TreeHead, target: Path) -> None:
    """That a log continues its beginning with this head; whoever has the head verifies it without the log."""
    text = msgspec.json.encode(prove_consistency(_lines(path)[0], head.size))
    write_whole(target, lambda p: p.write_bytes(text), "a proof", PolicyError)


def read_proof(path: Path, expect: str) -> ConsistencyProof:
    """A proof that a log continues the head that begins with `expect`; an error if it proves anything else."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ConsistencyProof)
    except (OSError, msgspec.MsgspecError):
        raise PolicyError(
            f"the proof {path} cannot be read; `tablepuppet log verify --prove FILE` writes one"
        ) from None
    if not found.first.root.startswith(expect) or not found.holds():
        raise LostStateError(
            f"the proof {path} does not show that a log continues the head {expect[:16]}…; ask the owner for another, "
            "or for the log"
        )
    return found


def read_head(path: Path) -> TreeHead:
    try:
        return _HEAD.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        raise PolicyError(f"the head of the owner's log in {path} cannot be read; restore it") from None


def _lines(path: Path) -> tuple[list[bytes], bytes]:
    """The lines of a file, and the rest of an incomplete one at its end."""
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except OSError as error:
        raise PolicyError(f"the log {path} cannot be read: {error.strerror}; restore it") from None
    if not last:
        return lines, b""
    try:
        _ENTRY.decode(last)
    except msgspec.MsgspecError:
        return lines, last
    return [*lines, last], b""


def _check(path: Path, lines: Iterable[bytes], tree: MerkleTree) -> list[Entry]:
    """The lines as entries, which go into the tree; an error names the first that does not follow from those before."""
    entries, previous = list[Entry](), _NO_HASH
    for number, line in enumerate(lines, 1):
        try:
            entry = _ENTRY.decode(line)
        except msgspec.MsgspecError:
            raise PolicyError(f"the log {path} cannot be read: line {number} is damaged; restore it") from None
        expected = previous if entry.hash else tree.head.root
        if (entry.number, entry.previous) != (number, expected) or (entry.hash and entry.hash != entry.digest):
            raise PolicyError(
                f"the log {path} was changed: line {number} does not follow from the line before; restore it from "
                "a copy, and find out who can write there"
            )
        tree.append(line)
        entries.append(entry)
        previous = entry.hash
    return entries


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
