"""Who a row, a class and a split is: attacks that ask for the same under another name."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.attacks.meddler import QUERY, shop
from tests.attacks.test_noise import noisy_labels

import tablepuppet as tp
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.labels import Labels, SendLabels
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.owner.policy import LabelRules, Policy, TableRules
from tablepuppet.owner.split import split
from tablepuppet.protocol.contract import Column, Contract, ScanTerms, SideTerms

KEY = b"k" * 32
BY_ID = Policy(tables={"orders": TableRules(row_key="id")}, labels=LabelRules(epsilon=1.0))


def day(number: int) -> dict[str, Any]:
    """The shop of a day: one column of orders is another one every day."""
    tables = shop()
    return {**tables, "orders": tables["orders"].append_column("day", pa.array([number] * 200))}


def test_ten_orders_of_classes_are_one_draw_and_one_charge() -> None:
    tables = shop()
    classes = np.random.default_rng(1).integers(0, 4, 200).astype(np.float64)
    tables["orders"] = tables["orders"].set_column(4, "y", pa.array(classes))
    with tp.Federation(tables, key=KEY, policies={"orders": BY_ID}) as federation:
        orders = list(permutations([0.0, 1.0, 2.0, 3.0]))[::2]
        drawn = [noisy_labels(federation, f'"id" > {-k - 1}', classes=given) for k, given in enumerate(orders)]
        assert all(labels == drawn[0] for labels in drawn)
        assert federation._clients["orders"].log.account.spent("orders", "label") == 1.0
    assert 20 < sum(drawn[0][row] != value for row, value in enumerate(classes)) < 180


def test_a_class_that_nobody_has_is_another_release_that_is_charged() -> None:
    with tp.Federation(shop(), key=KEY, policies={"orders": BY_ID}) as federation:
        noisy_labels(federation, '"id" >= 0')
        with pytest.raises(PolicyError, match=r"rule labels\.epsilon"):
            noisy_labels(federation, '"id" > -1', classes=(0.0, 1.0, 7.0))


def test_a_column_that_changes_daily_draws_no_label_anew_where_the_owner_names_a_key() -> None:
    drawn, spent = [], []
    for number in range(4):
        with tp.Federation(day(number), key=KEY, policies={"orders": BY_ID}) as federation:
            drawn.append(noisy_labels(federation, '"id" >= 0'))
            spent.append(federation._clients["orders"].log.account.spendings[0].name)
    assert all(labels == drawn[0] for labels in drawn)
    assert len(set(spent)) == 1


def test_without_a_key_a_table_that_changed_is_another_release() -> None:
    strict, spent, drawn = Policy(labels=LabelRules(epsilon=1.0)), [], []
    for number in range(2):
        with tp.Federation(day(number), key=KEY, policies={"orders": strict}) as federation:
            drawn.append(noisy_labels(federation, '"id" >= 0'))
            noisy_labels(federation, '"id" >= 50')
            (entry,) = federation._clients["orders"].log.account.spendings
            spent.append(entry.name)
    assert drawn[0] != drawn[1]
    assert len(set(spent)) == 2


@pytest.mark.parametrize("keys", [[7, *range(199)], [None, None, *range(198)]])
def test_noisy_labels_of_two_rows_with_one_key_would_tell_whether_they_are_equal(keys: list[int | None]) -> None:
    tables = shop()
    tables["orders"] = tables["orders"].set_column(tables["orders"].column_names.index("id"), "id", pa.array(keys))
    with tp.Federation(tables, key=KEY, policies={"orders": BY_ID}) as federation:
        for filter in ('"id" >= 0', '"id" > 50'):  # each of the two may be asked for by itself
            with pytest.raises(PolicyError, match=r"several rows of orders have one id.*rule tables\.orders\.row_key"):
                noisy_labels(federation, filter)


def test_a_table_whose_key_alone_is_named_may_be_used_as_before_and_a_wrong_key_is_refused() -> None:
    with tp.Federation(shop(), policies={"orders": Policy(tables={"orders": TableRules(row_key="id")})}) as federation:
        federation.train(QUERY, label="y", epochs=1)
    wrong = Policy(tables={"orders": TableRules(row_key="nothing")}, minimum_rows=5)
    with (
        tp.Federation(shop(), policies={"orders": wrong}) as federation,
        pytest.raises(PolicyError, match="rule row_key"),
    ):
        federation.train(QUERY, label="y", epochs=1)


def test_a_dozen_explains_do_not_tell_a_place() -> None:
    """Sides of a dozen seeds name most places to whoever can compute them; under the clients' key nobody else can."""

    def sides(key: bytes | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
        found = []
        with tp.Federation(shop(), key=key) as federation:
            client = federation._clients["orders"]
            inner = client.answer

            def answer(message: Any) -> Any:
                told = inner(message)
                if isinstance(message, SendLabels):
                    assert isinstance(told, Labels)
                    order = client.tables.scan(message.job, message.scan).order()
                    is_test = np.empty(len(told.is_test), np.bool_)
                    is_test[slice(None) if order is None else order] = told.is_test
                    found.append(is_test)
                return told

            client.answer = answer  # type: ignore[method-assign]
            for seed in range(12):
                federation.explain(QUERY, label="y", test_fraction=0.5, seed=seed)
        return np.stack(found, axis=1)

    public = np.stack([split(200, 0, seed, 0.5) for seed in range(12)], axis=1)
    assert (sides(None) == public).all()  # in one process without a key there is nobody to hide from
    hidden = sides(KEY)
    assert np.abs((hidden == public).mean() - 0.5) < 0.05
    assert (hidden == sides(KEY)).all()  # and a seed gives the same rows again


def test_sides_that_everybody_can_compute_are_not_told_of_hidden_rows() -> None:
    """Sides by an earlier release's public function would tell at which place of its table each row lies."""
    terms = ScanTerms(0, "orders", (Column('"id"', ("key",)), Column('"y"', ("label",))), None)
    for policy, is_refused in ((Policy(minimum_rows=5), True), (Policy(), False)):
        with tp.Federation(shop(), key=KEY, policies={"orders": policy}) as federation:
            client = federation._clients["orders"]
            client.answer(OpenScan(job="j", scan=0, table="orders", columns=['"id"', '"y"']))
            sides = (SideTerms(0, 0.3, is_keyed=False),)
            contract = Contract(purpose="evaluate", asker="s", label="y", scans=(terms,), blocks=(), sides=sides)
            asked = ProposeContract(job="j", contract=contract)
            if is_refused:
                with pytest.raises(PolicyError, match="split by an earlier release"):
                    client.answer(asked)
            else:
                client.answer(asked)
