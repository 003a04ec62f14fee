"""Answers, checked: nothing that a client sends is used before it is what it can honestly be.

In: the requests of a round, and every client's answers. Out: nothing, or an error that names the client, the message
and the field (protocol/rules.py has the rules). A question about what a run fixes (columns, keys, labels) that is asked
again must be answered as it was: a digest of the first answer is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import tablepuppet.protocol.sum_rules  # noqa: F401  it declares rules
from tablepuppet import errors
from tablepuppet import protocol as m
from tablepuppet.algorithms.registry import remedy
from tablepuppet.memory import memory_limit
from tablepuppet.protocol.codec import Frame
from tablepuppet.protocol.rules import Known, WrongError, check

_FIXED = (m.OpenScan, m.CountRows, m.SendKeys, m.DescribeLabels, m.SendLabels, m.SendWeights)
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
        requests: Mapping[str, Sequence[m.Message]],
        answers: Mapping[str, Sequence[m.Message]],
    ) -> None:
        """Refuses the round if any answer is none."""
        for client, given in answers.items():
            known = self._known.setdefault(client, Known(self.memory // _ROW))
            if len(given) != len(requests[client]):
                raise errors.TransportError(
                    f"client {client} sent {len(given)} answers to {len(requests[client])} requests; the run ends here"
                )
            for request, answer in zip(requests[client], given, strict=True):
                self._check(client, request, answer, known)
            self._commit(client, requests[client], down[client], up[client], given)

    def close(self, job: str) -> None:
        """The job is over, and what clients said in it binds nobody any more."""
        for known in self._known.values():
            known.close(job)
        self._digests.clear()

    def _check(self, client: str, request: m.Message, answer: m.Message, known: Known) -> None:
        try:
            check(request, answer, known)
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

    def _commit(
        self,
        client: str,
        requests: Sequence[m.Message],
        down: Sequence[Frame],
        up: Sequence[Frame],
        answers: Sequence[m.Message],
    ) -> None:
        for request, asked, answered, answer in zip(requests, down, up, answers, strict=True):
            if not isinstance(request, _FIXED) or isinstance(answer, m.Failure):
                continue
            digest = _digest([answered])
            first = self._digests.setdefault((client, _digest([asked])), digest)
            if first != digest:
                raise errors.TransportError(
                    f"client {client} answers {type(request).__name__} otherwise than before in the same run: its "
                    "table changed, or it does not tell the truth; start the run again"
                )


def _digest(frames: Iterable[Frame]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for frame in frames:
        found.update(frame.header)
        for buffer in frame.buffers:
            found.update(buffer)
    return found.digest()
