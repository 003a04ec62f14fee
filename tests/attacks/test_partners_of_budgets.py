"""Attacks on a partner by way of a table with an analyst budget: joins that mostly meet few of its rows."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.privacy.test_analyst import QUERY, SEEN, TREES, Watched, asks, federation, tables, with_budget

import tablepuppet as tp
from tablepuppet.errors import JobError, PolicyError, PrivacyError
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.row_index import RowIndex
from tablepuppet.owner.policy import Policy, TableRules
from tablepuppet.privacy.accounting import gaussian_noise
from tablepuppet.privacy.analyst import SHARES, AnalystTerms

RULES = with_budget(90.0) | {"items": Policy(minimum_rows=10)}
PRICES = {"price": (-3, 3), "p": (-3, 3)}
FEW = "most of them meet few rows of a partner"


@pytest.mark.parametrize(
    ("item", "label", "split"),
    [
        ("5", "o.y", {"test_fraction": 0.0}),
        ("5", "i.price > 0 AS y", {"test_fraction": 0.0}),  # the partner's own label
        ("CASE WHEN id % 20 = 0 THEN item ELSE 5 END", "o.y", {"test_fraction": 0.0}),  # few orders of all others
        ("CASE WHEN id % 2 = 0 THEN 5 ELSE 6 END", "o.y", {"test_fraction": 0.0}),
        ("CASE WHEN q > 1 THEN 5 ELSE item END", "o.y", {"test_where": "o.q > 1"}),
    ],
)
def test_joined_rows_that_mostly_meet_few_rows_of_a_partner_are_refused(item: str, label: str, split: Any) -> None:
    """Noise does not hide a row that thousands of joined rows have: a model over them alone would reveal it."""
    whole = QUERY.replace("o.y", label)
    query = whole.replace("orders o", f"(SELECT {item} AS item, q, y FROM orders) o")
    asked: dict[str, Any] = {"label": "y", **TREES, "trees": 12, "min_child_weight": 2.5, "privacy": asks(1.0)}
    with federation(tables(rows=8000), policies=RULES) as owners:
        for ask in (owners.explain, owners.train):
            with pytest.raises(PrivacyError, match=FEW):
                ask(query, **asked, **split)
        result = owners.train(whole, **asked, test_fraction=0.0)
        if "test_where" in split:
            query = query.replace(item, "5")
        with pytest.raises(PrivacyError, match=FEW):
            owners.evaluate(result, query, rows="all", privacy=asks(2.0))
        owners.evaluate(result, whole, rows="all", privacy=asks(2.0))


ONE = "(SELECT {} AS item, q, y FROM orders) o"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT o.q, o.y FROM {ONE.format(5)} JOIN items i ON o.item = i.item",  # whether it has the key
        "SELECT o.q, i.price, o.y FROM orders o JOIN mine m ON o.item = m.item JOIN items i ON m.leads = i.item",
        f"SELECT o.q, i.price, j.price AS p, o.y FROM {ONE.format('item')} JOIN items i ON o.item = i.item "
        "JOIN mine m ON o.item = m.item JOIN items j ON m.leads = j.item",
        # The others have no item, and are not its rows.
        f"SELECT o.q, i.price, o.y FROM {ONE.format('CASE WHEN id % 2 = 0 THEN 5 ELSE 99 END')} "
        "LEFT JOIN items i ON o.item = i.item",
        f"SELECT o.q, o.y FROM {ONE.format('CASE WHEN id % 20 = 0 THEN 5 ELSE 99 END')} "
        "LEFT JOIN items i ON o.item = i.item",
    ],
)
def test_no_way_leads_to_few_rows_of_a_partner(query: str) -> None:
    """A key alone, a table of the analyst's own that leads to one row, and a second look at the partner's table."""
    given = tables(rows=8000) | {"mine": pa.table({"item": np.arange(30), "leads": np.full(30, 5)})}
    with federation(given, policies=RULES) as owners, pytest.raises(PrivacyError, match=FEW):
        owners.explain(query, label="y", **TREES, test_fraction=0.0, privacy=asks(2.0, bounds={"q": (-3, 3), **PRICES}))


def test_search_drift_and_comparisons_over_few_rows_of_a_partner_are_refused() -> None:
    query = QUERY.replace("orders o", ONE.format(5))
    depths = {k: v for k, v in TREES.items() if k != "depth"} | {"trees": 12}
    with federation(tables(rows=8000), policies=RULES) as owners:
        result = owners.train(QUERY, label="y", **TREES | {"trees": 12}, test_fraction=0.0, privacy=asks(1.0))
        for ask in (
            lambda: owners.drift(result, query, privacy=asks(2.0)),
            lambda: owners.compare(result, result, query, rows="all", privacy=asks(2.0)),
            lambda: tp.search(owners, query, {"depth": [1, 2]}, label="y", folds=2, **depths, privacy=asks(2.0)),
        ):
            with pytest.raises(PrivacyError, match=FEW):
                ask()


def test_a_made_up_model_reads_a_row_of_a_partner_that_has_no_budget_of_its_own() -> None:
    """Remains: the score is the price of one item, and very low for all others. How many orders are predicted as 1
    tells on which side of 0 it lies."""
    given = tables(rows=8000)
    price = float(given["items"]["price"][5].as_py())
    query = QUERY.replace("o.q", "CASE WHEN o.item = 5 THEN 0 ELSE -100 END AS five")
    query = query.replace("orders o", ONE.format("CASE WHEN id % 12 = 0 THEN 5 ELSE item END"))
    with tp.Federation(given) as own:
        model = own.train(query, label="y", model="logistic", standardize=False, l2=1.0, test_fraction=0.0).model
    blocks = tuple(msgspec.structs.replace(block, theta=np.ones_like(block.theta)) for block in model.blocks)

    def recall(owners: tp.Federation, border: float) -> float:
        made_up = msgspec.structs.replace(model, blocks=blocks, encoded_intercept=np.array([-border]))
        return owners.evaluate(made_up, query, rows="all", privacy=asks(8.0))["recall"]

    with federation(given, policies=RULES) as owners:
        assert recall(owners, price - 0.1) > 0.05 > recall(owners, price + 0.1)
    both = RULES | with_budget(table="items")
    with federation(given, policies=both) as owners, pytest.raises(PrivacyError, match="a job reads one such table"):
        recall(owners, 0.0)


def test_subjects_of_a_partner_cannot_be_counted_under_noise() -> None:
    policies = RULES | {"items": Policy(minimum_rows=5, tables={"items": TableRules(subject="item")})}
    with (
        federation(policies=policies) as owners,
        pytest.raises(PolicyError, match=r"rule tables\.items\.rows_per_subject"),
    ):
        owners.explain(QUERY, label="y", **TREES, privacy=asks())


@given(data=st.data())
def test_one_joined_row_moves_what_the_rules_of_partners_read_by_one(data: st.DataObject) -> None:
    """Of each of two partners, and of a table without features, and noise is for that."""
    rows = data.draw(st.integers(2, 40))
    places = [data.draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows)) for _ in range(2)]
    least = [data.draw(st.integers(2, 60)) for _ in range(2)]
    terms = AnalystTerms(table="t", epsilon=1.0, delta=1e-5, shares=SHARES["evaluate"])
    SEEN.clear()
    for kept in (slice(None), slice(1, None)):
        indices = tuple(RowIndex.of(np.array(place[kept]), 5) for place in places)
        size = len(places[0][kept])
        side = JoinedRows(size, indices, RowIndex(size, None), np.zeros(size))
        with contextlib.suppress(JobError):
            Watched(terms).check_partners([side], [*least, 1], [(least[0], size, _most(places[1][kept]))])
    (_, ours, deviation), (_, theirs, _) = SEEN
    assert deviation == pytest.approx(gaussian_noise(1.0, 1e-5, 1, 1.0) * math.sqrt(3))
    assert float(np.linalg.norm(ours - theirs)) <= math.sqrt(3) + 1e-9


def _most(rows: list[int]) -> int:
    return int(np.bincount(rows).max())
