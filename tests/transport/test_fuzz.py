"""Every message type in every state, against a client and against the server: refused or answered, never a crash.

The frames are made from the types of the messages themselves (messages.py), so that a new message is fuzzed from its
first day. In CI a few thousand cases; the long run is marked slow.
"""

from __future__ import annotations

import logging
import random
import resource
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.transport.messages import frame

import tablepuppet as tp
from tablepuppet.client import Client
from tablepuppet.errors import CatalogError, JobError, MappingError, PolicyError, SourceError
from tablepuppet.exchanges.features import OpenPart
from tablepuppet.exchanges.parts import EncodeFeatures
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.exchanges.schema import CloseJob, OpenScan
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.tables import ClientTables
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.codec import Frame, decode
from tablepuppet.protocol.columns import NumberEncoder
from tablepuppet.protocol.contract import BlockTerms, Column, Contract, ScanTerms, Training
from tablepuppet.sources.source import open_source
from tablepuppet.transport.link import Transport

QUERY = "SELECT o.x, i.price, i.kind, o.y FROM orders o JOIN items i ON o.item = i.item"
JOB = "0123456789abcdef"
JOBS: list[dict[str, Any]] = [
    *({"algorithm": name, "epochs": 1} for name in ("newton", "admm", "sgd")),
    {"algorithm": "elastic", "l1": 0.01, "epochs": 1},
    {"algorithm": "als", "head": "factor", "rank": 2, "epochs": 1},
    {"algorithm": "boosting", "trees": 2, "depth": 2},
]
GROWTH = 300 << 20  # bytes that thousands of hostile messages may leave behind, caches of libraries included


def orders() -> pa.Table:
    rng = np.random.default_rng(5)
    return pa.table({"item": rng.integers(0, 6, 40), "x": rng.normal(size=40), "y": rng.integers(0, 2, 40)})


def items() -> pa.Table:
    return pa.table({"item": np.arange(6), "price": np.arange(6.0), "kind": list("ababab")})


def fuzz_client(cases: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Requests in a random order, so that each meets a client in whatever state the last ones left."""
    chance = random.Random(seed)
    kinds = list(get_args(REQUESTS))
    client = Client("orders", ClientTables({"orders": open_source(orders(), "orders")}), key=b"k" * 32)
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answered: set[str] = set()
    with np.errstate(all="ignore"), caplog.at_level(logging.CRITICAL, "tablepuppet"):
        for case in range(cases):
            if case % 50 == 0:
                _open_honestly(client)
            kind = chance.choice(kinds)
            fixed = {"job": JOB, "scan": chance.choice((0, 0, 1)), "part": chance.choice((0, 0, 7)), "table": "orders"}
            reply = client.handle(frame(kind, chance, **fixed))
            answer = decode(reply, RESPONSES)
            assert isinstance(answer, Message)
            if isinstance(answer, Failure):
                assert "Traceback" not in answer.message
                assert 'File "' not in answer.message
            answered.add(type(answer).__name__)
    client.tables.shutdown()
    assert {"Failure", "Done", "RowCount"} <= answered  # a scan is opened before the contract, and not after
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun) * 1024 < GROWTH


def _open_honestly(client: Client) -> None:
    """A job that is under way, for the next requests to meet."""
    client.answer(CloseJob(job=JOB))
    client.answer(OpenScan(job=JOB, scan=0, table="orders", columns=["item", "x", "y"]))
    terms = ScanTerms(0, "orders", (Column("item", ("key",)), Column("x", ("feature",)), Column("y", ("label",))), None)
    training = Training(msgspec.to_builtins(tp.Newton()), ModelSpec(), 3, None, 1e-4, False, True)
    contract = Contract(
        purpose="train", asker="s", label="y", scans=(terms,), blocks=(BlockTerms("o", 0, (1,)),), training=training
    )
    client.answer(ProposeContract(job=JOB, contract=contract))
    rows = np.arange(40, dtype=np.int32)
    client.answer(
        OpenPart(job=JOB, part=0, scan=0, columns=[1], train_rows=rows, test_rows=rows[:0], multiplicity=None)
    )
    ones = np.ones(1)
    encoder = NumberEncoder(mean=0 * ones, scale=ones, fill=0 * ones, has_missing=False)
    client.answer(EncodeFeatures(job=JOB, part=0, encoders=[encoder]))


class HostileClient:
    """One client's answers are replaced by whatever chance makes of some message type."""

    def __init__(self, inner: Transport, chance: random.Random, after: int) -> None:
        self._inner, self._chance, self._left = inner, chance, after
        self.sent = 0

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        answers = self._inner.exchange(frames, wait=wait)
        if wait and "items" in answers:
            self._left -= 1
            if self._left < 0:
                answers["items"] = [self._hostile(f) for f in answers["items"]]
                self.sent += 1
        return answers

    def _hostile(self, honest: Frame) -> Frame:
        """Most often of the type that is due, so that it passes the first look."""
        kinds = list(get_args(RESPONSES))
        due = type(decode(honest, RESPONSES))
        kind = due if self._chance.random() < 0.8 else self._chance.choice(kinds)
        return frame(kind, self._chance)

    def accept(self) -> None:
        self._inner.accept()

    def close(self) -> None:
        self._inner.close()


def fuzz_server(cases: int, seed: int) -> None:
    """A run whose client turns hostile at some step; it ends in an error of ours that names the client."""
    chance = random.Random(seed)
    refused = 0
    said: list[Exception] = []
    with tp.Federation({"orders": orders(), "items": items()}) as federation:
        honest = federation._transport
        for _ in range(cases):
            hostile = HostileClient(honest, chance, chance.randrange(12))
            federation._transport = hostile  # type: ignore[assignment]
            try:
                result = federation.train(QUERY, label="y", progress=False, **chance.choice(JOBS))
            except tp.TablePuppetError as error:
                refused += 1
                said.append(error)
            else:  # by chance an honest answer, or one that can be true
                assert np.isfinite(result.objective)
        federation._transport = honest
        assert np.isfinite(federation.train(QUERY, label="y", progress=False).objective)
    assert refused > 0.8 * cases
    unnamed = [error for error in said if "items" not in str(error) and not _is_plain(error)]
    assert not unnamed


def _is_plain(error: BaseException) -> bool:
    """A refusal of the query itself, whose names and types the client's own lies made wrong."""
    return isinstance(error, CatalogError | MappingError | JobError | SourceError | PolicyError)


def test_every_request_is_fuzzed() -> None:
    chance = random.Random(1)
    for kind in (*get_args(REQUESTS), *get_args(RESPONSES)):
        for _ in range(3):
            assert frame(kind, chance).header
        assert (get_origin(kind) or kind).__name__


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(4))
def test_a_client_survives_every_message_in_every_state(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    fuzz_client(1000, seed, caplog)


def test_the_server_survives_every_answer_in_every_state() -> None:
    fuzz_server(60, 11)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_client_survives_a_long_night(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    fuzz_client(20_000, seed, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_the_server_survives_a_long_night(seed: int) -> None:
    fuzz_server(500, seed)


def test_any_bytes_are_refused_by_the_codec() -> None:
    chance = random.Random(7)
    for _ in range(3000):
        given = Frame(chance.randbytes(chance.randrange(1, 60)), [chance.randbytes(9)])
        try:
            found: Any = decode(given, RESPONSES, 1 << 20)
        except tp.TablePuppetError:
            continue
        assert isinstance(found, Message)
