"""The client operator: one client's answers to the server's typed requests.

The client is passive and trusts nobody: it decodes only whitelisted messages, checks every SQL
expression itself, and answers a wrong request with a Failure that holds no data. Receive, compute,
send (the paper's three functions) are one call: a frame in, a frame out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.registry import REQUESTS, UPDATES
from tablepuppet.client.answers import boosting, contract, groups, prediction, setup, training
from tablepuppet.client.policy_decisions import decide
from tablepuppet.client.request_rules import check_request
from tablepuppet.client.state import Checkpoint, ClientState
from tablepuppet.errors import PolicyError, TablePuppetError
from tablepuppet.memory import memory_limit
from tablepuppet.protocol.codec import Frame, Wire, decode, encode

log = logging.getLogger(__name__)


@dataclass
class Client(ClientState):
    """Answers requests about its own tables."""

    def handle(self, frame: Frame) -> Frame:
        """Receive, compute, send."""
        answer: m.Message
        wire: Wire = "float64"
        try:
            wire = frame.wire
            with np.errstate(over="ignore", invalid="ignore"):  # the server notices a run that diverges
                answer = self.answer(decode(frame, REQUESTS, memory_limit() // 4))
        except TablePuppetError as error:
            answer = m.Failure(error=type(error).__name__, message=str(error))
        except Exception as error:  # a bug here must not show the server any data
            log.exception("client %s failed", self.name)
            answer = m.Failure(error="TransportError", message=f"internal error ({type(error).__name__}); see its log")
        return encode(answer, wire)

    def answer(self, message: Any) -> m.Message:
        """The answer to one request, if the owner's policy has nothing against it and its contract has it."""
        try:
            decide(self.policy, message, self.tables.use)
            self.contracts.check(message)
            check_request(self, message)
            answer = ANSWERS[type(message)](self, message)
        except PolicyError as error:
            self._log_refusal(message, error)
            raise
        self._log_told(message, answer)
        return answer

    def _log_refusal(self, message: Any, error: PolicyError) -> None:
        job = getattr(message, "job", "")
        agreed = self.contracts.contract(job)
        detail: dict[str, Any] = {"request": type(message).__name__, "why": str(error)}
        self.log.write("refused", job, "" if agreed is None else agreed.hash, detail)

    def _log_told(self, message: Any, answer: m.Message) -> None:
        """Counts what leaves; the counts are a line of the log when the job is closed."""
        job = getattr(message, "job", "")
        if isinstance(message, m.CloseJob):
            told = self.told.pop(job, None)
            if told:
                self.log.write("disclosed", job, "", dict(told))
            return
        for tells, numbers in m.disclosures(answer):
            if job not in self.told:
                self.told[job] = Counter()
            self.told[job][tells.what] += numbers

    # -- what a checkpoint holds -----------------------------------------------------------

    def states(self, job: str) -> dict[int, Any]:
        """All that rounds have changed in each part, and its key for masks."""
        return {
            part: held.checkpoint(self.contracts.asked(job, part))
            for (of, part), held in self.parts.items()
            if of == job and (held.state is not None or held.sealing is not None)
        }

    def draws_noise(self, job: str) -> bool:
        """Whether an answer can never be computed again as it was."""
        parts = [part for (of, _), part in self.parts.items() if of == job]
        return any(part.setup is not None and part.setup.private is not None for part in parts)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """While inside, requests are those of a checkpoint: they release nothing new."""
        self.owner.is_restoring = True
        try:
            yield
        finally:
            self.owner.is_restoring = False

    def restore(self, job: str, frames: Mapping[int, Frame]) -> None:
        """Sets the parts' states, once the requests that opened and started them were answered again."""
        for number, frame in frames.items():
            part = self.parts[job, number]
            found = decode(frame, Checkpoint[type(part.state)])  # type: ignore[misc]
            part.restore(found)
            self.contracts.restore(job, number, found.asked)


# Requests that leave something behind at the client besides a part's state.
SETUP = (
    m.OpenScan,
    m.ProposeContract,
    m.SendGroups,
    m.SumGroups,
    m.HoldGroups,
    m.SendKeys,
    m.OpenPart,
    m.SumStatistics,
    m.EncodeFeatures,
    m.StartPart,
    trees.StartTrees,
)

ANSWERS: dict[type, Callable[[ClientState, Any], m.Message]] = {
    m.DescribeTable: setup.describe_table,
    m.OpenScan: setup.open_scan,
    m.ProposeContract: contract.propose,
    m.SendGroups: groups.send_groups,
    m.SumGroups: groups.sum_groups,
    m.HoldGroups: groups.hold_groups,
    m.CountRows: setup.count_rows,
    m.FindIds: setup.find_ids,
    m.SendKeys: setup.send_keys,
    m.BlindKeys: setup.blind_keys,
    m.DescribeLabels: setup.describe_labels,
    m.SendLabels: setup.send_labels,
    m.SendWeights: setup.send_weights,
    m.SendSides: setup.send_sides,
    m.CloseJob: setup.close_job,
    m.OpenPart: setup.open_part,
    m.SumStatistics: setup.sum_statistics,
    m.EncodeFeatures: setup.encode_features,
    m.RevealFeatures: setup.reveal_features,
    m.StartPart: training.start_part,
    m.SendFigures: training.send_figures,
    m.MultiplyGram: training.multiply_gram,
    m.Seal: training.seal,
    **dict.fromkeys(UPDATES, training.take_step),
    m.Move: training.take_step,
    m.Combined: training.take_step,
    m.Evaluate: training.evaluate,
    m.Keep: training.keep,
    m.Restore: training.restore,
    m.Release: training.release,
    m.HoldPart: training.hold_part,
    m.ScoreRows: prediction.score_rows,
    m.ScoreOwnRows: prediction.score_own_rows,
    m.SendIdentifiers: prediction.send_identifiers,
    trees.SketchFeatures: boosting.sketch_features,
    trees.StartTrees: boosting.start_trees,
    trees.CheckTrees: boosting.check_trees,
    trees.SumTrees: boosting.sum_trees,
    trees.RevealKeys: boosting.reveal_keys,
    trees.ReleaseSplits: boosting.release_splits,
    trees.HoldSplits: boosting.hold_splits,
    trees.AskRows: boosting.ask_rows,
    trees.AskOwnRows: boosting.ask_own_rows,
}
