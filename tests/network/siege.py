"""A federation under siege: a server with five gigabytes, four honest clients, and hostile parties of every kind.

The server's process, and whatever it starts, may have 5 GiB of address space each (RLIMIT_AS, which needs no rights and
no control group), and all of them together are watched: the sum of what they take is written down for each attack,
and is less than 5 GiB. Health and status are asked all the time.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.network import hostile
from tests.network.parties import QUERY, SECRET, Parties, protocol, tables

import tablepuppet as tp
from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.network import control as c
from tablepuppet.transport import certs
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.flight import Connection, Identity, Party

LIMIT = 5 << 30
OWNERS = {"store-eu": "orders", "store-us": "orders", "store-asia": "orders", "supplier": "items"}
STRANGERS = {"mallory": "extras", "revoked": "others"}
ATTACKED = "SELECT o.x, e.w, o.y FROM orders o JOIN extras e ON o.item = e.item"
POLICY = "minimum_rows = 20\nkeys_in_plain = false\n"
HONEST: list[dict[str, Any]] = [
    {"algorithm": "admm", "epochs": 4, "standardize": False},
    {"algorithm": "boosting", "trees": 4, "depth": 3, "min_child_weight": 5.0},
    {"algorithm": "sgd", "epochs": 2, "batch_size": 60, "standardize": False},
    {"algorithm": "newton", "standardize": False},
]


class Watch:
    """Looks at the server all the time: how much memory it and its children take, and whether it answers."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self.is_away = False  # while the server is told to stop, and started again
        self.peaks: Counter[str] = Counter()
        self.answers = 0
        self.unanswered: list[str] = []
        self.during = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(60)

    def _look(self) -> None:
        while not self._over.wait(0.2):
            process = self._parties.processes.get("server")
            if process is not None and process.pid is not None:
                taken = sum(map(_own_memory, [process.pid, *_children(process.pid)]))
                self.peaks[self.during] = max(self.peaks[self.during], taken)
            if not self.is_away:
                try:
                    page = f"http://127.0.0.1:{self._parties.health}/status"
                    with urllib.request.urlopen(page, timeout=30) as answer:
                        self.answers += bool(json.loads(answer.read())["steps"] >= 0)
                except (OSError, urllib.error.URLError) as error:
                    if not self.is_away:
                        self.unanswered.append(f"{self.during}: {error}")


def _own_memory(pid: int) -> int:
    """Bytes of a process, what it shares with others in equal parts."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _children(int(child))


@dataclass
class Fort:
    """The federation, its honest user's desk, and what hostile parties can do."""

    parties: Parties
    desk: ConnectedFederation
    rival: ConnectedFederation
    watch: Watch
    expected: list[tp.Result] = field(default_factory=list)

    @property
    def certs(self) -> Path:
        return self.parties.folder / "certs"

    def line(self, name: str, role: e.Role) -> Connection:
        own = Identity(self.certs / "ca.pem", self.certs / f"{name}.pem", self.certs / f"{name}.key")
        address = f"grpc+tls://127.0.0.1:{self.parties.port}"
        return Connection(address, Party(name, role, own), c.TO_USER | e.FROM_SERVER, protocol(role))

    def liar(self, lie: str) -> None:
        """Mallory, a member of the federation, lies in this way from now on."""
        if "mallory" in self.parties.processes:
            self.parties.kill("mallory")
        command = ["join", f"{self.parties.folder}/mallory.toml"]
        self.parties.processes["mallory"] = hostile.start(command, self.parties.folder / "mallory.log", lie)
        self.parties.await_status(lambda s: "mallory" in s["connected"])

    def refused(self, ask: Callable[..., Any], *given: Any, says: str = ".", **options: Any) -> None:
        with pytest.raises(tp.TablePuppetError, match=says) as said:
            ask(*given, **options)
        assert "internal error" not in str(said.value)
        assert "died" not in str(said.value)


def held() -> dict[str, pa.Table]:
    found = dict(tables(400))
    found["store-asia"] = found["store-eu"].slice(0, 200)
    extras = pa.table({"item": np.arange(30), "w": np.random.default_rng(1).normal(size=30)})
    return found | dict.fromkeys(STRANGERS, extras)


def expected(policy: Path, jobs: int) -> list[tp.Result]:
    """What one process gives for the honest jobs."""
    of = held()
    given = {"orders": [of["store-eu"], of["store-us"], of["store-asia"]], "items": of["supplier"]}
    with tp.Federation(given, key=SECRET, policies={"orders": policy, "items": policy}) as local:
        return [local.train(QUERY, label="y", **job) for job in HONEST[:jobs]]


@contextmanager
def besieged(folder: Path) -> Iterator[Fort]:
    parties = Parties(folder, owners=OWNERS | STRANGERS, wait=20.0, limits={"server": LIMIT})
    parties.write(held())
    (folder / "open.toml").write_text(POLICY)
    text = parties.federation.read_text().replace('["analyst"]', '["analyst", "rival"]')
    text = text.replace("[server]", "[server]\nturn = 1.0\nshare = 2.0\ncompute = 60.0")
    parties.federation.write_text(text)
    certs.issue(folder / "certs", "rival")
    rival = text.replace('name = "analyst"', 'name = "rival"').replace("certs/analyst", "certs/rival")
    (folder / "rival.toml").write_text(rival)
    certs.revoke(folder / "certs", "revoked")
    parties.start("server", *OWNERS)
    watch = Watch(parties)
    watch.is_away = True
    try:
        parties.await_status(lambda s: len(s["connected"]) == len(OWNERS))
        watch.is_away = False
        yield Fort(parties, parties.connect(), ConnectedFederation(folder / "rival.toml"), watch)
    finally:
        watch.close()
        for name in list(parties.processes):
            parties.kill(name)


def meanwhile(attack: Callable[[], None], work: Callable[[], Any]) -> Any:
    """What the work gives, while the attack goes on beside it; whatever goes wrong in either is raised."""
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            attack()
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(0.1)
    done = work()
    thread.join(300)
    assert not thread.is_alive()
    if wrong:
        raise wrong[0]
    return done
