"""Random SELECTs with more kinds of SQL than `queries.py`: keys of every type, composite and computed, chains of joins.

Joins may hang on any table before them; ON has conditions beside equalities; subqueries group, filter and nest. Most
of what is drawn has no aggregate over several clients, so that more cases are trained than refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from random import Random

import pyarrow as pa
from tests.fuzz.queries import Case, divide

NUMBER = {"c": "x", "b": "z", "a": "w"}
TYPES = {"k": "int", "g": "int", "s": "text", "d": "date", "t": "moment", "m": "decimal", "f": "bool"}
FIRST = datetime.date(2024, 1, 1)


@dataclass(frozen=True)
class Source:
    """A table, or a subquery in its place; `columns`: names with types; `number`: a column to learn from."""

    text: str
    columns: dict[str, str]
    number: str


@dataclass(frozen=True)
class Joined:
    """One member of the FROM clause."""

    kind: str
    source: Source
    alias: str
    on: str = ""

    def text(self, *, markers: bool) -> str:
        source = self.source.text
        if markers:
            inner = source if source.startswith("(") else f"(SELECT * FROM {source})"
            source = f"(SELECT *, TRUE AS found FROM {inner})"
        return f"{self.kind} {source} {self.alias} {self.on}"


def make_wide_case(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    tables = {name: divide(rng, _pooled(rng, name)) for name in NUMBER}
    branches = [_branch(rng)]
    if rng.random() < 0.15:
        joins, items, _ = branches[0]
        branches.append((joins, items, _wheres(rng, joins)))
    texts = [" UNION ALL ".join(_text(*branch, markers=markers) for branch in branches) for markers in (False, True)]
    return Case(tables, texts[0], texts[1], rng.random() < 0.3)


def _pooled(rng: Random, name: str) -> pa.Table:
    rows = {"c": rng.randrange(5, 24), "b": rng.randrange(0, 14), "a": rng.randrange(1, 12)}[name]

    def column(draw: Callable[[], object], missing: float, kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < missing else draw() for _ in range(rows)], kind)

    columns = {
        "k": column(lambda: rng.randrange(1, 5), 0.1, pa.int64()),
        "g": column(lambda: rng.randrange(1, 3), 0.1, rng.choice([pa.int64(), pa.int32(), pa.int16()])),
        "s": column(lambda: rng.choice(["red", "Red", "blue", ""]), 0.1, rng.choice([pa.string(), pa.large_string()])),
        "d": column(lambda: FIRST + datetime.timedelta(days=rng.randrange(4)), 0.1, pa.date32()),
        "t": column(
            lambda: datetime.datetime(2024, 1, 1 + rng.randrange(3), 12 * rng.randrange(2)), 0.1, pa.timestamp("us")
        ),
        "m": column(lambda: Decimal(rng.randrange(1, 5)) / 4, 0.1, pa.decimal128(9, 2)),
        "f": column(lambda: rng.random() < 0.5, 0.1, pa.bool_()),
        NUMBER[name]: column(lambda: round(rng.gauss(0.3, 1), 6), 0.1 * (name == "b"), pa.float64()),
    }
    if name == "c":
        columns["y"] = column(lambda: round(rng.gauss(0, 1), 6), 0, pa.float64())
    return pa.table(columns)


# -- FROM ----------------------------------------------------------------------------------


def _branch(rng: Random) -> tuple[list[Joined], list[tuple[str, str]], list[str]]:
    joins = [Joined("FROM", Source("c", TYPES | {"x": "number"}, "x"), "c")]
    for place in range(rng.choice([0, 1, 1, 1, 2, 2, 3])):
        joins.append(_join(rng, joins, f"q{place}"))
    visible = [join for join in joins if not join.kind.startswith(("SEMI", "ANTI"))]
    items = [(_item(rng, join), join.alias) for join in visible for _ in range(rng.choice([1, 1, 2]))]
    return joins, items, _wheres(rng, joins)


def _join(rng: Random, joins: list[Joined], alias: str) -> Joined:
    source = _source(rng, ["b", "b", "a", "a", "c"][: 4 + (len(joins) > 1)])
    before = rng.choice([join for join in joins if not join.kind.startswith(("SEMI", "ANTI"))])
    kind = rng.choice(
        ["JOIN", "JOIN", "INNER JOIN", "LEFT JOIN", "LEFT JOIN", "LEFT OUTER JOIN", "SEMI JOIN", "ANTI JOIN"]
    )
    common = [name for name in source.columns if before.source.columns.get(name) == source.columns[name]]
    common = [name for name in common if source.columns[name] not in ("number", "bool")]
    if not common:
        return _join(rng, joins, alias)
    chosen = rng.sample(common, min(len(common), rng.choice([1, 1, 2])))
    if before.alias == joins[-1].alias == "c" and len(joins) == 1 and rng.random() < 0.1:
        return Joined(kind, source, alias, f"USING ({', '.join(chosen)})")
    pairs = [_pair(rng, before.alias, alias, name, source.columns[name]) for name in chosen]
    if rng.random() < 0.2:
        pairs.append(_condition(rng, Joined(kind, source, alias)))
    return Joined(kind, source, alias, "ON " + " AND ".join(pairs))


def _pair(rng: Random, left: str, right: str, name: str, kind: str) -> str:
    form = "{}"
    if rng.random() < 0.25:
        form = rng.choice(
            {
                "int": [
                    "{} + 1",
                    "{} % 2",
                    "CAST({} AS VARCHAR)",
                    "coalesce({}, 0)",
                    "CASE WHEN {} > 2 THEN 1 ELSE 2 END",
                ],
                "text": [
                    "lower({})",
                    "upper({})",
                    "trim({})",
                    "coalesce({}, 'none')",
                    "substr({}, 1, 1)",
                    "nullif({}, '')",
                ],
                "date": [
                    "date_trunc('month', {})",
                    "{} + INTERVAL 1 DAY",
                    "extract(day FROM {})",
                    "CAST({} AS TIMESTAMP)",
                ],
                "moment": ["CAST({} AS DATE)", "date_trunc('day', {})", "extract(hour FROM {})"],
                "decimal": ["CAST({} AS DOUBLE)", "round({}, 0)", "{} * 2", "floor({})"],
            }[kind]
        )
    pair = [form.format(f"{left}.{name}"), form.format(f"{right}.{name}")]
    if rng.random() < 0.3:
        pair.reverse()
    return " = ".join(pair)


def _source(rng: Random, tables: list[str]) -> Source:
    """Not c alone: a query that only one owner's tables answer runs there as a whole, where NULLs are values."""
    table = rng.choice(tables)
    v = NUMBER[table]
    plain = Source(table, TYPES | {v: "number"}, v)
    if rng.random() < 0.5:
        return plain
    key = rng.choice(["k", "g", "s", "d", "m"])
    where = f" WHERE {_condition(rng, Joined('', plain, table))}" if rng.random() < 0.4 else ""
    aggregate = rng.choice(
        [
            "count(*)",
            "sum({v})",
            "avg({v})",
            f"count(*) FILTER (WHERE {v} > 0)",
            "sum(CASE WHEN f THEN {v} ELSE 0 END)",
            "stddev_pop({v})",
            "median({v})",
            "max({v}) - min({v})",
            "count(DISTINCT s)",
            "max(d) - min(d)",
            "arg_max({v}, {v})",
            "bool_or(f)",
        ]
    ).format(v=v)
    forms = [
        (f"(SELECT {key}, {aggregate} AS v FROM {table}{where} GROUP BY {key})", "v"),
        (f"(SELECT {key}, {aggregate} AS v FROM {table}{where} GROUP BY ALL HAVING count(*) > 1)", "v"),
        (f"(SELECT DISTINCT {key}, {v} AS v FROM {table}{where})", "v"),
        (f"(SELECT DISTINCT ON ({key}) {key}, {v} AS v FROM {table}{where} ORDER BY {key}, {v}, s)", "v"),
        (f"(SELECT {key}, {v} * 2 AS v FROM {table}{where})", "v"),
        (f"(SELECT {key}, v FROM (SELECT {key}, {v} + 1 AS v FROM {table}{where}) inside WHERE v > 1)", "v"),
        (f"(SELECT {key}, {v} AS v FROM {table} UNION ALL SELECT {key}, -{v} FROM {table}{where})", "v"),
        (
            f"(SELECT l.{key}, r.{v} AS v FROM {table} l JOIN {table} r ON l.{key} = r.{key} AND r.{v} > l.{v})",
            "v",
        ),
        (f"(SELECT {key}, dense_rank() OVER (PARTITION BY {key} ORDER BY {v}) AS v FROM {table}{where})", "v"),
        (f"(WITH w AS (SELECT * FROM {table}{where}) SELECT {key}, {v} AS v FROM w)", "v"),
    ]
    text, number = rng.choice(forms)
    return Source(text, {key: TYPES[key], "v": "number"}, number)


# -- SELECT and WHERE ----------------------------------------------------------------------


def _item(rng: Random, join: Joined) -> str:
    a, columns = join.alias, join.source.columns
    v = f"{a}.{join.source.number}"
    texts = [v, v, f"abs({v})", f"{v} * {v} + 1", f"CASE WHEN {v} > 0 THEN 'up' WHEN {v} <= 0 THEN 'down' END"]
    texts += [f"greatest({v}, 0)", f"{v} IS NULL", f"coalesce({v}, 9)", f"{v} BETWEEN 0 AND 1", f"round({v}, 1)"]
    texts += [f"{v} > 0 OR {v} IS NULL", f"nullif({v}, {v})", f"least({v}, 1, 2)", f"-{v}", f"{v} / 2"]
    by_type = {
        "int": ["{}", "{} % 2", "{} IN (1, 2)", "{} NOT IN (1, 3)", "CAST({} AS VARCHAR)", "{} IS NOT DISTINCT FROM 2"],
        "text": [
            "{}",
            "length({})",
            "{} LIKE 'r%'",
            "upper({})",
            "{} || '!'",
            "{} = 'red'",
            "{} ILIKE 'RED'",
            "left({}, 1)",
        ],
        "date": [
            "extract(day FROM {})",
            "{} > DATE '2024-01-02'",
            "dayofweek({})",
            "datediff('day', DATE '2024-01-01', {})",
        ],
        "moment": ["extract(hour FROM {})", "{} >= TIMESTAMP '2024-01-02 00:00:00'", "hour({}) = 12"],
        "decimal": ["{}", "{} * 2", "{} > 0.5", "CAST({} AS INTEGER)"],
        "bool": ["{}", "NOT {}", "{} IS TRUE", "CAST({} AS INTEGER)", "CASE WHEN {} THEN 1 ELSE 0 END"],
        "number": [],
    }
    for name, kind in columns.items():
        texts += [form.format(f"{a}.{name}") for form in rng.sample(by_type[kind], min(2, len(by_type[kind])))]
    return rng.choice(texts)


def _condition(rng: Random, join: Joined) -> str:
    a, columns, v = join.alias, join.source.columns, f"{join.alias}.{join.source.number}"
    texts = [f"{v} > 0", f"{v} IS NOT NULL", f"NOT ({v} > 0.5)", f"abs({v}) < 1", f"{v} IS NULL OR {v} < 1"]
    by_type = {
        "int": [
            "{} > 1",
            "{} <> 2",
            "{} IN (1, 2, NULL)",
            "{} NOT IN (3)",
            "{} BETWEEN 1 AND 3",
            "{} IS DISTINCT FROM 1",
        ],
        "text": ["{} <> ''", "{} LIKE '%e%'", "lower({}) = 'red'", "{} IS NULL", "length({}) > 3", "{} NOT LIKE 'b%'"],
        "date": [
            "{} >= '2024-01-02'",
            "{} <> DATE '2024-01-01'",
            "month({}) = 1",
            "{} + INTERVAL 1 DAY > DATE '2024-01-02'",
        ],
        "moment": ["{} < TIMESTAMP '2024-01-03'", "CAST({} AS DATE) = DATE '2024-01-01'", "{} IS NOT NULL"],
        "decimal": ["{} > 0.3", "{} = 0.5", "{} <> 1"],
        "bool": ["{}", "NOT {}", "{} IS NOT TRUE", "{} = TRUE"],
        "number": [],
    }
    for name, kind in columns.items():
        texts += [form.format(f"{a}.{name}") for form in by_type[kind]]
    return "(" + rng.choice(texts) + ")"


def _wheres(rng: Random, joins: list[Joined]) -> list[str]:
    visible = [join for join in joins if not join.kind.startswith(("SEMI", "ANTI"))]
    found = [_condition(rng, rng.choice(visible)) for _ in range(rng.choice([0, 0, 1, 1, 2]))]
    if rng.random() < 0.15:
        table, key = rng.choice(["b", "a"]), rng.choice(["k", "g", "s", "d", "m", "t"])
        not_ = rng.choice(["", "NOT "])
        found.append(
            rng.choice(
                [
                    f"c.{key} {not_}IN (SELECT {key} FROM {table})",
                    f"{not_}EXISTS (SELECT * FROM {table} e WHERE e.{key} = c.{key})",
                    f"{not_}EXISTS (FROM {table} e WHERE e.{key} = c.{key} AND e.{NUMBER[table]} > 0)",
                    f"(c.k, c.{key}) {not_}IN (SELECT k, {key} FROM {table})",
                    f"c.{key} = ANY (SELECT {key} FROM {table})",
                ]
            )
        )
    return found


def _text(joins: list[Joined], items: list[tuple[str, str]], wheres: list[str], *, markers: bool) -> str:
    texts = [f"{text} AS i{n}" for n, (text, _) in enumerate(items)]
    if markers:
        texts += [f"coalesce({alias}.found, FALSE) AS found{n}" for n, (_, alias) in enumerate(items)]
    source = " ".join(join.text(markers=markers) for join in joins)
    return f"SELECT {', '.join([*texts, 'c.y'])} {source}" + (f" WHERE {' AND '.join(wheres)}" if wheres else "")
