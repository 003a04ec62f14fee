"""The meter: all numbers about traffic come from here.

In: the frames of each round. Out: `Traffic`, a frozen account of rounds and bytes, whose
`seconds` on a network is Σ over rounds of latency + bytes of the slowest path / bandwidth
(docs/algorithms.md, "Communication").
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from tablepuppet.errors import JobError
from tablepuppet.formatting import details, fragment, size, table
from tablepuppet.protocol.base import Message, disclosures
from tablepuppet.protocol.codec import Frame

Phase = Literal["setup", "training", "evaluation"]
Receiver = Literal["server", "client"]


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network between server and clients: `latency` in seconds per round trip, `bandwidth` in gigabits per second.

    >>> Network(latency=0.1, bandwidth=1.0).seconds(12_500_000)
    0.2
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if self.latency < 0 or self.bandwidth <= 0:
            raise JobError("a network needs latency ≥ 0 (seconds) and bandwidth > 0 (Gbit/s)")

    def seconds(self, size: float, rounds: int = 1) -> float:
        """The time of `rounds` that move `size` bytes over their slowest paths."""
        return rounds * self.latency + size * 8 / (self.bandwidth * 1e9)


NETWORKS = {"us-uk": Network(0.136, 0.42), "us-us": Network(0.067, 1.15)}


def network(name: str | Network) -> Network:
    """A network by name, or itself."""
    if isinstance(name, Network):
        return name
    if name.lower() not in NETWORKS:
        raise JobError(f"unknown network {name!r}; known: {', '.join(NETWORKS)}, or tp.Network(latency, bandwidth)")
    return NETWORKS[name.lower()]


class Round(msgspec.Struct, frozen=True):
    """The bytes of one round: on its slowest path (up and down of one client), and in all."""

    slowest: int
    total: int


class DisclosureKey(NamedTuple):
    """A disclosure about rows to another party: the client that sends or receives it, and the scan or part."""

    client: str
    subject: str  # "scan 0", "part 2"
    what: str
    to: Receiver


@dataclass(frozen=True, slots=True)
class Account:
    bytes_up: int = 0
    bytes_down: int = 0
    payload_up: int = 0  # arrays only, without message headers
    payload_down: int = 0
    by_message: Mapping[str, int] = field(default_factory=dict)
    by_client: Mapping[str, int] = field(default_factory=dict)
    each_round: tuple[Round, ...] = ()
    told: Mapping[DisclosureKey, int] = field(default_factory=dict)  # numbers of each row, or times

    @property
    def rounds(self) -> int:
        return len(self.each_round)

    @property
    def bytes(self) -> int:
        return self.bytes_up + self.bytes_down

    def seconds(self, on: str | Network, *, link: Literal["slowest", "shared"] = "slowest") -> float:
        """Communication time on a network; `link="shared"`: all clients share the server's bandwidth."""
        net = network(on)
        return sum(net.seconds(r.slowest if link == "slowest" else r.total) for r in self.each_round)


@dataclass(frozen=True, slots=True, repr=False)
class Traffic(Account):
    """The training rounds of a run; traffic before and outside them is separate, in full.

    `setup`: schemas, keys, labels, statistics. `evaluation`: predictions for test rows.
    """

    setup: Account = field(default_factory=Account)
    evaluation: Account = field(default_factory=Account)

    def __repr__(self) -> str:
        return (
            f"Traffic({self.rounds:,} rounds, {size(self.bytes_up)} from clients, {size(self.bytes_down)} to clients)"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the three phases side by side, and the bytes of training by message and client."""
        phases = {"set-up": self.setup, "training": self, "evaluation": self.evaluation}
        head = ["phase", "rounds", "bytes from clients", "bytes to clients", *(f"on {n.upper()}" for n in NETWORKS)]
        rows = [
            [
                name,
                f"{account.rounds:,}",
                f"{account.bytes_up:,}",
                f"{account.bytes_down:,}",
                *(f"{account.seconds(network):,.2f} s" for network in NETWORKS),
            ]
            for name, account in phases.items()
        ]
        by_message = table(["message", "bytes of training"], _largest_first(self.by_message))
        by_client = table(["client", "bytes of training"], _largest_first(self.by_client))
        title = f"Traffic: {self.total_bytes:,} bytes in all"
        return fragment(title, table(head, rows), details("By message", by_message), details("By client", by_client))

    @property
    def all_told(self) -> dict[DisclosureKey, int]:
        return add_accounts(self.setup.told, self.told, self.evaluation.told)

    @property
    def total_bytes(self) -> int:
        return self.bytes + self.setup.bytes + self.evaluation.bytes


def all_of(runs: Sequence[Traffic]) -> Traffic:

    def account(parts: Sequence[Account]) -> dict[str, Any]:
        numbers = ("bytes_up", "bytes_down", "payload_up", "payload_down")
        counts = ("by_message", "by_client", "told")
        return {
            **{name: sum(getattr(part, name) for part in parts) for name in numbers},
            **{name: add_accounts(*(getattr(part, name) for part in parts)) for name in counts},
            "each_round": tuple(one for part in parts for one in part.each_round),
        }

    setup, evaluation = [run.setup for run in runs], [run.evaluation for run in runs]
    return Traffic(**account(runs), setup=Account(**account(setup)), evaluation=Account(**account(evaluation)))


def _largest_first(counts: Mapping[str, int]) -> list[list[str]]:
    return [[name, f"{count:,}"] for name, count in sorted(counts.items(), key=lambda entry: -entry[1])]


def add_accounts(*accounts: Mapping[Any, int]) -> dict[Any, int]:
    """The sum of several accounts, entry by entry."""
    total: Counter[Any] = Counter()
    for account in accounts:
        total.update(account)
    return dict(total)


class Meter:
    """Counts the frames that pass, and their disclosures."""

    def __init__(self) -> None:
        self._counts: dict[Phase, _Count] = {"setup": _Count(), "training": _Count(), "evaluation": _Count()}

    def count(
        self,
        phase: Phase,
        requests: Mapping[str, Sequence[Message]],
        down: Mapping[str, Sequence[Frame]],
        answers: Mapping[str, Sequence[Message]],
        up: Mapping[str, Sequence[Frame]],
    ) -> None:
        count = self._counts[phase]
        per_client: Counter[str] = Counter()
        for client, frames in down.items():
            for request, frame in zip(requests[client], frames, strict=True):
                per_client[client] += count.add(client, request, request, frame, "client")
        for client, frames in up.items():
            for request, answer, frame in zip(requests[client], answers[client], frames, strict=True):
                per_client[client] += count.add(client, request, answer, frame, "server")
        count.rounds.append(Round(max(per_client.values(), default=0), per_client.total()))

    def account(self, phase: Phase) -> Account:
        return Account(**self._counts[phase].fields())

    def traffic(self) -> Traffic:
        training = self._counts["training"].fields()
        return Traffic(**training, setup=self.account("setup"), evaluation=self.account("evaluation"))


class _Count:
    """The running sums of one phase, under the names that an account has for them."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(("bytes_up", "bytes_down", "payload_up", "payload_down"), 0)
        self.by: dict[str, Counter[Any]] = {name: Counter() for name in ("by_message", "by_client", "told")}
        self.rounds: list[Round] = []

    def add(self, client: str, request: Message, message: Message, frame: Frame, to: Receiver) -> int:
        """Counts a message, and its disclosures about the part or scan that the request names; its size in bytes."""
        payload, way = frame.payload, "up" if to == "server" else "down"
        size = payload + len(frame.header)
        self.sums[f"bytes_{way}"] += size
        self.sums[f"payload_{way}"] += payload
        self.by["by_message"][type(message).__name__] += size
        self.by["by_client"][client] += size
        named = ((name, getattr(request, name, None)) for name in ("part", "scan"))
        subject = next((f"{name} {number}" for name, number in named if number is not None), "")
        for disclosed, numbers in disclosures(message) if not request.repeats else ():
            self.by["told"][DisclosureKey(client, subject, disclosed.what, to)] += numbers
        return size

    def fields(self) -> dict[str, Any]:
        counts = {name: dict(counted) for name, counted in self.by.items()}
        return {**self.sums, **counts, "each_round": tuple(self.rounds)}
