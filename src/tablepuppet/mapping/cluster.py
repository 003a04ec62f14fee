"""Joined rows on a Ray cluster: each worker walks over its piece, and lanes are added up here, in order.

In: joined rows, cut into pieces on disk (pieces.py). Out: something that algorithms walk over as they
do over local rows, with the same results bit for bit. A call that was lost with its worker, or with
the worker's node, is made again to a new one, which Ray places where there is room.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import JobError, TrainingError
from tablepuppet.mapping.engines import Ray
from tablepuppet.mapping.joined import JoinedRows, JoinStep, LaneResult, Pass, RowIndex, Sums, Work, add_sums, batch
from tablepuppet.mapping.moves import empty_sums
from tablepuppet.mapping.pieces import Piece, Storage, cut
from tablepuppet.mapping.worker import Kept, Walk, Worker
from tablepuppet.transport.messages import Array, RowNumbers
from tablepuppet.version import __version__

log = logging.getLogger(__name__)
_LIVES = 5  # workers that one call may cost before the run gives up
_GREETING = 10.0  # seconds within which a cluster's address must answer
_PATIENCE = 120.0  # seconds within which a worker must have found a place


class Cluster:
    """Some workers, each of which can be replaced at any time."""

    def __init__(self, ray: Any, workers: int, place: str) -> None:
        self._ray, self._place, self._lost = ray, place, 0
        self._actor = ray.remote(Worker)
        spread = self._actor.options(num_cpus=1, scheduling_strategy="SPREAD")
        self._workers = [spread.remote(place) for _ in range(workers)]
        for number in range(workers):
            self._settle(number)

    def put(self, array: Array) -> Any:
        """An array that several workers are sent: it travels once to each node."""
        return self._ray.put(array)

    def ask(self, method: str, calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """The answers of the first workers, one call each, in order."""
        pending = [getattr(worker, method).remote(*call) for worker, call in zip(self._workers, calls, strict=False)]
        for number, call in enumerate(calls):
            yield self._answer(number, pending[number], method, call)

    def _answer(self, number: int, pending: Any, method: str, call: tuple[Any, ...]) -> Any:
        errors = self._ray.exceptions
        for life in range(_LIVES):
            try:
                return self._ray.get(pending)
            except errors.RayTaskError as error:
                raise _cause(error, self._place) from None
            except (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError, errors.WorkerCrashedError):
                log.warning("Ray lost a worker; another takes its piece of the joined table over from disk")
                self._ray.kill(self._workers[number])
                time.sleep(life)  # Ray learns of a node's end a little later than we do
                self._workers[number] = self._stand_in()
                self._settle(number)
                pending = getattr(self._workers[number], method).remote(*call)
        raise TrainingError(
            f"{_LIVES} Ray workers in a row died over one piece of the joined table; see that tablepuppet is installed "
            "on every node, and give more nodes or more workers if the cluster's logs say that memory ran out"
        )

    def _stand_in(self) -> Any:
        """A worker on one of the nodes that are left; it reserves no CPU, for there may be no free one."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        left = [node["NodeID"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not left:
            raise TrainingError("the Ray cluster has no node with a CPU left; add nodes, and train again")
        where = NodeAffinitySchedulingStrategy(left[self._lost % len(left)], soft=True)
        self._lost += 1
        return self._actor.options(num_cpus=0, scheduling_strategy=where).remote(self._place)

    def _settle(self, number: int) -> None:
        """Waits until a worker has a place and shows that it is one of ours."""
        hello = self._workers[number].version.remote()
        ready, _ = self._ray.wait([hello], timeout=_PATIENCE)
        if not ready:
            free = self._ray.available_resources().get("CPU", 0.0)
            raise TrainingError(
                f"Ray found no place for a worker within {_PATIENCE:.0f} s; the cluster has {free:g} free CPUs; "
                "add nodes, or ask for fewer workers"
            )
        try:
            found = self._ray.get(hello)
        except self._ray.exceptions.RayActorError:
            return  # lost already; the next call finds out
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error, self._place) from None
        if found != __version__:
            raise TrainingError(
                f"a Ray node has tablepuppet {found}, and this is {__version__}; install the same version on all nodes"
            )

    def close(self) -> None:
        """Ends the workers."""
        for worker in self._workers:
            self._ray.kill(worker)


@dataclass(frozen=True, eq=False)
class ClusterRows:
    """Joined rows whose pieces lie with workers: what algorithms and metrics need of JoinedRows."""

    rows: int
    indices: tuple[RowIndex, ...]  # sizes alone count here
    pieces: list[Piece]
    cluster: Cluster
    labels: JoinedRows
    has_weights: bool = False
    state: dict[str, Kept] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # of walks

    def allocate(self, name: str, outputs: int, dtype: type[np.floating[Any]] = np.float64) -> None:
        self.state[name] = Kept(outputs, np.dtype(dtype).str)

    def run(
        self,
        step: JoinStep,
        per_row: Sequence[Array],
        *,
        columns: Sequence[Array] = (),
        signals: int = 0,
        writes: Collection[str] = (),
        own: float = 0.0,
        fused: Callable[..., Sums] | None = None,
        **given: Any,
    ) -> Pass:
        """As JoinedRows.run: the pieces at once, their lanes added up in order."""
        work = Work(step, signals, tuple(writes), given, own, None if self.has_weights else fused)
        walk = Walk(next(self.numbers), work, len(per_row), dict(self.state))
        calls = self._calls(walk, per_row, columns)
        merged: list[list[Array]] = []
        sums = []
        for piece, results in zip(self.pieces, self.cluster.ask("walk", calls), strict=True):
            for lane in results:
                merged = merged or [
                    [empty_sums(len(v), out.shape[1], self.rows) for v, (_, out) in zip(per_row, blocks, strict=True)]
                    for blocks in lane[0]
                ]
                _add(merged, piece, lane)
                sums.append(lane[1])
        for name in writes:
            self.state[name] = Kept(self.state[name].outputs, self.state[name].dtype, walk.number)
        return Pass(merged, add_sums(sums))

    def _calls(self, walk: Walk, per_row: Sequence[Array], columns: Sequence[Array]) -> list[tuple[Any, ...]]:
        """For each piece: its path, the walk, and the values of the rows that it uses."""
        given = [(i % len(per_row), np.ascontiguousarray(v)) for i, v in enumerate((*per_row, *columns))]
        shared: dict[int, Any] = {}
        calls = []
        for piece in self.pieces:
            own = []
            for place, (block, values) in enumerate(given):
                used = piece.used[block]
                if isinstance(used, slice) and used.stop - used.start == len(values):
                    if place not in shared:
                        shared[place] = self.cluster.put(values)
                    own.append(shared[place])
                else:
                    own.append(values[used])
            calls.append((piece.path, walk, *own))
        return calls

    def collect(self, name: str) -> Array:
        """A value per joined row, gathered here."""
        state = {name: self.state.pop(name)}
        calls = [(piece.path, name, state) for piece in self.pieces]
        return np.concatenate(list(self.cluster.ask("collect", calls)))

    def by_label(self) -> JoinedRows:
        """As JoinedRows.by_label: few rows, which stay here."""
        return self.labels

    def take(self, joined: NDArray[np.int64]) -> tuple[JoinedRows, list[RowNumbers]]:
        """A batch, looked up where its joined rows lie; it is small, and walked over here."""
        holder = np.searchsorted([piece.first for piece in self.pieces], joined, side="right") - 1
        places = [np.flatnonzero(holder == k) for k in range(len(self.pieces))]
        calls = [(p.path, joined[place] - p.first) for p, place in zip(self.pieces, places, strict=True)]
        numbers = [np.empty(len(joined), np.int64) for _ in self.indices]
        labels, weights = np.empty(len(joined)), np.empty(len(joined)) if self.has_weights else None
        for piece, place, found in zip(self.pieces, places, self.cluster.ask("look_up", calls), strict=True):
            for block, own in enumerate(found[0]):
                numbers[block][place] = piece.number(block, own)
            labels[place] = found[1]
            if weights is not None:
                weights[place] = found[2]
        return batch(numbers, labels, weights, [p.rows for p in self.indices], self.rows)


def _add(merged: list[list[Array]], piece: Piece, lane: LaneResult) -> None:
    """total[rows] += what a lane collapsed to them."""
    for blocks, totals in zip(lane[0], merged, strict=True):
        for block, (base, out) in enumerate(blocks):
            used = piece.used[block]
            if isinstance(used, slice):
                totals[block][used.start + base : used.start + base + len(out)] += out
            else:
                totals[block][used[base : base + len(out)]] += out


@contextmanager
def on_cluster(engine: Ray, sides: dict[str, JoinedRows]) -> Iterator[dict[str, JoinedRows | ClusterRows]]:
    """The sides of a joined table on a cluster; sides without rows stay here."""
    with _connected(engine) as ray:
        wanted = engine.workers or max(1, int(ray.available_resources().get("CPU", 1)))
        with _storage(engine) as place:
            storage = Storage(place)
            pieces = {name: cut(side, wanted, storage, name) for name, side in sides.items() if side.rows}
            cluster = Cluster(ray, max(map(len, pieces.values())), place)
            try:
                yield {
                    name: ClusterRows(
                        side.rows, side.indices, pieces[name], cluster, side.by_label(), side.weights is not None
                    )
                    if side.rows
                    else side
                    for name, side in sides.items()
                }
            finally:
                cluster.close()


@contextmanager
def _connected(engine: Ray) -> Iterator[Any]:
    """Ray, connected: by the user already, to a cluster that runs, or to one that is started for this run."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a run goes to anybody
    try:
        import ray
    except ImportError:
        raise JobError('engine="ray" needs Ray: pip install "tablepuppet[ray]", or leave the engine out') from None
    if ray.is_initialized():
        yield ray
        return
    address = engine.address or os.environ.get("RAY_ADDRESS") or "local"
    given: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **given)
    except (OSError, ValueError, RuntimeError) as error:
        raise TrainingError(
            f"cannot reach the Ray cluster at {address} ({type(error).__name__}); "
            'check tp.Ray(address="…") or RAY_ADDRESS, or leave both out to have one started'
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Opens a connection where the address names a host and a port: Ray itself would try for minutes, then give up."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname is not None and place.port is not None:
        socket.create_connection((place.hostname, place.port), timeout=_GREETING).close()


@contextmanager
def _storage(engine: Ray) -> Iterator[str]:
    """A folder of this run alone, removed afterwards."""
    place = f"{engine.storage or tempfile.gettempdir()}/tablepuppet-{uuid.uuid4().hex}"
    try:
        Storage(place).create()
    except (OSError, pa.ArrowInvalid) as error:
        raise JobError(f"cannot write to the engine's storage {engine.storage}: {error}; name another folder") from None
    try:
        yield place
    finally:
        try:
            Storage(place).clear()
        except OSError as error:  # a result is worth more than a clean disk
            log.warning("%s could not be removed: %s", place, error)


def _cause(error: Any, place: str) -> Exception:
    """What went wrong at a worker, in our own words where it is ours or the user's to mend."""
    cause: Exception = error.cause
    if isinstance(cause, FileNotFoundError):
        return TrainingError(
            f"a Ray node does not see the pieces of the joined table under {place}; "
            'give a folder that all nodes share: engine=tp.Ray(storage="…")'
        )
    return cause
