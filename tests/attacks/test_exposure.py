"""Exact numbers of a row, over all jobs: before they are enough to know it, there are no more of them."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.client import Client
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.parts import Evaluation
from tablepuppet.exchanges.prediction import ScoreRows, _score
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.exchanges.start import Started
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.policy import Policy
from tablepuppet.owner.releases import Releases, _bits_of
from tablepuppet.owner.tables import ClientTables
from tablepuppet.privacy.analyst import AnalystTerms
from tablepuppet.privacy.ledger import Spending, TableBudget
from tablepuppet.protocol.base import Predictions, disclosures
from tablepuppet.protocol.columns import CategoryEncoder, NumberEncoder
from tablepuppet.protocol.contract import BlockTerms, Column, Contract, ScanTerms, fingerprint
from tablepuppet.sources.source import open_source

ROWS, NAMES = 400, ("a", "b", "c", "d", "e", "f", "g", "h")
QUERY = f"SELECT {', '.join('p.' + name for name in NAMES)}, p.y FROM people p"


def people() -> pa.Table:
    random = np.random.default_rng(2)
    fine = [0.0, 2.0**-58]  # what tells values apart is this small: a column has some 60 bits
    columns: dict[str, Any] = {"id": np.arange(ROWS)}
    columns |= {name: np.append(random.normal(size=ROWS - 2), fine) for name in NAMES}
    groups = {"gender": random.choice(["f", "m"], ROWS), "age": random.integers(0, 7, ROWS)}
    return pa.table(columns | groups | {"job": random.integers(0, 21, ROWS), "y": random.normal(size=ROWS)})


def train(owners: tp.Federation, query: str = QUERY, seed: int = 0, **options: Any) -> tp.Result:
    given: dict[str, Any] = {"label": "y", "algorithm": "sgd", "epochs": 1, "batch_size": None} | options
    return owners.train(query, seed=seed, **given)


def test_many_short_jobs_show_no_more_than_a_long_one() -> None:
    """Nine jobs of one epoch, each below the limit by itself, gave away all features to fourteen digits."""
    with tp.Federation({"people": people()}, policies={"people": Policy(allow_reconstruction=False)}) as owners:
        account = owners._clients["people"].log
        for seed in range(2):
            train(owners, seed=seed)
        with pytest.raises(PolicyError, match=r"8 exact numbers of each row.*rule allow_reconstruction"):
            train(owners, seed=2)
        assert account.account.shown("people", ["people.a"]) < len(NAMES)
        with pytest.raises(PolicyError, match="allow_reconstruction"):  # a part of the columns is no other table
            train(owners, "SELECT p.a, p.b, p.y FROM people p")
        with pytest.raises(PolicyError, match="allow_reconstruction"):  # nor is the same column ten times
            train(owners, f"SELECT {', '.join(f'p.a * {k} AS x{k}' for k in range(1, 11))}, p.y FROM people p")


@pytest.mark.parametrize(
    "given", [{}, {"algorithm": "newton"}, {"algorithm": "admm"}, {"model": "mlp", "hidden": (3,)}], ids=str
)
def test_every_exact_prediction_of_a_row_that_leaves_is_counted(given: dict[str, Any]) -> None:
    with tp.Federation({"people": people()}) as owners:
        client, told = owners._clients["people"], list[int]()
        inner = client.answer

        def answer(message: Any) -> Any:
            found = inner(message)
            for name in ("values", "test", "train") if isinstance(found, Started | Predictions | Evaluation) else ():
                values = getattr(found, name, None)
                told.append(0 if values is None else values.shape[1])
            return found

        client.answer = answer  # type: ignore[method-assign]
        train(owners, epochs=3, **given)
    assert client.log.account.shown("people", ["people.a"]) == sum(told) > 3


def test_what_jobs_have_shown_counts_when_an_owner_becomes_strict() -> None:
    with tp.Federation({"people": people()}) as owners:
        train(owners, epochs=12)
        client = owners._clients["people"]
        shown = client.log.account.shown("people", ["people.h"])
        assert shown >= len(NAMES)
        assert client.log.account.shown("people", ["people.job"]) == 0
        train(owners, epochs=12)
        assert client.log.account.shown("people", ["people.h"]) == 2 * shown


def test_one_number_reveals_columns_with_few_values() -> None:
    query = "SELECT p.gender, CAST(p.age AS VARCHAR) AS age, p.job, p.y FROM people p"
    strict = tp.Federation({"people": people()}, policies={"people": Policy(allow_reconstruction=False)})
    with strict as owners, pytest.raises(PolicyError, match="and 1 may be enough"):
        train(owners, query)
    query = query.replace("CAST(p.age AS VARCHAR) AS age", "p.age")  # names of numbers would leave
    private = {"features": {"epsilon": 1.0, "cap": 2, "bounds": {"job": (0, 20), "age": (0, 100)}}}
    with tp.Federation({"people": people()}) as owners:  # the job itself promises that rows stay unknown
        with pytest.raises(PolicyError, match="allow_reconstruction"):
            train(owners, query, privacy=private)
        train(owners, query, privacy=private | {"allow_reconstruction": True})


def over_a_network(**rules: Any) -> Client:
    return Client("people", ClientTables({"people": open_source(people(), "people")}), Policy(**rules))


def propose(client: Client, texts: list[str], model: str, **terms: Any) -> str:
    job = secrets.token_hex(8)
    scan = ScanTerms(0, "people", tuple(Column(text, ("feature",)) for text in texts), None)
    block = BlockTerms("people", 0, tuple(range(len(texts))), model=model)
    contract = Contract(purpose="predict", asker="analyst", label="y", scans=(scan,), blocks=(block,), **terms)
    client.answer(OpenScan(job=job, scan=0, table="people", columns=texts))
    client.answer(ProposeContract(job=job, contract=contract))
    return job


def test_predictions_are_not_called_noisy() -> None:
    """By the terms of an analyst budget rows are not counted, and scores have no noise that would stand for it."""
    paid = AnalystTerms(table="people", epsilon=1.0, delta=1e-5, shares={"metrics": 1.0})
    with pytest.raises(PolicyError, match="a contract to predict has none"):
        propose(over_a_network(minimum_rows=50, keys_in_plain=False), ['"a"'], "0" * 32, analyst=paid)


def score(client: Client, texts: list[str], theta: Any, encoders: Any = None, rows: int = ROWS) -> Any:
    plain = NumberEncoder(mean=np.zeros(1), scale=np.ones(1), fill=np.zeros(1), has_missing=False)
    given: list[Any] = [plain] * len(texts) if encoders is None else encoders
    spec, outputs = ModelSpec(kind="linear"), theta.shape[1]
    job = propose(client, texts, fingerprint(given, theta, spec, outputs))
    return client.answer(
        ScoreRows(
            job=job, scan=0, columns=list(range(len(texts))), rows=np.arange(rows), encoders=given, theta=theta,
            model=spec, name="people", outputs=outputs,
        )
    )  # fmt: skip


@pytest.mark.parametrize("rules", [{"minimum_rows": 50, "keys_in_plain": False}, {"allow_reconstruction": False}])
def test_a_model_that_somebody_made_up_does_not_read_rows(rules: dict[str, Any]) -> None:
    """θ = identity with as many outputs as features returned the features, and the first model was not looked at."""
    with pytest.raises(PolicyError, match=r"5 exact numbers of each row.*allow_reconstruction"):
        score(over_a_network(**rules), [f'"{name}"' for name in NAMES[:5]], np.eye(5))
    client = over_a_network(**rules)
    score(client, [f'"{name}"' for name in NAMES[:5]], np.eye(5)[:, :3])
    with pytest.raises(PolicyError, match="allow_reconstruction"):
        score(client, [f'"{name}"' for name in NAMES[:5]], np.eye(5)[:, 3:])


def test_three_columns_that_fit_into_one_number_are_three_columns() -> None:
    """Whole numbers below 1,000 times 10⁶, 10³ and 1 are one number, whose digits are all three of them."""
    random, names = np.random.default_rng(4), ("u", "v", "w")
    table = pa.table({name: random.permutation(1000)[:ROWS] for name in names})
    texts, packed = [f'"{name}"' for name in names], np.array([[1e6], [1e3], [1.0]])
    for allowed in (False, True):
        source = {"people": open_source(table, "people")}
        client = Client("people", ClientTables(source), Policy(allow_reconstruction=allowed))
        if not allowed:
            with pytest.raises(PolicyError, match=r"1 exact numbers .* 64 bits, and 30 may be enough"):
                score(client, texts, packed)
            continue
        shown = score(client, texts, packed).values[:, 0].astype(np.int64)
        digits = [shown // 10**6, shown // 10**3 % 1000, shown % 1000]
        assert all(sorted(d) == sorted(table[name].to_pylist()) for d, name in zip(digits, names, strict=True))


def test_a_job_under_an_earlier_name_is_another_run() -> None:
    """A server that calls each job alike pays for each of them."""
    with tp.Federation({"people": people()}, policies={"people": Policy(allow_reconstruction=False)}) as owners:
        client = owners._clients["people"]
        inner, names = client.answer, dict[str, str]()

        def answer(message: Any) -> Any:
            if "job" in message.__struct_fields__:
                message = msgspec.structs.replace(message, job=names.setdefault(message.job, "always"))
            return inner(message)

        client.answer = answer  # type: ignore[method-assign]
        for seed in range(2):
            train(owners, seed=seed)
        with pytest.raises(PolicyError, match=r"8 exact numbers of each row.*rule allow_reconstruction"):
            train(owners, seed=2)


def test_invented_categories_and_repeated_columns_do_not_lift_the_limit() -> None:
    many = CategoryEncoder(categories=["f", "m", *(f"x{k}" for k in range(500))], has_missing=False, has_other=False)
    client = over_a_network()
    with pytest.raises(PolicyError, match="allow_reconstruction"):
        score(client, ['"gender"'], np.eye(502)[:, :1], [many])
    with pytest.raises(PolicyError, match="allow_reconstruction"):
        score(client, ['"a"', *(f'"a" * {k}' for k in range(2, 9))], np.eye(8)[:, :1])


def test_splits_that_somebody_made_up_do_not_read_rows() -> None:
    client = over_a_network()
    rule = trees.SplitRule(0, 0, False, None, ["f"], False, False, [])
    job = propose(client, ['"gender"', '"a"'], trees.splits_name([rule]))
    with pytest.raises(PolicyError, match="allow_reconstruction"):
        client.answer(trees.AskRows(job=job, scan=0, columns=[0, 1], rows=np.arange(ROWS), rules=[rule]))


@pytest.mark.parametrize("agreed", ["", trees.splits_name([])])
def test_splits_that_were_not_agreed_on_are_not_asked(agreed: str) -> None:
    """A person approved trees, or that held ones are applied, and the server sent others."""
    client = over_a_network(allow_reconstruction=True)
    rule = trees.SplitRule(0, 0, True, 0.25)
    job = propose(client, ['"a"'], agreed)
    with pytest.raises(PolicyError, match="the splits are not those that were agreed on"):
        client.answer(trees.AskRows(job=job, scan=0, columns=[0], rows=np.arange(ROWS), rules=[rule]))


@pytest.fixture
def distant() -> Iterator[tp.Federation]:
    """A federation whose owner does not trust the server as itself, as over a network."""
    with tp.Federation({"people": people()}, policies={"people": Policy(minimum_rows=50)}) as owners:
        owners._clients["people"].releases.is_in_process = False
        yield owners


def test_weights_that_somebody_made_up_are_no_way_round_the_limit_of_scores(distant: tp.Federation) -> None:
    """What training begins with is predicted first, and what hardly moves from there would be trained here."""
    query = "SELECT p.a, p.b, p.y FROM people p"
    newton: dict[str, Any] = {"algorithm": "newton"}
    honest = train(distant, query, **newton)
    again = train(distant, query.replace("p.b", "p.b, p.c"), **newton, warm_start=honest)  # with one more feature
    assert distant.predict(again, key=[]).num_rows == ROWS
    (block,) = honest.model.blocks
    halved = block.theta * [[1.0], [0.0]]  # one feature of a model that was trained here
    for theta in (*np.eye(2)[:, :, None], halved):
        invented = replace(honest.model, blocks=(replace(block, theta=theta),))
        with pytest.raises(PolicyError, match=r"not trained here.*rule allow_reconstruction"):
            train(distant, query, **newton, warm_start=invented)


@pytest.mark.parametrize("model", ["linear", "boosted"])
def test_a_model_of_its_own_features_is_none_that_was_trained(distant: tp.Federation, model: str) -> None:
    """With a feature as the label, predictions are the feature."""
    given: dict[str, Any] = (
        {"algorithm": "newton"} if model == "linear" else {"trees": 20, "algorithm": None, "min_child_weight": 50}
    )
    result = distant.train("SELECT p.a, p.b, -p.a AS z FROM people p", label="z", model=model, **given)
    with pytest.raises(PolicyError, match="rule allow_reconstruction"):
        distant.predict(result, key=[])


def test_trees_that_somebody_made_up_are_not_added_to(distant: tp.Federation) -> None:
    """What rows answer to them would have left as the first thing, however many splits there are."""
    query = "SELECT p.a, p.b, p.y FROM people p"
    job: dict[str, Any] = {"label": "y", "model": "boosted", "trees": 3, "min_child_weight": 50}
    honest = distant.train(query, **job)
    more = distant.train(query, **job, warm_start=honest)
    assert distant.predict(more, key=[]).num_rows == ROWS
    (block,) = honest.model.blocks
    borders = [msgspec.structs.replace(rule, feature=0, border=k / 8) for k, rule in enumerate(block.splits)]
    invented = replace(honest.model, blocks=(replace(block, splits=tuple(borders)),))
    with pytest.raises(PolicyError, match=r"not trained here.*rule allow_reconstruction"):
        distant.train(query, **job, warm_start=invented)
    strict = Policy(predictions=False)
    with tp.Federation({"people": people()}, policies={"people": strict}) as owners:
        for verb in (owners.train, owners.explain):
            with pytest.raises(PolicyError, match="rule predictions"):
                verb(query, **job, warm_start=honest)


def test_few_rows_are_not_scored() -> None:
    with pytest.raises(PolicyError, match="minimum_rows"):
        score(over_a_network(minimum_rows=50, allow_reconstruction=True), ['"a"', '"b"'], np.eye(2)[:, :1], rows=1)


def test_keys_are_shown_beside_predictions_only_where_they_may_leave() -> None:
    hidden: dict[str, Any] = {"keys_in_plain": False, "minimum_rows": 20}
    with tp.Federation({"people": people()}, policies={"people": Policy(**hidden)}) as owners:
        result = train(owners)
        with pytest.raises(PolicyError, match="rule identifiers"):
            owners.predict(result, key="id")
        assert owners.predict(result, key=[]).num_rows == ROWS
    halves = [people()[: ROWS // 2], people()[ROWS // 2 :]]
    with tp.Federation({"people": halves}, policies={"people": Policy(**hidden)}) as owners:
        answer = owners.predict(train(owners), key=[])  # which owner holds a row is shown, and no key of it
        assert answer.column_names[0] == "client"
        assert answer.num_rows == ROWS
    with tp.Federation({"people": people()}, policies={"people": Policy(identifiers=True, **hidden)}) as owners:
        assert owners.predict(train(owners), key="id").num_rows == ROWS


@pytest.mark.parametrize("classes", [2, 3])
def test_every_number_that_leaves_of_a_row_is_counted_until_they_are_too_many(classes: int) -> None:
    """Of three classes, each prediction is three numbers; an evaluation shows test rows and training rows."""
    random = np.random.default_rng(0)
    wide = pa.table({"y": np.arange(90) % classes} | {f"x{n}": random.normal(size=90) for n in range(60)})
    query = f"SELECT {', '.join(f't.x{n}' for n in range(60))}, t.y FROM t"
    told = Counter[str]()
    with tp.Federation({"t": wide}, policies={"t": Policy(allow_reconstruction=False)}) as federation:
        owner = federation._clients["t"]
        inner = owner.answer

        def answer(message: Any) -> Any:
            answered = inner(message)
            told.update({disclosed.what: width for disclosed, width in disclosures(answered)})
            return answered

        owner.answer = answer  # type: ignore[method-assign]
        given: dict[str, Any] = {"label": "y", "model": "softmax" if classes > 2 else "logistic", "algorithm": "sgd"}
        federation.train(query, **given, epochs=1, batch_size=None)
        counted = [s.numbers for s in owner.log.account.spendings if s.what == "predictions"]
        assert counted == [told["predictions"] + told["held-out predictions"]]
        assert counted[0] % (1 if classes == 2 else 3) == 0
        with pytest.raises(PolicyError, match="allow_reconstruction"):
            federation.train(query, **given, epochs=60, batch_size=None)
        unknowns = sum(_bits_of(wide[f"x{n}"].to_numpy()) for n in range(60))
        most = sum(s.numbers for s in owner.log.account.spendings)
        assert 64 * most < unknowns <= 64 * (most + 2 * (classes if classes > 2 else 1))


@pytest.mark.parametrize(
    ("values", "bits"),
    [
        ([3.0] * 4, 0),
        ([0.0, 1.0], 1),
        ([1.0, 2.0, 5.0, 16.0], 4),
        ([0.0, 2.0**-80, 1.0], 64),
        ([-1e200, 0.0, 1e-9], 64),
    ],
)
def test_a_number_has_no_more_bits_than_a_float_and_a_constant_has_none(values: list[float], bits: float) -> None:
    assert _bits_of(np.array(values)) == bits


def test_as_many_bits_as_a_row_has_are_too_many() -> None:
    releases = Releases(Policy(allow_reconstruction=False))
    told = Spending(table="t", what="scores", name="a", numbers=2, columns=("t.x",))
    releases.check_exposure(told, 129, "it")
    with pytest.raises(PolicyError, match="2 exact numbers of each row, over all jobs, which tell up to 128 bits"):
        releases.check_exposure(told, 128, "it")
    releases.log.spend(told)
    releases.check_exposure(told, 129, "it")  # the same again
    with pytest.raises(PolicyError, match="4 exact numbers"):
        releases.check_exposure(replace(told, name="b"), 256, "it")


def test_each_shuffle_and_each_value_that_a_feature_is_set_to_is_another_model_that_was_not_trained() -> None:
    columns = [f"x{n}" for n in range(12)]
    fine = [0.0, 2.0**-58]
    table = pa.table({c: np.append(np.random.default_rng(n).normal(size=88), fine) for n, c in enumerate(columns)})
    tables = ClientTables({"t": open_source(table, "t")})
    tables.open_scan(OpenScan(job="j", scan=0, table="t", columns=columns))
    own: Any = SimpleNamespace(
        releases=Releases(Policy(allow_reconstruction=False)), scan=lambda r: tables.scan("j", 0)
    )
    own.shows_noise, own.agreed = lambda request: False, lambda job: SimpleNamespace(feature_privacy=None)
    one, theta = np.ones(1), np.ones((12, 1))
    encoders: list[Any] = [NumberEncoder(mean=one, scale=one, fill=one, has_missing=False)] * 12
    given: dict[str, Any] = {"model": ModelSpec(), "name": "t", "outputs": 1, "encoders": encoders, "theta": theta}
    asked = ScoreRows(job="j", scan=0, columns=[*range(12)], rows=np.arange(90), **given)
    shuffled, first, second = replace(asked, shuffled=(3,)), *(replace(asked, fixed=3, value=v) for v in (0.0, 1.0))
    counted = []
    for request in (asked, asked, shuffled, shuffled, first, first, second, replace(first, fixed=4)):
        _score(own, request, (encoders, ModelSpec(), 1), theta)
        counted.append(own.releases.log.account.shown("t", ["t.x0"]))
    assert counted == [1, 1, 2, 3, 4, 4, 5, 6]


@pytest.mark.parametrize("verb", ["explain", "train"])
@pytest.mark.parametrize("allowed", [False, None], ids=["forbidden", "left open"])
def test_under_noise_no_limit_of_exact_numbers_tells_of_a_value(verb: str, allowed: bool | None) -> None:
    """The range of a column would say how many bits a row has: one person's salary, without any noise."""
    names = [f"s{k}" for k in range(16)]
    query, bounds = f"SELECT {', '.join(names)}, y FROM people", dict.fromkeys(names, (0, 1000))
    privacy = {"features": {"epsilon": 1.0, "bounds": bounds}}
    said = []
    for salary in (7.0, 1e12):
        column = [*range(7), salary, *range(8, 120)]
        table = pa.table({**dict.fromkeys(names, column), "y": [0.0, 1.0] * 60})
        policy = Policy(budget={"people": TableBudget(features=50.0)}, allow_reconstruction=allowed)
        with tp.Federation({"people": table}, policies={"people": policy}) as owners:
            try:
                getattr(owners, verb)(query, label="y", algorithm="sgd", epochs=1, privacy=privacy)
                said.append("nothing")
            except PolicyError as refused:
                said.append(str(refused))
    assert said[0] == said[1]
    assert ("allow_reconstruction" in said[0]) == (verb == "train" or allowed is False)


@pytest.mark.parametrize("values", [[0, 1], [0.0, 1.0], [False, True]], ids=["whole", "float", "boolean"])
def test_one_number_tells_a_row_of_bits_under_noise_too(values: list[Any]) -> None:
    names = [f"s{k}" for k in range(16)]
    query, bounds = f"SELECT {', '.join(names)}, y FROM people", dict.fromkeys(names, (0, 1))
    privacy = {"features": {"epsilon": 1.0, "bounds": bounds}}
    with tp.Federation({"people": pa.table({**dict.fromkeys(names, values * 60), "y": [0.0, 1.0] * 60})}) as owners:
        with pytest.raises(PolicyError, match="and 1 may be enough"):
            train(owners, query, privacy=privacy)
        train(owners, query, privacy=privacy | {"allow_reconstruction": True})


def test_the_bits_of_a_column_are_its_range_in_steps_of_the_smallest_difference() -> None:
    assert _bits_of(np.array([1.0, 2.0, 5.0, 16.0])) == 4.0
