"""What contracts cost: one round of a job, and a few microseconds of every request."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.algorithms.sgd.rounds import SgdUpdate
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import EXCHANGES, REQUESTS
from tablepuppet.exchanges.steps import count_batch
from tablepuppet.protocol.codec import Frame, decode

QUERY = "SELECT u.a, u.b, u.c, i.d, i.e, r.t, r.y FROM r JOIN u ON r.u = u.u JOIN i ON r.i = i.i"


def tables(rows: int) -> dict[str, pa.Table]:
    chance, users = np.random.default_rng(0), rows // 10
    return {
        "u": pa.table({"u": np.arange(users)} | {name: chance.normal(size=users) for name in "abc"}),
        "i": pa.table({"i": np.arange(1000)} | {name: chance.normal(size=1000) for name in "de"}),
        "r": pa.table(
            {
                "u": chance.integers(0, users, rows),
                "i": chance.integers(0, 1000, rows),
                "t": chance.normal(size=rows),
                "y": chance.integers(0, 2, rows),
            }
        ),
    }


def test_a_contract_is_one_round_of_a_job() -> None:
    with tp.Federation(tables(300)) as federation:
        inner, asked = federation._transport.exchange, list[set[type]]()

        def exchange(frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
            asked.append({type(decode(frame, REQUESTS)) for given in frames.values() for frame in given})
            return inner(frames, wait=wait)

        federation._transport.exchange = exchange  # type: ignore[method-assign]
        federation.train(QUERY, label="y", epochs=2)
    assert sum(ProposeContract in kinds for kinds in asked) == 1


def best(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=1, repeat=40))


@pytest.mark.slow
def test_to_keep_a_contract_takes_less_than_a_twentieth_of_a_run_in_batches() -> None:
    """What stands between a request and its answer, at the least of 40 tries each, beside the run's CPU time."""
    spent: dict[str, float] = {}
    with tp.Federation(tables(200_000)) as federation:
        for name, client in federation._clients.items():
            inner = client.answer

            def answer(request: Any, client: Any = client, inner: Any = inner, name: str = name) -> Any:
                if name not in spent and isinstance(request, SgdUpdate) and request.signal is not None:
                    exchange = EXCHANGES[SgdUpdate]
                    part = client.parts[request.job, request.part]
                    kept = client.contracts.jobs[request.job].parts[request.part]
                    asked, left = kept.asked.copy(), part.batches_left.copy()

                    def keep() -> None:
                        kept.asked.update(asked - kept.asked)
                        kept.asked["step"] = asked["step"]
                        client.contracts.check(exchange, request)

                    part.batches_left = left.astype(np.uint32) + 1000
                    spent[name] = sum(
                        map(
                            best,
                            (
                                keep,
                                lambda: exchange.check_request(client, request),
                                lambda: count_batch(client, part, request),
                            ),
                        )
                    )
                    kept.asked, part.batches_left = asked, left
                return inner(request)

            client.answer = answer  # type: ignore[method-assign, assignment]
        began = time.process_time()
        result = federation.train(QUERY, label="y", algorithm="sgd", epochs=10)
        run = time.process_time() - began
    share = sum(spent.values()) * result.traffic.rounds / run
    assert len(spent) == 3
    assert share < 0.05, f"{100 * share:.1f} %"
