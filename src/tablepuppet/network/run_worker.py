"""The process that computes a run: it has no socket, no file and no key, only a pipe to the coordinator.

In: a request. Out: questions to clients, which the coordinator passes on, and in the end an outcome or an error.
A client's answer or a user's job can harm this process alone (memory, a crash of a library, an endless loop).
It serves one run after another, so that kernels stay compiled and predictions cached.
"""

import logging
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from tablepuppet import train as story
from tablepuppet.errors import DisconnectedError, JobError, PrivacyError, RunInterruptedError, TablePuppetError
from tablepuppet.job import Job, check_job
from tablepuppet.job.job import Ray
from tablepuppet.memory import fix_thresholds, trim_heap
from tablepuppet.network.control import Failed, Finished, Kind, Round, from_frame, to_frame
from tablepuppet.prediction.cache import PredictionCache
from tablepuppet.prediction.model import Model
from tablepuppet.protocol.codec import Frame
from tablepuppet.protocol.contract import Contract, canonical
from tablepuppet.protocol.evidence import Signature
from tablepuppet.sql.bound import Holders
from tablepuppet.training.result import RoundEvent
from tablepuppet.transport.envelopes import Assembler, Envelope, Parcel, pack
from tablepuppet.transport.link import AnswerChecks, Link

log = logging.getLogger(__name__)
_RESULT = 8  # times less memory than a run has is for its result, at the coordinator


class Pipe:
    """One end of a pipe between two processes of one machine; one thread reads and one writes.

    A parcel may have the answers of all clients. Each was below the limit of the network, and all of them need not be.
    """

    def __init__(self, end: Connection, types: Any) -> None:
        self._end, self._assembler = end, Assembler(types, limit=sys.maxsize)

    def send(self, envelope: Envelope, frames: Sequence[Frame] = ()) -> None:
        try:
            for piece in pack(envelope, frames):
                self._end.send_bytes(piece)
        except OSError as error:
            raise DisconnectedError(f"the other process is gone ({error.strerror})") from None

    def receive(self) -> Parcel:
        """The next envelope and its frames; DisconnectedError when the other end is gone."""
        parcel = None
        try:
            while parcel is None:
                parcel = self._assembler.feed(memoryview(self._end.recv_bytes()))
        except (EOFError, OSError):
            raise DisconnectedError("the other process is gone") from None
        return parcel

    def is_readable(self, seconds: float) -> bool:
        return self._end.poll(seconds)

    def close(self) -> None:
        self._end.close()


def join_frames(frames: Mapping[str, Sequence[Frame]]) -> tuple[dict[str, int], list[Frame]]:
    """Frames by client → how many each has, and all of them in a row."""
    return {client: len(given) for client, given in frames.items()}, [f for given in frames.values() for f in given]


def split_frames(counts: Mapping[str, int], frames: Sequence[Frame]) -> dict[str, list[Frame]]:
    found, start = {}, 0
    for client, count in counts.items():
        found[client] = list(frames[start : start + count])
        start += count
    return found


class Begin(Envelope, frozen=True):
    """To the worker. Frame: the request."""

    run: str
    kind: Kind
    tables: dict[str, tuple[list[str], tuple[str, ...]]]  # clients, and columns that say whose a row is
    asker: str = ""  # in whose name contracts are proposed
    readers: tuple[str, ...] = ()
    is_draft: bool = False
    signatures: dict[str, Signature] = msgspec.field(default_factory=dict)  # of contracts, by their hashes


class _DraftedError(Exception):
    """Contracts that would be proposed: the run ends here, and its asker signs them."""

    def __init__(self, contracts: Mapping[str, Contract]) -> None:
        super().__init__()
        self.contracts = contracts


class Answers(Envelope, frozen=True):
    """To the worker. Frames: those of each client in turn."""

    clients: dict[str, int]


class Interrupt(Envelope, frozen=True):
    """To the worker: the run ends here, and can be resumed."""

    reason: str


class Ask(Envelope, frozen=True):
    """Of the worker: a round. Frames: those to each client in turn. → Answers | Interrupt"""

    clients: dict[str, int]
    wait: bool
    accepts: bool = False  # whether the last answers are sound; sent with the next question


class Logged(Envelope, frozen=True):
    """Of the worker: a line for the coordinator's log."""

    level: int
    logger: str
    message: str


_FIELDS: dict[Kind, dict[str, Any]] = {
    "predict": {"model": Model, "query": str, "options": dict},
    "profile": {"query": str, "label": str | None, "privacy": dict},
    "schemas": {"names": list},
    "evaluate": {"model": Model, "job": Job, "options": dict},
    "compare": {"model": Model, "other": Model, "job": Job, "options": dict},
    "importance": {"model": Model, "job": Job, "options": dict},
    "partial_dependence": {"model": Model, "job": Job, "options": dict},
    "drift": {"model": Model, "job": Job},
}
_MEASURES: dict[Kind, set[str]] = {
    "evaluate": {"rows"},
    "compare": {"rows"},
    "importance": {"by", "repeats", "seed", "rows"},
    "partial_dependence": {"feature", "values", "points", "rows"},
}
_OPTIONS = {"missing", "key", "only", "max_joined_rows", "split"}
TO_WORKER = Begin | Answers | Interrupt
FROM_WORKER = Ask | Logged | Round | Finished | Failed  # the last two end a run


class PipeTransport:
    """A run's line to its clients: the coordinator carries it."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._accepts = False

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        counts, every = join_frames(frames)
        self._pipe.send(Ask(clients=counts, wait=wait, accepts=self._accepts), every)
        self._accepts = False
        answer, given = self._pipe.receive()
        if isinstance(answer, Interrupt):
            raise RunInterruptedError(answer.reason)
        return split_frames(answer.clients, given)

    def accept(self) -> None:
        self._accepts = True

    def close(self) -> None:
        """Connections are the coordinator's."""


class _LogPipe(logging.Handler):
    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info))
        with suppress(DisconnectedError):
            self._pipe.send(Logged(level=record.levelno, logger=record.name, message=text))


def main(end: int, memory: int, level: int) -> None:
    """Serves runs over the pipe with this descriptor, until the coordinator closes it or dies."""
    _behave(memory)
    pipe = Pipe(Connection(end), TO_WORKER)
    root = logging.getLogger("tablepuppet")
    root.handlers[:] = [_LogPipe(pipe)]
    root.setLevel(level)
    root.propagate = False
    cache = PredictionCache()
    while True:
        try:
            begin, frames = pipe.receive()
        except DisconnectedError:
            return
        with suppress(DisconnectedError):
            _serve(pipe, begin, frames[0], cache, memory)
        del frames
        trim_heap()


def _behave(memory: int) -> None:
    """Dies with the coordinator, and never of itself: who stops the service stops the coordinator, which ends this."""

    def follow() -> None:
        sys.stdin.buffer.read()  # it ends with the coordinator
        os._exit(1)

    fix_thresholds()
    threading.Thread(target=follow, name="parent", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(OSError):  # the kernel, short of memory, takes this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its data stay in memory


def _serve(pipe: Pipe, begin: Begin, asked: Frame, cache: PredictionCache, memory: int) -> None:
    try:
        given = _check_request(begin.kind, from_frame(asked, (Job, Model)))
        try:
            outcome = to_frame(_outcome(pipe, begin, given, cache, memory))
        except _DraftedError as drafted:
            outcome = to_frame([canonical(contract) for contract in drafted.contracts.values()])
        if outcome.size > memory // _RESULT:
            raise JobError(
                f"the result takes {outcome.size:,} bytes, and the server holds at most {memory // _RESULT:,} of one; "
                "ask for fewer rows at a time"
            )
    except TablePuppetError as error:
        pipe.send(Failed(error=type(error).__name__, message=str(error)))
    except Exception as error:  # a bug must neither stop the service nor reveal details
        message = too_much_memory(memory)
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):  # torch's words
            log.exception("run %s failed", begin.run)
            message = f"internal error ({type(error).__name__}); see the server's log"
        pipe.send(Failed(error="TrainingError", message=message))
    else:
        pipe.send(Finished(), [outcome])


def _check_request(kind: Kind, asked: Any) -> Any:
    """A user's request, if it fits the kind of run."""
    fields = _FIELDS.get(kind, {})
    if fields and (not isinstance(asked, dict) or set(asked) != set(fields)):
        raise JobError(f"a request to {kind} holds {', '.join(fields)}")
    for name, type_ in fields.items():
        if not isinstance(asked[name], type_):
            raise JobError(f"{name} in a request to {kind} must be a {getattr(type_, '__name__', type_)}")
    if not fields and not isinstance(asked, Job):
        raise JobError(f"a request to {kind} holds a job")
    if kind == "predict" and not set(asked["options"]) <= _OPTIONS:
        raise JobError(f"predict has no option {min(map(str, set(asked['options']) - _OPTIONS))[:64]!r}")
    measured = [asked[name] for name in ("model", "other") if kind in _MEASURES and name in asked]
    is_noisy = kind in ("evaluate", "compare") and asked["job"].privacy.analyst is not None
    if any(model.metadata.get("is_private") for model in measured) and not is_noisy:
        raise PrivacyError(
            "the model was trained under noise, and its metrics would be computed from owners' exact features and "
            "labels, which no ε covers: over a network they are not given. Save the model, and measure it on rows of "
            "your own"
        )
    if kind in _MEASURES and set(asked["options"]) != _MEASURES[kind]:
        raise JobError(f"{kind} has the options {', '.join(sorted(_MEASURES[kind]))}")
    for job in (asked, *(asked.values() if isinstance(asked, dict) else ())):
        if isinstance(job, Job):
            check_job(job)
            if isinstance(job.engine, Ray) and (job.engine.address or job.engine.storage):
                raise JobError(
                    "which Ray cluster and folder a server uses is the server's to say, by RAY_ADDRESS and TMPDIR "
                    'where it runs; ask it for engine="ray" alone'
                )
    return asked


def too_much_memory(memory: int) -> str:
    return (
        f"the run needs more memory than the server gives to one ({memory / 2**30:.1f} GiB); add a WHERE, lower "
        "max_joined_rows, or let the server have more (`memory` under [server])"
    )


def _outcome(pipe: Pipe, begin: Begin, asked: Any, cache: PredictionCache, memory: int) -> Any:
    tables = {table: Holders(*held) for table, held in begin.tables.items()}
    checks = AnswerChecks(memory)
    wire = asked.wire if isinstance(asked, Job) else "float64"
    asker = begin.asker or "a user of the coordinator"

    def sign(contracts: Mapping[str, Contract]) -> dict[str, Signature]:
        if begin.is_draft:
            raise _DraftedError(contracts)
        return {c: begin.signatures[own.hash] for c, own in contracts.items() if own.hash in begin.signatures}

    link = Link(PipeTransport(pipe), wire=wire, checks=checks, asker=asker, readers=begin.readers)
    link.sign = sign
    if begin.kind == "predict":
        return story.predict(asked["model"], asked["query"], tables, link, cache=cache, **asked["options"])
    if not isinstance(asked, Job):
        return story.ask(begin.kind, asked, tables, link)
    if begin.kind == "explain":
        return story.explain(asked, tables, link, begin.run)

    def end_round(event: RoundEvent) -> None:
        shown = event.for_release(is_private=asked.is_private)
        pipe.send(Round(round=event.round, rounds=event.rounds), [to_frame(shown)])

    return story.train(asked, tables, link, end_round, begin.run).for_release()
