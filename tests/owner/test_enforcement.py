"""A request is held to the counts and rows of its contract, message by message, whatever was asked before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.features import FeatureStatistics, OpenPart, SumStatistics
from tablepuppet.exchanges.groups import HoldGroups, SendGroups, SumGroups
from tablepuppet.exchanges.history import HoldCutoffs, SendCutoffs
from tablepuppet.exchanges.keys import BlindKeys, SendKeys
from tablepuppet.exchanges.labels import DescribeLabels, SendLabels, SendSides, SendWeights
from tablepuppet.exchanges.parts import HoldPart, Release, RevealFeatures
from tablepuppet.exchanges.prediction import ScoreOwnRows, ScoreRows, SendIdentifiers, _shuffle
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.exchanges.schema import CountRows
from tablepuppet.exchanges.start import StartPart
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.enforcement import JobUnderContract
from tablepuppet.owner.policy import Policy
from tablepuppet.owner.releases import Releases
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.protocol.columns import CategoryEncoder
from tablepuppet.protocol.contract import (
    BlockTerms,
    Column,
    Contract,
    Folds,
    Moments,
    Role,
    ScanTerms,
    SideTerms,
    Training,
    fingerprint,
)

SCAN = ScanTerms(0, "t", (Column("x", ("feature",)),), None)
BLOCK = BlockTerms("t", 0, (0,))
TRAINING = Training(
    algorithm=msgspec.to_builtins(tp.Newton()),
    model=ModelSpec(),
    epochs=2,
    batch_size=None,
    l2=0.5,
    has_weights=False,
    releases=True,
    sends_second_moments=True,
)
CONTRACT = Contract(purpose="train", asker="ann", label="y", scans=(SCAN,), blocks=(BLOCK,), training=TRAINING)
MASKED = replace(CONTRACT, blocks=(replace(BLOCK, is_masked=True, clients=tuple("abcde")),))
PART = OpenPart(
    job="j", part=0, scan=0, columns=[0], train_rows=None, test_rows=np.zeros(0, np.int64), multiplicity=None
)


def under(contract: Contract, opened: bool = True, **rules: Any) -> JobUnderContract:
    job = JobUnderContract(Policy(**rules), contract=contract)
    if opened:
        ask(job, replace(PART, wants_key=contract.blocks[0].is_masked))
    return job


def ask(job: JobUnderContract, request: Any) -> None:
    EXCHANGES[type(request)].enforce(job, request)


def rows(*numbers: int, **given: Any) -> OpenPart:
    return replace(PART, train_rows=np.array(numbers), **given)


def peers(names: str) -> list[MaskKey]:
    return [MaskKey(name, place, bytes(32), b"") for place, name in enumerate(names)]


@pytest.mark.parametrize("is_expanded", [False, True])
def test_rows_that_take_part_are_counted_once_and_rows_that_there_are_not_never(is_expanded: bool) -> None:
    contract = replace(CONTRACT, training=replace(TRAINING, is_expanded=is_expanded))
    for few in (rows(4, 5), rows(-1, 4, 5), rows(4, 4, 5, 5), rows(-1, -1, -1, 4)):
        with pytest.raises(PolicyError, match=r"at least 3 distinct rows|takes part once"):
            ask(under(contract, opened=False, minimum_rows=3), few)
    for enough in (rows(4, 5, 6), rows(-1, 4, 5, 6), rows(), rows(-1)):
        ask(under(contract, opened=False, minimum_rows=3), enough)
    if is_expanded:
        ask(under(contract, opened=False, minimum_rows=3), rows(4, 4, 5, 6))


def test_a_block_is_opened_as_often_as_the_contract_has_it() -> None:
    job = under(replace(CONTRACT, blocks=(BLOCK, replace(BLOCK, name="u"))))
    ask(job, replace(PART, part=1))
    with pytest.raises(PolicyError, match="its features are a part already"):
        ask(job, replace(PART, part=2))


def test_each_sum_of_statistics_leaves_once() -> None:
    job, first = under(MASKED), SumStatistics(job="j", part=0, columns=[], peers=peers("abcde"))
    for request in (first, replace(first, is_second=True)):
        ask(job, request)
        with pytest.raises(PolicyError, match="was agreed on 1 times"):
            ask(job, request)


def test_sums_are_masked_over_those_who_were_agreed_on_three_at_least_and_as_many_as_the_owner_wants() -> None:
    for names, least, is_allowed in (
        ("abcde", 5, True),
        ("abcd", 4, True),
        ("abcd", 5, False),
        ("abc", 1, True),
        ("ab", 1, False),
        ("", 1, False),
        ("abcx", 1, False),
        ("abcdex", 1, False),
    ):
        job = under(MASKED, minimum_clients=least)
        request = SumStatistics(job="j", part=0, columns=[], peers=peers(names))
        if is_allowed:
            ask(job, request)
            continue
        with pytest.raises(PolicyError, match="masked"):
            ask(job, request)
    with pytest.raises(PolicyError, match="masked over 0 clients, and these would be over 3"):
        ask(under(CONTRACT), SumStatistics(job="j", part=0, columns=[], peers=peers("abc")))


def start(**given: Any) -> StartPart:
    plain: dict[str, Any] = {"algorithm": tp.Newton(), "model": ModelSpec(), "block": 0, "name": "t", "outputs": 1}
    plain |= {"blocks": 1, "clients": 1, "joined_rows": 100, "share": 1.0, "l2": 0.5, "seed": 0}
    return StartPart(job="j", part=0, **(plain | given))


def test_a_part_is_started_once_for_each_model_by_its_terms() -> None:
    several = replace(CONTRACT, fits=2, others=(replace(TRAINING, l2=0.25),))
    for contract in (CONTRACT, several):
        job = under(contract)
        for _ in range(contract.fits):
            ask(job, start())
        with pytest.raises(PolicyError, match=f"start was agreed on {contract.fits} times"):
            ask(job, start())
    ask(under(several), start(l2=0.25))
    limited = replace(CONTRACT, training=replace(TRAINING, most_rows=100))
    ask(under(limited), start())
    weighted = replace(CONTRACT, training=replace(TRAINING, has_weights=True))
    ask(under(weighted, minimum_rows=3), start(weights=np.array([[0.0], [1.0], [1.0], [2.0]])))
    refused: list[tuple[JobUnderContract, StartPart, str]] = [
        (under(CONTRACT), start(l2=0.25), "not those that were agreed on"),
        (under(CONTRACT), start(continues=True), "one model is trained"),
        (under(CONTRACT), start(starts=True), "begins with weights"),
        (under(several), start(multiplicity=np.ones(3)), "no folds were agreed on"),
        (under(limited), start(joined_rows=101), "at most 100 joined rows"),
        (under(weighted, minimum_rows=3), start(weights=np.array([[0.0], [0.0], [1.0], [2.0]])), "leave fewer"),
        (under(CONTRACT, release_parameters=False), start(clients=2), "release_parameters"),
        (under(CONTRACT, second_moments=False), start(clients=2), "second_moments|second moments do not leave"),
    ]
    for job, request, why in refused:
        with pytest.raises(PolicyError, match=why):
            ask(job, request)


def test_a_model_is_applied_as_often_as_was_agreed_to_enough_rows() -> None:
    scoring = replace(CONTRACT, purpose="evaluate", training=None)
    asked = ScoreOwnRows(job="j", scan=0, columns=[0], rows=np.arange(3), model="m", name="t")
    shuffled = replace(asked, shuffled=(0,))
    for contract, times in (
        (scoring, 1),
        (replace(scoring, shuffles=3), 4),
        (replace(scoring, blocks=(BLOCK,) * 2), 2),
    ):
        job = under(contract, opened=False, minimum_rows=3)
        for _ in range(times):
            ask(job, shuffled if contract.shuffles else asked)
        with pytest.raises(PolicyError, match="a model is applied"):
            ask(job, asked)
    with pytest.raises(PolicyError, match="no feature is shuffled"):
        ask(under(scoring, opened=False), shuffled)
    for few in ([0, 1], [0, 1, 1], [-1, 0, 1]):
        with pytest.raises(PolicyError, match="at least 3 distinct rows"):
            ask(under(scoring, opened=False, minimum_rows=3), replace(asked, rows=np.array(few)))


GROUPED = replace(SCAN, merges="sums", clients=3)
OF_GROUPS: dict[str, Any] = {"rows": np.zeros(0, np.int32), "holders": np.zeros(0, np.int32), "commitments": []}


def test_groups_are_merged_once_in_order_among_all_owners_before_rows_are_shown() -> None:
    send = SendGroups(job="j", scan=0)
    add = SumGroups(job="j", scan=0, place=0, peers=peers("abc"), scales=[], **OF_GROUPS)
    hold = HoldGroups(job="j", scan=0, sums=np.zeros((0, 1), np.int64))
    contract = replace(CONTRACT, scans=(GROUPED,))
    job = under(contract, opened=False)
    for early in (add, hold):
        with pytest.raises(PolicyError, match="comes before"):
            ask(job, early)
    ask(job, send)
    with pytest.raises(PolicyError, match="SumGroups comes before HoldGroups"):
        ask(job, hold)
    for names in ("ab", "abcd"):
        with pytest.raises(PolicyError, match="masked among 3 owners"):
            ask(job, replace(add, peers=peers(names)))
    for late in (add, hold):
        ask(job, late)
    for again in (send, add, hold):
        with pytest.raises(PolicyError, match="leave once"):
            ask(job, again)
    for shown in (CountRows(job="j", scan=0), SendKeys(job="j", scan=0)):
        job = under(contract, opened=False)
        ask(job, send)
        ask(job, shown)
        with pytest.raises(PolicyError, match="before their rows are shown"):
            ask(job, add)
    with pytest.raises(PolicyError, match="not merged"):
        ask(under(CONTRACT, opened=False), send)


def test_moments_leave_where_the_contract_has_them_and_all_of_a_history_come_together() -> None:
    told = Moments("t", "x", "h", ("b",), column=0)
    due = replace(told, column=-1)
    scan = replace(SCAN, moments=(told, due, replace(due, table="u")))
    contract = replace(CONTRACT, scans=(scan,))
    job = under(contract, opened=False)
    ask(job, SendCutoffs(job="j", scan=0, place=0))
    for place in (1, 2, 3):
        with pytest.raises(PolicyError, match="no moments that are told"):
            ask(job, SendCutoffs(job="j", scan=0, place=place))
    with pytest.raises(PolicyError, match="leave once"):
        ask(job, SendCutoffs(job="j", scan=0, place=0))
    for count in (1, 3):
        with pytest.raises(PolicyError, match="not read until such moments"):
            ask(job, HoldCutoffs(job="j", scan=0, sealed=[[b""]] * count))
    ask(job, HoldCutoffs(job="j", scan=0, sealed=[[b""]] * 2))
    with pytest.raises(PolicyError, match="leave once"):
        ask(job, HoldCutoffs(job="j", scan=0, sealed=[[b""]] * 2))
    with pytest.raises(PolicyError, match="not read until such moments"):
        ask(under(CONTRACT, opened=False), HoldCutoffs(job="j", scan=0, sealed=[[b""]]))


def test_keys_of_others_are_blinded_for_domains_that_left_and_up_to_the_agreed_number() -> None:
    key = replace(SCAN, columns=(Column("x", ("key",), domain=4),))
    job = under(replace(CONTRACT, scans=(key,), keys="dh", most_keys=5), opened=False)
    blind = BlindKeys(job="j", domain="4", points=np.zeros((3, 32), np.uint8))
    with pytest.raises(PolicyError, match="and no others"):  # not before its own
        ask(job, blind)
    ask(job, SendKeys(job="j", scan=0))
    for domain in ("5", "-1", ""):
        with pytest.raises(PolicyError, match="and no others"):
            ask(job, replace(blind, domain=domain))
    ask(job, blind)
    ask(job, replace(blind, points=blind.points[:2]))
    with pytest.raises(PolicyError, match="5 keys of others are blinded at most"):
        ask(job, replace(blind, points=blind.points[:1]))
    with pytest.raises(PolicyError, match="nobody else's are blinded"):
        ask(under(CONTRACT, opened=False), blind)


def test_sides_of_a_split_are_those_of_the_contract_once_each() -> None:
    terms = SideTerms(0, 0.25, seed=3)
    job = under(replace(CONTRACT, purpose="predict", training=None, sides=(terms,)), opened=False)
    asked = SendSides(job="j", scan=0, offset=0, terms=terms)
    for other in (replace(terms, seed=4), replace(terms, test_fraction=0.5), replace(terms, is_keyed=False)):
        with pytest.raises(PolicyError, match="by the seed and in the shares"):
            ask(job, replace(asked, terms=other))
    with pytest.raises(PolicyError, match="as the split"):
        ask(job, replace(asked, test_column=0))
    ask(job, asked)
    with pytest.raises(PolicyError, match="leave once"):
        ask(job, asked)


def test_parameters_and_features_leave_where_contract_and_owner_let_them_and_once() -> None:
    pooled = replace(CONTRACT, training=replace(TRAINING, is_pooled=True))
    held = replace(CONTRACT, training=replace(TRAINING, releases=False))
    release, pool = Release(job="j", part=0), RevealFeatures(job="j", part=0)
    hold = HoldPart(job="j", part=0, block=0, features=["x"])
    for contract, request in ((CONTRACT, release), (pooled, pool), (held, hold)):
        job = under(contract)
        if request is not pool:
            with pytest.raises(PolicyError, match="was not started"):
                ask(job, request)
            ask(job, start())
        ask(job, request)
        with pytest.raises(PolicyError, match="was agreed on 1 times"):
            ask(job, request)
    for contract, asked, why in ((held, release, "stay here"), (CONTRACT, pool, "are not pooled")):
        job = under(contract)
        ask(job, start())
        with pytest.raises(PolicyError, match=why):
            ask(job, asked)
    for contract, asked in ((CONTRACT, release), (pooled, pool)):
        job = under(contract, release_parameters=False)
        ask(job, start())
        with pytest.raises(PolicyError, match=r"\(rule release_parameters\)"):
            ask(job, asked)
    trees = replace(CONTRACT, training=replace(TRAINING, algorithm=msgspec.to_builtins(tp.Boosting(trees=2, depth=2))))
    for wrong in (release, hold):
        with pytest.raises(PolicyError, match="another kind of model"):
            ask(under(trees), wrong)
    apart: Any = SimpleNamespace(may_reveal=False, policy=Policy(), part=lambda request: None)
    with pytest.raises(PolicyError, match="features are never pooled"):  # between processes, whatever was agreed on
        EXCHANGES[RevealFeatures].handle(apart, pool)


ROLES: tuple[Role, ...] = ("label", "weight", "split", "identifier", "feature", "key", "cutoff")
OF_ONE_ROLE: dict[str, tuple[Role, Any]] = {
    "classes": ("label", lambda c: DescribeLabels(job="j", scan=0, column=c, wants_classes=False)),
    "labels": ("label", lambda c: SendLabels(job="j", scan=0, offset=0, column=c, classes=None)),
    "weights": ("weight", lambda c: SendWeights(job="j", scan=0, column=c)),
    "identifiers": ("identifier", lambda c: SendIdentifiers(job="j", scan=0, columns=[c])),
    "test rows": ("split", lambda c: SendLabels(job="j", scan=0, offset=0, column=0, classes=None, test_column=c)),
    "folds": ("split", lambda c: SendLabels(job="j", scan=0, offset=0, column=0, classes=None, fold_column=c)),
    "validation rows": (
        "split",
        lambda c: SendLabels(job="j", scan=0, offset=0, column=0, classes=None, validation_column=c),
    ),
}


@pytest.mark.parametrize("name", OF_ONE_ROLE)
def test_an_expression_is_read_in_the_role_that_it_was_agreed_on_for(name: str) -> None:
    role, asked = OF_ONE_ROLE[name]
    scan = replace(SCAN, columns=tuple(Column("x", (each,)) for each in ROLES))
    contract = replace(CONTRACT, scans=(scan,), folds=Folds(3))
    for column, each in enumerate(ROLES):
        job = under(contract, opened=False)
        if each == role:
            ask(job, asked(column))
            continue
        with pytest.raises(PolicyError, match=f"asked for as the {role}, and it is not"):
            ask(job, asked(column))


def test_the_model_that_was_agreed_on_is_applied_and_its_feature_set_to_values_as_agreed() -> None:
    encoder = CategoryEncoder(categories=["a", "b"], has_missing=False, has_other=False)
    given: dict[str, Any] = {"encoders": [encoder], "theta": np.ones((2, 1)), "model": ModelSpec(), "outputs": 1}
    named = fingerprint(given["encoders"], given["theta"], given["model"], 1)
    asked = ScoreRows(job="j", scan=0, columns=[0], rows=np.arange(3), name="t", **given)
    plain = replace(BLOCK, model=named)
    scoring = replace(CONTRACT, purpose="evaluate", training=None, blocks=(plain,))
    ask(under(scoring, opened=False), asked)
    several = replace(scoring, blocks=(plain, replace(plain, fixed=0, values=2)))
    ask(under(several, opened=False), replace(asked, fixed=0, value="a"))
    other = replace(scoring, blocks=(replace(plain, model=named[:-1] + ("0" if named[-1] != "0" else "1")),))
    with pytest.raises(PolicyError, match="not the one that was agreed on"):
        ask(under(other, opened=False), asked)
    for name, value in (
        ("theta", np.zeros((2, 1))),
        ("outputs", 2),
        ("model", ModelSpec(kind="mlp")),
        ("encoders", []),
    ):
        with pytest.raises(PolicyError, match="not the one that was agreed on"):
            ask(under(scoring, opened=False), replace(asked, **{name: value}))
    ways: list[tuple[Contract, int]] = [
        (scoring, 0), (several, 1), (replace(scoring, blocks=(replace(plain, fixed=0),)), 0),
    ]  # fmt: skip
    for contract, fixed in ways:
        with pytest.raises(PolicyError, match="not set to any value"):
            ask(under(contract, opened=False), replace(asked, fixed=fixed))


def test_values_are_shuffled_among_the_rows_that_are_asked_for() -> None:
    column, rows = pa.chunked_array([list(range(40))]), np.array([-1, *range(10, 30), 12])
    found = np.array([_shuffle(column, rows).to_pylist() for _ in range(3)])
    assert (found[:, :10] == np.arange(10)).all()
    assert (found[:, 30:] == np.arange(30, 40)).all()
    assert (np.sort(found[:, 10:30], axis=1) == np.arange(10, 30)).all()
    assert len({tuple(order) for order in found.tolist()}) == 3


def test_scores_are_limited_where_the_owner_says_so_and_by_itself_between_processes() -> None:
    for allowed, here, between in ((None, False, True), (True, False, False), (False, True, True)):
        found = [Releases(Policy(allow_reconstruction=allowed), is_in_process=h).limits_scores for h in (True, False)]
        assert found == [here, between], allowed


def test_statistics_are_rounded_from_two_rows_on_by_a_key_of_their_owner() -> None:
    numbers = {f"x{n}": [float(n), 1.0, 2.5, 4.0 + n] * 5 for n in range(8)}
    table, told = pa.table(numbers | {"y": [0.5, 1.0, 2.0, 3.0] * 5}), list[list[float]]()
    for least in (1, 2, 2):
        with tp.Federation({"t": table}, policies={"t": Policy(minimum_rows=least)}) as federation:
            owner = federation._clients["t"]

            def answer(message: Any, inner: Any = owner.answer) -> Any:
                found = inner(message)
                if isinstance(found, FeatureStatistics):
                    told.append([float(column.mean[0]) for column in found.columns])  # type: ignore[union-attr]
                return found

            owner.answer = answer  # type: ignore[method-assign]
            federation.train(f"SELECT {', '.join(numbers)}, y FROM t", label="y", epochs=1, test_fraction=0.0)
    exact, first, second = told
    assert exact == [(2 * n + 7.5) / 4 for n in range(8)]
    assert sum(a != b for a, b in zip(exact, first, strict=True)) > 4
    assert first != second
