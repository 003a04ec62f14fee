"""Link: typed requests to clients over any transport, every byte of it metered.

A transport is one method and close(): it carries frames to clients and brings theirs
back. The link above it speaks messages. One `ask` is one round: all clients are asked
at once, and the round ends with the last answer.

`LocalTransport` carries frames in process: clients in threads. Nothing but a frame's bytes passes between server and
client: copies, or immutable arrays (arrays.fixed).

`AnswerChecks` verifies every answer before it is used. A dishonest one raises an error that names the client, the
message and the field (exchanges/ has the rules). Columns, keys and labels are fixed in a run: a repeated
question about them must get the same answer. A digest of the first answer is kept.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from tablepuppet import errors
from tablepuppet.algorithms.registry import remedy
from tablepuppet.errors import TransportError
from tablepuppet.exchanges.registry import EXCHANGES, RESPONSES, check_answer
from tablepuppet.exchanges.schema import CloseJob
from tablepuppet.formatting import LONGEST_FAILURE, printable
from tablepuppet.memory import memory_limit
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.bounds import Known, WrongError
from tablepuppet.protocol.codec import Frame, Wire, decode, encode
from tablepuppet.protocol.contract import Contract
from tablepuppet.protocol.evidence import Signature, TreeHead
from tablepuppet.transport.meter import Meter, Phase

_LINES = "\n"  # an error may show a line of SQL below its message
_OURS = (errors.RunInterruptedError, errors.DisconnectedError, errors.ApprovalError)  # they steer the server's own run


class Transport(Protocol):
    """Carries frames to clients by name, all at once, and returns their answers in order.

    It waits for a client that is away; with `wait=False` it leaves the client out. `accept` confirms that
    the answers of a round are sound: only then may they be kept.
    """

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]: ...

    def accept(self) -> None: ...

    def close(self) -> None: ...


_Exchange = tuple[dict[str, list[Frame]], dict[str, list[Frame]], dict[str, list[Message]]]
Sign = Callable[[Mapping[str, Contract]], Mapping[str, Signature]]


class Link:
    """Asks clients typed questions and counts what passes."""

    def __init__(
        self,
        transport: Transport,
        wire: Wire = "float64",
        checks: "AnswerChecks | None" = None,
        asker: str = "this process",
        readers: Sequence[str] = (),
    ) -> None:
        self.transport = transport
        self.sign: Sign = lambda contracts: {}  # contracts, before they are proposed; by client
        self.asker = asker  # in whose name contracts are proposed
        self.readers = tuple(readers)  # users who may have the result, too
        self.heads: dict[str, TreeHead] = {}  # of owners' logs, as they were when they agreed last
        self.meter = Meter()
        self.wire: Wire = wire
        self.checks = checks if checks is not None else AnswerChecks()

    def ask(self, requests: Mapping[str, Sequence[Message]], phase: Phase = "setup") -> dict[str, list[Message]]:
        """One round: every client's answers, in the order of its requests."""
        down, up, answers = self._exchange(requests, wait=True)
        self.transport.accept()
        self.meter.count(phase, requests, down, answers, up)
        for client, messages in answers.items():
            for message in messages:
                if isinstance(message, Failure):
                    raise _remote_error(client, message)
        return answers

    def ask_each(self, requests: Sequence[tuple[str, Message]], phase: Phase = "setup") -> list[Any]:
        """One round: messages, each with its client; their answers in the same order."""
        by_client: dict[str, list[Message]] = {}
        for client, message in requests:
            by_client.setdefault(client, []).append(message)
        answers = {client: iter(given) for client, given in self.ask(by_client, phase).items()}
        return [next(answers[client]) for client, _ in requests]

    def ask_groups(self, groups: Sequence[Mapping[str, Message]], phase: Phase = "setup") -> list[dict[str, Any]]:
        """One round: groups of messages by client; the answers likewise."""
        answers = iter(self.ask_each([pair for group in groups for pair in group.items()], phase))
        return [{client: next(answers) for client in group} for group in groups]

    def poll(self, requests: Mapping[str, Sequence[Message]]) -> dict[str, list[Message]]:
        """The answers of the clients that are there, refusals among them; nothing is counted."""
        return self._exchange(requests, wait=False)[2]

    def _exchange(self, requests: Mapping[str, Sequence[Message]], *, wait: bool) -> _Exchange:
        """The frames of both ways, and the answers, which are sound."""
        down = {client: [encode(m, self.wire) for m in ms] for client, ms in requests.items() if ms}
        up = self.transport.exchange(down, wait=wait)
        answers = {client: self._decode(client, frames) for client, frames in up.items()}
        self.checks.round(down, up, requests, answers)
        return down, up, answers

    def tell(self, requests: Mapping[str, Sequence[Message]]) -> None:
        """Sends messages to connected clients, whose answers do not matter; nothing is counted."""
        for message in (message for given in requests.values() for message in given):
            if isinstance(message, CloseJob):
                self.checks.close(message.job)
        self.transport.exchange({c: [encode(m, self.wire) for m in ms] for c, ms in requests.items()}, wait=False)

    def _decode(self, client: str, frames: Sequence[Frame]) -> list[Message]:
        try:
            return [decode(frame, RESPONSES, self.checks.unpacked) for frame in frames]
        except errors.TransportError as error:
            raise errors.TransportError(f"client {client}: {printable(str(error), most=LONGEST_FAILURE)}") from None


def _remote_error(client: str, failure: Failure) -> errors.TablePuppetError:
    """The client's error, as the same class, with the client's name."""
    kind = errors.error_class(failure.error, errors.TransportError)
    kind = errors.TransportError if issubclass(kind, _OURS) else kind
    return kind(f"client {client}: {printable(failure.message, keep=_LINES, most=LONGEST_FAILURE)}")


Handler = Callable[[Frame], Frame]


class LocalTransport:
    """Carries frames to clients in this process, one thread a client up to the number of cores."""

    def __init__(self, handlers: Mapping[str, Handler], threads: int | None = None) -> None:
        self._handlers = dict(handlers)
        workers = min(len(self._handlers) or 1, threads or os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tablepuppet-client")
        self._is_closed = False

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        if self._is_closed:
            if not wait:  # a last word to clients that are gone
                return {}
            raise TransportError("this federation is closed; make it again, or ask inside its `with` block")
        return dict(zip(frames, self._pool.map(self._serve, frames, frames.values()), strict=True))

    def _serve(self, client: str, frames: Sequence[Frame]) -> list[Frame]:
        handler = self._handlers[client]
        return [handler(frame) for frame in frames]

    def accept(self) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        self._is_closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)


_ROW = 16  # bytes that the server needs for a row, at least


class AnswerChecks:
    """All clients' commitments, for as long as a link lives."""

    def __init__(self, memory: int | None = None) -> None:
        self.memory = memory_limit() if memory is None else memory
        self.unpacked = max(self.memory // 4, 1 << 26)  # bytes of one message's arrays
        self._known: dict[str, Known] = {}
        self._digests: dict[tuple[str, bytes], bytes] = {}

    def round(
        self,
        down: Mapping[str, Sequence[Frame]],
        up: Mapping[str, Sequence[Frame]],
        requests: Mapping[str, Sequence[Message]],
        answers: Mapping[str, Sequence[Message]],
    ) -> None:
        """Refuses the round if any answer is none."""
        for client, given in answers.items():
            known = self._known.setdefault(client, Known(self.memory // _ROW))
            if len(given) != len(requests[client]):
                raise errors.TransportError(
                    f"client {client} sent {len(given)} answers to {len(requests[client])} requests; the run ends here"
                )
            for request, asked, answered, answer in zip(requests[client], down[client], up[client], given, strict=True):
                self._check(client, request, answer, known)
                if EXCHANGES[type(request)].is_fixed and not isinstance(answer, Failure):
                    self._commit(client, request, asked, answered)

    def close(self, job: str) -> None:
        """The job is over: clients' earlier answers in it bind nobody any more."""
        for known in self._known.values():
            known.close(job)
        self._digests.clear()

    def _check(self, client: str, request: Message, answer: Message, known: Known) -> None:
        try:
            check_answer(request, answer, known)
        except WrongError as wrong:
            name = f"{type(answer).__name__}.{wrong.field}" if wrong.field in answer.__struct_fields__ else wrong.field
            if wrong.diverged:
                raise errors.TrainingError(
                    f"training diverged: client {client}: {name} {wrong.what}; {remedy(request)}, and look for extreme "
                    "values in its columns"
                ) from None
            raise errors.TransportError(
                f"client {client} answers {type(request).__name__} with what cannot be: {name} {wrong.what}. "
                "Ask its owner; until then leave its tables out"
            ) from None

    def _commit(self, client: str, request: Message, asked: Frame, answered: Frame) -> None:
        digest = _digest(answered)
        if self._digests.setdefault((client, _digest(asked)), digest) != digest:
            raise errors.TransportError(
                f"client {client} answers {type(request).__name__} otherwise than before in the same run: its table "
                "changed, or it does not tell the truth; start the run again"
            )


def _digest(frame: Frame) -> bytes:
    found = hashlib.sha256(frame.header)  # which processors have instructions for
    for buffer in frame.buffers:
        found.update(buffer)
    return found.digest()
