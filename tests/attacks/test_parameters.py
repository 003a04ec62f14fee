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
from tablepuppet.exchanges.keys import SendKeys
from tablepuppet.exchanges.labels import DescribeLabels, SendLabels
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import EXCHANGES
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

    def __init__(self, federation: tp.Federation, change: Change, client: str = "items") -> None:
        self.client, self.noise = federation._clients[client], list[GradientPrivacy]()
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


# Every field of every request, by what keeps it from weakening a protection. A new field belongs in one of these.
PLACES = "job scan part block name table domain place column columns model features"  # what a request is about
AGREED = {  # refused unless the contract has it
    "DescribeLabels": "wants_classes",
    "OpenPart": "wants_moments wants_key ids finds_ids",
    "OpenScan": "filter query is_outer missing_is_null cutoffs",  # the contract must name what was opened
    "ProposeContract": "contract signature",
    "ScoreRows": "shuffled fixed",
    "ScoreOwnRows": "shuffled",
    "SendLabels": "test_column validation_column fold_column",
    "SendSides": "terms test_column validation_column",
    "StartPart": "algorithm l2 l1 signs l2_by_output peers starts continues weights",
    "StartTrees": "algorithm bins before peers",
    "SumStatistics": "peers",
    "SumGroups": "peers",
}
COUNTED = {  # the client counts it itself, or how often it may come
    "BlindKeys": "points",
    "Evaluate": "train",
    "HoldGroups": "sums extremes",
    "OpenPart": "train_rows test_rows multiplicity has_absent wants_statistics",
    "ScoreRows": "rows",
    "ScoreOwnRows": "rows",
    "AskRows": "rows",
    "AskOwnRows": "rows",
    "SendKeys": "offset",  # not 0 only where others have rows too
    "SendLabels": "offset",  # not 0 only where others have labels too
    "SgdUpdate": "count next_rows",
    "StartPart": "facts joined_rows multiplicity share",
    "SumGroups": "holders rows commitments",
    "SumStatistics": "is_second",
}
DATA = {  # what a model is trained or applied with; what it does to rows is clipped, noised or counted
    "AdmmUpdate": "signal factor union_rho coefficients",
    "AlsUpdate": "signal curvature ridge",
    "AskRows": "rules",
    "BasisUpdate": "signal points ridges bound",
    "CheckTrees": "check",
    "Combined": "values scales",
    "DescribeTable": "query cutoffs",
    "ElasticUpdate": "signal curvature bound total scale momentum coefficients",
    "EncodeFeatures": "encoders",
    "HoldCutoffs": "sealed",
    "HoldSplits": "unions keys",
    "Move": "coefficients",
    "MultiplyGram": "vector",
    "NewtonUpdate": "signal curvature bound coefficients follows",
    "OpenPart": "id_salt",
    "ReleaseSplits": "unions keys",
    "RevealFeatures": "as_codes",
    "RevealKeys": "keys",
    "ScoreRows": "encoders theta outputs value",
    "Seal": "scales",
    "SendLabels": "classes",
    "SendSides": "offset known_rows",  # places of rows, which no guarantee hides (docs/guard-rails.md)
    "SgdUpdate": "signal learning_rate",
    "StartPart": "outputs blocks clients seed spread",
    "StartTrees": "outputs is_outer clients signs",
    "SumGroups": "scales",
    "SumTrees": "check",
}


def test_every_field_of_a_request_is_known_not_to_weaken_a_protection() -> None:
    for kind in EXCHANGES:
        listed = [by.get(kind.__name__, "").split() for by in (AGREED, COUNTED, DATA)]
        known = [name for names in listed for name in names]
        assert len(set(known)) == len(known), kind
        fields = set(kind.__struct_fields__)
        assert set(known) <= fields, kind
        assert fields - set(known) <= set(PLACES.split()), kind
    names = {kind.__name__ for kind in EXCHANGES}
    assert names >= {*AGREED, *COUNTED, *DATA}


def test_no_fact_of_a_run_carries_noise_or_what_is_counted() -> None:
    fields = {*RunFacts.__struct_fields__, *BlockFacts.__struct_fields__}
    assert not fields & {"privacy", "noise", "clip", "rate", "spends", "limit", "summed_over", "epsilon", "delta"}


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        (SendKeys, {"offset": 3}, "its rows are numbered from 0"),
        (SendLabels, {"offset": 3}, "numbered from 0"),
        (DescribeLabels, {"wants_classes": True}, "distinct values of the label do not leave"),
        (SendLabels, {"test_column": 0}, "asked for as the split"),
    ],
)
def test_rows_are_numbered_as_was_agreed_on(kind: type[Message], change: dict[str, Any], why: str) -> None:
    with tp.Federation(shop()) as federation:
        client = federation._clients["orders"]
        inner = client.answer
        client.answer = lambda message: inner(  # type: ignore[method-assign]
            msgspec.structs.replace(message, **change) if isinstance(message, kind) else message
        )
        with pytest.raises(PolicyError, match=why):
            federation.train(QUERY, label="y", model="linear", algorithm="newton", epochs=1)


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


def test_a_client_whose_sums_nobody_masks_adds_all_of_the_noise() -> None:
    """Of a sum over three clients that only its total leaves of, each would add a share."""

    def change(facts: RunFacts) -> RunFacts:
        own = msgspec.structs.replace(facts.blocks[1], is_masked=True, clients=("items", "b", "c"))
        return msgspec.structs.replace(facts, blocks=(facts.blocks[0], own))

    (own,) = train(with_facts(change)).noise
    assert own.summed_over == 1


GROUPED = "(SELECT item, max(price) AS price FROM items GROUP BY item)"
KNOWN = {"noise": 3.0, "clip": 2.0, "cap": 50, "bounds": PRIVACY["features"]["bounds"]}


@pytest.mark.parametrize(
    ("query", "owners", "changed"),
    [
        (QUERY, 1, {"squared_norm": 1e-6}),
        (QUERY, 1, {"squared_norm": 1e6}),
        (QUERY, 1, {"is_masked": True, "clients": ("items", "b", "c")}),
        (QUERY, 3, {"clients": tuple("abcdefghi")}),
        (QUERY, 3, {"is_masked": False, "clients": ("items",)}),
        (QUERY.replace(", i.colour", "").replace("items", GROUPED), 1, {"is_derived": False}),
    ],
    ids=lambda given: str(given)[:20],
)
def test_a_client_computes_noise_from_its_own_block_as_it_knows_it(query: str, owners: int, changed: Any) -> None:
    def change(facts: RunFacts) -> RunFacts:
        return msgspec.structs.replace(
            facts, blocks=(facts.blocks[0], msgspec.structs.replace(facts.blocks[1], **changed))
        )

    tables, each = shop(), 30 // owners
    tables["items"] = [tables["items"][n * each : (n + 1) * each] for n in range(owners)]
    found = []
    for lie in (with_facts(change), lambda message: message):
        with tp.Federation(tables, key=b"k" * 32) as federation:
            lying = LyingServer(federation, lie, client="items" if owners == 1 else "items[0]")
            federation.train(query, **(JOB | {"privacy": PRIVACY | {"features": KNOWN}}))
            found.append((lying.noise, [s.mechanism for s in lying.client.log.account.spendings]))
    assert found[0] == found[1]


@pytest.mark.parametrize("items", ["items", GROUPED])
def test_no_row_is_joined_once_more_than_noise_is_computed_for(items: str) -> None:
    """One row of a grouped table changes two rows of its groups, and each of them is joined as often."""

    def change(facts: RunFacts) -> RunFacts:
        own = facts.blocks[1]
        return msgspec.structs.replace(facts, blocks=(facts.blocks[0], msgspec.structs.replace(own, most=own.most - 1)))

    with tp.Federation(shop()) as federation:
        LyingServer(federation, with_facts(change))
        query = QUERY.replace(", i.colour", "").replace("items", items)
        with pytest.raises(PolicyError, match="joined more often"):
            federation.train(query, **(JOB | {"privacy": PRIVACY | {"features": KNOWN}}))


@pytest.mark.parametrize("algorithm", ["newton", "admm"])
def test_a_table_is_not_trained_on_for_fewer_joined_rows_than_its_own_have(algorithm: str) -> None:
    with tp.Federation(shop()) as federation:
        client = federation._clients["items"]
        inner = client.answer

        def answer(message: Any) -> Message:
            is_start = isinstance(message, StartPart)
            return inner(msgspec.structs.replace(message, joined_rows=message.joined_rows - 1) if is_start else message)

        client.answer = answer  # type: ignore[method-assign]
        with pytest.raises(PolicyError, match="more joined rows than said"):
            federation.train(QUERY, **(JOB | {"algorithm": algorithm, "privacy": None, "l2": 1e-3}))


@pytest.mark.parametrize("option", ["type", "batches", ""])
@pytest.mark.parametrize("algorithm", ["sgd", "newton", "boosting"])
def test_a_contract_has_the_options_of_an_algorithm_each_and_no_others(algorithm: str, option: str) -> None:
    def changed(message: Any) -> Any:
        if not isinstance(message, ProposeContract) or message.contract.training is None:
            return message
        training = message.contract.training
        name = option if option in training.algorithm else sorted(training.algorithm)[0]
        options = (
            {n: v for n, v in training.algorithm.items() if n != name} if option else training.algorithm | {"x": 1}
        )
        terms = msgspec.structs.replace(training, algorithm=options)
        return msgspec.structs.replace(message, contract=msgspec.structs.replace(message.contract, training=terms))

    trees = algorithm == "boosting"
    given: dict[str, Any] = {"model": "boosted", "trees": 2, "epochs": None} if trees else {}
    with pytest.raises(PolicyError, match="other options than an algorithm has"):
        train(changed, **(given | {"algorithm": algorithm, "privacy": None}))


def test_batches_larger_than_their_rate_are_refused() -> None:
    """More joined rows are a lower rate: rows must then come as rarely."""

    def change(message: Any) -> Any:
        if not isinstance(message, StartPart) or message.facts is None:
            return message
        rows = 10_000 * message.joined_rows
        facts = msgspec.structs.replace(message.facts, rows=rows)
        return msgspec.structs.replace(message, facts=facts, joined_rows=rows)

    features = {"noise": 1.0, "bounds": PRIVACY["features"]["bounds"]}  # of an ε, the accountant takes ten seconds
    with pytest.raises(PolicyError, match="more rows than the rate"):
        train(change, batch_size=100, privacy=PRIVACY | {"features": features})


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
