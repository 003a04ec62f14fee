"""A Ray cluster: some workers (worker.py), and a folder that they share.

In: where the cluster is, or nothing. Out: answers to calls, one of each worker, in order. If a call is lost with its
worker or the worker's node, it is made again to a new worker, which Ray places where there is room.
"""

import logging
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from tablepuppet import __version__
from tablepuppet.errors import JobError, TrainingError
from tablepuppet.job.job import Engine, Local, Ray
from tablepuppet.join.cluster.worker import Storage, Worker

log = logging.getLogger(__name__)
_LIVES = 5  # workers that one call may cost before the run gives up
_GREETING = 10.0  # seconds within which a cluster's address must answer
_AUTH_MODE, _TOKEN = "RAY_AUTH_MODE", "token"  # Ray's own words; workers hold keys and predictions of every row
_DEMAND = f"set {_AUTH_MODE}={_TOKEN} on every node and here, and give all of them the token of `ray get-auth-token`"
_PATIENCE = 120.0  # seconds within which a worker must have found a place


class Cluster:
    """Some workers, each of which can be replaced at any time."""

    def __init__(self, ray: Any, size: int, place: str) -> None:
        self._ray, self._place, self._lost = ray, place, 0
        self._actor = ray.remote(Worker)
        self._workers: list[Any] = []
        self.size = size  # workers that there may be
        self.storage = Storage(place)

    @property
    def memory(self) -> int:
        """Bytes that all nodes together offer to workers."""
        return int(self._ray.cluster_resources().get("memory", 0))

    def put(self, value: Any) -> Any:
        """Shares a value with several workers: it travels once to each node."""
        return self._ray.put(value)

    def ask(self, method: str, calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """The answers of the first workers, one call each, in order; workers start when they are first needed."""
        spread = self._actor.options(num_cpus=1, scheduling_strategy="SPREAD")
        new = range(len(self._workers), len(calls))
        self._workers += [spread.remote(self._place) for _ in new]
        for number in new:
            self._settle(number)
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
                log.warning("Ray lost a worker; another takes its partition of the joined table over")
                self._ray.kill(self._workers[number])
                time.sleep(life)  # Ray learns of a node's end a little later than we do
                self._workers[number] = self._stand_in()
                self._settle(number)
                pending = getattr(self._workers[number], method).remote(*call)
        raise TrainingError(
            f"{_LIVES} Ray workers in a row died over one partition of the joined table; see that tablepuppet is "
            "installed on every node, and give more nodes or more workers if the cluster's logs say that memory ran out"
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
        hello = self._workers[number].describe.remote()
        ready, _ = self._ray.wait([hello], timeout=_PATIENCE)
        if not ready:
            free = self._ray.available_resources().get("CPU", 0.0)
            raise TrainingError(
                f"Ray found no place for a worker within {_PATIENCE:.0f} s; the cluster has {free:g} free CPUs; "
                "add nodes, or ask for fewer workers"
            )
        try:
            version, mode = self._ray.get(hello)
        except self._ray.exceptions.RayActorError:
            return  # lost already; the next call finds out
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error, self._place) from None
        if version != __version__:
            raise TrainingError(
                f"a Ray node has tablepuppet {version}, and this is {__version__}; install the same on all nodes"
            )
        if mode != _TOKEN:
            raise TrainingError(f"a Ray node lets anybody in ({_AUTH_MODE}={mode or 'unset'}); {_DEMAND}")

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)


@contextmanager
def at_work(engine: Engine) -> Iterator[Cluster | None]:
    """The cluster that a job names, as long as the job lasts; None: its joined rows are walked over here."""
    if isinstance(engine, Local):
        yield None
        return
    with _ray_settings(), _connect(engine) as ray, _storage(engine) as place:
        cluster = Cluster(ray, engine.workers or max(1, int(ray.available_resources().get("CPU", 1))), place)
        try:
            yield cluster
        finally:
            cluster.close()


@contextmanager
def _ray_settings() -> Iterator[None]:
    """While inside, the environment asks Ray for a token and for no reports of its use; then it is the user's again."""
    before = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a run goes to anybody
    mode = os.environ.setdefault(_AUTH_MODE, _TOKEN)
    try:
        if mode.lower() != _TOKEN:
            raise JobError(f"Ray would let anybody in who reaches it ({_AUTH_MODE}={mode}); {_DEMAND}")
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ |= before


@contextmanager
def _connect(engine: Ray) -> Iterator[Any]:
    """Ray, connected: by the user already, to a cluster that runs, or to one that is started for this run."""
    try:
        import ray
    except ImportError:
        raise JobError('engine="ray" needs Ray: pip install "tablepuppet[ray]", or leave the engine out') from None
    _check_ray(ray.__version__)
    if ray.is_initialized():
        yield ray
        return
    address = engine.address or os.environ.get("RAY_ADDRESS") or "local"
    given: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        place = urlsplit(address if "://" in address else f"//{address}")
        if place.hostname is not None and place.port is not None:  # else Ray would try for minutes, then give up
            socket.create_connection((place.hostname, place.port), timeout=_GREETING).close()
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


def _check_ray(version: str) -> None:
    """
    >>> _check_ray("2.51.1")
    Traceback (most recent call last):
    tablepuppet.errors.JobError: Ray 2.51.1 lets anybody in who reaches it; install Ray 2.52 or later on every node
    >>> _check_ray("2.60.0"), _check_ray("3.0.0rc1")
    (None, None)
    """
    major, minor = version.split(".")[:2]
    if (int(major), int(minor)) < (2, 52):
        raise JobError(f"Ray {version} lets anybody in who reaches it; install Ray 2.52 or later on every node")


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
    """The error of a worker, in our own words if we or the user can fix it."""
    cause: Exception = error.cause
    if isinstance(cause, FileNotFoundError):
        return TrainingError(
            f"a Ray node does not see the folder {place} for partitions of the joined table; "
            'give a folder that all nodes share: engine=tp.Ray(storage="…")'
        )
    return cause
