"""An owner's account on the disk: nothing leaves before it is written.

In: the client's state folder, then releases. Out: an account that outlives jobs and processes; and the owner's own
secret, from which the noise of labels follows, so that a repeated job gets the noise it got.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from pathlib import Path

import msgspec

from tablepuppet.errors import PolicyError
from tablepuppet.privacy.owner import Account, Spending, TableBudget

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
        return msgspec.json.decode(path.read_bytes(), type=Account)
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
