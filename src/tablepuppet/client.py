"""The client operator: one client's answers to the server's typed requests.

The client is passive and trusts nobody: it decodes only whitelisted messages, checks every SQL
expression itself, and answers a wrong request with a Failure that holds no data. Receive, compute,
send (the paper's three functions) are one call: a frame in, a frame out.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tablepuppet.errors import PolicyError, TablePuppetError, TransportError
from tablepuppet.exchanges.base import Exchange
from tablepuppet.exchanges.registry import REQUESTS, find_exchange
from tablepuppet.exchanges.schema import CloseJob, DescribeTable, OpenScan
from tablepuppet.memory import memory_limit
from tablepuppet.owner.state import Checkpoint, ClientState
from tablepuppet.protocol.base import Failure, Message, disclosures
from tablepuppet.protocol.bounds import WrongError
from tablepuppet.protocol.codec import Frame, Wire, decode, encode

log = logging.getLogger(__name__)
# The one answer to every failure on protected rows: the kind of failure would reveal something about them.
UNREADABLE = (
    "its policy refuses the request: the owner's rows cannot be used as the job asks; check the types of its "
    "expressions, its labels and weights, or ask the owner, whose log has the reason (rule values)"
)


@dataclass
class Client(ClientState):
    """Answers requests about its own tables."""

    def handle(self, frame: Frame) -> Frame:
        answer: Message
        wire: Wire = "float64"
        try:
            wire = frame.wire
            with np.errstate(over="ignore", invalid="ignore"):  # the server notices a run that diverges
                answer = self.answer(decode(frame, REQUESTS, memory_limit() // 4))
        except TablePuppetError as error:
            answer = Failure(error=type(error).__name__, message=str(error))
        except Exception as error:  # a bug here must not show the server any data
            log.exception("client %s failed", self.name)
            answer = Failure(error="TransportError", message=f"internal error ({type(error).__name__}); see its log")
        return encode(answer, wire)

    def answer(self, message: Any) -> Message:
        """The answer to one request, if the contract has it that the owner agreed to."""
        try:
            exchange = find_exchange(message)
            self.contracts.check(exchange, message)
            self._check_request(exchange, message)
            answer = exchange.handle(self, message)
        except PolicyError as error:
            self._log_refusal(message, error)
            raise
        except Exception as error:
            if isinstance(error, TransportError) or not self._hides_failures(message):
                raise
            self._log_refusal(message, error)  # with its reason, for the owner
            raise PolicyError(UNREADABLE) from None
        self._count_disclosures(message, answer)
        return answer

    def _hides_failures(self, message: Any) -> bool:
        """Whether a failure may depend on rows whose values the owner hides. Until scans are open, no row is read."""
        reads_rows = not isinstance(message, DescribeTable | OpenScan)
        return reads_rows and any(self.policy.hides_values_of(table) for table in self.tables.names)

    def _check_request(self, exchange: Exchange, message: Any) -> None:
        """Sizes, ranges and shapes of its fields, before anything is computed or allocated for it."""
        try:
            exchange.check_request(self, message)
        except WrongError as wrong:
            raise TransportError(f"{type(message).__name__}.{wrong.field} {wrong.what}") from None

    def _log_refusal(self, message: Any, error: Exception) -> None:
        job = getattr(message, "job", "")
        agreed = self.contracts.contract(job)
        detail = {"request": type(message).__name__, "why": str(error)}
        self.log.write("refused", job, "" if agreed is None else agreed.hash, detail)

    def _count_disclosures(self, message: Any, answer: Message) -> None:
        """Counts disclosures; the counts are a line of the log when the job is closed."""
        job = getattr(message, "job", "")
        if isinstance(message, CloseJob):
            if counts := self.disclosed.pop(job, None):
                self.log.write("disclosed", job, "", dict(counts))
            return
        for mark, numbers in disclosures(answer):
            self.disclosed.setdefault(job, Counter())[mark.what] += numbers

    def states(self, job: str) -> dict[int, Any]:
        """All that rounds have changed in each part, and its key for masks."""
        return {
            part: held.checkpoint(dict(self.contracts.jobs[job].parts[part].asked), self.contracts.jobs[job].run)
            for (of, part), held in self.parts.items()
            if of == job and (held.state is not None or held.sealing is not None)
        }

    def answers_once(self, job: str) -> bool:
        """Whether an answer can never be given again: its noise is drawn anew, or two sums would share a mask."""
        parts = [part for (of, _), part in self.parts.items() if of == job]
        return any(part.sealing or (part.setup is not None and part.setup.private is not None) for part in parts)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """While inside, requests are those of a checkpoint: they release nothing new."""
        self.releases.is_restoring = True
        try:
            yield
        finally:
            self.releases.is_restoring = False

    def restore(self, job: str, frames: Mapping[int, Frame]) -> None:
        """Sets the parts' states, once the requests that opened and started them were answered again."""
        for number, frame in frames.items():
            part = self.parts[job, number]
            found = decode(frame, Checkpoint[type(part.state)])  # type: ignore[misc]
            part.restore(found)
            under = self.contracts.jobs[job]
            under.parts[number].asked = Counter(found.asked)
            under.run = found.run or job  # as checkpoints of earlier releases named it
