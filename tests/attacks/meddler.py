"""A server that runs an honest job and, at one point of it, asks a client for something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import tablepuppet as tp
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.codec import Frame, decode, encode

QUERY = "SELECT o.amount, i.price, i.colour, o.y FROM orders o JOIN items i ON o.item = i.item"
Attack = Callable[[str], Sequence[Message]]  # of a job's name


def shop(rows: int = 200) -> dict[str, Any]:
    random = np.random.default_rng(5)
    items = pa.table(
        {"item": np.arange(30), "price": random.normal(size=30), "colour": random.choice(["red", "blue"], 30)}
    )
    orders = pa.table(
        {
            "id": np.arange(rows),
            "item": random.integers(0, 30, rows),
            "amount": random.normal(size=rows),
            "salary": random.normal(size=rows),
            "y": random.integers(0, 2, rows),
        }
    )
    return {"orders": orders, "items": items}


class Meddler:
    """Stands between a federation and its clients."""

    def __init__(self, federation: tp.Federation, client: str, before: type[Message], attack: Attack) -> None:
        self._inner, self._client, self._before, self._attack = federation._transport, client, before, attack
        self.answers: list[Any] = []
        federation._transport = self  # type: ignore[assignment]

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        asked = [decode(frame, REQUESTS) for frame in frames.get(self._client, ())]
        if not self.answers and any(isinstance(a, self._before) for a in asked):
            job = next(a for a in asked if isinstance(a, self._before)).job  # type: ignore[attr-defined]
            for message in self._attack(job):
                (answer,) = self._inner.exchange({self._client: [encode(message)]})[self._client]
                self.answers.append(decode(answer, RESPONSES))
        return self._inner.exchange(frames, wait=wait)

    def accept(self) -> None:
        self._inner.accept()

    def close(self) -> None:
        self._inner.close()
