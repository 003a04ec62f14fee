"""Network namespaces: every party on a host of its own, as far as the kernel is concerned.

Each has one address and one wire (a veth pair) to a switch (a bridge) that stands in a namespace alone, so that this
machine's own network is not touched. A wire can be made slow: netem delays and limits it, where the kernel has netem;
without it, only the rate can be limited (tbf). All of this needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@dataclass(frozen=True)
class Hosts:
    """Names of parties → namespace and address."""

    namespaces: dict[str, str]
    addresses: dict[str, str]

    def slow_down(self, name: str, *, delay: float, rate: float) -> None:
        """A host's wire: `delay` seconds each way (netem), at most `rate` bits a second each way."""
        inside, hub = self.namespaces[name], self.namespaces["hub"]
        for namespace, device in ((inside, "eth0"), (hub, f"to-{self.addresses[name].split('.')[-1]}")):
            given = f"netem delay {delay * 1e3:.0f}ms rate {rate / 1e6:.0f}mbit limit 100000"
            _run(f"tc -n {namespace} qdisc replace dev {device} root {given}")

    def drop(self, name: str, *, is_down: bool) -> None:
        """Pulls a host's plug, or puts it in again: nobody is told."""
        device = f"to-{self.addresses[name].split('.')[-1]}"
        _run(f"ip -n {self.namespaces['hub']} link set {device} {'down' if is_down else 'up'}")


def has_netem() -> bool:
    """Whether this kernel can delay packets."""
    with hosts(["probe"]) as made:
        try:
            made.slow_down("probe", delay=0.001, rate=1e9)
        except subprocess.CalledProcessError:
            return False
    return True


@contextmanager
def hosts(names: Sequence[str]) -> Iterator[Hosts]:
    """One namespace per name, all on one switch; gone at the end."""
    tag = f"tp{os.getpid()}"
    namespaces = {name: f"{tag}-{i}" for i, name in enumerate(names)} | {"hub": f"{tag}-hub"}
    addresses = {name: f"10.77.0.{i + 1}" for i, name in enumerate(names)}
    made = []
    try:
        for namespace in namespaces.values():
            _run(f"ip netns add {namespace}")
            made.append(namespace)
            _run(f"ip -n {namespace} link set lo up")
        hub = namespaces["hub"]
        _run(f"ip -n {hub} link add switch type bridge")
        _run(f"ip -n {hub} link set switch up")
        for name, address in addresses.items():
            port = f"to-{address.split('.')[-1]}"
            _run(f"ip -n {hub} link add {port} type veth peer name eth0 netns {namespaces[name]}")
            _run(f"ip -n {hub} link set {port} master switch up")
            _run(f"ip -n {namespaces[name]} address add {address}/24 dev eth0")
            _run(f"ip -n {namespaces[name]} link set eth0 up")
        yield Hosts(namespaces, addresses)
    finally:
        for namespace in made:
            _run(f"ip netns delete {namespace}")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
