"""Requests of honest jobs with one thing changed: the contract or the bounds of the message refuse each of them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.attacks.meddler import QUERY, shop
from tests.attacks.test_group_sums import Server

import tablepuppet as tp
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.tree_checks import WHOLE, Key, NumberBins
from tablepuppet.algorithms.newton.client import NewtonUpdate
from tablepuppet.algorithms.sgd.rounds import SgdUpdate
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.exchanges.features import FindIds, OpenPart, SumStatistics
from tablepuppet.exchanges.groups import SendGroups
from tablepuppet.exchanges.keys import SendKeys
from tablepuppet.exchanges.labels import DescribeLabels, SendLabels
from tablepuppet.exchanges.parts import EncodeFeatures, Evaluate, RevealFeatures
from tablepuppet.exchanges.prediction import SendIdentifiers
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.exchanges.start import MultiplyGram, StartPart
from tablepuppet.exchanges.steps import Seal
from tablepuppet.models.spec import ModelSpec
from tablepuppet.protocol.base import Combined, Message, Move
from tablepuppet.protocol.bounds import WrongError

Change = Callable[[Any], Message]
NAN = float("nan")


def first(given: list[Any], **changed: Any) -> list[Any]:
    return [replace(given[0], **changed), *given[1:]]


def listen(federation: tp.Federation, who: str, changes: list[tuple[type, Change, str]]) -> list[str]:
    """What is not refused as it should be, of changes to the first request of each kind; the job itself goes on."""
    owner, missed, heard = federation._clients[who], [], set[type]()
    inner = owner.answer

    def refusal(message: Any) -> str:
        try:
            exchange = EXCHANGES[type(message)]
            job = copy.deepcopy(owner.contracts.jobs[message.job])
            if job.contract is not None and job.contract.purpose not in exchange.purposes and exchange.purposes:
                return "has no"
            exchange.enforce(job, message)
            exchange.check_request(owner, message)
        except (PolicyError, TransportError) as error:
            return str(error)
        except WrongError as wrong:
            return f"{wrong.field} {wrong.what}"
        return ""

    def answer(message: Any) -> Message:
        if type(message) not in heard and getattr(message, "job", "") in owner.contracts.jobs:
            heard.add(type(message))
            for kind, change, why in changes:
                if isinstance(message, kind) and not re.search(why, found := refusal(change(message))):
                    missed.append(f"{kind.__name__}: {why!r}, and not {found!r}")
        return inner(message)

    owner.answer = answer  # type: ignore[method-assign]
    missed += [f"{kind.__name__} is never asked" for kind, _, _ in changes if kind in heard]
    return missed


def said(job: Any, who: str, changes: list[tuple[type, Change, str]], **options: Any) -> list[str]:
    with tp.Federation(**({"tables": shop(), "key": b"k" * 32} | options)) as federation:
        missed = listen(federation, who, changes)
        job(federation)
    return missed


def train(**options: Any) -> Any:
    given = {"label": "y", "model": "logistic", "algorithm": "newton", "epochs": 1} | options
    return lambda federation: federation.train(QUERY, **given)


OF_ITEMS: list[tuple[type, Change, str]] = [
    (SendKeys, lambda m: replace(m, offset=3), "its rows are numbered from 0"),
    (SendKeys, lambda m: OpenScan(job=m.job, scan=7, table="items", columns=['"price"']), "before the contract is"),
    (SendKeys, lambda m: replace(m, scan=7), "has no such scan"),
    (SendKeys, lambda m: SendGroups(job=m.job, scan=m.scan), "not merged with those of others"),
    (OpenPart, lambda m: FindIds(job=m.job, part=1, scan=m.scan, columns=m.columns), "not for this owner to say"),
    (OpenPart, lambda m: replace(m, columns=[0]), "not the features of any block"),
    (OpenPart, lambda m: replace(m, scan=7), "has no such scan"),
    (OpenPart, lambda m: replace(m, multiplicity=0 * m.multiplicity), "joined at least once"),
    (OpenPart, lambda m: replace(m, multiplicity=m.multiplicity[1:]), "joined at least once|multiplicity has shape"),
    (OpenPart, lambda m: with_rows(m, [0, 1, 1]), "takes part once"),
    (OpenPart, lambda m: with_rows(m, [-1, 0, -1]), "takes part once"),
    (OpenPart, lambda m: with_rows(m, [30, 0]), "train_rows hold a row that there is not"),
    (OpenPart, lambda m: with_rows(m, [-2, 0]), "train_rows hold a row that there is not"),
    (OpenPart, lambda m: replace(m, test_rows=np.array([30])), "test_rows hold a row that there is not"),
    (OpenPart, lambda m: replace(m, ids=(2,)), "agreed on otherwise"),
    (OpenPart, lambda m: StartPart(**start(m.job, 1)), "part that is not open"),
    (EncodeFeatures, lambda m: replace(m, encoders=m.encoders[:1]), "encoders are 1 where 2 are due"),
    (EncodeFeatures, lambda m: replace(m, encoders=first(m.encoders, mean=np.ones(2))), "encoders.scale has shape"),
    (EncodeFeatures, lambda m: replace(m, encoders=first(m.encoders, mean=np.array([NAN]))), "mean holds numbers that"),
    (EncodeFeatures, lambda m: replace(m, encoders=first(m.encoders, fill=np.array([NAN]))), "fill holds numbers that"),
    (EncodeFeatures, lambda m: replace(m, encoders=first(m.encoders, scale=-np.ones(1))), "scale is negative"),
    (EncodeFeatures, lambda m: replace(m, encoders=[m.encoders[0], doubled(m.encoders[1])]), "name one category twice"),
    (EncodeFeatures, lambda m: Evaluate(job=m.job, part=m.part, train=True), "was not started"),
    (EncodeFeatures, lambda m: NewtonUpdate(**step(m)), "was not started"),
    (StartPart, lambda m: replace(m, algorithm=tp.Newton(memory=1)), "algorithm and the model are not those"),
    (StartPart, lambda m: replace(m, algorithm=tp.Sgd()), "algorithm and the model are not those"),
    (StartPart, lambda m: replace(m, model=replace(m.model, kind="mlp")), "algorithm and the model are not those"),
    (StartPart, lambda m: replace(m, l1=1.0), "algorithm and the model are not those"),
    (StartPart, lambda m: replace(m, l2=0.5 * m.l2), "algorithm and the model are not those"),
    (StartPart, lambda m: replace(m, l2_by_output=[0.5 * m.l2]), "algorithm and the model are not those"),
    (StartPart, lambda m: replace(m, l2_by_output=[2.0 * m.l2]), "algorithm and the model are not those"),
    (StartPart, lambda m: replace(m, signs=[1, 1, 1]), "algorithm and the model are not those"),
    (StartPart, lambda m: replace(m, l2_by_output=[m.l2] * 2), "l2_by_output has 2 numbers for 1"),
    (StartPart, lambda m: replace(m, spread=[1.0, 1.0]), "spread has 2 numbers where 1 are due"),
    (StartPart, lambda m: RevealFeatures(job=m.job, part=m.part), "features are not pooled"),
    (StartPart, lambda m: replace(m, part=7), "part that is not open"),
    (NewtonUpdate, lambda m: replace(m, signal=m.signal[1:]), "signal has shape"),
    (NewtonUpdate, lambda m: replace(m, signal=np.ones((len(m.signal), 2))), "signal has 2 numbers a row where 1"),
    (NewtonUpdate, lambda m: replace(m, curvature=m.signal[1:]), "curvature has shape"),
    (NewtonUpdate, lambda m: replace(m, curvature=np.ones((len(m.signal), 3))), "curvature has 3 numbers a row"),
    (NewtonUpdate, lambda m: replace(m, bound=NAN), "bound is not finite"),
    (NewtonUpdate, lambda m: replace(m, coefficients=np.ones(9)), "coefficients has shape"),
    (NewtonUpdate, lambda m: Move(job=m.job, part=m.part, coefficients=np.ones(9)), "coefficients has shape"),
    (NewtonUpdate, lambda m: sgd_step(m), "SgdUpdate is of another algorithm"),
    (NewtonUpdate, lambda m: Combined(job=m.job, part=m.part, values=[np.ones((3, 1))]), "combine was agreed on 0"),
    (NewtonUpdate, lambda m: Seal(job=m.job, part=7, scales=[]), "part that is not open"),
]


def with_rows(message: Any, rows: list[int]) -> Any:
    return replace(message, train_rows=np.array(rows), multiplicity=np.ones(len(rows), np.int64))


def doubled(encoder: Any) -> Any:
    return replace(encoder, categories=encoder.categories[:1] * 2)


def step(message: Any) -> dict[str, Any]:
    plain = {"signal": np.zeros((30, 1)), "curvature": None, "bound": 1.0, "coefficients": None}
    return {"job": message.job, "part": message.part, **plain}


def sgd_step(message: Any) -> Message:
    return SgdUpdate(job=message.job, part=message.part, signal=None, count=0, learning_rate=0.1, next_rows=None)


def start(job: str, part: int) -> dict[str, Any]:
    given = {
        "algorithm": tp.Newton(),
        "model": ModelSpec(),
        "block": 0,
        "name": "i",
        "outputs": 1,
        "blocks": 2,
        "clients": 1,
    }
    return {"job": job, "part": part, "joined_rows": 160, "share": 1.0, "l2": 1.0, "seed": 0, **given}


def test_every_change_to_what_an_owner_of_features_is_asked_is_refused() -> None:
    assert not said(train(l2=1e-3), "items", OF_ITEMS)


OF_ORDERS: list[tuple[type, Change, str]] = [
    (DescribeLabels, lambda m: replace(m, wants_classes=True), "distinct values of the label do not leave"),
    (SendLabels, lambda m: replace(m, offset=3), "rows with labels are all here, and numbered from 0"),
    (DescribeLabels, lambda m: replace(m, column=0), "asked for as the label, and it is not"),
    (SendLabels, lambda m: replace(m, column=0), "asked for as the label, and it is not"),
    (SendLabels, lambda m: replace(m, test_column=0), "asked for as the split, and it is not"),
    (SendLabels, lambda m: replace(m, validation_column=0), "asked for as the split, and it is not"),
    (SendLabels, lambda m: replace(m, fold_column=0), "asked for as the split, and it is not"),
    (SendLabels, lambda m: replace(m, classes=[0.0, 0.0]), "classes name one class twice"),
    (SendLabels, lambda m: replace(m, classes=[0.0, "a"]), "classes mix texts and numbers"),
    (SendLabels, lambda m: SendIdentifiers(job=m.job, scan=m.scan, columns=[0]), "has no"),
]


def test_every_change_to_what_an_owner_of_labels_is_asked_is_refused() -> None:
    assert not said(train(model="linear"), "orders", OF_ORDERS)


def facts_of(message: Any, **changed: Any) -> Any:
    return replace(message, facts=replace(message.facts, **changed))


NOISY: list[tuple[type, Change, str]] = [
    (OpenPart, lambda m: replace(m, wants_moments=True), "means and spreads of a private job do not leave"),
    (StartPart, lambda m: replace(m, facts=None), "noised as agreed, or not at all"),
    (StartPart, lambda m: facts_of(m, epochs=0), "another run than the one that begins"),
    (StartPart, lambda m: facts_of(m, rows=m.joined_rows + 1), "another run than the one that begins"),
    (StartPart, lambda m: replace(m, name="x"), "other blocks than those that were agreed on|algorithm and the model"),
    (StartPart, lambda m: replace(m, block=0), "other blocks than those that were agreed on"),
    (SgdUpdate, lambda m: replace(m, next_rows=np.array([30])), "next_rows hold a row that there is not"),
    (SgdUpdate, lambda m: replace(m, next_rows=np.array([-1])), "next_rows hold a row that there is not"),
    (SgdUpdate, lambda m: replace(m, learning_rate=NAN), "learning_rate is not finite"),
    (SgdUpdate, lambda m: replace(m, signal=np.zeros((30, 1)), count=0), "count is 0, and there is a signal"),
    (SgdUpdate, lambda m: MultiplyGram(job=m.job, part=m.part, vector=np.ones((3, 1))), "agreed on 0 times"),
]


def test_every_change_to_what_noise_is_computed_from_is_refused() -> None:
    noise = {"noise": 5.0, "clip": 1.0, "cap": 50, "bounds": {"price": (-3, 3), "amount": (-3, 3)}}
    private = {"features": noise, "allow_reconstruction": True}
    job = train(algorithm="sgd", batch_size=50, privacy=private)
    assert not said(job, "items", NOISY)


SHARED: list[tuple[type, Change, str]] = [
    (OpenPart, lambda m: replace(m, wants_key=False), "leave under masks if that was agreed on"),
    (SumStatistics, lambda m: replace(m, peers=m.peers[:2]), "sums of i are masked over 3 clients"),
    (SumStatistics, lambda m: replace(m, peers=[]), "sums of i are masked over 3 clients"),
    (SumStatistics, lambda m: replace(m, peers=[*m.peers, replace(m.peers[0], client="x")]), "would be over 4"),
    (SumStatistics, lambda m: replace(m, columns=m.columns[:1]), "columns are 1 where 2 are due"),
    (SumStatistics, lambda m: replace(m, columns=first(m.columns, mean=np.array([NAN]))), "columns.mean holds numbers"),
    (SumStatistics, lambda m: Seal(job=m.job, part=7, scales=[]), "part that is not open"),
    (StartPart, lambda m: replace(m, peers=[]), "sums of i are masked over 3 clients"),
    (StartPart, lambda m: replace(m, peers=m.peers[1:]), "sums of i are masked over 3 clients"),
    (Combined, lambda m: replace(m, values=[m.values[0][1:]]), "values has shape"),
    (Combined, lambda m: replace(m, values=[m.values[0], np.ones((2, 2))]), "values has shape"),
]


def split_shop() -> dict[str, Any]:
    tables = shop()
    items = tables["items"]
    return tables | {"items": [items[:10], items[10:20], items[20:]]}


def test_every_change_to_masked_sums_is_refused() -> None:
    assert not said(train(algorithm="admm"), "items[0]", SHARED, tables=split_shop())


def reveal(column: int = 0, border: int = WHOLE, left: tuple[int, ...] = ()) -> Key:
    return Key(column=column, border=border, left=left)


TREES: list[tuple[type, Change, str]] = [
    (trees.StartTrees, lambda m: replace(m, algorithm=replace(m.algorithm, trees=9)), "algorithm is not the one"),
    (trees.StartTrees, lambda m: replace(m, algorithm=replace(m.algorithm, max_splits=9)), "algorithm is not the one"),
    (trees.StartTrees, lambda m: replace(m, before=[trees.SplitRule(feature=0, border=0.5)]), "more splits of earlier"),
    (trees.StartTrees, lambda m: replace(m, before="0123456789abcdef"), "more splits of earlier"),
    (trees.StartTrees, lambda m: replace(m, bins=[NumberBins(np.array([0.5]))] * 2), "put in bins by that owner"),
    (trees.StartTrees, lambda m: replace(m, signs=[2, 0]), "signs hold what is no sign"),
    (trees.StartTrees, lambda m: trees.SketchFeatures(job=m.job, part=7), "part that is not open"),
    (trees.StartTrees, lambda m: StartPart(**start(m.job, m.part)), "algorithm and the model are not those"),
    (trees.CheckTrees, lambda m: checked(m, columns=m.check.columns[1:]), "check.columns has shape"),
    (trees.CheckTrees, lambda m: checked(m, trees=m.check.trees * 2), "check.trees are 2 where there are 1 outputs"),
    (trees.CheckTrees, lambda m: outlined(m, left=m.check.trees[0].left[:0]), "trees.left has 0 nodes"),
    (trees.CheckTrees, lambda m: outlined(m, left=np.full(99, -1, np.int32)), "has 99 nodes where at most"),
    (trees.CheckTrees, lambda m: outlined(m, gain=m.check.trees[0].gain * NAN), "check.trees.gain holds numbers"),
    (trees.CheckTrees, lambda m: outlined(m, gain=m.check.trees[0].gain[1:]), "check.trees.gain has shape"),
    (trees.CheckTrees, lambda m: outlined(m, least=m.check.trees[0].least[1:]), "check.trees.least has shape"),
    (trees.CheckTrees, lambda m: outlined(m, bounds=np.zeros((99, 2))), "check.trees.bounds has shape"),
    (trees.CheckTrees, lambda m: outlined(m, unit=(0.0, 1.0)), "check.trees.unit is not a positive number"),
    (trees.CheckTrees, lambda m: outlined(m, pairs=None), "check.trees.pairs are missing"),
    (trees.CheckTrees, lambda m: trees.ReleaseSplits(job=m.job, part=7, unions=[], keys=[]), "part that is not open"),
]


def checked(message: Any, **changed: Any) -> Any:
    return replace(message, check=replace(message.check, **changed))


def outlined(message: Any, **changed: Any) -> Any:
    return checked(message, trees=[replace(message.check.trees[0], **changed)])


def grow(**options: Any) -> Any:
    return train(**({"model": "boosted", "algorithm": tp.Boosting(trees=2, depth=2), "epochs": None} | options))


def test_every_change_to_what_trees_are_grown_from_is_refused() -> None:
    assert not said(grow(), "items", TREES)


DRAWN: list[tuple[type, Change, str]] = [
    (trees.RevealKeys, lambda m: replace(m, keys=[reveal()] * 999), "keys are more than there can be"),
    (trees.RevealKeys, lambda m: replace(m, keys=[reveal(column=2)]), "keys.column is none of the part's"),
    (trees.RevealKeys, lambda m: replace(m, keys=[reveal(border=99)]), "keys.border is none of the column's"),
    (trees.RevealKeys, lambda m: replace(m, keys=[reveal(column=1, border=-1, left=(9,))]), "is no category"),
    (trees.RevealKeys, lambda m: replace(m, keys=[reveal(column=1, border=-1, left=(1, 1))]), "is no category"),
]


def test_every_change_to_which_drawn_splits_are_told_is_refused() -> None:
    assert not said(grow(algorithm=tp.Boosting(trees=3, depth=2, splits="random")), "items", DRAWN)


@pytest.mark.parametrize("client", ["items", "orders"])
def test_joined_rows_are_no_fewer_than_those_of_one_table(client: str) -> None:
    """Their number decides how many batches an epoch has, and how far a row moves a mean."""
    for fewer in (0, 1):

        def change(who: str, asked: Any, fewer: int = fewer) -> Any:
            is_start = isinstance(asked, StartPart) and who == client
            return replace(asked, joined_rows=asked.joined_rows - fewer) if is_start else asked

        with tp.Federation(shop()) as federation:
            Server(federation, change)
            if not fewer:
                train(l2=1e-3)(federation)
                continue
            with pytest.raises(PolicyError, match="have more joined rows than said"):
                train(l2=1e-3)(federation)


def test_figures_of_one_client_leave_in_masked_sums_only() -> None:
    with tp.Federation(split_shop(), key=b"k" * 32) as federation:
        server = Server(federation)
        train(algorithm="admm")(federation)
    told = {client: answer.figures for client, (_, answer) in server.of(StartPart).items()}
    assert {client for client, figures in told.items() if figures} == {"orders"}
    assert {*told} == {"orders", "items[0]", "items[1]", "items[2]"}
