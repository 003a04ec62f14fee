"""Requests that no honest job sends: each of them read rows before there were contracts, and none is answered now."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, get_args, get_origin

import msgspec
import numpy as np
import pytest
from tests.attacks.meddler import QUERY, Meddler, shop

import tablepuppet as tp
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.tree_checks import WHOLE, Check, Key, Outline
from tablepuppet.algorithms.newton.client import NewtonUpdate
from tablepuppet.algorithms.noise import RunFacts
from tablepuppet.algorithms.registry import UPDATES, algorithm_of
from tablepuppet.algorithms.sgd.rounds import SgdUpdate
from tablepuppet.client import UNREADABLE
from tablepuppet.errors import ApprovalError, PolicyError, SourceError
from tablepuppet.exchanges.base import TRAINING
from tablepuppet.exchanges.features import OpenPart
from tablepuppet.exchanges.keys import SendKeys
from tablepuppet.exchanges.labels import SendSides
from tablepuppet.exchanges.parts import Evaluate, Release
from tablepuppet.exchanges.prediction import ScoreRows, SendIdentifiers
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import EXCHANGES, REQUESTS
from tablepuppet.exchanges.schema import CloseJob, DescribeTable, OpenScan
from tablepuppet.exchanges.start import MultiplyGram, StartPart
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.policy import LabelRules, Policy
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.columns import CategoryEncoder, NumberEncoder
from tablepuppet.protocol.contract import Contract, SideTerms

KINDS: tuple[type[Message], ...] = tuple(get_origin(kind) or kind for kind in get_args(REQUESTS))


def example(kind: type[Message], job: str) -> Message:
    """Some message of a kind, its fields made up from their types."""
    return _made(msgspec.inspect.type_info(kind), job)  # type: ignore[no-any-return]


def _made(info: Any, job: str) -> Any:
    inspect = msgspec.inspect
    match info:
        case inspect.StructType():
            values = {f.name: _made(f.type, job) for f in info.fields if f.required}
            return info.cls(**(values | ({"job": job} if "job" in values else {})))
        case inspect.AnyType():
            return tp.Newton()
        case inspect.UnionType():
            return _made(info.types[0], job) if not info.includes_none else None
        case inspect.CustomType():
            return np.zeros((1, 1)) if "float" in str(info.cls) else np.zeros(1, np.int64)
        case inspect.ListType() | inspect.VarTupleType() | inspect.TupleType():
            return []
        case inspect.DictType():
            return {}
        case inspect.BoolType():
            return False
        case inspect.LiteralType():
            return info.values[0]
        case inspect.StrType():
            return "orders"
        case inspect.FloatType():
            return 0.0
    return 0


def ask_all(federation: tp.Federation, client: str, job: str) -> dict[str, Message]:
    """Every kind of message, one after the other; what a client says to each."""
    owner = federation._clients[client]
    found: dict[str, Message] = {}
    for kind in KINDS:
        if kind not in (CloseJob, OpenScan, ProposeContract, DescribeTable):
            try:
                found[kind.__name__] = owner.answer(example(kind, job))
            except tp.TablePuppetError as error:
                found[kind.__name__] = Failure(error=type(error).__name__, message=str(error))
    return found


def test_before_a_contract_no_message_of_any_kind_is_answered() -> None:
    with tp.Federation(shop()) as federation:
        owner = federation._clients["orders"]
        owner.answer(OpenScan(job="j", scan=0, table="orders", columns=["item", "amount", "y"]))
        for name, answer in ask_all(federation, "orders", "j").items():
            assert isinstance(answer, Failure), name
            assert "contract" in answer.message or "policy" in answer.message, (name, answer.message)


PURPOSES: dict[str, tuple[Any, type[Message]]] = {
    "profile": (lambda f: f.profile(QUERY, label="y"), SendKeys),
    "explain": (lambda f: f.explain(QUERY, label="y"), OpenPart),
    "train": (lambda f: f.train(QUERY, label="y", epochs=2), Release),
    "predict": (lambda f: f.predict(f.train(QUERY, label="y", epochs=2)), ScoreRows),
    "evaluate": (lambda f: f.evaluate(f.train(QUERY, label="y", epochs=2)), ScoreRows),
}


@pytest.mark.parametrize("purpose", PURPOSES)
def test_what_a_contract_does_not_have_is_refused_in_every_purpose(purpose: str) -> None:
    job, before = PURPOSES[purpose]
    outside = [kind for kind, e in EXCHANGES.items() if e.purposes and purpose not in e.purposes]
    with tp.Federation(shop()) as federation:
        meddler = Meddler(federation, "orders", before, lambda name: [example(kind, name) for kind in outside])
        job(federation)
    assert len(meddler.answers) == len(outside)
    for kind, answer in zip(outside, meddler.answers, strict=True):
        assert isinstance(answer, Failure), kind


ALGORITHMS: dict[str, tuple[Any, type[Message], dict[str, Any]]] = {
    "newton": (tp.Newton(), Release, {}),
    "sgd": (tp.Sgd(), Release, {}),
    "admm": (tp.Admm(), Release, {}),
    "als": (tp.Als(), Release, {"head": "factor", "rank": 2}),
    "boosting": (tp.Boosting(trees=2), trees.ReleaseSplits, {}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_message_of_another_algorithm_is_answered_in_a_job(name: str) -> None:
    """Generated for all algorithms: what each declares, and the messages of trees."""
    options, before, given = ALGORITHMS[name]
    own = set(algorithm_of(options).requests)
    grown = {kind for kind in KINDS if kind.__module__ == trees.__name__ and EXCHANGES[kind].purposes == TRAINING}
    others = {kind for kind in UPDATES if kind not in own} | (set() if name == "boosting" else grown)
    others |= {StartPart, *UPDATES} if name == "boosting" else set()
    kinds = sorted(others, key=lambda kind: kind.__name__)
    with tp.Federation(shop()) as federation:
        meddler = Meddler(federation, "orders", before, lambda job: [example(kind, job) for kind in kinds])
        asked: dict[str, Any] = given if name == "boosting" else given | {"epochs": 2}
        federation.train(QUERY, label="y", algorithm=options, **asked)
    assert len(meddler.answers) == len(kinds) > 3
    for kind, answer in zip(kinds, meddler.answers, strict=True):
        assert isinstance(answer, Failure), kind


def test_nothing_is_answered_about_a_job_that_is_over() -> None:
    with tp.Federation(shop()) as federation:
        names: list[str] = []

        def listen(job: str) -> list[Message]:
            names.append(job)
            return [Evaluate(job=job, part=9, train=False)]

        meddler = Meddler(federation, "orders", Release, listen)
        federation.train(QUERY, label="y", epochs=2)
        assert len(meddler.answers) == 1
        for name, answer in ask_all(federation, "orders", names[0]).items():
            assert isinstance(answer, Failure), name


def test_a_server_does_not_choose_how_many_joined_rows_there_are() -> None:
    """By more of them an epoch would have more batches, and a row more predictions, than were agreed on."""
    for rows, why in ((10**9, "at most 5,000 joined rows"), (3, "more joined rows than said")):
        with tp.Federation(shop()) as federation:
            inner = federation._clients["items"].answer

            def lie(message: Any, rows: int = rows, inner: Any = inner) -> Any:
                is_start = isinstance(message, StartPart)
                return inner(msgspec.structs.replace(message, joined_rows=rows) if is_start else message)

            federation._clients["items"].answer = lie  # type: ignore[method-assign]
            with pytest.raises(PolicyError, match=why):
                federation.train(QUERY, label="y", algorithm="sgd", l2=1e-4, epochs=1, max_joined_rows=5000)


def test_joined_rows_that_there_are_not_bring_no_further_batches() -> None:
    """Without `max_joined_rows`, too: owners count how often a row is in a batch."""

    def lie(federation: tp.Federation, client: str) -> None:
        inner = federation._clients[client].answer

        def answer(message: Any) -> Any:
            is_start = isinstance(message, StartPart)
            return inner(msgspec.structs.replace(message, joined_rows=10**9) if is_start else message)

        federation._clients[client].answer = answer  # type: ignore[method-assign]

    job: dict[str, Any] = {"label": "y", "algorithm": "sgd", "l2": 1e-4, "batch_size": 50, "epochs": 2}
    tables = shop()
    tables["items"] = [tables["items"][:15], tables["items"][15:]]
    with tp.Federation(tables) as federation:
        first = next(name for name in federation._clients if name.startswith("items"))
        lie(federation, first)
        often = int(np.bincount(tables["orders"]["item"].to_numpy())[0])
        one = [SgdUpdate(job="", part=1, signal=None, count=1, learning_rate=0.0, next_rows=np.array([0]))]

        def again(name: str) -> list[Message]:
            return [msgspec.structs.replace(u, job=name, next_rows=rows) for u in one for rows in (*asked, None, None)]

        asked = [np.array([0])] * (2 * often + 2)
        meddler = Meddler(federation, first, Release, again)
        federation.train(QUERY, **job)
    told = [isinstance(answer, Failure) for answer in meddler.answers]
    assert all(told[-3:])
    assert all("no more batches" in a.message for a in meddler.answers if isinstance(a, Failure))


def test_a_contract_about_trees_says_how_many_splits_are_told_and_no_more_are() -> None:
    with tp.Federation(shop()) as federation:
        seen: list[Contract] = []
        client = federation._clients["items"]
        agree = client.contracts.agree

        def listen(name: str, contract: Contract, **given: Any) -> None:
            seen.append(contract)
            agree(name, contract, **given)

        client.contracts.agree = listen  # type: ignore[method-assign]
        federation.train(QUERY, label="y", algorithm=tp.Boosting(trees=3, max_splits=2))
        federation.train(QUERY, label="y", algorithm=tp.Boosting(trees=3, depth=2))
    assert [d.times for c in seen for d in c.disclosures if d.what == "splits"] == [2, 4 * 3 * 2**2]
    assert "splits of items to the server: at most 2 times" in seen[0].lines()
    html = seen[0]._repr_html_()
    assert seen[0].hash[:16] in html
    assert "<script" not in msgspec.structs.replace(seen[0], asker="<script>")._repr_html_()


@pytest.mark.parametrize(
    ("policy", "options", "is_told"),
    [
        (Policy(), {}, True),
        (Policy(), {"reveal": "splits"}, False),
        (Policy(), {"max_splits": 50}, False),
        (Policy(max_splits=50), {}, False),
        (Policy(minimum_rows=2), {}, False),
    ],
)
def test_an_owner_that_counts_splits_or_rows_tells_no_column_whole_whatever_is_asked(
    policy: Policy, options: dict[str, Any], is_told: bool
) -> None:
    whole = Key(0, border=WHOLE)
    with tp.Federation(shop(), policies={"items": policy}) as federation:
        meddler = Meddler(
            federation,
            "items",
            trees.CheckTrees,
            lambda job: [trees.RevealKeys(job=job, part=1, keys=[whole])],
        )
        try:
            federation.train(QUERY, label="y", algorithm=tp.Boosting(trees=2, depth=2, min_child_weight=9, **options))
        except tp.TablePuppetError:  # the owner has told a column that the honest server knows nothing of
            assert is_told
    (answer,) = meddler.answers
    assert isinstance(answer, trees.RevealedKeys) == is_told
    assert is_told or "not told whole" in answer.message


def test_owners_whose_splits_are_drawn_are_told_no_sums_and_tell_no_more_bits_than_agreed() -> None:
    columns, none = np.ones(2, np.bool_), np.zeros(0)
    outline = Outline(
        unit=(1.0, 1.0),
        left=np.array([-1], np.int32),
        asks=np.ones(1, np.bool_),
        gain=np.zeros(1),
        block=np.array([-1], np.int32),
        key=np.array([-1], np.int32),
        to_left=np.zeros(1, np.bool_),
        bounds=none.reshape(0, 2),
        least=np.zeros((1, 3)),
    )
    keys = [Key(0, border=border) for border in range(1, 5)]
    asked = (trees.CheckTrees, trees.SumTrees)
    checks = Check(columns, [], [outline])
    drawn = tp.Boosting(trees=3, splits="random", max_splits=4)
    no_sums = refusals(
        lambda job: [kind(job=job, part=1, check=checks) for kind in asked],
        trees.RevealKeys,
        "items",
        algorithm=drawn,
        epochs=None,
    )
    assert all("no trees are checked" in why for why in no_sums)
    with tp.Federation(shop()) as federation:
        meddler = Meddler(
            federation,
            "items",
            trees.ReleaseSplits,
            lambda job: [trees.RevealKeys(job=job, part=1, keys=[key]) for key in keys],
        )
        federation.train(QUERY, label="y", algorithm=drawn)
    assert all(isinstance(answer, Failure) for answer in meddler.answers)
    assert "max_splits" in meddler.answers[0].message


def refusals(attack: Any, before: type[Message], client: str = "orders", **options: Any) -> list[str]:
    given: dict[str, Any] = {"label": "y", "epochs": 2} | options
    with tp.Federation(shop()) as federation:
        meddler = Meddler(federation, client, before, attack)
        federation.train(QUERY, **given)
    for answer in meddler.answers:
        assert isinstance(answer, Failure), answer
    return [answer.message for answer in meddler.answers]


def test_identifiers_do_not_leave_while_a_model_is_trained() -> None:
    (why,) = refusals(lambda job: [SendIdentifiers(job=job, scan=0, columns=[0])], Evaluate)
    assert "a contract to train has no SendIdentifiers" in why


def test_rows_and_multiplicities_are_said_once() -> None:
    def one_row(job: str) -> list[Message]:
        rows, ones = np.array([3]), np.array([1])
        given: dict[str, Any] = {"job": job, "scan": 1, "test_rows": rows[:0], "train_rows": rows}
        return [
            OpenPart(part=1, columns=[1, 2], multiplicity=ones, **given),  # again, with a single row
            OpenPart(part=7, columns=[1, 2], multiplicity=ones, **given),  # as a part of its own
            OpenPart(part=7, columns=[0], multiplicity=ones, **given),  # the key as a feature
        ]

    for why in refusals(one_row, StartPart, "items"):
        assert "outside its contract" in why


def test_second_moments_leave_in_the_jobs_that_need_them_only() -> None:
    one_hot = np.zeros((3, 1))
    one_hot[0] = 1.0
    (why,) = refusals(lambda job: [MultiplyGram(job=job, part=1, vector=one_hot)], Evaluate, "items")
    assert "second moments was agreed on 0 times" in why


def test_newton_with_noise_that_it_ignores_is_not_started() -> None:
    with tp.Federation(shop()) as federation:
        seen: list[Message] = []

        def with_noise(job: str) -> list[Message]:
            part = federation._clients["items"].parts[job, 1]
            assert part.train is not None
            start = StartPart(
                job=job, part=1, algorithm=tp.Newton(), model=ModelSpec(), block=1, name="i", outputs=1,
                blocks=2, clients=1, joined_rows=170, share=1.0, l2=1e-4, seed=0,
                facts=RunFacts((), 170, 2, 1, 1.0, 1.0, 1.0, 1.0),
            )  # fmt: skip
            seen.append(start)
            return [start]

        meddler = Meddler(federation, "items", StartPart, with_noise)
        federation.train(QUERY, label="y", l2=1e-4, epochs=2)
    assert isinstance(meddler.answers[0], Failure)


def test_a_run_gives_no_more_rounds_than_were_agreed_on() -> None:
    def again(job: str) -> list[Message]:
        return [Evaluate(job=job, part=0, train=True) for _ in range(5)]

    with tp.Federation(shop()) as federation:
        meddler = Meddler(federation, "orders", Release, again)
        federation.train(QUERY, label="y", algorithm=tp.Newton(tolerance=0.0), epochs=2)
    assert all(isinstance(answer, Failure) for answer in meddler.answers)


def test_a_model_that_was_not_agreed_on_is_not_applied() -> None:
    with tp.Federation(shop()) as federation:
        result = federation.train(QUERY, label="y", epochs=2)

        def identity(job: str) -> list[Message]:
            encoders: list[Any] = [
                NumberEncoder(mean=np.zeros(1), scale=np.ones(1), fill=np.zeros(1), has_missing=False),
                CategoryEncoder(categories=["red"], has_missing=False, has_other=False),
            ]
            given: dict[str, Any] = {"encoders": encoders, "model": result.model.spec, "name": "i", "outputs": 2}
            return [
                ScoreRows(job=job, scan=1, columns=[1, 2], rows=np.arange(30), theta=np.eye(2), **given),
                ScoreRows(job=job, scan=1, columns=[0], rows=np.arange(30), theta=np.eye(1), **given),
            ]

        meddler = Meddler(federation, "items", ScoreRows, identity)
        federation.predict(result)
    for answer in meddler.answers:
        assert isinstance(answer, Failure)
        assert "outside its contract" in answer.message


def test_few_rows_are_not_scored_where_the_owner_wants_many(tmp_path: Any) -> None:
    (tmp_path / "policy.toml").write_text("minimum_rows = 20\n")
    with tp.Federation(shop(), policies={"orders": tmp_path / "policy.toml"}) as federation:
        result = federation.train(QUERY, label="y", epochs=2)
        with pytest.raises(PolicyError, match=r"fewer than 20 rows.*minimum_rows"):
            federation.predict(result, key="id", keys=[5])


@pytest.mark.parametrize(
    ("rules", "given"),
    {
        "a label that does not leave": ("[labels]\nleave = false", {}),
        "labels under noise": ("[labels]\nepsilon = 1.0", {}),
        "a budget": ("[budget.orders]\nfeatures = 1.0", {"algorithm": "sgd"}),
        "a column": ('[tables.orders]\nfeatures = []\nkeys = ["item", "amount"]\nlabels = ["y"]', {}),
        "trees that ask of every row": ("allow_reconstruction = false", {"algorithm": "boosting"}),
        "rows that one number tells": ("allow_reconstruction = false", {"algorithm": "newton"}),
        "keys that a leak would open": ("keys_need_dh = true", {}),
        "many keys of others": ("max_blinded_keys = 10", {"privacy": {"keys": "dh"}}),
        "plain keys": ("keys_in_plain = false", {"privacy": {"keys": "plain"}}),
    }.values(),
)
def test_explain_is_refused_with_the_sentence_that_training_is_refused_with(
    tmp_path: Any, rules: str, given: dict[str, Any]
) -> None:
    (tmp_path / "policy.toml").write_text(rules)
    with tp.Federation(shop(), policies={"orders": tmp_path / "policy.toml"}) as federation:
        with pytest.raises(PolicyError) as trained:
            federation.train(QUERY, label="y", **given)
        with pytest.raises(PolicyError) as explained:
            federation.explain(QUERY, label="y", **given)
        log = federation._clients["orders"].log.entries
    assert str(trained.value) == str(explained.value)
    assert [entry.event for entry in log].count("refused") == 2
    assert not [entry for entry in log if entry.event == "disclosed"]  # nothing had left


def test_what_is_approved_once_is_done_once_whatever_the_next_job_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that gives every job one name ran a job as often as it liked."""
    monkeypatch.setattr("tablepuppet.train.new_job_id", lambda: "0123456789abcdef")
    with tp.Federation(shop(), policies={"orders": Policy(ask=True), "items": Policy(ask=True)}) as federation:
        for name in ("orders", "items"):
            with pytest.raises(ApprovalError):
                federation.train(QUERY, label="y", epochs=2)
            approvals = federation._clients[name].approvals
            (waiting,) = approvals.waiting()
            approvals.decide(waiting.hash, is_approved=True, scope="once")
        federation.train(QUERY, label="y", epochs=2)  # that one owner waited used up no other's approval
        with pytest.raises(ApprovalError):
            federation.train(QUERY, label="y", epochs=2)


@pytest.mark.parametrize("slope", [1.5, -40.0])
def test_slopes_that_no_curvature_follows_from_are_refused(slope: float) -> None:
    """Second moments would be weighted by what is negative."""
    with tp.Federation(shop()) as federation:
        rows = shop()["orders"].num_rows
        given: dict[str, Any] = {
            "signal": np.full((rows, 1), slope),
            "curvature": None,
            "bound": 0.25,
            "coefficients": None,
        }
        meddler = Meddler(
            federation, "orders", NewtonUpdate, lambda job: [NewtonUpdate(job=job, part=0, follows=True, **given)]
        )
        federation.train(QUERY, label="y", algorithm="newton", test_fraction=0.0, progress=False)
    (answer,) = meddler.answers
    assert isinstance(answer, Failure)
    assert "no curvature follows" in answer.message


@pytest.mark.parametrize("is_to_predict", [True, False])
def test_no_contract_hides_from_the_policy_what_its_requests_would_read(is_to_predict: bool) -> None:
    """By terms of training in a contract to predict, or by features that play no role, a budget would not be asked."""
    policy = Policy(budget={"items": TableBudget(features=1.0)})
    with tp.Federation(shop(), policies={"items": policy}) as federation:
        client = federation._clients["items"]

        def lie(message: Any, inner: Any = client.answer) -> Any:
            if isinstance(message, ProposeContract):
                honest, (scan,) = message.contract, message.contract.scans
                columns = tuple(msgspec.structs.replace(c, roles=tuple({*c.roles} & {"key"})) for c in scan.columns)
                hidden = msgspec.structs.replace(honest, scans=(msgspec.structs.replace(scan, columns=columns),))
                wrong = msgspec.structs.replace(honest, purpose="predict") if is_to_predict else hidden
                message = msgspec.structs.replace(message, contract=wrong)
            return inner(message)

        client.answer = lie  # type: ignore[method-assign]
        with pytest.raises(PolicyError, match="that do not belong to it" if is_to_predict else "are no features of it"):
            federation.train(QUERY, label="y", epochs=2)


@pytest.mark.parametrize(
    ("verb", "kind", "changed", "why"),
    [
        ("evaluate", SendSides, {"terms": SideTerms(0, 0.15, seed=7)}, "by the seed and in the shares"),
        ("evaluate", SendSides, {"terms": SideTerms(0, 0.15, is_keyed=False)}, "by the seed and in the shares"),
        ("evaluate", ScoreRows, {"shuffled": (0,)}, "no feature is shuffled"),
        ("evaluate", ScoreRows, {"fixed": 0, "value": 0.0}, "not set to any value"),
        ("train", StartPart, {"starts": True}, "it begins with weights, and none were agreed on"),
        ("train", StartPart, {"continues": True}, "one model is trained, from the start"),
        ("train", StartPart, {"weights": np.ones((30, 1))}, "weights were sent"),
        ("train", StartPart, {"multiplicity": np.ones(30, np.int64)}, "no folds were agreed on"),
        ("train", OpenPart, {"ids": (0,)}, "which texts are ids that stay here was agreed on otherwise"),
        ("train", OpenPart, {"wants_key": True}, "sums leave under masks if that was agreed on"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_what_a_request_adds_to_its_contract_is_refused(
    verb: str, kind: type[Message], changed: dict[str, Any], why: str
) -> None:
    given: dict[str, Any] = {"label": "y", "model": "logistic", "algorithm": "newton", "epochs": 1}
    with tp.Federation(shop(), key=b"k" * 32) as federation:
        result = federation.train(QUERY, **given)
        for client in federation._clients.values():

            def answer(message: Any, inner: Any = client.answer) -> Any:
                return inner(msgspec.structs.replace(message, **changed) if isinstance(message, kind) else message)

            client.answer = answer  # type: ignore[method-assign]
        with pytest.raises(PolicyError, match=why):
            federation.evaluate(result) if verb == "evaluate" else federation.train(QUERY, **given)


def test_what_fails_on_hidden_rows_fails_alike_in_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of scans, parts, trees and scores; the owner's log has the reason."""
    errors: dict[str, type[Exception]] = {"orders": ValueError, "items": SourceError}

    def fail(own: Any, request: Any) -> Message:
        raise errors[own.name]("row 7 has 12.5")

    anything: dict[str, Any] = {"enforce": lambda job, request: None, "check_request": lambda own, request: None}
    kinds = [kind for kind in KINDS if "job" in kind.__struct_fields__]
    assert {OpenScan, SendKeys, Evaluate, trees.CheckTrees, ScoreRows} <= {*kinds}
    for kind in kinds:
        loose = dataclasses.replace(EXCHANGES[kind], purposes=frozenset(), handle=fail, **anything)
        monkeypatch.setitem(EXCHANGES, kind, loose)
    hidden = {"orders": Policy(minimum_rows=5), "items": Policy(labels=LabelRules(epsilon=1.0))}
    with tp.Federation(shop(), policies=hidden) as federation, tp.Federation(shop()) as open_:
        for kind, (name, error) in itertools.product(kinds, errors.items()):
            client = federation._clients[name]
            with pytest.raises(error if kind is OpenScan else PolicyError) as failure:
                client.answer(example(kind, "j"))
            if kind is not OpenScan:  # which reads no row
                assert str(failure.value) == UNREADABLE, kind
                assert "12.5" in client.log.entries[-1].detail["why"]
            with pytest.raises(error, match=r"12\.5"):
                open_._clients[name].answer(example(kind, "j"))
