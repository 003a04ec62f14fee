"""Subqueries, WITH and subqueries in conditions: each is trained on what DuckDB makes of the same text, pooled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from tests.plan.disclosure import expect_disclosures
from tests.postgres import Database

import tablepuppet as tp
from tablepuppet.owner.policy import Policy
from tablepuppet.privacy.ledger import TableBudget

ROWS = 240


def _tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(7)
    accounts = pd.DataFrame(
        {
            "account_id": np.arange(ROWS),
            "age": rng.integers(18, 80, ROWS),
            "region": rng.choice(["north", "south", "west"], ROWS),
            "y": rng.normal(size=ROWS),
        }
    )
    transactions = pd.DataFrame(
        {
            "account_id": rng.integers(0, ROWS, 2_000),
            "amount": rng.integers(1, 2_000, 2_000) / 4,  # sums are exact
            "day": np.arange(2_000),
            "kind": rng.choice(["in", "out"], 2_000),
        }
    )
    cards = pd.DataFrame(
        {"account_id": rng.choice(ROWS, 150, replace=False), "credit": rng.integers(1, 9, 150) * 100.0}
    )
    return {"accounts": accounts, "transactions": transactions, "cards": cards}


TABLES = _tables()
QUERIES = {
    "groups": """
        SELECT a.age, t.spend, t.n, a.y FROM accounts a
        JOIN (SELECT account_id, avg(amount) AS spend, count(*) AS n FROM transactions GROUP BY account_id) t
          ON t.account_id = a.account_id""",
    "with, having, filter, left join": """
        WITH big AS (SELECT * FROM transactions WHERE amount > 50),
             s AS (SELECT account_id, sum(amount) AS s, stddev(amount) AS sd, count(*) FILTER (WHERE kind = 'in') AS ins
                   FROM big GROUP BY account_id HAVING count(*) > 2)
        SELECT a.age, s.s, s.sd, s.ins, a.y FROM accounts a LEFT JOIN s ON s.account_id = a.account_id""",
    "window functions": """
        SELECT a.age, t.amount, t.before, t.nth, t.total, a.y FROM accounts a
        JOIN (SELECT account_id, amount, lag(amount) OVER w AS before, row_number() OVER w AS nth,
                     sum(amount) OVER (PARTITION BY account_id ORDER BY day) AS total
              FROM transactions WINDOW w AS (PARTITION BY account_id ORDER BY day)) t USING (account_id)""",
    "qualify": """
        SELECT a.age, t.amount, a.y FROM accounts a
        JOIN (SELECT * FROM transactions QUALIFY row_number() OVER (PARTITION BY account_id ORDER BY day DESC) = 1) t
          ON t.account_id = a.account_id""",
    "distinct": """
        SELECT a.age, d.kind, a.y FROM accounts a
        JOIN (SELECT DISTINCT account_id, kind FROM transactions) d ON d.account_id = a.account_id""",
    "order and limit": """
        SELECT a.age, t.amount, a.y FROM accounts a
        JOIN (SELECT * FROM transactions ORDER BY amount DESC, day LIMIT 300) t USING (account_id)""",
    "case in a sum": """
        SELECT a.age, t.net, a.y FROM accounts a
        JOIN (SELECT account_id, sum(CASE WHEN kind = 'in' THEN amount ELSE -amount END) AS net
              FROM transactions GROUP BY 1) t USING (account_id)""",
    "a scalar subquery in a condition": """
        SELECT a.age, c.credit, a.y FROM accounts a JOIN cards c USING (account_id)
        WHERE a.age > (SELECT avg(age) FROM accounts) AND c.credit > 100""",
    "exists": """
        SELECT a.age, c.credit, a.y FROM accounts a JOIN cards c USING (account_id)
        WHERE EXISTS (SELECT 1 FROM accounts b WHERE b.age = a.age AND b.account_id <> a.account_id)""",
    "a correlated item": """
        SELECT a.age, (SELECT count(*) FROM accounts b WHERE b.region = a.region) AS peers, a.y
        FROM accounts a JOIN cards c USING (account_id)""",
    "union inside": """
        SELECT a.age, a.y FROM accounts a
        JOIN (SELECT account_id FROM transactions WHERE kind = 'in'
              UNION SELECT account_id FROM transactions WHERE amount > 200) t USING (account_id)""",
    "keys of another owner by join": """
        SELECT a.age, a.y FROM accounts a JOIN (SELECT DISTINCT account_id FROM cards WHERE credit > 200) c
          ON c.account_id = a.account_id""",
    "keys of another owner by in": """
        SELECT a.age, a.y FROM accounts a WHERE a.account_id IN (SELECT account_id FROM cards WHERE credit > 200)
        AND a.age < (SELECT max(age) FROM accounts)""",
    "keys of another owner by in, out of with": """
        WITH busy AS (SELECT account_id FROM transactions GROUP BY account_id HAVING count(*) > 8)
        SELECT a.age, c.credit, a.y FROM accounts a JOIN cards c USING (account_id)
        WHERE a.account_id IN (SELECT account_id FROM busy) AND c.account_id IN (SELECT account_id FROM busy)""",
    "keys of two other owners by exists": """
        SELECT a.age, a.y FROM accounts a WHERE EXISTS (SELECT 1 FROM cards c WHERE c.account_id = a.account_id)
        AND EXISTS (SELECT * FROM transactions t WHERE a.account_id = t.account_id AND t.amount > 400)""",
    "a subquery that joins owners": """
        SELECT t.credit, t.doubled, t.age, t.y FROM (
            SELECT a.age, 2 * a.age + 1 AS doubled, c.credit, a.y FROM accounts a JOIN cards c USING (account_id)
            WHERE c.credit < 700) t WHERE t.age > 30""",
    "with that joins owners, joined again": """
        WITH wealthy AS (SELECT a.account_id AS id, a.*, c.credit FROM accounts a
                         JOIN cards c ON c.account_id = a.account_id WHERE a.region <> 'west')
        SELECT w.age, w.credit, a.amount, w.y FROM wealthy w JOIN transactions a ON a.account_id = w.id""",
    "a subquery that joins owners, by using": """
        SELECT x.amount, t.region, t.y FROM transactions x JOIN (
            SELECT a.account_id, a.region, a.y FROM accounts a JOIN cards c ON c.account_id = a.account_id) t
        USING (account_id)""",
    "all of a subquery that joins owners": """
        SELECT * FROM (SELECT a.age, a.region, c.credit, a.y FROM accounts a JOIN cards c USING (account_id)) x
        WHERE age > 30""",
    "correlations and slopes of groups": """
        SELECT a.age, t.c, t.slope, a.y FROM accounts a
        JOIN (SELECT account_id, corr(amount, day) AS c, regr_slope(amount, day) AS slope FROM transactions
              GROUP BY account_id HAVING count(*) > 3) t USING (account_id)""",
    "star without some": "SELECT a.* EXCLUDE (account_id), c.credit FROM accounts a JOIN cards c USING (account_id)",
    "union all of two branches": """
        SELECT a.age, t.n, a.y FROM accounts a
        JOIN (SELECT account_id, count(*) AS n FROM transactions WHERE kind = 'in' GROUP BY 1) t USING (account_id)
        UNION ALL
        SELECT a.age, t.n, a.y FROM accounts a
        JOIN (SELECT account_id, count(*) AS n FROM transactions WHERE kind = 'out' GROUP BY 1) t USING (account_id)""",
}


@pytest.fixture(scope="module")
def federation() -> Iterator[tp.Federation]:
    with tp.Federation(TABLES) as opened:
        yield opened


def pooled(query: str) -> pd.DataFrame:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for name, frame in TABLES.items():
            connection.register(name, frame)
        return connection.sql(query).df()


def fitted(frame: pd.DataFrame) -> np.ndarray:
    """Least squares on the pooled rows: predictions in no order, for they are compared as a set."""
    features = frame.drop(columns="y")
    numbers = features.select_dtypes("number")
    missing = numbers.isna()
    texts = features.select_dtypes(exclude="number")
    encoded = pd.concat(
        [
            numbers.fillna(numbers.mean()),
            missing.loc[:, missing.any()].astype(float).add_suffix(" missing"),
            *([] if texts.empty else [pd.get_dummies(texts, dtype=float)]),
        ],
        axis=1,
    )
    return np.sort(LinearRegression().fit(encoded, frame["y"]).predict(encoded))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", QUERIES)
def test_a_derived_table_is_what_duckdb_makes_of_the_same_text(name: str, federation: tp.Federation) -> None:
    query = QUERIES[name]
    expected = pooled(query)
    result = federation.train(query, label="y", model="linear", l2=0.0, test_fraction=0.0, epochs=60)
    found = federation.predict(result, query)["prediction"].to_numpy()
    if "LEFT JOIN" in query:  # a row that is not found is all zeros here, and a missing value there
        assert len(found) == len(expected)
        return
    np.testing.assert_allclose(np.sort(found), fitted(expected), rtol=1e-6, atol=1e-6)


def test_what_no_join_can_say_is_refused_with_what_to_write(federation: tp.Federation) -> None:
    refused = {
        "NOT EXISTS (SELECT 1 FROM cards c WHERE c.credit < a.age)": "found by equal keys only",
        "a.age > (SELECT avg(credit) FROM cards)": r"JOIN \(SELECT DISTINCT key FROM cards WHERE …\) t ON t.key",
        "EXISTS (SELECT 1 FROM cards c WHERE c.credit < a.age)": "Join its keys instead",
    }
    for condition, reason in refused.items():
        with pytest.raises(tp.TablePuppetError, match=reason):
            federation.explain(f"SELECT a.age, a.y FROM accounts a WHERE {condition}", label="y")
    looked_up = "(SELECT max(credit) FROM cards c WHERE c.account_id = a.account_id AND c.credit > 1)"
    with pytest.raises(tp.TablePuppetError, match="mixes columns of a and c"):
        federation.explain(f"SELECT a.age - {looked_up} AS above, a.y FROM accounts a", label="y")


def test_a_join_that_a_refusal_writes_has_an_alias_of_its_own(federation: tp.Federation) -> None:
    found = "t.account_id IN (SELECT c.account_id FROM cards c WHERE c.credit > 1)"
    with pytest.raises(tp.TablePuppetError) as refused:
        federation.explain(f"SELECT t.age, {found} AS has_card, t.y FROM accounts t", label="y")
    join = str(refused.value).partition("instead: ")[2].partition(", and select")[0]
    federation.train(f"SELECT t.age, t2.found, t.y FROM accounts t {join}", label="y", model="linear")


def test_tables_that_one_owner_holds_may_meet_in_a_subquery() -> None:
    query = """
        SELECT a.age, t.most, a.y FROM accounts a
        JOIN (SELECT t.account_id, max(t.amount / c.credit) AS most FROM transactions t JOIN cards c USING (account_id)
              GROUP BY 1) t ON t.account_id = a.account_id"""
    with (
        tp.Federation(TABLES) as apart,
        pytest.raises(tp.TablePuppetError, match="different owners"),
    ):
        apart.explain(query, label="y")
    with tp.Federation(TABLES, owners={"bank": ["transactions", "cards"]}) as together:
        result = together.train(query, label="y", model="linear", l2=0.0, test_fraction=0.0)
        found = together.predict(result, query)["prediction"].to_numpy()
    np.testing.assert_allclose(np.sort(found), fitted(pooled(query)), rtol=1e-8)


WHOLE_GROUPS = ["groups", "with, having, filter, left join", "window functions", "qualify", "distinct", "case in a sum"]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", WHOLE_GROUPS)
def test_groups_that_lie_with_one_client_each_are_computed_there(name: str) -> None:
    odd = TABLES["transactions"]["account_id"] % 2 == 1
    with tp.Federation(TABLES | {"transactions": [TABLES["transactions"][odd], TABLES["transactions"][~odd]]}) as split:
        result = split.train(QUERIES[name], label="y", model="linear", l2=0.0, test_fraction=0.0, epochs=60)
        found = np.sort(split.predict(result, QUERIES[name])["prediction"].to_numpy())
    with tp.Federation(TABLES) as whole:
        same = whole.train(QUERIES[name], label="y", model="linear", l2=0.0, test_fraction=0.0, epochs=60)
        expected = np.sort(whole.predict(same, QUERIES[name])["prediction"].to_numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", WHOLE_GROUPS)
def test_groups_with_rows_of_several_clients_are_refused_with_the_reason(name: str) -> None:
    halves = [TABLES["transactions"][:1_000], TABLES["transactions"][1_000:]]
    with (
        tp.Federation(TABLES | {"transactions": halves}) as federation,
        pytest.raises(tp.TablePuppetError, match="some groups of account_id have rows of transactions with several"),
    ):
        federation.train(QUERIES[name], label="y")


MERGED = QUERIES | {
    "groups by an expression": """
        SELECT a.age, t.n, t.amount, a.y FROM accounts a
        JOIN (SELECT CAST(account_id AS BIGINT) AS id, kind, count(*) AS n, sum(amount) AS amount FROM transactions
              GROUP BY id, kind) t ON t.id = a.account_id""",
    "joined on what is no group": """
        SELECT a.age, t.n, a.y FROM accounts a
        JOIN (SELECT kind, max(account_id) AS id, count(*) AS n FROM transactions GROUP BY kind) t
          ON t.id = a.account_id""",
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("name", "clients"),
    [
        ("groups", 2),
        ("with, having, filter, left join", 3),
        ("case in a sum", 2),
        ("groups by an expression", 3),
        ("joined on what is no group", 2),
    ],
)
def test_groups_with_rows_of_several_clients_are_merged_where_all_of_them_grant_it(name: str, clients: int) -> None:
    query = MERGED[name]
    parts = [TABLES["transactions"][k::clients] for k in range(clients)]
    given: dict[str, Any] = {"label": "y", "model": "linear", "l2": 1e-6, "test_fraction": 0.0, "epochs": 60}
    policies = {"transactions": Policy(merge_groups="extremes")}
    with tp.Federation(TABLES | {"transactions": parts}, policies=policies) as split:
        plan = split.explain(query, **given)
        result = split.train(query, **given)
        found = np.sort(split.predict(result, query)["prediction"].to_numpy())
    with tp.Federation(TABLES) as whole:
        same = whole.train(query, **given)
        expected = np.sort(whole.predict(same, query)["prediction"].to_numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    assert result.traffic.all_told == expect_disclosures(result.plan, len(result.history))
    others = "transactions[1] itself" if clients == 2 else "their sums over transactions[1], transactions[2]"
    assert others in " ".join(str(plan).split())


def test_groups_are_not_merged_without_a_word_of_every_owner() -> None:
    halves = [TABLES["transactions"][:1_000], TABLES["transactions"][1_000:]]
    query, small = QUERIES["groups"], MERGED["groups by an expression"]

    def refusal(query: str, *policies: Policy, **job: Any) -> str:
        named = {f"transactions[{i}]": policy for i, policy in enumerate(policies)}
        with tp.Federation(TABLES | {"transactions": halves}, policies=named) as federation:
            with pytest.raises(tp.TablePuppetError) as raised:
                federation.train(query, label="y", **job)
            return str(raised.value)

    one = Policy(merge_groups=True)
    assert "merge_groups = true, and that of transactions[1] does not" in refusal(query, one)
    assert "merge_groups = true, and that of transactions[0], transactions[1] does not" in refusal(small)
    assert 'merge_groups = "extremes"' in refusal(query.replace("avg(", "max("), one, one)
    assert "median cannot be merged over clients" in refusal(query.replace("avg(", "median("), one, one)
    assert 'under keys = "dh" they are not merged' in refusal(query, one, one, privacy={"keys": "dh"})
    few = Policy(merge_groups=True, minimum_rows=30, minimum_difference=1)
    assert "groups of fewer than 30 rows would be told to another owner" in refusal(query, one, few)
    assert "masked sums over at least 3 clients" in refusal(query, one, Policy(merge_groups=True, minimum_clients=3))
    noisy = Policy(merge_groups=True, budget={"transactions": TableBudget(features=1.0)})
    assert "sums of groups would leave as they are" in refusal(query, one, noisy)


def test_what_is_over_rows_of_several_clients_is_refused_with_the_reason() -> None:
    halves = [TABLES["transactions"][:1_000], TABLES["transactions"][1_000:]]
    with tp.Federation(TABLES | {"transactions": halves}) as federation:
        for name in ("order and limit", "union inside"):
            with pytest.raises(tp.TablePuppetError, match="each would compute this over its own rows only"):
                federation.explain(QUERIES[name], label="y")
        by_kind = """SELECT a.age, t.n, a.y FROM accounts a
            JOIN (SELECT kind, max(account_id) AS id, count(*) AS n FROM transactions GROUP BY kind) t
              ON t.id = a.account_id"""
        with pytest.raises(tp.TablePuppetError, match="Join it on kind"):
            federation.explain(by_kind, label="y")
        row_by_row = """SELECT a.age, t.half, a.y FROM accounts a
            JOIN (SELECT account_id, amount / 2 AS half FROM transactions WHERE kind = 'in') t USING (account_id)"""
        result = federation.train(row_by_row, label="y", model="linear", l2=0.0, test_fraction=0.0)
        found = federation.predict(result, row_by_row)["prediction"].to_numpy()
    np.testing.assert_allclose(np.sort(found), fitted(pooled(row_by_row)), rtol=1e-8)


BRANCHES = {"north": ["accounts", "transactions", "cards"], "south": ["accounts", "transactions", "cards"]}
PARTITIONED = {name: ["account_id"] for name in ("accounts", "transactions", "cards")}
OF_TWO_TABLES = {
    "a join in groups": """
        SELECT l.x, t.most, t.since, l.y FROM loans l JOIN (
            SELECT a.account_id, max(t.amount / a.age) AS most, min(t.day) AS since
            FROM accounts AS a JOIN transactions AS t ON a.account_id = t.account_id AND t.kind = 'in'
            GROUP BY a.account_id) t ON t.account_id = l.account_id""",
    "groups that are joined": """
        WITH spent AS (SELECT account_id, sum(amount) AS s FROM transactions GROUP BY account_id),
             grown AS (SELECT * FROM accounts WHERE age > 30)
        SELECT l.x, g.share, l.y FROM loans l JOIN (
            SELECT account_id, s / age AS share, row_number() OVER (PARTITION BY account_id ORDER BY s) AS nth
            FROM grown JOIN spent USING (account_id) LEFT JOIN cards USING (account_id)) g
        ON g.account_id = l.account_id AND g.nth = 1""",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", OF_TWO_TABLES)
def test_tables_that_are_partitioned_by_one_key_are_joined_at_each_owner(name: str) -> None:
    query = OF_TWO_TABLES[name]
    rng = np.random.default_rng(3)
    loans = pd.DataFrame({"account_id": np.arange(ROWS), "x": rng.normal(size=ROWS), "y": rng.normal(size=ROWS)})

    def by_branch(frame: pd.DataFrame) -> list[pd.DataFrame]:
        return [frame[frame["account_id"] % 3 > 0], frame[frame["account_id"] % 3 == 0]]

    split = {"loans": loans} | {table: by_branch(TABLES[table]) for table in PARTITIONED}
    whole = {"loans": loans} | TABLES
    with tp.Federation(whole, owners={"bank": list(TABLES)}) as bank:
        expected = bank.train(query, label="y", test_fraction=0.0)
    with (
        tp.Federation(split, owners=BRANCHES) as unsaid,
        pytest.raises(tp.TablePuppetError, match=r"partitioned by \(\[partitioned_by\] in its file"),
    ):
        unsaid.explain(query, label="y")
    with tp.Federation(split, owners=BRANCHES, partitioned_by=PARTITIONED) as federation:
        found = federation.train(query, label="y", test_fraction=0.0)
        assert found.plan.mapping.joined_rows == expected.plan.mapping.joined_rows
        np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-12)
        other = query.replace("a.account_id = t.account_id", "a.age = t.day")
        other = other.replace("JOIN spent USING (account_id)", "JOIN spent ON s = age")
        with pytest.raises(tp.TablePuppetError, match="each would compute this over its own rows only"):
            federation.explain(other, label="y")


def test_groups_of_a_partition_that_is_none_are_seen_when_keys_meet() -> None:
    halves = [TABLES["transactions"][:1_000], TABLES["transactions"][1_000:]]
    by = {"transactions": ["account_id"]}
    with (
        tp.Federation(TABLES | {"transactions": halves}, partitioned_by=by) as federation,
        pytest.raises(tp.TablePuppetError, match="some groups of account_id have rows of transactions with several"),
    ):
        federation.train(QUERIES["groups"], label="y")


def test_a_file_says_who_holds_what_and_by_which_column(tmp_path: Path) -> None:
    for name in ("accounts", "transactions"):
        for branch, rest in (("north", 0), ("south", 1)):
            frame = TABLES[name]
            frame[frame["account_id"] % 2 == rest].to_parquet(tmp_path / f"{branch}_{name}.parquet")
    TABLES["cards"].to_parquet(tmp_path / "cards.parquet")
    file = tmp_path / "federation.toml"
    file.write_text(
        """
        [tables]
        accounts = ["north_accounts.parquet", "south_accounts.parquet"]
        transactions = ["north_transactions.parquet", "south_transactions.parquet"]
        cards = "cards.parquet"
        [owners]
        north = ["accounts", "transactions"]
        south = ["accounts", "transactions"]
        [partitioned_by]
        accounts = ["account_id"]
        transactions = ["account_id"]
        """,
        encoding="utf-8",
    )
    query = """SELECT c.credit, t.old, t.y FROM cards c JOIN (
        SELECT a.account_id, max(t.amount / a.age) AS old, any_value(a.y) AS y FROM accounts a
        JOIN transactions t ON t.account_id = a.account_id GROUP BY a.account_id) t USING (account_id)"""
    with tp.Federation.from_toml(file) as federation:
        result = federation.train(query, label="y", model="linear", l2=0.0, test_fraction=0.0)
        found = federation.predict(result, query)["prediction"].to_numpy()
    np.testing.assert_allclose(np.sort(found), fitted(pooled(query)), rtol=1e-8)
    file.write_text(file.read_text(encoding="utf-8").replace('transactions = ["account_id"]', 'transaction = ["x"]'))
    with pytest.raises(tp.TablePuppetError, match="Did you mean transactions"):
        tp.Federation.from_toml(file)


def test_a_policy_sees_through_a_subquery_to_the_columns_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[tables.transactions]\nkeys = ["account_id"]\nfeatures = ["amount"]\n', encoding="utf-8")
    allowed = """SELECT a.age, t.spend, a.y FROM accounts a JOIN (
        SELECT account_id, avg(amount) AS spend FROM transactions GROUP BY account_id) t USING (account_id)"""
    hidden = allowed.replace("avg(amount)", "max(day)")
    filtered = allowed.replace("GROUP BY", "WHERE day = 7 GROUP BY")
    with tp.Federation(TABLES, policies={"transactions": file}) as federation:
        federation.train(allowed, label="y")
        for query in (hidden, filtered):
            with pytest.raises(tp.TablePuppetError, match="column day may not"):
                federation.train(query, label="y")


def test_a_part_that_an_owner_holds_is_applied_to_the_query_that_it_was_trained_on_only() -> None:
    query = QUERIES["groups"]
    with tp.Federation(TABLES) as federation:
        result = federation.train(query, label="y", release=False)
        assert len(federation.predict(result, query)) == len(pooled(query))
        with pytest.raises(tp.TablePuppetError, match="trained on only"):
            federation.predict(result, query.replace("avg(amount)", "sum(amount)"))


def test_a_database_gives_what_its_owners_own_query_asks_for(tmp_path: Path) -> None:
    file = tmp_path / "bank.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.register("given", TABLES["transactions"])
        connection.execute("CREATE TABLE transactions AS SELECT * FROM given")
    spend = "SELECT account_id, avg(amount) AS spend, count(*) AS n FROM transactions GROUP BY account_id"
    own = tp.source(f"duckdb:///{file}", query=spend)
    query = "SELECT a.age, t.spend, t.n, a.y FROM accounts a JOIN t ON t.account_id = a.account_id"
    with tp.Federation({"accounts": TABLES["accounts"], "t": own}) as federation:
        result = federation.train(query, label="y", model="linear", l2=0.0, test_fraction=0.0)
        found = federation.predict(result, query)["prediction"].to_numpy()
    np.testing.assert_allclose(np.sort(found), fitted(pooled(QUERIES["groups"])), rtol=1e-8)


def test_postgresql_gives_the_same_derived_rows(postgres: Iterator[Database]) -> None:
    import pyarrow as pa

    database = postgres()  # type: ignore[operator]
    database.ingest("transactions", pa.Table.from_pandas(TABLES["transactions"]))
    spend = "SELECT account_id, avg(amount) AS spend, count(*) AS n FROM transactions GROUP BY account_id"
    for held in (tp.source(database.url, table="transactions"), tp.source(database.url, query=spend)):
        query = (
            QUERIES["groups"] if held.query is None else QUERIES["groups"].replace(spend, "SELECT * FROM transactions")
        )
        with tp.Federation({"accounts": TABLES["accounts"], "transactions": held}) as federation:
            result = federation.train(query, label="y", model="linear", l2=0.0, test_fraction=0.0)
            found = federation.predict(result, query)["prediction"].to_numpy()
        np.testing.assert_allclose(np.sort(found), fitted(pooled(QUERIES["groups"])), rtol=1e-8)
