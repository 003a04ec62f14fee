"""One value of one honest message is changed, in either direction, in every algorithm: refused by name, never a crash.

A server that lies meets clients that say which field is wrong; a client that lies is named by the server. What passes
is what could be true: another number of the right kind in its range. In CI some cases of every job; the night has more.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.transport.changes import cannot_be, changed

import tablepuppet as tp
from tablepuppet.algorithms.registry import ALGORITHMS
from tablepuppet.errors import CatalogError, JobError, MappingError, ModelError, PolicyError, SourceError, TrainingError
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.codec import Frame, decode, encode
from tablepuppet.transport.link import Transport

QUERY = "SELECT o.x, o.c, i.price, i.kind, o.y FROM orders o JOIN items i ON o.item = i.item"
PEOPLE = "SELECT i.id, u.uid, o.r FROM orders o JOIN items i ON o.item = i.item JOIN users u ON o.u = u.u"
DERIVED = (
    "SELECT o.x, t.most, o.y FROM orders o JOIN (SELECT item, max(price) AS most FROM items GROUP BY item) t "
    "ON o.item = t.item"
)
COUNTS = "SELECT o.x, o.days, i.price, o.n FROM orders o JOIN items i ON o.item = i.item"
PLAIN = {"secure_aggregation": False}
Jobs = dict[str, dict[str, Any]]
TRAINED: Jobs = {
    "newton": {"query": QUERY, "label": "y", "algorithm": "newton", "epochs": 2},
    "newton of three classes": {"query": QUERY.replace("o.y", "o.c3"), "label": "c3", "epochs": 2, "privacy": PLAIN},
    "weights": {"query": QUERY, "label": "y", "epochs": 1, "weight": "abs(o.r)", "validation_fraction": 0.2},
    "admm": {"query": QUERY, "label": "y", "algorithm": "admm", "epochs": 2},
    "sgd": {"query": QUERY, "label": "y", "algorithm": "sgd", "epochs": 1},
    "elastic": {"query": QUERY, "label": "y", "l1": 0.01, "epochs": 2},
    "a network": {"query": QUERY, "label": "y", "algorithm": "sgd", "model": "mlp", "epochs": 1},
    "als": {"query": PEOPLE, "label": "r", "head": "factor", "rank": 2, "algorithm": "als", "epochs": 2},
    "a head": {"query": PEOPLE, "label": "r", "head": "mlp", "algorithm": "sgd", "epochs": 1},
    "trees": {"query": QUERY, "label": "y", "algorithm": "boosting", "trees": 3, "depth": 3},
    "trees over plain sums": {"query": QUERY, "label": "y", "algorithm": "boosting", "trees": 2, "privacy": PLAIN},
    "a derived table": {"query": DERIVED, "label": "y", "epochs": 1},
    "rates": {"query": COUNTS, "label": "n", "epochs": 1, "exposure": "days", "model": "poisson"},
    "blinded keys": {"query": QUERY, "label": "y", "epochs": 1, "privacy": {"keys": "dh"}},
    "noisy labels": {
        "query": QUERY,
        "label": "y",
        "model": "logistic",
        "epochs": 1,
        "privacy": {"label": {"epsilon": 3.0}},
    },
}
Asked = Callable[[tp.Federation, Any], Any]
PREDICTED: dict[str, tuple[str, Asked]] = {  # by a model of which job, and what is asked of it
    "predict": ("newton", lambda f, r: f.predict(r, split=True)),
    "predict by trees": ("trees", lambda f, r: f.predict(r, split=True)),
    "recommend": ("als", lambda f, r: f.recommend(r, user=1, by="u", n=2, met=True)),
    "evaluate": ("newton", lambda f, r: f.evaluate(r)),
    "compare": ("newton", lambda f, r: f.compare(r, r)),
    "importance": ("newton", lambda f, r: f.importance(r, repeats=1)),
    "importance in trees": ("trees", lambda f, r: f.importance(r, repeats=1, by="table")),
    "dependence": ("newton", lambda f, r: f.partial_dependence(r, None, "o.x", points=2)),
    "dependence in trees": ("trees", lambda f, r: f.partial_dependence(r, None, "o.x", points=2)),
    "drift": ("newton", lambda f, r: f.drift(r)),
    "more trees": (
        "trees",
        lambda f, r: f.train(QUERY, label="y", warm_start=r, algorithm="boosting", trees=5, progress=False),
    ),
    "search": ("newton", lambda f, r: tp.search(f, QUERY, {"l2": [1e-3, 1.0]}, label="y", folds=2, progress=False)),
    "search of trees": (
        "trees",
        lambda f, r: tp.search(f, QUERY, {"trees": [2, 3]}, algorithm="boosting", label="y", folds=2, progress=False),
    ),
    "path": ("elastic", lambda f, r: tp.path(f, QUERY, label="y", l1=[1e-3, 0.1], progress=False)),
    "explain": ("newton", lambda f, r: f.explain(QUERY, label="y")),
    "profile": ("newton", lambda f, r: f.profile(QUERY, label="y")),
}
CASES = 3
NIGHT = 300
NIGHT_SECONDS = 10  # of CPU time, after which a job has been lied to enough: ten minutes for all of them
# Of the query itself, whose names and types the lies made wrong; or training that diverged at an honest client.
PLAIN_ERRORS = (CatalogError, MappingError, JobError, SourceError, PolicyError, TrainingError, ModelError)


def tables() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    count = 60
    orders = pa.table(
        {
            "item": rng.integers(0, 6, count),
            "u": rng.integers(0, 8, count),
            "x": rng.normal(size=count),
            "c": rng.choice(list("abcdefgh"), count),
            "c3": rng.choice(["low", "mid", "high"], count),
            "y": rng.integers(0, 2, count),
            "r": rng.normal(size=count),
            "n": rng.poisson(2.0, count),
            "days": rng.integers(1, 90, count),
        }
    )
    price = [1.0, 4.0, None, 2.0, 9.0, 3.0]
    items = pa.table({"item": np.arange(6), "price": price, "kind": list("ababab"), "id": [f"i{k}" for k in range(6)]})
    users = pa.table({"u": np.arange(8), "uid": [f"u{k}" for k in range(8)]})
    return {"orders": [orders[:25], orders[25:40], orders[40:]], "items": items, "users": users}


class Between:
    """Stands between a federation and its clients, and changes one message to or of one of them."""

    def __init__(self, inner: Transport, chance: random.Random, who: str, after: int, *, requests: bool) -> None:
        self._inner, self._chance, self._who, self._left, self._requests = inner, chance, who, after, requests
        self.lie = ""
        self.cannot_be = False
        self.failures: list[str] = []

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        down = {c: list(f) for c, f in frames.items()}
        if self._requests and wait and self._who in down:
            down[self._who] = [self._changed(f, REQUESTS) for f in down[self._who]]
        up = self._inner.exchange(down, wait=wait)
        self.failures += [f.message for f in self._answers(up) if isinstance(f, Failure)]
        if not self._requests and wait and self._who in up:
            up[self._who] = [self._changed(f, RESPONSES) for f in up[self._who]]
        return up

    def _answers(self, up: Mapping[str, Sequence[Frame]]) -> Iterator[Message]:
        return (decode(f, RESPONSES) for frames in up.values() for f in frames)

    def _changed(self, frame: Frame, types: Any) -> Frame:
        self._left -= 1
        if self._left >= 0 or self.lie:
            return frame
        honest = decode(frame, types)
        try:
            with np.errstate(all="ignore"):
                made, place = changed(honest, self._chance)
                sent = encode(made, frame.wire)
        except (tp.TablePuppetError, TypeError, FutureWarning):  # what options refuse, or say is old, is not sent
            return frame
        if (sent.header, *map(bytes, sent.buffers)) != (frame.header, *map(bytes, frame.buffers)):
            self.lie = f"{type(honest).__name__}.{place}"
            self.cannot_be = cannot_be(honest, made, place)
        return sent

    def accept(self) -> None:
        self._inner.accept()

    def close(self) -> None:
        self._inner.close()


class Counted:
    """Counts the messages to each client."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.messages: Counter[str] = Counter()

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        self.messages.update({client: len(sent) for client, sent in frames.items()})
        return self._inner.exchange(frames, wait=wait)

    def accept(self) -> None:
        self._inner.accept()

    def close(self) -> None:
        self._inner.close()


@contextmanager
def job_of(name: str) -> Iterator[tuple[tp.Federation, Callable[[], Any]]]:
    job, ask = (name, None) if name in TRAINED else PREDICTED[name]
    given = dict(TRAINED[job])
    query = given.pop("query")
    with tp.Federation(tables()) as federation:
        if ask is None:
            yield federation, lambda: federation.train(query, progress=False, **given)
        else:
            result = federation.train(query, progress=False, **given)
            yield federation, lambda: ask(federation, result)


def refusal(run: Callable[[], Any]) -> tp.TablePuppetError | None:
    """What a job ends with, if not with a model; anything but an error of ours is a failure of the test."""
    try:
        run()
    except tp.TablePuppetError as error:
        return error
    return None


def lie(name: str, cases: int, seed: int, *, requests: bool) -> None:
    """A job of which one message is changed, again and again."""
    chance = random.Random(seed)
    lies = refused = 0
    began = time.process_time()
    with job_of(name) as (federation, run), np.errstate(all="ignore"):
        honest = federation._transport
        federation._transport = counted = Counted(honest)  # type: ignore[assignment]
        run()
        clients = sorted(counted.messages)
        for case in range(cases):
            if case >= CASES and time.process_time() - began > NIGHT_SECONDS:
                break
            who = chance.choice(clients)
            after = chance.randrange(counted.messages[who])
            between = Between(honest, chance, who, after, requests=requests)
            federation._transport = between  # type: ignore[assignment]
            said = refusal(run)
            if between.cannot_be and not requests:
                assert who in str(said), f"{between.lie} cannot be, and was taken: {said}"
            if said is not None:
                refused += 1
                named = who in str(said) or isinstance(said, PLAIN_ERRORS)
                assert requests or named, (between.lie, str(said))
            lies += bool(between.lie)
            assert not [f for f in between.failures if "internal error" in f], between.lie
        federation._transport = honest
        run()  # it was the lie, and leaves nothing behind
    assert refused >= lies // 8  # most are; some could be true


def test_every_algorithm_is_lied_to() -> None:
    """A new one, with its messages, needs a job in the list above."""
    names = {job.get("algorithm") or ("elastic" if "l1" in job else "newton") for job in TRAINED.values()}
    assert names == {algorithm.name for algorithm in ALGORITHMS if not algorithm.is_pooled}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "tablepuppet")


@pytest.mark.one_in(21)
@pytest.mark.parametrize("name", [*TRAINED, *PREDICTED])
@pytest.mark.parametrize("direction", ["requests", "answers"])
def test_one_changed_value_is_refused_by_name_or_could_be_true(name: str, direction: str) -> None:
    lie(name, CASES, 17, requests=direction == "requests")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRAINED, *PREDICTED])
@pytest.mark.parametrize("direction", ["requests", "answers"])
def test_a_night_of_changed_values(name: str, direction: str) -> None:
    lie(name, NIGHT, 101, requests=direction == "requests")
