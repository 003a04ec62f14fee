"""What an owner agrees to under each of its rules, and what it refuses: contracts as a server could propose them."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.client import Client
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.features import OpenPart
from tablepuppet.exchanges.labels import DescribeLabels, SendLabels
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.schema import CloseJob, OpenScan
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.policy import LabelRules, Policy, TableRules
from tablepuppet.owner.scans import ScanUse
from tablepuppet.owner.tables import ClientTables
from tablepuppet.privacy.accounting import Mechanism
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.privacy.options import FeaturePrivacy, LabelPrivacy, PredictionPrivacy
from tablepuppet.protocol.contract import BlockTerms, Column, Contract, Role, ScanTerms, SideTerms, Training
from tablepuppet.sources.source import open_source

ROWS = 60


def make_tables() -> dict[str, pa.Table]:
    random = np.random.default_rng(0)
    k, x, w = random.integers(0, 6, ROWS), random.normal(size=ROWS), np.ones(ROWS)
    y, g = np.arange(ROWS) % 2, [f"g{n % 3}" for n in range(ROWS)]
    t = pa.table({"id": np.arange(ROWS), "k": k, "x": x, "z": x * x, "y": y, "w": w, "g": g})
    return {"t": t, "u": pa.table({"k": np.arange(6), "v": random.normal(size=6)})}


NEWTON = Training(msgspec.to_builtins(tp.Newton()), ModelSpec(kind="linear"), 2, None, 0.1, False, True)
NOISE = FeaturePrivacy(noise=1.0)
LOCAL = PredictionPrivacy(mode="local", epsilon=1.0)


def scan(*columns: tuple[str, Role], where: str | None = None, query: str | None = None, **terms: Any) -> ScanTerms:
    return ScanTerms(0, "t", tuple(Column(text, (role,)) for text, role in columns), where, query=query, **terms)


def uses(*more: tuple[str, Role], key: str = '"k"', where: str | None = None, **terms: Any) -> dict[str, Any]:
    """The scan of an honest job, and further columns."""
    return {"scans": (scan((key, "key"), ('"x"', "feature"), ('"y"', "label"), *more, where=where, **terms),)}


def block(**terms: Any) -> dict[str, Any]:
    return {"blocks": (BlockTerms("t", 0, (1,), **terms),)}


def trees(**options: Any) -> dict[str, Any]:
    given = msgspec.to_builtins(tp.Boosting(trees=3, depth=2)) | options
    return {"training": replace(NEWTON, algorithm=given, model=ModelSpec(kind="boosted"))}


TRAIN = Contract(purpose="train", asker="ann", label="y", **uses(), **block(), training=NEWTON)
TO_PREDICT: dict[str, Any] = {
    "purpose": "predict", "training": None, **block(model="m"), "scans": (scan(('"k"', "key"), ('"x"', "feature")),)
}  # fmt: skip
TO_EVALUATE = TO_PREDICT | {"purpose": "evaluate", **uses()}
NOISY: dict[str, Any] = {"feature_privacy": NOISE}
LABELS: dict[str, Any] = {"label_privacy": LabelPrivacy(epsilon=1.0)}
FEATURES: dict[str, Any] = {"budget": {"t": TableBudget(features=9.0)}}
TOLD: dict[str, Any] = {"budget": {"t": TableBudget(label=9.0)}}
PERSONS: dict[str, Any] = {"tables": {"t": TableRules(subject="g", rows_per_subject=2)}}
GROUPS = "SELECT k, avg(x) AS x, max(y) AS y FROM t GROUP BY k"
IN_BOTH = "SELECT t.k, t.x + u.v AS x, t.y FROM t JOIN (SELECT k, max(v) AS v FROM u GROUP BY k) u ON t.k = u.k"
RANKED = "SELECT k, rank() OVER (ORDER BY x) AS x, y FROM t"


def shown(**rules: Any) -> dict[str, Any]:
    return {"tables": {"t": TableRules(**({"features": ("x",), "keys": ("k",), "labels": ("y",)} | rules))}}


def identified(**rules: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    named = scan(('"k"', "key"), ('"x"', "feature"), ('"k"', "identifier"))
    return rules, TO_PREDICT | {"scans": (named,)}


def sides(*, is_keyed: bool) -> dict[str, Any]:
    return TO_EVALUATE | {"sides": (SideTerms(0, 0.2, is_keyed=is_keyed),)}


def grouped(**terms: Any) -> dict[str, Any]:
    return uses(query=GROUPS, stability={"t": 2}) | terms


STRICT = LabelRules(epsilon=1.0)
CASES: dict[str, list[tuple[dict[str, Any], dict[str, Any], str]]] = {  # rules, terms, refusal
    "labels": [
        ({}, {}, ""),
        ({"labels": LabelRules(leave=False)}, {}, r"rule labels\.leave"),
        ({"labels": STRICT}, {}, "the job asks for them as they are"),
        ({"labels": STRICT}, LABELS, ""),
        ({"labels": STRICT}, {"label_privacy": LabelPrivacy(epsilon=1.01)}, "the job has ε = 1.01"),
        ({"labels": STRICT}, LABELS | uses(('"w"', "weight")), "randomised, and weights cannot"),
        ({"labels": LabelRules(leave=False)}, {"scans": (scan(('"x"', "feature"), ('"w"', "weight")),), **block()},
         "neither labels nor weights leave"),
        (TOLD, {}, "labels of t have a budget, and the job asks for them without noise"),
        (TOLD, LABELS, ""),
        (TOLD, TO_EVALUATE, "labels of t have a budget, and the job asks for them without noise"),
        ({}, LABELS | grouped(), "would draw the labels of t anew"),
    ],
    "keys": [
        ({"keys_in_plain": False}, {"keys": "plain"}, "rule keys_in_plain"),
        ({"keys_in_plain": False}, {}, ""),
        ({"keys_need_dh": True}, {}, "rule keys_need_dh"),
        ({"keys_need_dh": True}, {"keys": "dh"}, ""),
        ({"max_blinded_keys": 5}, {"keys": "dh", "most_keys": 6}, "at most 5 keys of others are blinded"),
        ({"max_blinded_keys": 5}, {"keys": "dh", "most_keys": 5}, ""),
        (*identified(identifiers=False), "rule identifiers"),
        (*identified(keys_in_plain=False, minimum_rows=5), "rule identifiers"),
        (*identified(keys_in_plain=False, minimum_rows=5, identifiers=True), ""),
        (*identified(keys_in_plain=False), ""),
        (*identified(minimum_rows=5), ""),
    ],
    "sums": [
        ({"minimum_clients": 3}, {}, "masked sums over at least 3 clients of a table, and here they would be 1"),
        ({"minimum_clients": 3}, uses(clients=3), "and here they would be 1"),
        ({"minimum_clients": 3}, uses(clients=3) | block(is_masked=True), ""),
        ({"minimum_clients": 3}, uses(clients=2) | block(is_masked=True), "and here they would be 2"),
        ({"own_noise": True}, NOISY | uses(clients=3, stability={"t": 1}), "rule own_noise"),
        ({"own_noise": True}, NOISY | uses(clients=2, stability={"t": 1}), ""),
        ({"own_noise": True}, {"feature_privacy": replace(NOISE, shared_noise=False)} | uses(clients=3), ""),
        ({"second_moments": False}, {"training": replace(NEWTON, sends_second_moments=True)}, ""),
        ({"second_moments": False}, {"training": replace(NEWTON, sends_second_moments=True), **uses(clients=2)},
         "rule second_moments"),
        ({}, grouped(scans=uses(query=GROUPS, stability={"t": 2}, merges="sums", clients=2)["scans"]),
         "sums of groups of t are not merged"),
        ({"merge_groups": True}, uses(query=GROUPS, stability={"t": 2}, merges="sums", clients=2), ""),
        ({"merge_groups": True}, uses(query=GROUPS, stability={"t": 2}, merges="extremes", clients=2),
         "least and greatest values of groups of t are not merged"),
        ({"merge_groups": "extremes"}, uses(query=GROUPS, stability={"t": 2}, merges="extremes", clients=2), ""),
        ({"merge_groups": True, "minimum_clients": 3},
         uses(query=GROUPS, stability={"t": 2}, merges="sums", clients=2) | block(is_masked=True), "would be 2"),
        ({"merge_groups": True, **FEATURES},
         NOISY | uses(query=GROUPS, stability={"t": 2}, merges="sums", clients=2),
         "sums of groups would leave as they are"),
    ],
    "reconstruction": [
        ({"allow_reconstruction": False}, trees(), "train with max_splits"),
        ({"allow_reconstruction": False}, trees(max_splits=3), ""),
        ({"allow_reconstruction": False, "max_splits": 3}, trees(), ""),
        ({"allow_reconstruction": False}, {}, "training would show 1 exact numbers of each row"),
        ({"allow_reconstruction": False}, {"prediction_privacy": LOCAL}, ""),
        ({"predictions": False}, block(start=({},)), "rule predictions"),
        ({"predictions": "held"}, block(start=({},)), "rule predictions"),
        ({"predictions": "held"}, trees() | block(model="m"), "rule predictions"),
        ({"predictions": True}, block(start=({},)), ""),
        ({"predictions": False}, TO_PREDICT, "rule predictions"),
        ({"predictions": False}, TO_PREDICT | block(), "rule predictions"),
        ({"predictions": "held"}, TO_PREDICT, "rule predictions"),
        ({"predictions": "held"}, TO_PREDICT | block(), ""),
        ({"predictions": True}, TO_PREDICT, ""),
    ],
    "features with a budget": [
        (FEATURES, {}, "features of t have a budget, and the job asks for them without noise"),
        (FEATURES, {"purpose": "explain"}, "features of t have a budget, and the job asks for them without noise"),
        (FEATURES, NOISY, ""),
        (FEATURES, TO_PREDICT, "scores would be computed from them as they are"),
        (FEATURES | {"predictions": True}, TO_PREDICT, ""),
        (FEATURES, TO_EVALUATE, "metrics would be computed from them as they are"),
        (FEATURES | {"predictions": True}, TO_EVALUATE, "metrics would be computed from them as they are"),
        (FEATURES, NOISY | uses(where='"z" > 0'), "column z is also a filter"),
        (FEATURES, NOISY | uses(('"z" > 0', "split")), "column z is also the split"),
        (FEATURES, NOISY | uses(('"w"', "weight")), "column w is also a weight"),
        (FEATURES, NOISY | uses(key='"k" + "z"'), "is also part of a computed join key"),
        (FEATURES, NOISY | grouped(), "without noise|is also"),
    ],
    "other ways": [
        ({}, NOISY | uses(where='"x" > 0'), "features leave under noise only, and column x is also a filter"),
        ({}, NOISY | uses(('"x" > 0', "split")), "column x is also the split"),
        ({}, NOISY | uses(('"x"', "weight")), "column x is also a weight"),
        ({}, NOISY | uses(('"x"', "label")), "column x is also the label"),
        ({}, NOISY | uses(key='"x" + "k"'), "is also part of a computed join key"),
        ({}, NOISY | uses(where='"z" > 0'), ""),
        ({}, NOISY | uses(('"z" > 0', "split")), ""),
        (shown(filters=("x",)), NOISY | uses(where='"x" > 0'), ""),
        ({}, LABELS | uses(where='"y" > 0'), "labels leave under noise only, and column y is also a filter"),
        ({}, LABELS | uses(('"y" > 0', "split")), "column y is also the split"),
        ({}, LABELS | uses(('"y"', "weight")), "column y is also a weight"),
        ({}, LABELS | uses(('"y"', "feature")), "column y is also a feature"),
        ({}, LABELS | uses(key='"y"'), "column y is also a join key"),
        ({}, NOISY | uses(('CAST("k" AS VARCHAR)', "feature")) | {"blocks": (BlockTerms("t", 0, (1, 3)),)},
         "makes names of numbers of t"),
        (shown(features=("x", "k"), texts=("k",)), NOISY | uses(('CAST("k" AS VARCHAR)', "feature")), ""),
        ({}, NOISY | uses(('"g"', "feature")), ""),
    ],
    "several models": [
        ({}, NOISY | {"fits": 2}, "noise on features is counted for one"),
        ({}, NOISY | {"others": (NEWTON,)}, "noise on features is counted for one"),
        ({}, {"prediction_privacy": LOCAL, "fits": 2}, "noise on features is counted for one"),
        ({}, {"fits": 2, "others": (NEWTON,)}, ""),
        ({}, TO_PREDICT | {"training": NEWTON}, "terms of training that do not belong to it"),
        ({}, TO_EVALUATE | {"training": NEWTON}, "terms of training that do not belong to it"),
        ({}, {"purpose": "explain"}, ""),
        ({}, {"blocks": (BlockTerms("t", 0, (1, 2)),)}, "expressions that are no features of it"),
    ],
    "columns": [
        (shown(), {}, ""),
        (shown(features=()), {}, r"column x may not be read \(rule tables\.t\)"),
            (shown(features=("z",), keys=("k", "x")), {}, r"column x may not be a feature \(rule tables\.t\.features"),
            (shown(keys=("z",), features=("k", "x")), {}, "column k may not be a join key"),
            (shown(labels=("z",), features=("y", "x")), {}, "column y may not be the label or a weight"),
        (shown(keys=()), {}, "column k may not be"),
        (shown(labels=()), {}, "column y may not be"),
        (shown(), uses(where='"k" > 1'), ""),
        (shown(filters=()), uses(where='"k" > 1'), "column k may not be filtered by"),
        (shown(labels=("y", "w")), uses(('"w"', "weight")), ""),
        (shown(features=("x", "w")), uses(('"w"', "weight")), "column w may not be the label or a weight"),
        (shown(features=("x", "w")), uses(('"w" > 0', "split")), "column w may not be filtered by"),
        (shown(features=("x", "w")), TO_PREDICT | {"scans": (scan(('"x"', "feature"), ('"w"', "identifier")),),
         "blocks": (BlockTerms("t", 0, (0,), model="m"),)}, "column w may not be a join key"),
    ],
    "rows that a query makes": [
        (PERSONS, grouped(), "which do not say whom they are about"),
        (PERSONS, NOISY | uses(clients=3, stability={"t": 6}, subject="g"), ""),
        (PERSONS, NOISY | uses(clients=3, stability={"t": 5}, subject="g"), "counts fewer rows of one subject"),
        (PERSONS, NOISY, "counts fewer rows of one subject"),
        ({}, grouped(), ""),
        ({}, uses(query=GROUPS, stability={"t": 1}), "counts fewer rows of a query than one row of its tables"),
        ({}, uses(query=GROUPS), "counts fewer rows of a query than one row of its tables"),
        ({}, uses(query=GROUPS, stability={"t": None}), ""),
        ({}, uses(query=RANKED, stability={"t": 99}), "counts fewer rows of a query than one row of its tables"),
        ({}, NOISY | uses(query=RANKED, stability={"t": None}), "and no noise covers that"),
        ({}, NOISY | uses(query=IN_BOTH, stability={"t": None, "u": None}), "reads 2; join the tables outside"),
        ({}, NOISY | uses(query=GROUPS, stability={"t": 2}), ""),
    ],
    "sides": [
        ({}, sides(is_keyed=False), ""),
        ({"minimum_rows": 5}, sides(is_keyed=True), ""),
        ({"minimum_rows": 5}, sides(is_keyed=False), "by a function that everybody knows"),
        (TOLD, LABELS | sides(is_keyed=False), "by a function that everybody knows"),
        ({"labels": STRICT}, LABELS | sides(is_keyed=False), "by a function that everybody knows"),
        ({"minimum_rows": 5}, TO_PREDICT | {"scans": (replace(TO_PREDICT["scans"][0], filter='"z" > 0'),)},
         "not on column z"),
        ({"minimum_rows": 5}, TO_PREDICT | {"scans": (replace(TO_PREDICT["scans"][0], filter='"k" > 0'),)}, ""),
        ({"minimum_rows": 5},
         TO_PREDICT | {"scans": (scan(('"k"', "key"), ('"x"', "feature"), ('"z" > 0', "split")),)}, "not on column z"),
    ],
}  # fmt: skip


def propose(client: Client, contract: Contract, job: str = "j") -> Any:
    for own in contract.scans:
        columns = [column.expression for column in own.columns]
        opened = OpenScan(job=job, scan=own.scan, table=own.table, columns=columns, filter=own.filter, query=own.query)
        client.answer(opened)
    return client.answer(ProposeContract(job=job, contract=contract))


def new_client(**rules: Any) -> Client:
    sources = {name: open_source(table, name) for name, table in make_tables().items()}
    return Client("owner", ClientTables(sources), Policy(**rules), key=b"k" * 32)


@pytest.mark.parametrize("room", CASES)
def test_an_owner_agrees_by_its_rules_and_writes_down_what_it_did(room: str) -> None:
    wrong = []
    for rules, terms, why in CASES[room]:
        client, contract = new_client(**rules), replace(TRAIN, **terms)
        try:
            found = "" if propose(client, contract).is_agreed else "waits"
        except PolicyError as error:
            found = str(error)
        if bool(found) != bool(why) or not re.search(why, found):
            wrong.append((rules, terms, why, found))
        last = client.log.entries[-1].event
        if last != ("refused" if why else "agreed"):
            wrong.append((rules, terms, why, last))
    assert not wrong


def test_the_log_names_rows_by_a_key_of_their_owner() -> None:
    """Whoever knows all rows but one, and sees the log, could otherwise test a guess about that one."""
    told = []
    for secret in (b"a" * 32, b"b" * 32, b"a" * 32):
        client = new_client(minimum_rows=2)
        client.secret = secret
        assert propose(client, TRAIN).is_agreed
        told.append(client.log.entries[-1].detail["rows"])
    assert set(told[0]) == {"rows of t"}
    assert told[0] == told[2] != told[1]


def test_a_job_whose_contract_was_agreed_to_is_compared_with_the_next_and_ends_by_its_name() -> None:
    client = new_client(minimum_rows=5)
    assert propose(client, TRAIN).is_agreed
    assert propose(client, TRAIN, "again").is_agreed
    fewer = replace(TRAIN, scans=(replace(TRAIN.scans[0], filter='"id" <> 7'),))
    with pytest.raises(PolicyError, match="fewer than 5 rows"):
        propose(client, fewer, "one fewer")
    other = new_client(minimum_difference=5)  # and single rows may be told apart
    assert propose(other, TRAIN).is_agreed
    with pytest.raises(PolicyError, match="differ from those of an earlier agreed job by fewer than 5"):
        propose(other, fewer, "one fewer")
    more = Client("owner", new_client().tables, client.policy, key=client.key, row_sets=client.row_sets)
    one_gone = make_tables()["t"].slice(1)
    more.tables = ClientTables({"t": open_source(one_gone, "t")})
    with pytest.raises(PolicyError, match="differ from those of an earlier agreed job by fewer than 5"):
        propose(more, TRAIN)
    charged = client.releases.charge_whole_model("j", ScanUse("t", (), frozenset()), (Mechanism(1.0, 5),))
    client.answer(CloseJob(job="j"))
    again = client.releases.charge_whole_model("j", ScanUse("t", (), frozenset()), (Mechanism(1.0, 5),))
    assert again.name != charged.name
    assert client.contracts.contract("j") is None
    assert client.contracts.contract("again") == TRAIN


def test_sets_of_rows_of_one_job_are_compared_with_each_other() -> None:
    for where, is_allowed in (('"id" < 33', False), ('"id" < 35', True), ('"id" < 30', True)):
        other = ScanTerms(1, "t", (Column('"k"', ("key",)),), where)
        contract = replace(TRAIN, scans=(replace(TRAIN.scans[0], filter='"id" < 30'), other))
        client = new_client(minimum_rows=5)
        if is_allowed:
            assert propose(client, contract).is_agreed
            continue
        with pytest.raises(PolicyError, match="differ from those of an earlier agreed job by fewer than 5"):
            propose(client, contract)


def owner_of(table: dict[str, Any], **rules: Any) -> Client:
    return Client("owner", ClientTables({"t": open_source(pa.table(table), "t")}), Policy(**rules), key=b"k" * 32)


@pytest.mark.parametrize(("others", "is_allowed"), [(0, True), (1, False), (20, False), (29, False), (30, True)])
def test_a_number_in_which_few_rows_differ_from_all_others_is_no_feature(others: int, is_allowed: bool) -> None:
    table = make_tables()["t"].to_pydict() | {"x": [7.5] * (ROWS - others) + [1.0] * others}
    client = owner_of(table, minimum_rows=40)
    if is_allowed:
        assert propose(client, TRAIN).is_agreed
        return
    with pytest.raises(PolicyError, match="all rows of t but fewer than 40 have the same"):
        propose(client, TRAIN)


def test_joined_rows_count_as_so_many_rows_that_are_joined_alike() -> None:
    """Thirty rows that are joined three times and thirty that are joined once: (Σw)² / Σw² = 120² / 300 = 48."""
    times = np.repeat([3, 1], 30)
    part = OpenPart(
        job="j", part=0, scan=0, columns=[1], train_rows=None, test_rows=np.zeros(0, int), multiplicity=times
    )
    for least, is_allowed in ((48, True), (49, False)):
        client = new_client(minimum_rows=least)
        unlabelled = replace(TRAIN, scans=(scan(('"k"', "key"), ('"x"', "feature")),))
        assert propose(client, unlabelled).is_agreed
        if is_allowed:
            client.answer(part)
            continue
        with pytest.raises(PolicyError, match="few rows of t are most of all joined rows"):
            client.answer(part)


def test_an_expression_is_about_the_rows_that_its_filter_leaves() -> None:
    """It is 0 but for three rows of forty, and for twenty-three of sixty."""
    late = scan(('"k"', "key"), ('GREATEST("id" - 36, 0)', "feature"), ('"y"', "label"))
    assert propose(new_client(minimum_rows=5), replace(TRAIN, scans=(late,))).is_agreed
    with pytest.raises(PolicyError, match="an expression on t tells of fewer than 5 rows"):
        propose(new_client(minimum_rows=5), replace(TRAIN, scans=(replace(late, filter='"id" < 40'),)))


@pytest.mark.parametrize("rare", [1, 2, 5])
def test_a_class_has_as_many_rows_as_the_owner_wants(rare: int) -> None:
    table = make_tables()["t"].to_pydict()
    for values in ([*"abc" * 19, *"abc"], [0, 1, 2] * 20):
        table["y"] = [*[values[0]] * (ROWS - rare), *values[1:2] * rare]
        for least, is_allowed in ((1, True), (2, rare >= 2), (rare, True), (rare + 1, False)):
            client = owner_of(table, minimum_rows=least)
            assert propose(client, TRAIN).is_agreed
            is_text = isinstance(values[0], str)
            classes: list[Any] = values[:2] if is_text else [0.0, 1.0]
            requests: list[Any] = [SendLabels(job="j", scan=0, offset=0, column=2, classes=classes)]
            requests += [DescribeLabels(job="j", scan=0, column=2)] if is_text else []
            for request in requests:
                if is_allowed:
                    client.answer(request)
                    continue
                with pytest.raises(PolicyError, match="are of some class of the label"):
                    client.answer(request)
