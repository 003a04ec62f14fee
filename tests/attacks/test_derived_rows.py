"""Attacks through rows that a query makes: base rows that are spread, budgets of tables that a subquery reads,
expressions that fail for one row, labels that are NULL, conditions on columns that leave under noise."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.attacks.meddler import QUERY, shop

import tablepuppet as tp
from tablepuppet.client import UNREADABLE
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.labels import DescribeLabels, Labels, LabelSummary, SendLabels
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.schema import OpenScan, ScanSchema
from tablepuppet.owner.policy import LabelRules, Policy, TableRules
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.privacy.options import LabelPrivacy
from tablepuppet.protocol.contract import Column, Contract, Moments, ScanTerms

OWNER = {"store": ["orders", "items"]}
NOISY: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "bounds": {"m": (-3, 3), "price": (-3, 3), "amount": (-3, 3)}}
TRAIN: dict[str, Any] = {"label": "y", "model": "logistic", "algorithm": "sgd", "epochs": 1}


def spread(inner: str) -> str:
    return f"SELECT s.m, o.y FROM orders o JOIN ({inner}) s ON o.item = s.item"


def private_plan(query: str, **options: Any) -> tp.Plan:
    with tp.Federation(shop(), owners=OWNER) as federation:
        privacy = {"features": {**NOISY, **options}, "allow_reconstruction": True}
        return federation.explain(query, privacy=privacy, **TRAIN)


@pytest.mark.parametrize(
    "inner",
    [
        "SELECT item, amount - avg(amount) OVER (PARTITION BY item) AS m FROM orders",
        "SELECT item, amount AS m FROM orders ORDER BY amount LIMIT 50",
        "SELECT a.item, b.amount AS m FROM orders a JOIN orders b ON a.item = b.item",
        "SELECT item, price - (SELECT avg(amount) FROM orders) AS m FROM items",
    ],
)
def test_a_row_that_may_change_any_number_of_rows_is_not_said_to_be_private(inner: str) -> None:
    """One base row, spread by a window over its partition, would count as one."""
    with pytest.raises(PolicyError, match=r"(any number of the subquery's rows|rows of one table).*rule stability"):
        private_plan(spread(inner))


def test_a_group_counts_as_the_row_before_and_the_row_after() -> None:
    """ε of a base row is counted for both, and so is what the owner is asked to agree to."""
    plan = private_plan(spread("SELECT item, avg(amount) AS m FROM orders GROUP BY item"), noise=2.0, epsilon=None)
    with tp.Federation(shop(), owners=OWNER) as federation:
        direct = "SELECT s.amount, o.y FROM orders o JOIN orders s ON o.id = s.id"
        privacy = {"features": {**NOISY, "noise": 2.0, "epsilon": None}, "allow_reconstruction": True}
        once = federation.explain(direct, privacy=privacy, **TRAIN)
    grouped, plain = (p.ledger.epsilon("features", "orders", "outsider") for p in (plan, once))
    assert grouped > 1.9 * plain


def test_the_contract_prints_how_many_rows_one_row_changes() -> None:
    terms = ScanTerms(0, "orders", (), None, query="SELECT 1", stability={"orders": 2, "items": None})
    lines = Contract(purpose="train", asker="s", label="y", scans=(terms,), blocks=()).lines()
    assert "  one row of orders changes at most 2 of them, before and after counted" in lines
    assert "  one row of items changes any number of them" in lines


Stated = tuple[dict[str, int | None], bool]  # the stability of a contract, and whether it is true
GROUPED: list[Stated] = [({"orders": 1}, False), ({}, False), ({"orders": 2}, True)]
SPREAD: list[Stated] = [({"orders": 1_000}, False), ({"orders": None}, True)]


@pytest.mark.parametrize(
    ("query", "stated"),
    [
        ('SELECT "item", AVG("amount") AS "m" FROM "orders" GROUP BY "item"', GROUPED),
        ('SELECT "item", AVG("amount") OVER (PARTITION BY "item") AS "m" FROM "orders"', SPREAD),
    ],
)
def test_a_contract_that_counts_fewer_rows_than_a_row_changes_is_refused(query: str, stated: list[Stated]) -> None:
    with tp.Federation(shop(), owners=OWNER) as federation:
        client = federation._clients["store"]
        client.answer(OpenScan(job="j", scan=0, table="orders", columns=['"m"'], query=query))
        for stability, is_honest in stated:
            terms = ScanTerms(0, "orders", (Column('"m"', ("feature",)),), None, query=query, stability=stability)
            contract = Contract(purpose="train", asker="s", label="y", scans=(terms,), blocks=())
            if is_honest:
                client.answer(ProposeContract(job="j", contract=contract))
            else:
                with pytest.raises(PolicyError, match="counts fewer rows"):
                    client.answer(ProposeContract(job="j", contract=contract))


@pytest.mark.parametrize(
    "named",
    [
        {"filter": None},
        {"filter": '"amount" > 1'},
        {"query": 'SELECT * FROM "orders"'},
        {"table": "items"},
        {"columns": (Column('"salary"', ("feature",)),)},
        {"moments": (Moments("items", "d", "orders", ("store",)),)},
    ],
    ids=str,
)
def test_a_contract_names_what_was_opened(named: dict[str, Any]) -> None:
    """Or the owner would agree to other rows than are read."""
    terms = ScanTerms(0, "orders", (Column('"amount"', ("feature",)),), '"amount" > 0')
    contract = Contract(purpose="train", asker="s", label="y", scans=(terms,), blocks=())
    other = msgspec.structs.replace(contract, scans=(msgspec.structs.replace(terms, **named),))
    with tp.Federation(shop(), owners=OWNER) as federation:
        client = federation._clients["store"]
        client.answer(OpenScan(job="j", scan=0, table="orders", columns=['"amount"'], filter='"amount" > 0'))
        with pytest.raises(PolicyError, match="outside its contract: it does not name"):
            client.answer(ProposeContract(job="j", contract=other))
        client.answer(ProposeContract(job="j", contract=contract))


def test_a_job_has_one_contract() -> None:
    terms = ScanTerms(0, "orders", (Column('"amount"', ("feature",)),), None)
    contract = Contract(purpose="train", asker="s", label="y", scans=(terms,), blocks=())
    other = msgspec.structs.replace(contract, seed=contract.seed + 1)
    with tp.Federation(shop(), owners=OWNER) as federation:
        client = federation._clients["store"]
        client.answer(OpenScan(job="j", scan=0, table="orders", columns=['"amount"']))
        client.answer(ProposeContract(job="j", contract=contract))
        client.answer(ProposeContract(job="j", contract=contract))
        with pytest.raises(PolicyError, match="has a contract already, and this is another one"):
            client.answer(ProposeContract(job="j", contract=other))


LOOK_THROUGH = (
    "SELECT s.m, s.z FROM (SELECT i.item, avg(o.amount) AS m, max(o.y) AS z FROM items i JOIN orders o "
    "ON i.item = o.item GROUP BY i.item) s"
)


@pytest.mark.parametrize("budget", [TableBudget(label=1.0), TableBudget(features=1.0)])
def test_a_budget_holds_for_whatever_subquery_reads_its_table(budget: TableBudget) -> None:
    """The subquery is one of items; its labels and means are those of orders."""
    given: dict[str, Any] = {"label": "z", "model": "linear", "algorithm": "newton"}
    with tp.Federation(shop(), owners=OWNER) as federation:
        federation.train(LOOK_THROUGH, **given)
    policy = Policy(budget={"orders": budget})
    with tp.Federation(shop(), owners=OWNER, policies={"store": policy}) as federation:
        for verb in (federation.train, federation.explain):
            with pytest.raises(PolicyError, match="orders"):
                verb(LOOK_THROUGH, **given)


RULES: dict[str, tuple[TableRules, str]] = {
    "a column": (TableRules(features=("amount",), keys=("item",), filters=("salary",)), "column y may not be"),
    "a filter": (TableRules(features=("amount",), keys=("item",), labels=("y",)), "column salary may not be filtered"),
    "a role": (
        TableRules(features=("amount", "y"), keys=("item",), filters=("salary", "item")),
        "column y may not be the label",
    ),
    "subjects": (TableRules(subject="id"), "makes rows of its own of orders"),
}


@pytest.mark.parametrize(("rules", "why"), RULES.values(), ids=RULES)
def test_the_rules_of_a_table_hold_for_whatever_subquery_reads_it(rules: TableRules, why: str) -> None:
    query = LOOK_THROUGH.replace(" GROUP BY", " WHERE o.salary > -9 GROUP BY")
    policy = Policy(tables={"orders": rules})
    with (
        tp.Federation(shop(), owners=OWNER, policies={"store": policy}) as federation,
        pytest.raises(PolicyError, match=why),
    ):
        federation.train(query, label="z", model="linear", algorithm="newton")


FAILING = [
    "exp(CASE WHEN amount > {} AND id = 7 THEN 1000.0 ELSE 1.0 END)",  # which is infinite
    "CAST(CASE WHEN amount > {} AND id = 7 THEN 'x' ELSE '1' END AS INTEGER)",
    "CAST(9223372036854775807 AS BIGINT) + CASE WHEN amount > {} AND id = 7 THEN 1 ELSE 0 END",
    "CAST(1 AS TINYINT) << CASE WHEN amount > {} AND id = 7 THEN 100 ELSE 0 END",
    "strptime(CASE WHEN amount > {} AND id = 7 THEN 'x' ELSE '2020-01-01' END, '%Y-%m-%d')",
    "CASE WHEN amount > {} AND id = 7 THEN 1e200 ELSE 1.0 END",  # which is too large to square
    "array_value(1.0::DOUBLE, exp(CASE WHEN amount > {} AND id = 7 THEN 1000.0 ELSE 1.0 END))",
]


def outcome(federation: tp.Federation, query: str) -> str:
    try:
        federation.train(query, label="y", model="logistic", algorithm="newton", privacy={"label": {"epsilon": 2.0}})
    except tp.TablePuppetError as error:
        return f"{type(error).__name__} {error}"
    return "trained"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("expression", FAILING)
@pytest.mark.parametrize("is_nested", [False, True])
def test_an_expression_that_fails_for_one_row_does_not_tell_of_it(expression: str, is_nested: bool) -> None:
    """Two thresholds, one below the row's value and one above: without the rule the two answers differ."""
    protected = {"orders": Policy(budget={"orders": TableBudget(label=9.0)})}
    for policies in (None, protected):
        with tp.Federation(shop(), policies=policies) as federation:
            found = []
            for threshold in (-9.0, 9.0):
                text = expression.format(threshold)
                query = f"SELECT amount, {text} AS f, y FROM orders"
                if is_nested:
                    inner = f"SELECT id, {text} AS f FROM orders"
                    query = f"SELECT o.amount, s.f, o.y FROM orders o JOIN ({inner}) s ON o.id = s.id"
                found.append(outcome(federation, query))
        assert (found[0] == found[1]) == (policies is not None), found


def test_a_label_that_is_too_large_for_one_row_does_not_tell_of_it() -> None:
    given: dict[str, Any] = {"label": "z", "privacy": {"label": {"epsilon": 1.0, "classes": [0, 1]}}}
    protected = {"orders": Policy(budget={"orders": TableBudget(label=9.0)})}
    with tp.Federation(shop(), policies=protected) as federation:
        for threshold in (0, 2):
            label = f"CASE WHEN id = 7 AND y + 1 > {threshold} THEN 1e200 ELSE y END"
            federation.train(f"SELECT amount, {label} AS z FROM orders", **given, model="logistic", algorithm="newton")


@pytest.mark.parametrize("filter", [None, '"id" = 7 AND "amount" > {}'])
@pytest.mark.parametrize("query", [None, 'SELECT * FROM "orders"'])
def test_types_of_expressions_tell_of_no_row(filter: str | None, query: str | None) -> None:
    """They are asked for before any contract: the common length of lists was one, and so was that there is a row."""
    text = "CAST(CASE WHEN amount > {} AND id = 7 THEN [1.0, 2.0] ELSE [1.0] END AS DOUBLE[])"
    found = []
    with tp.Federation(shop(), owners=OWNER) as federation:
        for threshold in (-9.0, 9.0):
            where, column = None if filter is None else filter.format(threshold), text.format(threshold)
            asked = OpenScan(job="j", scan=0, table="orders", columns=[column], filter=where, query=query)
            answer = federation._clients["store"].answer(asked)
            assert isinstance(answer, ScanSchema)
            found.append(answer)
    kinds = [(column.kind, column.size) for answer in found for column in answer.columns]
    assert kinds == [("other", 0), ("other", 0)]


def weigh(table: pa.Table, weight: str, policy: Policy) -> tuple[str, str]:
    """What a server is told that asks for a weight, and what the owner's log says."""
    with tp.Federation({"orders": table}, policies={"orders": policy}) as federation:
        client = federation._clients["orders"]
        with pytest.raises(tp.TablePuppetError) as caught:
            federation.train("SELECT amount, y FROM orders", label="y", weight=weight, model="logistic")
        refusals = [entry.detail["why"] for entry in client.log.entries if entry.event == "refused"]
        return str(caught.value), str(refusals[-1:])


def test_every_failure_over_protected_rows_is_one_refusal_and_the_owner_has_the_reason() -> None:
    table = shop()["orders"].append_column("w", pa.array(np.where(np.arange(200) == 7, -1.0, 1.0)))
    strict = Policy(budget={"items": TableBudget(label=1.0), "orders": TableBudget(delta=1e-5)})
    told = {weigh(table, weight, strict) for weight in ("w", "CASE WHEN id = 7 THEN -1 ELSE 1 END")}
    assert {answer.partition(": ")[2] for answer, _ in told} == {UNREADABLE}
    assert all("negative or infinite" in why for _, why in told)
    open_answer, _ = weigh(table, "w", Policy())
    assert "negative or infinite" in open_answer


def labels_of(label: str) -> tuple[LabelSummary, np.ndarray[Any, Any]]:
    with tp.Federation(shop()) as federation:
        client, privacy = federation._clients["orders"], LabelPrivacy(epsilon=1.0)
        terms = ScanTerms(0, "orders", (Column(label, ("label",)),), None)
        contract = Contract(purpose="train", asker="s", label="y", scans=(terms,), blocks=(), label_privacy=privacy)
        client.answer(OpenScan(job="j", scan=0, table="orders", columns=[label]))
        client.answer(ProposeContract(job="j", contract=contract))
        summary = client.answer(DescribeLabels(job="j", scan=0, column=0))
        ask: dict[str, Any] = {"offset": 0, "classes": [0.0, 1.0]}
        labels = client.answer(SendLabels(job="j", scan=0, column=0, **ask))
        assert isinstance(summary, LabelSummary)
        assert isinstance(labels, Labels)
        return summary, labels.values


@pytest.mark.parametrize("label", ['NULLIF("y", 1)', 'CASE WHEN "y" = 0 THEN 0 END'])
def test_a_label_that_is_null_for_a_class_does_not_tell_the_class(label: str) -> None:
    """Without the rule every NULL is a row with y = 1."""
    summary, values = labels_of(label)
    assert summary.missing == 0
    assert not np.isnan(values).any()
    truth = shop()["orders"]["y"].to_numpy()
    guessed = np.where(values == 1, 1, 0)
    assert np.mean(guessed == truth) < 0.8  # ε = 1: at most 73 % on average


@pytest.mark.parametrize(
    "query",
    [
        f"{QUERY} WHERE o.amount > 0.5",
        "SELECT o.amount, s.price, o.y FROM orders o JOIN (SELECT item, price FROM items WHERE price > 0) s "
        "ON o.item = s.item",
        "SELECT o.amount, s.price, o.y FROM orders o JOIN (SELECT item, price FROM items GROUP BY item, price) s "
        "ON o.item = s.item",
        QUERY.replace("o.y", "o.amount > 0.5 AS y"),
        f"{QUERY} JOIN orders p ON o.id = p.id AND p.amount > 0.5",
        f"{QUERY} JOIN (SELECT id FROM orders WHERE amount > 0.5) p ON o.id = p.id",
    ],
)
def test_rows_of_a_private_job_are_not_counted_by_what_they_hold(query: str) -> None:
    """`training_rows` would be exact: eighteen such jobs read a number."""
    with tp.Federation(shop()) as federation, pytest.raises(PolicyError, match="features leave under noise only"):
        federation.explain(query, privacy={"features": NOISY, "allow_reconstruction": True}, **TRAIN)


COMPUTED = "SELECT o.amount, i.price, o.y FROM orders o JOIN items i ON {} = i.item"


@pytest.mark.parametrize(
    "query",
    [
        COMPUTED.format("(CASE WHEN o.amount > 0.5 THEN o.item END)"),
        COMPUTED.format("(o.item + CAST(o.amount > 0.5 AS INTEGER) * 1000)"),
        COMPUTED.format("o.item").replace(
            "orders o", "(SELECT CASE WHEN amount > 0.5 THEN item END AS item, amount, y FROM orders) o"
        ),
        COMPUTED.format("(CASE WHEN o.amount > 0.5 THEN o.item END)") + " WHERE o.amount > 0.7",
    ],
)
def test_rows_of_a_private_job_are_not_joined_by_what_they_hold(query: str) -> None:
    with tp.Federation(shop()) as federation:
        with pytest.raises(PolicyError, match=r"features leave under noise only.* (a filter|computed join key)"):
            federation.explain(query, privacy={"features": NOISY, "allow_reconstruction": True}, **TRAIN)
        federation.explain(query, **TRAIN)
    budget = {"orders": TableBudget(features=9.0)}
    salary = query.replace("amount >", "salary >").replace("amount, y FROM", "amount, salary, y FROM")
    with tp.Federation(shop(), policies={"orders": Policy(budget=budget)}) as federation:
        with pytest.raises(PolicyError, match=r"features leave under noise only.* (a filter|computed join key)"):
            federation.profile(salary)
        federation.profile(QUERY)


def test_test_rows_of_a_private_job_are_not_chosen_by_a_feature() -> None:
    privacy = {"features": NOISY, "allow_reconstruction": True}
    with tp.Federation(shop()) as federation:
        with pytest.raises(PolicyError, match="the split, which would tell of it"):
            federation.explain(QUERY, privacy=privacy, test_where="amount > 0.5", **TRAIN)
        federation.explain(f"{QUERY} WHERE o.amount IS NOT NULL", privacy=privacy, **TRAIN)


@pytest.mark.parametrize(
    ("category", "table"),
    [
        ("CASE WHEN o.id = 7 AND o.salary > 0 THEN 'rich' ELSE 'others' END", "orders"),
        ("CASE WHEN i.price > 0 THEN i.colour ELSE 'cheap' END", "items"),
    ],
)
def test_a_category_that_is_made_of_a_number_does_not_leave_as_a_name(category: str, table: str) -> None:
    query = f"SELECT o.amount, {category} AS c, i.price, o.y FROM orders o JOIN items i ON o.item = i.item"
    with tp.Federation(shop()) as federation, pytest.raises(PolicyError, match=f"makes names of numbers of {table}"):
        federation.explain(query, privacy={"features": NOISY, "allow_reconstruction": True}, **TRAIN)


def test_a_row_by_the_name_of_its_table_plays_no_role_that_its_columns_do_not_have() -> None:
    """`CAST(z AS VARCHAR)` is a text of all columns that the query names, and a regular expression picks one."""
    rules = TableRules(features=("amount",), keys=("item",), labels=("y",))
    inner = (
        "SELECT item, amount AS m, CAST(regexp_extract(CAST(z AS VARCHAR), 'amount.: ([-0-9.]+)', 1) AS DOUBLE) AS w"
    )
    query = f"SELECT i.price, s.m, s.w FROM ({inner} FROM orders z) s JOIN items i ON s.item = i.item"
    for policy, why in ((Policy(tables={"orders": rules}), "column amount may not"), (Policy(), "")):
        with tp.Federation(shop(), policies={"orders": policy}) as federation:
            if why:
                with pytest.raises(PolicyError, match=why):
                    federation.train(query, label="w", model="linear", epochs=1)
            else:  # what it would be
                result = federation.train(query, label="w", model="linear", epochs=1)
                assert result.metrics["train"]["r2"] > 0.9


ROLES = TableRules(features=("amount",), keys=("item",), labels=("y",))


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(tables={"orders": ROLES}, budget={"orders": TableBudget(label=9)})]
)
@pytest.mark.parametrize("where", ["o.y IS NOT NULL", "o.y IS NULL", "NOT (o.y IS NULL) AND o.item < 20"])
def test_whether_a_row_has_a_label_leaves_under_noise_like_the_label(policy: Policy, where: str) -> None:
    privacy: dict[str, Any] = {"label": {"epsilon": 1.0, "classes": [0, 1]}}
    with tp.Federation(shop(), policies={"orders": policy}) as federation, pytest.raises(PolicyError, match="filter"):
        federation.explain(f"{QUERY} WHERE {where}", label="y", model="logistic", privacy=privacy)


def test_whether_a_row_has_a_label_is_no_condition_of_a_later_job() -> None:
    for policy in (Policy(budget={"orders": TableBudget(label=9)}), Policy(labels=LabelRules(epsilon=2.0))):
        with tp.Federation(shop(), policies={"orders": policy}) as federation:
            noisy: dict[str, Any] = {"label": {"epsilon": 1.0, "classes": [0, 1]}}
            federation.train(QUERY, label="y", model="logistic", privacy=noisy, epochs=1)
            with pytest.raises(PolicyError, match="left under noise"):
                federation.profile(f"{QUERY} WHERE o.y IS NULL")


@pytest.mark.parametrize("rules", [{"budget": {"orders": TableBudget(label=9)}}, {"labels": LabelRules(epsilon=2.0)}])
def test_whether_a_row_has_a_label_is_no_condition_of_a_job_that_asks_for_no_label(rules: dict[str, Any]) -> None:
    policy = Policy(tables={"orders": ROLES}, **rules)
    query = QUERY.replace(", o.y", "")
    with tp.Federation(shop(), policies={"orders": policy}) as federation:
        federation.profile(query)
        with pytest.raises(PolicyError, match="column y may not be filtered by"):
            federation.profile(f"{query} WHERE o.y IS NULL")


@pytest.mark.parametrize("few", [4, 5])
@pytest.mark.parametrize("names", [[f"kind {k}" for k in range(40)], ["a", "b"]])
def test_how_many_rows_have_a_noisy_label_decides_on_no_refusal(few: int, names: list[str]) -> None:
    """Exactly `minimum_rows` rows of a class, or one fewer; a text of its own for half of all rows, or for fewer."""
    tables = shop(80)
    kinds = [names[k % len(names)] if k < 75 else "rare" for k in range(75 + few)] + [None] * (5 - few)
    tables["orders"] = tables["orders"].append_column("kind", pa.array(kinds, pa.string()))
    query = "SELECT o.amount, o.kind FROM orders o"
    given: dict[str, Any] = {"label": "kind", "model": "softmax", "epochs": 1}
    with tp.Federation(tables, policies={"orders": Policy(minimum_rows=5)}) as federation:
        with pytest.raises(PolicyError, match=r"list the classes|rule texts"):
            federation.train(query, privacy={"label": {"epsilon": 1.0}}, **given)
        listed = {"label": {"epsilon": 1.0, "classes": [*names, "rare"]}}
        federation.train(query, privacy=listed, test_fraction=0.0, **given)


@pytest.mark.parametrize(
    "failing",
    [
        "'a' LIKE 'a!' ESCAPE '!'",
        "'a' LIKE 'a' ESCAPE 'two'",
        "CAST(o.amount AS VARCHAR) LIKE CAST(o.id AS VARCHAR) ESCAPE '1'",
        "CAST(extract(timezone FROM CAST('2020-01-01' AS DATE)) AS BOOLEAN)",
        "date_part('era', CAST('2020-01-01' AS DATE)) = 1",
        "date_part(CAST(o.id AS VARCHAR), CAST('2020-01-01' AS DATE)) = 1",
        "date_trunc('era', CAST('2020-01-01' AS DATE)) IS NULL",
        "date_diff('era', CAST('2020-01-01' AS DATE), CAST('2020-01-01' AS DATE)) = 0",
        "CAST('2020-01-01' AS TIMESTAMP) AT TIME ZONE 'Nowhere/City' IS NULL",
        "CAST('2020-01-01' AS TIMESTAMP) AT TIME ZONE CAST(o.id AS VARCHAR) IS NULL",
        "extract(year FROM CAST('01:00:00' AS TIME)) = 1",
        "date_part('dow', CAST('01:00:00' AS TIME)) = 1",
        "date_diff('day', CAST('01:00:00' AS TIME), CAST('01:00:00' AS TIME)) = 1",
        "week(CAST('2021-01-01' AS TIMESTAMP) - CAST('2020-01-01' AS TIMESTAMP)) = 1",
        "yearweek(INTERVAL 3 DAY) = 1",
        "array_length([1.0], 2) = 1",
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_what_fails_beyond_the_reach_of_try_fails_for_no_single_row(failing: str, inside: bool) -> None:
    """DuckDB's TRY lets errors of syntax and of what is not implemented pass: they would tell of the row."""
    said = set[str]()
    for border in ("0.5", "9.5"):  # some rows, and none
        output = f"CASE WHEN o.amount > {border} THEN {failing} END AS z"
        more = f" JOIN (SELECT o.id, {output} FROM orders o) g ON g.id = o.id" if inside else ""
        query = (
            f"SELECT {'g.z' if inside else output}, i.price, o.y FROM orders o JOIN items i ON o.item = i.item{more}"
        )
        with tp.Federation(shop(), policies={"orders": Policy(budget={"orders": TableBudget(features=9)})}) as owners:
            privacy = {"features": {**NOISY, "bounds": {"z": (0, 1), "price": (-3, 3)}}, "allow_reconstruction": True}
            try:
                owners.train(query, privacy=privacy, **TRAIN)
                said.add("")
            except tp.TablePuppetError as error:
                said.add(str(error).replace(border, ""))
    assert len(said) == 1, said
