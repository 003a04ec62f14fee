"""A server that changes what protects an owner: the client computes with the contract, and with what it counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.meddler import QUERY, shop

import tablepuppet as tp
from tablepuppet.algorithms.noise import BlockFacts, RunFacts
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.start import StartPart
from tablepuppet.privacy.accounting import Mechanism, composed_epsilon
from tablepuppet.privacy.gaussian import GradientPrivacy
from tablepuppet.protocol.base import Message

EPSILON = 1.0
PRIVACY: dict[str, Any] = {
    "features": {"epsilon": EPSILON, "bounds": {"amount": [-4, 4], "price": [-4, 4]}},
    "allow_reconstruction": True,
}
JOB: dict[str, Any] = {"label": "y", "model": "logistic", "algorithm": "sgd", "epochs": 2, "privacy": PRIVACY}
Change = Callable[[Any], Any]


class LyingServer:
    """Changes each request to the owner of items; what that client then adds to its sums is kept."""

    def __init__(self, federation: tp.Federation, change: Change) -> None:
        self.client, self.noise = federation._clients["items"], list[GradientPrivacy]()
        self.most = 1
        inner = self.client.answer

        def answer(message: Any) -> Message:
            told = inner(change(message))
            if isinstance(message, StartPart):
                part = self.client.parts[message.job, message.part]
                assert part.setup is not None
                assert part.setup.private is not None
                self.noise.append(part.setup.private.privacy)
                self.most = int(part.setup.multiplicity.max())
            return told

        self.client.answer = answer  # type: ignore[method-assign]


def train(change: Change, **options: Any) -> LyingServer:
    with tp.Federation(shop()) as federation:
        server = LyingServer(federation, change)
        federation.train(QUERY, **(JOB | options))
    return server


def with_facts(change: Callable[[RunFacts], RunFacts]) -> Change:
    def changed(message: Any) -> Any:
        is_start = isinstance(message, StartPart) and message.facts is not None
        return msgspec.structs.replace(message, facts=change(message.facts)) if is_start else message

    return changed


def test_no_request_carries_noise_or_what_is_counted() -> None:
    fields = {*StartPart.__struct_fields__, *RunFacts.__struct_fields__, *BlockFacts.__struct_fields__}
    assert not fields & {"privacy", "noise", "clip", "rate", "spends", "limit", "summed_over", "epsilon", "delta"}


@settings(max_examples=6, deadline=None)
@given(
    field=st.sampled_from(["slope", "bound", "curvature", "change", "rows", "joined", "most", "squared_norm"]),
    factor=st.sampled_from([1e-9, 0.1, 10.0, 1e9]),
    is_own=st.booleans(),
)
def test_whatever_a_server_says_of_a_run_its_steps_stay_within_the_agreed_epsilon(
    field: str, factor: float, is_own: bool
) -> None:
    def change(facts: RunFacts) -> RunFacts:
        if field in ("slope", "bound", "curvature", "change"):
            return msgspec.structs.replace(facts, **{field: getattr(facts, field) * factor})
        blocks = list(facts.blocks)
        place = 1 if is_own else 0
        found = getattr(blocks[place], field) * factor
        found = found if field == "squared_norm" else int(found)
        blocks[place] = msgspec.structs.replace(blocks[place], **{field: found})
        return msgspec.structs.replace(facts, blocks=tuple(blocks))

    try:
        server = train(with_facts(change), batch_size=40)
    except tp.TablePuppetError:
        return
    (own,) = server.noise
    paid = Mechanism(own.noise, own.limit, own.batch_rate, server.most)
    assert composed_epsilon((paid,), 1e-5) <= EPSILON * 1.001


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: msgspec.structs.replace(f, rows=10 * f.rows), "another run"),
        (lambda f: msgspec.structs.replace(f, epochs=f.epochs + 1), "another run"),
        (lambda f: msgspec.structs.replace(f, blocks=f.blocks[:1]), "other blocks"),
        (
            lambda f: msgspec.structs.replace(f, blocks=(f.blocks[0], msgspec.structs.replace(f.blocks[1], tables=()))),
            "fewer uses of a table",
        ),
        (
            lambda f: msgspec.structs.replace(f, blocks=(f.blocks[0], msgspec.structs.replace(f.blocks[1], most=1))),
            "joined more often",
        ),
        (lambda f: None, "noised as agreed, or not at all"),
    ],
    ids=["more rows", "more epochs", "a block less", "a table less", "rows joined once", "no noise"],
)
def test_facts_that_a_client_can_count_are_refused_where_they_are_wrong(change: Any, why: str) -> None:
    with pytest.raises(PolicyError, match=why):
        train(with_facts(change))


def test_batches_larger_than_their_rate_are_refused() -> None:
    """Ten times the joined rows are a tenth of the rate: rows must then come as rarely."""

    def change(message: Any) -> Any:
        if not isinstance(message, StartPart) or message.facts is None:
            return message
        rows = 100 * message.joined_rows
        facts = msgspec.structs.replace(message.facts, rows=rows)
        return msgspec.structs.replace(message, facts=facts, joined_rows=rows)

    with pytest.raises(PolicyError, match="more rows than the rate"):
        train(change, batch_size=100)


def test_an_honest_server_computes_what_its_clients_do() -> None:
    with tp.Federation(shop()) as federation:
        plan = federation.explain(QUERY, **JOB)
        server = LyingServer(federation, lambda message: message)
        federation.train(QUERY, **JOB)
    due = plan.private.noise.gradients[1]
    assert due is not None
    assert server.noise == [due]
    assert math.isfinite(due.deviation)
    assert np.isclose(due.deviation, due.noise * due.clip)
