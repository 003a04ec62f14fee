"""What leaves once in a job is refused the second time, whatever it is: keys, labels, weights, sides, identifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.attacks.meddler import Meddler, shop

import tablepuppet as tp
from tablepuppet.exchanges.keys import SendKeys
from tablepuppet.exchanges.labels import DescribeLabels, SendLabels, SendSides, SendWeights
from tablepuppet.exchanges.prediction import SendIdentifiers
from tablepuppet.exchanges.registry import REQUESTS
from tablepuppet.exchanges.schema import CloseJob
from tablepuppet.exchanges.start import StartPart
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.codec import Frame, decode

QUERY = "SELECT o.amount, i.price, o.y, abs(o.salary) + 1 AS w FROM orders o JOIN items i ON o.item = i.item"
JOB: dict[str, Any] = {"label": "y", "weight": "w", "model": "logistic", "algorithm": "newton", "epochs": 2}


class Repeater(Meddler):
    """Asks the owner of orders once more for all that a job has asked it for."""

    def __init__(self, federation: tp.Federation, before: type[Message], kinds: tuple[type[Message], ...]) -> None:
        super().__init__(federation, "orders", before, lambda _: self.asked)
        self.asked: list[Message] = []
        self._kinds = kinds

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        found = super().exchange(frames, wait=wait)
        if not self.answers:
            asked = [decode(frame, REQUESTS) for frame in frames.get("orders", ())]
            self.asked += [message for message in asked if isinstance(message, self._kinds)]
        return found

    def check(self) -> None:
        assert {type(message) for message in self.asked} == set(self._kinds)
        for message, answer in zip(self.asked, self.answers, strict=True):
            assert isinstance(answer, Failure), message
            assert "of one scan leave once, and were asked for again" in answer.message, message


def test_a_training_reads_keys_labels_and_weights_once() -> None:
    with tp.Federation(shop()) as federation:
        repeater = Repeater(federation, StartPart, (SendKeys, DescribeLabels, SendLabels, SendWeights))
        federation.train(QUERY, **JOB)
    repeater.check()


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_a_model_is_applied_to_rows_whose_sides_and_identifiers_are_read_once(verb: str) -> None:
    with tp.Federation(shop()) as federation:
        model = federation.train(QUERY, **JOB).model
        if verb == "predict":
            repeater = Repeater(federation, CloseJob, (SendKeys, SendIdentifiers))
            federation.predict(model, QUERY, key="id")
        else:
            repeater = Repeater(federation, CloseJob, (SendKeys, SendLabels, SendSides))
            federation.evaluate(model, QUERY)
    repeater.check()
