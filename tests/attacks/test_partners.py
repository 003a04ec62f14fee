"""What clients learn of each other's labels from what the server sends them, and that they are told so beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import REQUESTS
from tablepuppet.protocol.base import disclosures
from tablepuppet.protocol.codec import Frame, decode

ROWS = 60
QUERY = "SELECT p.age, i.x, p.ill FROM patients p JOIN images i ON p.person = i.person"


def tables() -> dict[str, pa.Table]:
    rng = np.random.default_rng(3)
    person = np.arange(ROWS)
    ill = rng.integers(0, 2, ROWS)
    return {
        "patients": pa.table({"person": person, "age": rng.normal(size=ROWS), "ill": ill}),
        "images": pa.table({"person": person, "x": np.arange(ROWS) + 0.5}),
    }


class Ear:
    """Hears what one client is asked."""

    def __init__(self, federation: tp.Federation, client: str) -> None:
        self._inner = federation._clients[client].handle
        self.requests: list[Any] = []
        federation._transport._handlers[client] = self.handle

    def handle(self, frame: Frame) -> Frame:
        self.requests.append(decode(frame, REQUESTS))
        return self._inner(frame)

    def first_signal(self) -> Any:
        """The first slopes of the loss that it is sent."""
        told = (r for r in self.requests if any(d.what == "signals" for d, _ in disclosures(r)))
        return np.array(next(told).signal).ravel()

    def contracts(self) -> str:
        return "\n".join(line for r in self.requests if isinstance(r, ProposeContract) for line in r.contract.lines())


@pytest.mark.parametrize("job", [{"algorithm": "newton"}, {"algorithm": "sgd", "batch_size": None, "epochs": 1}])
def test_the_first_signal_is_every_label_of_rows_joined_once_and_both_owners_are_told_so(job: dict[str, Any]) -> None:
    held = tables()
    with tp.Federation(held, key=b"k" * 32) as federation:
        words = " ".join(str(federation.explain(QUERY, label="ill", **job)).split())
        owner, partner = Ear(federation, "patients"), Ear(federation, "images")
        federation.train(QUERY, label="ill", test_fraction=0.0, **job)
    signal = partner.first_signal()
    ill = int(held["patients"]["ill"].to_numpy().sum())
    assert len(np.unique(np.round(signal, 9))) == 2  # one slope for each class: the partner knows who is ill
    assert (signal < signal.mean()).sum() == ill
    assert "the first ones reveal the label ill of each row that is joined once" in words
    assert words.count("the first ones reveal") == 1  # the other client owns the labels
    assert "labels of patients to images: the first derivatives of the loss reveal the label" in owner.contracts()
    assert "labels of patients to images" not in partner.contracts()
