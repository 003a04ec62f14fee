"""A request is held to the counts and rows of its contract, message by message, whatever was asked before."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.features import FeatureStatistics, OpenPart, SumStatistics
from tablepuppet.exchanges.prediction import ScoreOwnRows
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.exchanges.start import StartPart
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.enforcement import JobUnderContract
from tablepuppet.owner.policy import Policy
from tablepuppet.owner.releases import Releases
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.protocol.contract import BlockTerms, Column, Contract, ScanTerms, Training

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
