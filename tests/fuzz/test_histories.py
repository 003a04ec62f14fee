"""Random histories: what they are written as gives DuckDB's rows, and trees over them are those of one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from sqlglot import exp

import tablepuppet as tp
from tablepuppet.owner.policy import Policy
from tablepuppet.sources.history_queries import AT, AT_ONCE, CUTOFF, is_cutoffs
from tablepuppet.sql.history import join_histories
from tablepuppet.sql.parsing import syntax_tree

OWNERS = {"task": ("a",), "results": ("b",), "visits": ("c",)}
TYPES = {
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "zoned": pa.timestamp("us", "UTC"),
    "berlin": pa.timestamp("us", "Europe/Berlin"),
    "seconds": pa.timestamp("s"),
    "milliseconds": pa.timestamp("ms"),
}
RULES = {"keys": ["k", "g"], "pairs": ["k", "g"], "filters": ["k", "g", "x", "ts", "day", "v", "place"]}
AGGREGATES = (
    "count(*)",
    "count(r.v)",
    "avg(r.v)",
    "sum(r.v)",
    "min(r.v)",
    "max(r.v) - min(r.v)",
    "stddev(r.v)",
    "count(DISTINCT r.place)",
    "coalesce(sum(r.v), 0) + count(*)",
    "sum(r.v) FILTER (WHERE r.place = 'a')",
    "count(*) FILTER (WHERE r.day >= {at} - INTERVAL 30 DAY)",
    "avg(r.v) FILTER (WHERE r.day >= {at} - INTERVAL 10 DAY AND r.place <> 'b')",
    "date_diff('day', max(r.day), {at})",
    "max(r.v) FILTER (WHERE r.day < {at})",
    "CASE WHEN count(*) > 2 THEN avg(r.v) END",
    "regr_slope(r.v, date_diff('day', r.day, {at}))",
)


class Random:
    """What a seed decides."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def one(self, values: Sequence[str]) -> str:
        return values[int(self.random.integers(len(values)))]

    def tables(self) -> dict[str, pa.Table]:
        """Moments and events with duplicates, ties, NULLs, keys without history and history without keys."""
        rows, events = int(self.random.integers(1, 40)), int(self.random.integers(1, 80))
        self.has_texts = self.chance(0.2)
        own = {"k": self._keys(rows), "g": self._keys(rows), "ts": self._times(rows, 30), "x": self._numbers(rows)}
        task = pa.table({**own, "y": self.random.normal(size=rows).round(2)})
        return {"task": task, "results": self._events(events), "visits": self._events(events // 2 + 1)}

    def _events(self, rows: int) -> pa.Table:
        places = pa.array(self.random.choice(["a", "b", "c"], rows), mask=self.random.random(rows) < 0.1)
        own = {"k": self._keys(rows), "g": self._keys(rows), "day": self._times(rows, 1)}
        return pa.table({**own, "v": self._numbers(rows), "place": places})

    def _keys(self, rows: int) -> pa.Array:
        found = pa.array(self.random.integers(0, 6, rows), mask=self.random.random(rows) < 0.05)
        return found.cast(pa.string()) if self.has_texts else found

    def _numbers(self, rows: int) -> pa.Array:
        return pa.array(self.random.integers(-8, 9, rows) / 4, mask=self.random.random(rows) < 0.1)

    def _times(self, rows: int, step: int) -> pa.Array:
        kind = self.one(list(TYPES))
        first = np.datetime64(self.one(["2020-01-05"] * 6 + ["2019-02-27", "2021-12-31"]))  # or outside of the others
        days = first + step * self.random.integers(0, 150 // step, rows)
        hours = (
            0 if kind == "date" or self.chance(0.5) else 6 * self.random.integers(0, 4, rows).astype("timedelta64[h]")
        )
        found = pa.array((days + hours).astype("datetime64[us]" if kind != "date" else "datetime64[D]"))
        masked = pa.array(found, mask=self.random.random(rows) < 0.06) if rows else found
        return masked.cast(TYPES[kind])

    def clients(self, table: pa.Table) -> list[pa.Table]:
        """A table at one to three clients, one of which may have no row; each key's rows lie with one of them."""
        if self.chance(0.6):
            return [table]
        shares = (
            [["0", "1", None], ["2"], ["3", "4", "5"]]
            if self.chance(0.5)
            else [["0", "1", "2", None, "3", "4", "5"], []]
        )
        names = table["k"].cast(pa.string())
        return [table.filter(pa.compute.is_in(names, pa.array(share, pa.string()))) for share in shares]

    def policies(self) -> dict[str, Policy]:
        """None, or those of owners that exchange pairs of key and moment."""
        if self.chance(0.5):
            return {}
        task = {"features": ["x", "ts"], "labels": ["y"], "cutoffs": ["ts"]}
        events = {"features": ["day", "v", "place", "g", "k"]}
        rules = {"task": task, "results": events, "visits": events}
        return {table: msgspec.convert({"tables": {table: RULES | own}}, Policy) for table, own in rules.items()}

    # -- queries ----------------------------------------------------------------------------

    def query(self) -> str:
        if self.chance(0.15):
            return f"{self._branch(is_union=True)} UNION ALL {self._branch(is_union=True)}"
        return self._branch()

    def _branch(self, *, is_union: bool = False) -> str:
        self.moment = "date_trunc('month', t.ts)" if self.chance(0.2) else "t.ts"
        head, items = "", ["t.x"]
        joins: list[str] = []
        task = "task t" if self.chance(0.8) else "(SELECT k, g, ts, x, y FROM task WHERE x > -1) t"
        for number in range(1 if is_union else int(self.random.integers(1, 4))):
            form = self.one(["scalar", "scalar", "lateral", "grouped", "rows", "latest", "asof"])
            source = self.one(["results", "visits"])
            if self.chance(0.2) and not is_union:
                head = f"WITH past AS (SELECT k, g, day, v, place FROM {source} WHERE place <> 'c') "
                source = "past"
            elif self.chance(0.2):
                source = f"(SELECT * FROM {source} WHERE v > -1.5)"
            getattr(self, f"_{form}")(source, f"h{number}", joins, items)
        shown = [f"{item} AS i{number}" for number, item in enumerate(items[: 2 if is_union else None])]
        return f"{head}SELECT {', '.join(shown)}, t.y FROM {task}{' '.join(['', *joins])}"

    def _bounds(self, at: str, key: str = "t") -> str:
        days = int(self.random.integers(1, 120))
        written = [
            f"r.day < {at}",
            f"r.day <= {at}",
            f"{at} > r.day",
            f"r.day < {at} AND r.day >= {at} - INTERVAL {days} DAY",
            f"r.day BETWEEN {at} - INTERVAL {days} DAY AND {at}",
            f"r.day > {at} - INTERVAL {days} DAY AND {at} >= r.day AND r.place <> 'b'",
            f"r.day <= {at} - INTERVAL {days} HOUR AND r.day + INTERVAL 2 MONTH > {at}",
            f"r.day < {at} AND r.day >= {at} - INTERVAL {1 + days % 4} MONTH",
            f"CAST(r.day AS DATE) < CAST({at} AS DATE)",
        ]
        keys = f"r.k = {key}.k" if self.chance(0.8) else f"r.k = {key}.k AND {key}.g = r.g"
        return f"{keys} AND {self.one(written)}"

    def _aggregate(self, at: str) -> str:
        return self.one(AGGREGATES).format(at=at)

    def _scalar(self, source: str, name: str, joins: list[str], items: list[str]) -> None:
        for _ in range(int(self.random.integers(1, 4))):
            rows = f"FROM {source} r WHERE {self._bounds(self.moment)}"
            found, last = f"(SELECT {self._aggregate(self.moment)} {rows})", f"(SELECT max(r.day) {rows})"
            since = f"date_diff('day', {last}, {self.moment})"
            if "CAST(" in rows:
                since = found  # the history's moment is a day, and not the time that this item compares
            items.append(self.one([found] * 4 + [f"EXISTS (SELECT 1 {rows})", since]))

    def _lateral(self, source: str, name: str, joins: list[str], items: list[str]) -> None:
        listed = ", ".join(f"{self._aggregate(self.moment)} AS {name}_{k}" for k in range(2))
        inner = f"(SELECT {listed} FROM {source} r WHERE {self._bounds(self.moment)}) {name}"
        joins.append(self.one([f"LEFT JOIN LATERAL {inner} ON true", f"CROSS JOIN LATERAL {inner}"]))
        items += [f"{self.one([f'{name}.', ''])}{name}_{k}" for k in range(2)]

    def _grouped(self, source: str, name: str, joins: list[str], items: list[str]) -> None:
        kind = self.one(["LEFT JOIN", "JOIN"])
        tied = "r.k = t2.k AND " + self.one(["r.day < t2.ts", "r.day <= t2.ts AND r.day > t2.ts - INTERVAL 40 DAY"])
        value = self.one(["avg(r.v)", "max(r.v)", "count(*)", "sum(r.v)"])
        moments = self.one(["SELECT DISTINCT k, ts FROM task", "SELECT k, ts FROM task GROUP BY 1, 2"])
        on = "USING (k, ts)" if self.chance(0.3) and not joins else f"ON {name}.k = t.k AND {name}.ts = t.ts"
        inner = tied.replace("r.k = t2.k AND", "USING (k) WHERE") if self.chance(0.3) else f"ON {tied}"
        joins.append(
            f"{kind} (SELECT {self.one(['r', 't2'])}.k, t2.ts, {value} AS a FROM ({moments}) t2 JOIN {source} r "
            f"{inner} GROUP BY 1, 2) {name} {on}"
        )
        items.append(f"{name}.a")

    def _rows(self, source: str, name: str, joins: list[str], items: list[str]) -> None:
        where = f"r.k = t.k AND r.day < {self.moment} AND r.day >= {self.moment} - INTERVAL 9 DAY".replace(
            "r.", f"{name}."
        )
        joins.append(f"{self.one(['LEFT JOIN', 'JOIN'])} {source} {name} ON {where}")
        items.append(f"{name}.v")

    def _latest(self, source: str, name: str, joins: list[str], items: list[str]) -> None:
        order = "ORDER BY r.day DESC, r.v, r.place, r.g LIMIT 1"
        if self.chance(0.5):
            items.append(f"(SELECT r.v FROM {source} r WHERE {self._bounds(self.moment)} {order})")
            return
        inner = f"(SELECT r.v, r.place FROM {source} r WHERE {self._bounds(self.moment)} {order}) {name}"
        joins.append(f"{self.one(['LEFT JOIN', 'JOIN'])} LATERAL {inner} ON true")
        items.append(f"{name}.v")

    def _asof(self, source: str, name: str, joins: list[str], items: list[str]) -> None:
        once = f"(SELECT k, day, max(v) AS v FROM {source} s GROUP BY k, day)"  # ASOF takes any of two at one moment
        order = self.one(["<", "<="])
        also = self.one(["", "", f"{name}.v > 0 AND "])
        joins.append(
            f"ASOF {self.one(['LEFT JOIN', 'JOIN'])} {once} {name} ON {name}.k = t.k AND {also}{name}.day {order} "
            f"{self.moment}"
        )
        items.append(self.one([f"{name}.v", f"date_diff('day', {name}.day, {self.moment})"]))


def rewrite(sql: str) -> str:
    """The query as it is federated, with each history's cutoffs in the place of their table."""
    tree = syntax_tree(sql)
    for select in (tree.left, tree.right) if isinstance(tree, exp.Union) else (tree,):
        assert isinstance(select, exp.Select)
        join_histories(sql, select, OWNERS)
    for join in list(tree.find_all(exp.Join)):
        cutoffs = [node for node in join.this.find_all(exp.Table) if is_cutoffs(node)]
        if not isinstance(join.this, exp.Subquery) or not cutoffs or is_cutoffs(join.this):
            continue
        equal = list(join.args["on"].find_all(exp.EQ))
        moment = next(
            other
            for e in equal
            for own, other in ((e.left, e.right), (e.right, e.left))
            if isinstance(own, exp.Column) and own.name in (AT, AT_ONCE)
        )
        select = cast("exp.Select", join.find_ancestor(exp.Select))
        giver = select.args["from_"].this.copy()
        query = exp.select(exp.alias_(moment.copy(), CUTOFF, quoted=True)).distinct().from_(giver)
        for node in cutoffs:
            node.replace(exp.Subquery(this=query.copy(), alias=exp.TableAlias(this=node.this.copy())))
    return tree.sql("duckdb")


def rows_of(sql: str, tables: dict[str, pa.Table]) -> pa.Table:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET disabled_optimizers = 'common_subexpressions'")  # as owners do: a month is not 30 days
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table()


def check_rewriting(seed: int) -> None:
    random = Random(seed)
    tables, sql = random.tables(), random.query()
    compare_rows(sql, tables, f"{seed}: {sql}")


def compare_rows(sql: str, tables: dict[str, pa.Table], what: str) -> None:
    found = rewrite(sql)
    assert "tablepuppet" in found, sql
    expected, got = (rows_of(text, tables).to_pandas() for text in (sql, found))
    by = list(expected.columns)
    expected, got = (rows.astype("float64") for rows in (expected, got))
    expected, got = (
        rows.loc[rows.round(9).sort_values(by).index] for rows in (expected, got)
    )  # whatever its last bits
    np.testing.assert_allclose(got.to_numpy(), expected.to_numpy(), rtol=1e-12, atol=1e-12, err_msg=what)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_a_history_written_as_a_join_has_the_rows_of_the_query(start: int) -> None:
    for seed in range(start, start + 20):
        check_rewriting(seed)


LATERAL = "LATERAL (SELECT count(*) AS n, count(r.v) AS known, max(r.day) AS last FROM results r WHERE {}) h"
BEFORE = "r.k = t.k AND r.day < t.ts"
GROUPED = "(SELECT {}.k, t2.ts, count(*) AS n FROM ({}) t2 JOIN results r {} r.day < t2.ts GROUP BY 1, 2) h"
WRITTEN = {
    "outputs without a table": f"SELECT n, known, t.y FROM task t, {LATERAL.format(BEFORE)}",
    "columns that are left out": f"SELECT h.* EXCLUDE (last), t.y FROM task t, {LATERAL.format(BEFORE)}",
    "a condition that always holds": f"SELECT n, t.y FROM task t LEFT JOIN {LATERAL.format(BEFORE)} ON 1 = 1",
    "days since": f"SELECT date_diff('day', h.last, t.ts) AS d, t.y FROM task t, {LATERAL.format(BEFORE)}",
    "days since, around": f"SELECT date_diff('day', (SELECT max(r.day) FROM results r WHERE {BEFORE}), t.ts) AS d, t.y "
    "FROM task t",
    "whether there is any": f"SELECT EXISTS (SELECT 1 FROM results r WHERE {BEFORE} AND r.v > 1) AS e, t.y FROM task t",
    "a count or NULL": f"SELECT (SELECT count_if(r.v > 0) FROM results r WHERE {BEFORE}) AS n, t.y FROM task t",
    "a condition on the latest": "SELECT s.v, date_diff('day', s.day, t.ts) AS d, t.y FROM task t ASOF LEFT JOIN "
    "(SELECT k, day, max(v) AS v FROM results GROUP BY ALL) s ON s.k = t.k AND s.v > 0 AND s.day <= t.ts",
    "USING": "SELECT n, t.y FROM task t LEFT JOIN "
    + GROUPED.format("t2", "SELECT DISTINCT k, ts FROM task", "USING (k) WHERE")
    + " USING (k, ts)",
    "grouped by the other key": "SELECT h.n, t.y FROM task t JOIN "
    + GROUPED.format("r", "SELECT k, ts FROM task GROUP BY k, ts", "ON r.k = t2.k AND")
    + " ON h.k = t.k AND h.ts = t.ts",
}


@pytest.mark.parametrize("way", WRITTEN)
def test_a_history_may_be_written_in_other_ways(way: str) -> None:
    for seed in range(3):
        compare_rows(WRITTEN[way], Random(seed).tables(), way)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 9000, 1000))
def test_many_histories_written_as_joins_have_the_rows_of_their_queries(start: int) -> None:
    for seed in range(start, start + 1000):
        check_rewriting(seed)


def check_trees(seed: int, text: str = "") -> None:
    random = Random(seed)
    tables, sql = random.tables(), text or random.query()
    pooled = rows_of(sql, tables)
    if pooled.num_rows < 5:
        return
    options: dict[str, Any] = {"label": "y", "model": "boosted", "trees": 5, "test_fraction": 0.0}
    items = ", ".join(f"p.{name}" for name in pooled.column_names)
    held = {name: [table] if name == "task" else random.clients(table) for name, table in tables.items()}
    with tp.Federation(held, policies=random.policies()) as federation:
        ours = federation.train(sql, **options)
        predicted = federation.predict(ours)["prediction"].to_numpy()
    with tp.Federation({"pooled": pooled}) as federation:
        theirs = federation.train(f"SELECT {items} FROM pooled p", **options)
        expected = federation.predict(theirs)["prediction"].to_numpy()
    np.testing.assert_allclose(np.sort(predicted), np.sort(expected), rtol=0, atol=1e-9, err_msg=f"{seed}: {sql}")
    assert ours.plan.mapping.train_rows == pooled.num_rows, sql
    assert ours.objective == pytest.approx(theirs.objective, rel=1e-9), f"{seed}: {sql}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [0, 4, 8])
def test_trees_over_histories_are_those_of_one_table(seed: int) -> None:
    check_trees(seed)


def test_trees_over_a_history_of_a_query_of_with_are_those_of_one_table() -> None:
    check_trees(
        4,
        "WITH base AS (SELECT * FROM task WHERE x > -9), moments AS (SELECT DISTINCT k, ts FROM base) "
        "SELECT t.x, n, t.y FROM base t LEFT JOIN (SELECT m.k, m.ts, count(*) AS n FROM moments m "
        "JOIN results r ON r.k = m.k AND r.day < m.ts GROUP BY 1, 2) h USING (k, ts)",
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_trees_over_histories_are_those_of_one_table(seed: int) -> None:
    check_trees(seed)
