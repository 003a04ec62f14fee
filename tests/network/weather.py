"""Bad weather for a federation of processes: one random fault a round, and what a run makes of it.

Everybody's way to the server leads through a relay, slow enough that a fault reaches the very round after the one
that was just heard of. Faults are real: kill -9, cut and held connections, messages sent twice, and, where this
process may mount one, a small file system that is full.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.network.parties import OWNERS, QUERY, Parties, running
from tests.network.relay import Relay
from tests.ports import free_port

from tablepuppet.errors import TablePuppetError
from tablepuppet.training.result import Result

_DELAY = 0.01
_HEARTBEAT = 0.5


class Weather:
    """Faults by name, drawn at random; `seen` counts them, `rounds` lists which rounds they hit."""

    def __init__(self, parties: Parties, seed: int, *, has_disks: bool) -> None:
        self.parties, self.chance = parties, random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.rounds: list[int] = []
        self.kinds: dict[str, Callable[[str], None]] = {
            "client killed": self._kill_client,
            "server killed": self._kill_server,
            "link cut": self._cut,
            "reply lost": self._lose_reply,
            "message twice": self._twice,
            "message delayed": self._delay,
            "silence": self._silence,
        }
        if has_disks:
            self.kinds["disk full"] = self._fill
        self._bag: list[str] = []

    def train(self, **job: Any) -> Result:
        """Trains while every round has a fault, until there have been `faults` of them."""
        faults = job.pop("faults")
        threads: list[threading.Thread] = []

        def on_round(event: Any) -> None:
            if len(self.rounds) < faults and not any(t.is_alive() for t in threads):
                for name in self.parties.owners:
                    self.parties.relays[name].hold()
                self.rounds.append(event.round)
                threads.append(threading.Thread(target=self.strike))
                threads[-1].start()

        try:
            result = self.parties.connect().train(QUERY, **job, on_round=on_round)
        except TablePuppetError as error:
            error.add_note(self.parties.logs())
            raise
        for thread in threads:
            thread.join(60)
        return result

    def strike(self) -> None:
        """One fault, while a round is under way."""
        if not self._bag:  # every kind comes equally often
            self._bag = self.chance.sample(list(self.kinds), len(self.kinds))
        kind, victim = self._bag.pop(), self.chance.choice(list(self.parties.owners))
        try:
            self.kinds[kind](victim)
            self.seen[kind] += 1
        finally:
            self.release()

    def release(self) -> None:
        for relay in self.parties.relays.values():
            relay.release()

    def _soon(self) -> None:
        """Some moment of the round."""
        self.release()
        time.sleep(self.chance.uniform(0.0, 4 * _DELAY))

    # -- faults ----------------------------------------------------------------------------

    def _kill_client(self, victim: str) -> None:
        self._soon()
        self.parties.restart(victim)

    def _kill_server(self, victim: str) -> None:
        user = self.parties.relays["analyst"]
        self._soon()
        before = user.accepted
        for name in self.parties.owners:
            self.parties.relays[name].hold()
        self.parties.restart("server")
        until = time.monotonic() + 60
        while user.accepted == before:
            assert time.monotonic() < until, f"the user did not come back\n{self.parties.logs()}"
            time.sleep(0.02)
        time.sleep(0.3)  # until the user follows the run again, and so misses no round

    def _cut(self, victim: str) -> None:
        self._soon()
        self.parties.relays[victim].cut()

    def _lose_reply(self, victim: str) -> None:
        """The client acts and answers, and nobody hears it: it will be asked the same again."""
        relay = self.parties.relays[victim]
        for other in self.parties.relays.values():
            if other is not relay:
                other.release()
        relay.release("down")
        time.sleep(6 * _DELAY)
        relay.cut()

    def _twice(self, victim: str) -> None:
        self.parties.twice(self.chance.choice([victim, "server"])).touch()

    def _delay(self, victim: str) -> None:
        for name, relay in self.parties.relays.items():
            if name != victim:
                relay.release()
        time.sleep(self.chance.uniform(0.1, 2 * _HEARTBEAT))

    def _silence(self, victim: str) -> None:
        """Both sides give the connection up."""
        for name, relay in self.parties.relays.items():
            if name != victim:
                relay.release()
        time.sleep(3.5 * _HEARTBEAT)
        self.parties.relays[victim].cut()

    def _fill(self, victim: str) -> None:
        state = self.parties.folder / "state" / self.chance.choice([victim, "server"])
        filler = state / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        self.release()
        time.sleep(self.chance.uniform(0.1, 0.6))
        filler.unlink()


@contextmanager
def bad_weather(folder: Path, held: dict[str, pa.Table], seed: int) -> Iterator[Weather]:
    """A federation behind relays; with root, each state folder is a disk of its own."""
    port = free_port()
    relays = {name: Relay(port, delay=_DELAY) for name in (*OWNERS, "analyst")}
    mounted: list[Path] = []
    try:
        if os.geteuid() == 0:
            for name in ("server", *OWNERS):
                state = folder / "state" / name
                state.mkdir(parents=True)
                done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(state)], check=False)
                if done.returncode == 0:
                    mounted.append(state)
        with running(folder, held, port=port, relays=relays, heartbeat=_HEARTBEAT) as parties:
            yield Weather(parties, seed, has_disks=len(mounted) == 1 + len(OWNERS))
    finally:
        for state in mounted:
            subprocess.run(["umount", str(state)], check=True)
