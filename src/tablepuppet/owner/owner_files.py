"""An owner's secret and approvals on the disk; the log has a file of its own (owner_log.py).

The secret outlives jobs and processes. The noise of labels follows from it: a repeated job gets the same noise.

Approvals: contracts that wait for a person, and the decisions about them. A running client checks every proposal;
the command `tablepuppet approve`, a program or a console writes a decision here.

    state/orders/contracts/1f…e2.json     a contract that was proposed and waits
    state/orders/approvals.json           decisions: which contract or which asker and columns, until when
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from tablepuppet.errors import PolicyError
from tablepuppet.output_files import replace_file
from tablepuppet.owner.owner_log import OwnerLog, read_clock
from tablepuppet.protocol.contract import Contract, canonical

_SECRET_BYTES = 32


def own_secret(path: Path) -> bytes:
    """The owner's secret; made where there is none."""
    if not path.exists():
        _replace(path, secrets.token_bytes(_SECRET_BYTES))
    found = path.read_bytes()
    if len(found) != _SECRET_BYTES:
        raise PolicyError(f"{path} is damaged; restore it, or remove it: labels then get new noise, which costs anew")
    return found


def _replace(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise PolicyError(f"cannot write {path}: {error.strerror}; nothing leaves before it is kept") from None


Scope = Literal["once", "contract", "asker"]
_HASH = re.compile(r"[0-9a-f]{8,64}")


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's decision: about one contract (once, or until it expires), or about an asker's use of columns."""

    name: str  # the contract's hash, or that of the asker's use
    scope: Scope
    is_approved: bool
    until: str
    job: str = ""  # once: the job that used it; a resumed job is the same one
    notes: tuple[str, ...] = ()  # further warnings the person saw: rows that no rule lets pass
    is_used: bool = False  # once: the job is over

    def is_about(self, contract: Contract) -> bool:
        return self.name == (use_of(contract) if self.scope == "asker" else contract.hash)

    def is_over(self, now: datetime) -> bool:
        return datetime.fromisoformat(self.until) < now


_CONTRACT, _DECISIONS = msgspec.json.Decoder(Contract), msgspec.json.Decoder(list[Decision])  # before any thread asks


class Approvals:
    """One owner's decisions; without a folder they last as long as the process."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._decisions: list[Decision] = []
        self._waiting: dict[str, Contract] = {}  # and those of the folder
        self._notes: dict[str, tuple[str, ...]] = {}

    def decision(self, contract: Contract, job: str, notes: Sequence[str] = ()) -> Decision | None:
        """The decision that covers a contract, made knowing `notes`; one that holds once is used up by the job."""
        now, decisions = read_clock(), self._read()
        for place, found in enumerate(decisions):
            if found.is_over(now) or not found.is_about(contract):
                continue
            if found.is_approved and not set(notes) <= set(found.notes):
                continue
            if found.scope == "once" and found.is_approved:
                if found.is_used or found.job not in ("", job):
                    continue
                decisions[place] = msgspec.structs.replace(found, job=job)
                self._write(decisions)
            return found
        return None

    def finish(self, job: str) -> None:
        """Ends a job in which something left, and uses up an approval for it alone."""
        decisions = self._read()
        after = [
            msgspec.structs.replace(d, is_used=True) if d.scope == "once" and d.job == job != "" else d
            for d in decisions
        ]
        if after != decisions:
            self._write(after)

    def wait(self, contract: Contract, notes: Sequence[str] = ()) -> None:
        """Keeps a contract for a person to review, with warnings."""
        self._waiting[contract.hash], self._notes[contract.hash] = contract, tuple(notes)
        if any(d.is_used and d.name == contract.hash for d in self._read()):
            self._write([d for d in self._read() if not (d.is_used and d.name == contract.hash)])
        if self._folder is not None:
            path = self._folder / "contracts" / f"{contract.hash}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(contract), indent=1))
            path.with_suffix(".notes").write_bytes(msgspec.json.encode(tuple(notes)))

    def notes(self, contract: Contract) -> tuple[str, ...]:
        path = None if self._folder is None else self._folder / "contracts" / f"{contract.hash}.notes"
        if path is None or not path.exists():
            return self._notes.get(contract.hash, ())
        return msgspec.json.decode(path.read_bytes(), type=tuple[str, ...])

    def waiting(self) -> list[Contract]:
        now = read_clock()
        decided = [d for d in self._read() if not d.is_over(now)]

        def is_decided(contract: Contract) -> bool:
            found = [d for d in decided if d.is_about(contract)]
            return any(not d.is_approved or set(self.notes(contract)) <= set(d.notes) for d in found)

        return [contract for contract in self._proposals().values() if not is_decided(contract)]

    def _proposals(self, name: str = "") -> dict[str, Contract]:
        found = {full: contract for full, contract in self._waiting.items() if full.startswith(name)}
        if self._folder is not None:
            for path in sorted((self._folder / "contracts").glob(f"{name}*.json")):
                found[path.stem] = _CONTRACT.decode(path.read_bytes())
        return found

    def find(self, name: str) -> Contract:
        if not _HASH.fullmatch(name):
            raise PolicyError(
                "a contract is named by eight or more of its hexadecimal digits; the owner's log has them"
            )
        matching = list(self._proposals(name).values())
        if len(matching) != 1:
            raise PolicyError(
                f"{len(matching)} contracts begin with {name}; give more of the name, as the log shows it"
            )
        return matching[0]

    def decide(self, name: str, *, is_approved: bool, scope: Scope = "contract", days: int | None = None) -> Decision:
        """Writes a decision down; an earlier one of the same contract gives way."""
        contract = self.find(name)
        lasts = min(contract.days, contract.days if days is None else days)
        until = (read_clock() + timedelta(days=lasts)).isoformat(timespec="seconds")
        of = use_of(contract) if scope == "asker" else contract.hash
        decision = Decision(of, scope, is_approved, until, notes=self.notes(contract))
        self._write([d for d in self._read() if d.name != of] + [decision])
        if self._folder is not None:
            detail = {"scope": scope, "until": decision.until, "notes": list(decision.notes)}
            OwnerLog(self._folder / "decisions.jsonl").write(
                "approved" if is_approved else "denied", "", contract.hash, detail
            )
        return decision

    def _read(self) -> list[Decision]:
        if self._folder is None:
            return list(self._decisions)
        path = self._folder / "approvals.json"
        if not path.exists():
            return []
        try:
            return _DECISIONS.decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            raise PolicyError(f"{path} cannot be read, and nothing is approved without it; restore it") from None

    def _write(self, decisions: list[Decision]) -> None:
        self._decisions = decisions
        if self._folder is not None:
            content = msgspec.json.format(msgspec.json.encode(decisions), indent=1)
            _replace(self._folder / "approvals.json", content)


def use_of(contract: Contract) -> str:
    """Who reads which columns for what, and under which noise, whatever the algorithm and its options are."""
    noise = (contract.label_privacy, contract.feature_privacy, contract.prediction_privacy)
    exact = (contract.keys, contract.most_keys, contract.allow_reconstruction)
    asker = [contract.asker, *contract.readers] if contract.readers else contract.asker
    return hashlib.sha256(
        canonical([asker, contract.purpose, contract.scans, contract.blocks, noise, exact])
    ).hexdigest()
