"""What a network adds to a round: one job over processes with mutual TLS on this machine, and in one process.

In: how many clients. Out: Overhead, milliseconds a round both ways. All but one client hold a share of one table, so
that every round sums over them; payloads are small, so that nothing but the transport counts: TLS, checkpoints,
wake-ups.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from tablepuppet.algorithms.registry import FEDERATED
from tablepuppet.api import Federation
from tablepuppet.bench.processes import SECRET, processes
from tablepuppet.engine.result import Result

_QUERY = "SELECT o.x, o.z, i.price, i.kind, o.y FROM orders o JOIN items i ON o.item = i.item"
_BATCHED = next(a.name for a in FEDERATED if a.uses_batches)
_JOB: dict[str, Any] = {"label": "y", "algorithm": _BATCHED, "batch_size": 20, "learning_rate": 0.1}
_ROWS, _ITEMS = 540, 30


@dataclass(frozen=True, slots=True)
class Overhead:
    """Milliseconds a round, of runs that took turns."""

    clients: int
    rounds: int  # of a run
    in_process: tuple[float, ...]
    over_network: tuple[float, ...]
    is_same_model: bool  # to the last bit

    @property
    def added(self) -> tuple[float, ...]:
        return tuple(n - p for n, p in zip(self.over_network, self.in_process, strict=True))

    @property
    def median(self) -> float:
        return median(self.added)


def measure_network(clients: int, epochs: int = 12, repeats: int = 5) -> Overhead:
    """Starts a server and so many clients, and trains over them and in this process by turns."""
    held = _tables(clients)
    *orders, items = held.values()
    given = _JOB | {"epochs": epochs}
    named = {name: ("items" if table is items else "orders", table) for name, table in held.items()}
    with processes(named) as network, Federation({"orders": orders, "items": items}, key=SECRET) as local:
        pairs = []
        for _ in range(repeats + 1):  # the first compiles and warms up
            pairs.append((_timed(local, given), _timed(network.federation, given)))
    first, second = pairs[0][0][1], pairs[0][1][1]
    traffic = first.traffic
    return Overhead(
        clients=clients,
        rounds=traffic.rounds + traffic.setup.rounds + traffic.evaluation.rounds,
        in_process=tuple(alone for (alone, _), _ in pairs[1:]),
        over_network=tuple(together for _, (together, _) in pairs[1:]),
        is_same_model=first.coefficients().equals(second.coefficients()),
    )


def _timed(federation: Any, given: dict[str, Any]) -> tuple[float, Result]:
    began = time.perf_counter()
    result: Result = federation.train(_QUERY, **given)
    traffic = result.traffic
    rounds = traffic.rounds + traffic.setup.rounds + traffic.evaluation.rounds
    return (time.perf_counter() - began) / rounds * 1e3, result


def _tables(clients: int) -> dict[str, pa.Table]:
    """Each client's table: shares of the orders, and the items."""
    rng = np.random.default_rng(7)
    x, item = rng.normal(size=_ROWS), rng.integers(0, _ITEMS, _ROWS)
    y = (x + 0.1 * item + rng.normal(size=_ROWS) > 1.5).astype(int)
    orders = pa.table({"item": item, "x": x, "z": rng.normal(size=_ROWS), "y": y})
    kinds = [f"kind {i % 4}" for i in range(_ITEMS)]
    items = pa.table({"item": np.arange(_ITEMS), "price": rng.normal(size=_ITEMS), "kind": kinds})
    partition_specs = np.linspace(0, _ROWS, clients).astype(int)
    shares = {f"store-{i}": orders.slice(a, b - a) for i, (a, b) in enumerate(pairwise(partition_specs))}
    return shares | {"supplier": items}
