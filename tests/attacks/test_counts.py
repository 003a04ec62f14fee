"""How often each request of a job may be made: figures that were worked out by hand from what the contract says."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.attacks.meddler import QUERY, shop

import tablepuppet as tp
from tablepuppet.algorithms.sgd.rounds import SgdUpdate
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.exchanges.start import StartPart
from tablepuppet.exchanges.steps import count_batch
from tablepuppet.owner.enforcement import JobUnderContract
from tablepuppet.protocol.base import Message

MOST = 500  # no count of these jobs is larger


def name_of(message: Message) -> str:
    """The kind of a request, as it is counted."""
    kind = type(message).__name__
    if getattr(message, "is_second", False):
        return f"{kind} second"
    return f"{kind} train" if kind == "Evaluate" and message.train else kind  # type: ignore[attr-defined]


def count_allowed(federation: tp.Federation, client: str, run: Any) -> dict[str, int]:
    """How often a client's contract lets each request of a job pass, from the first honest one on."""
    owner = federation._clients[client]
    inner, made = owner.answer, Counter[tuple[str, str]]()
    last: dict[str, Message] = {}
    contracts: dict[str, JobUnderContract] = {}

    def answer(message: Any) -> Message:
        told = inner(message)
        job = getattr(message, "job", "")
        if job in owner.contracts.jobs and EXCHANGES[type(message)].purposes:
            made[job, name_of(message)] += 1
            last[name_of(message)] = message
            contracts[name_of(message)] = copy.deepcopy(owner.contracts.jobs[job])
        return told

    owner.answer = answer  # type: ignore[method-assign]
    run(federation)
    found = {}
    for name, message in last.items():
        job, more = contracts[name], 0
        while more < MOST:
            try:
                EXCHANGES[type(message)].enforce(job, message)
            except PolicyError:
                break
            more += 1
        if more < MOST:
            found[name] = made[message.job, name] + more  # type: ignore[attr-defined]
    return found


def split_shop() -> dict[str, Any]:
    tables = shop()
    items = tables["items"]
    return tables | {"items": [items[:10], items[10:20], items[20:]]}


def train(algorithm: Any, **options: Any) -> Any:
    given = {"label": "y", "epochs": 3, "algorithm": algorithm} | options
    return lambda federation: federation.train(QUERY, **given)


def apply(verb: str, *arguments: Any, **options: Any) -> Any:
    def run(federation: tp.Federation) -> None:
        result = federation.train(QUERY, label="y", algorithm=tp.Newton(), epochs=1)
        getattr(federation, verb)(result, *arguments, **options)

    return run


ONCE = dict.fromkeys(("CountRows", "SendKeys", "OpenPart", "EncodeFeatures", "StartPart"), 1)
SUMS = {"SumStatistics": 1, "SumStatistics second": 1}
SGD: dict[str, Any] = {"l2": 1e-4}
COUNTS: dict[str, tuple[Any, str, dict[str, int]]] = {
    "newton": (train(tp.Newton()), "items", ONCE | {"NewtonUpdate": 4, "Move": 4, "Evaluate": 4, "Release": 1}),
    "parts that stay": (train(tp.Newton(), release=False), "items", {"NewtonUpdate": 4, "HoldPart": 1}),
    "elastic": (train(tp.Elastic()), "items", ONCE | {"ElasticUpdate": 4, "Move": 4, "Evaluate": 4, "Release": 1}),
    "admm": (train(tp.Admm()), "items", ONCE | {"AdmmUpdate": 4, "Move": 4, "Evaluate": 4, "Release": 1}),
    "sgd": (
        train(tp.Sgd(optimizer="sgd"), batch_size=None, **SGD), "items",
        ONCE | {"MultiplyGram": 12, "SgdUpdate": 4, "Evaluate": 4, "Release": 1},
    ),
    "sgd in batches": (  # 160 joined rows are four batches of an epoch; one more asks for predictions first
        train("sgd", batch_size=50, **SGD), "items", ONCE | {"SgdUpdate": 13, "Evaluate train": 4, "Release": 1}
    ),
    "als": (train(tp.Als(), head="factor", rank=2), "items", ONCE | {"AlsUpdate": 4, "Evaluate": 4, "Release": 1}),
    "boosting": (  # three times for each level, two more, of each tree and one more
        train(tp.Boosting(trees=3, depth=2), epochs=None), "items",
        {"OpenPart": 1, "StartTrees": 1, "CheckTrees": 3 * (2 + 2) * (3 + 1), "ReleaseSplits": 1},
    ),
    "drawn splits": (
        train(tp.Boosting(trees=3, splits="random", max_splits=4), epochs=None), "items", {"StartTrees": 1}
    ),
    "three owners": (  # four sums after each of three steps; each of the first five under masks twice, and two more
        train(tp.Admm(inner_rounds=4)), "items[0]", ONCE | SUMS
        | {"SendFigures": 1, "AdmmUpdate": 4, "Combined": 3 * 4, "Seal": 2 * 5 + 2, "Release": 1}
    ),
    "trees of three owners": (train(tp.Boosting(trees=3, depth=2), epochs=None), "items[0]", {"SketchFeatures": 1}),
    "labels": (train(tp.Newton()), "orders", ONCE | {"DescribeLabels": 1, "SendLabels": 1, "NewtonUpdate": 4}),
    "evaluation": (apply("evaluate"), "items", {"CountRows": 1, "SendKeys": 1, "ScoreRows": 1}),
    "importance": (  # each of two features three times
        apply("importance", repeats=3), "items", {"CountRows": 1, "SendKeys": 1, "ScoreRows": 1 + 3 * 2}
    ),
    "dependence": (apply("partial_dependence", "price", points=4), "items", {"SendKeys": 1, "ScoreRows": 1 + 4}),
    "prediction": (apply("predict", key="id"), "orders", {"SendKeys": 1, "ScoreRows": 1, "SendIdentifiers": 1}),
    "drift": (apply("drift"), "items", {"CountRows": 1, "SendKeys": 1, "OpenPart": 1}),
    "folds": (
        lambda f: tp.cross_validate(f, QUERY, label="y", epochs=1, folds=3, algorithm="newton"), "items",
        {"OpenPart": 1, "EncodeFeatures": 1, "StartPart": 3},
    ),
    "search": (
        lambda f: tp.search(f, QUERY, {"l2": [1e-3, 1e-2]}, label="y", epochs=1, folds=3, algorithm="newton"), "items",
        {"OpenPart": 1, "EncodeFeatures": 1, "StartPart": 6},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_a_request_is_answered_as_often_as_the_contract_says_and_no_more(name: str) -> None:
    run, client, due = COUNTS[name]
    with tp.Federation(split_shop() if client == "items[0]" else shop()) as federation:
        found = count_allowed(federation, client, run)
    assert {kind: found.get(kind) for kind in due} == due


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_row_is_in_as_many_batches_as_it_has_joined_rows_in_each_epoch(epochs: int) -> None:
    """And in one more, which is asked for after the last epoch."""
    counted = list[int]()
    with tp.Federation(shop()) as federation:
        owner = federation._clients["items"]
        inner = owner.answer

        def answer(message: Any) -> Message:
            told = inner(message)
            if isinstance(message, StartPart):
                part = copy.copy(owner.parts[message.job, message.part])
                assert part.setup is not None
                one = SgdUpdate(
                    job=message.job, part=message.part, signal=None, count=1, learning_rate=0.0, next_rows=np.array([0])
                )
                most = epochs * int(part.setup.multiplicity[0]) + 1
                for _ in range(most):
                    count_batch(owner, part, one)
                with pytest.raises(PolicyError, match="no more batches"):
                    count_batch(owner, part, one)
                counted.append(most)
            return told

        owner.answer = answer  # type: ignore[method-assign]
        federation.train(QUERY, label="y", algorithm="sgd", l2=1e-4, batch_size=50, epochs=epochs)
    assert counted[0] > epochs + 1
