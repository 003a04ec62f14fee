"""Expressions that tell of few rows are found, whatever they are written with; those of honest jobs are not."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.errors import PolicyError
from tablepuppet.owner.singling_out import cuts_of_query, expressions_of_query, few_match, joins_of_query, singles_out
from tablepuppet.sources.guard import check_expression
from tablepuppet.sources.source import open_source

ROWS = 400
GATES = {
    "a sign": "(1 - abs(sign(id - 7))) * delay",
    "a power": "pow(0, abs(id - 7)) * delay",
    "an exponential": "exp(-1000 * abs(id - 7)) * delay",
    "a fraction": "delay / (1 + 1e14 * (id - 7) * (id - 7))",
    "a pole": "delay / (id - 7 + 1e-12)",
    "among others": "pow(0, abs(id - 7)) * delay + age + delay + id",
    "a millionth": "1e-6 * pow(0, abs(id - 7)) * delay + age",
    "a greatest": "greatest(0, 1 - abs(id - 7)) * delay",
    "a remainder": "delay * (1 - sign(id % 500 - 7) * sign(id % 500 - 7))",
    "a text": "delay * strpos(',7,', ',' || id || ',')",
    "a regular expression": "delay * length(regexp_extract(CAST(id AS VARCHAR), '^7$'))",
    "a distance of texts": "delay * greatest(0, 1 - levenshtein(CAST(id AS VARCHAR), '7'))",
    "a cast": "delay * (1 - CAST(CAST(id - 7 AS BOOLEAN) AS INT))",
    "a list": "[delay, 0][1 + CAST(CAST(id - 7 AS BOOLEAN) AS INT)]",
    "a null": "delay + 0 * ln(abs(id - 7))",
    "a name": "left('xy', CAST(1 + pow(0, abs(id - 7)) * sign(delay + 9) AS INT))",
    "a label": "late * pow(0, abs(id - 7))",
    "a weight of all but one": "abs(sign(id - 7))",
    "a weight of one": "1 + 1e9 * pow(0, abs(id - 7))",
    "an outlier's name": "left(city, CAST(1 + 3 * pow(0, abs(id - 7)) AS INT))",
    "twenty rows": "delay * greatest(0, sign(20 - id))",
}
HONEST = [
    "ln(abs(delay) + 1)", "age * income", "income / age", "age * age", "exp(delay)", "round(delay, 1)", "delay - age",
    "upper(city)", "city || left(colour, 1)", "left(city, 2)", "date_part('month', day)",
    "date_diff('day', day, until)", "CASE WHEN age > 40 THEN delay ELSE 0 END", "greatest(delay, 0)",
    "coalesce(gaps, 0)", "gaps * age", "abs(delay) * 2",
    "CAST(id AS VARCHAR)", "id % 10", "age * income * delay + delay", "sqrt(income)", "late + 1", "(age + income) / 2",
]  # fmt: skip


def people() -> pa.Table:
    random = np.random.default_rng(3)
    gaps = random.normal(size=ROWS)
    gaps[::3] = np.nan
    days = np.datetime64("2024-01-01") + random.integers(0, 365, ROWS)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "age": random.integers(18, 90, ROWS),
            "income": random.lognormal(size=ROWS),
            "delay": random.normal(size=ROWS),
            "late": random.integers(0, 2, ROWS),
            "city": random.choice(["north", "south", "east"], ROWS),
            "colour": random.choice(["red", "blue"], ROWS),
            "gaps": pa.array(gaps, from_pandas=True),
            "day": days,
            "until": days + random.integers(1, 30, ROWS),
        }
    )


def is_of_few(expression: str, filter: str | None = None, least: int = 50) -> bool:
    source = open_source(people(), "people")
    text = check_expression(expression, people().column_names)
    try:
        return singles_out(source, [text], filter, least)
    finally:
        source.close()


@pytest.mark.parametrize("expression", GATES.values(), ids=GATES)
def test_an_expression_that_is_about_few_rows_is_found(expression: str) -> None:
    assert is_of_few(expression)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("expression", HONEST)
def test_an_expression_that_many_rows_differ_in_is_not(expression: str) -> None:
    assert not is_of_few(expression)
    assert not is_of_few(expression, '"id" < 80')  # nor of a small table


def test_what_counts_are_the_rows_that_a_filter_leaves() -> None:
    ten_times_forty = "delay * (1 - sign(id % 5))"
    assert not is_of_few(ten_times_forty)
    assert is_of_few(ten_times_forty, '"id" IN (0, 1, 2, 3, 4) OR "id" > 100 AND "id" % 5 > 0')


def test_columns_as_they_are_tell_what_they_tell() -> None:
    rare = pa.table({"x": np.eye(1, ROWS)[0], "y": np.arange(ROWS)})
    source = open_source(rare, "rare")
    assert not singles_out(source, ['"x"', '("x")', "1"], None, 50)
    assert singles_out(source, ['"x" * "y"'], None, 50)
    source.close()


def test_expressions_of_a_query_are_those_of_its_tables() -> None:
    tables = {"people": people().column_names, "places": ["city", "wealth"]}
    query = (
        'SELECT p."city", sum(p."delay" * pow(0, abs(p."id" - 7))) AS x FROM people AS p '
        'JOIN places AS q ON p."city" = q."city" GROUP BY p."city"'
    )
    assert expressions_of_query(query, tables)["people"] == ['"delay" * POWER(0, ABS("id" - 7))']
    assert joins_of_query(query, tables) == [(("people", "city"), ("places", "city"))]
    with pytest.raises(PolicyError, match="by their own names"):
        expressions_of_query('SELECT exp(g."x") AS x FROM (SELECT avg("age") AS x FROM people) AS g', tables)


def test_a_join_that_few_rows_of_a_side_take_part_in_is_noticed() -> None:
    few, many = pa.chunked_array([[0, 1, 2]]), pa.chunked_array([np.arange(500) % 3])
    assert few_match(many, few, 50)
    assert not few_match(many, many, 50)


CHOICES = {
    "SELECT x FROM t LIMIT 3": "LIMIT",
    "SELECT x FROM t OFFSET 3": "OFFSET",
    "SELECT row_number() OVER (ORDER BY x) AS n FROM t": "a window",
    "SELECT x FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY x) = 1": "a window",
    "SELECT DISTINCT ON (k) k, x FROM t": "DISTINCT ON",
    "SELECT DISTINCT ON (k) k, x FROM t ORDER BY x": "DISTINCT ON",
    "SELECT x FROM t EXCEPT SELECT y FROM u": "EXCEPT",
    "SELECT x FROM t INTERSECT SELECT y FROM u": "INTERSECT",
    "SELECT x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k)": "EXISTS",
    "SELECT x FROM t WHERE x > ALL (SELECT y FROM u)": "ALL",
    "SELECT x FROM t WHERE x = ANY (SELECT y FROM u)": "ANY",
    "SELECT x FROM t WHERE k IN (SELECT k FROM u)": r"IN \(SELECT …\)",
    "SELECT x - (SELECT max(y) FROM u) AS d FROM t": "a query in place of a value",
    "SELECT max(x) AS m FROM t": "max without groups",
    "SELECT k, n FROM (SELECT k, min(x) AS n FROM t GROUP BY k) g": "min without groups",
}


@pytest.mark.parametrize("query", CHOICES)
def test_a_query_that_chooses_rows_by_their_order_or_number_is_unclear(query: str) -> None:
    with pytest.raises(PolicyError, match=rf"cannot tell how few rows {CHOICES[query]}.*rule minimum_rows"):
        expressions_of_query(query, TABLES)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, max(x) AS m FROM t GROUP BY k",
        "SELECT DISTINCT k, x FROM t",
        "SELECT x FROM t UNION ALL SELECT y FROM u",
        "SELECT t.x, g.m FROM t JOIN (SELECT k, avg(y) AS m FROM u GROUP BY k) g ON g.k = t.k",
        "SELECT x FROM t WHERE k IN (1, 2)",
    ],
)
def test_a_query_of_groups_joins_and_unions_is_clear(query: str) -> None:
    expressions_of_query(query, TABLES)


TABLES = {"t": ["k", "x"], "u": ["k", "y"]}


@pytest.mark.parametrize(
    ("picked", "least", "is_few"), [(1, 2, True), (2, 3, True), (2, 2, False), (3, 4, True), (5, 5, False)]
)
def test_as_many_rows_as_an_owner_asks_for_are_not_few_and_one_fewer_are(picked: int, least: int, is_few: bool) -> None:
    """Of rows of which all others are alike: they lie apart from the others, and not from a mean of all."""
    with closing(open_source(pa.table({"id": np.arange(ROWS)}), "t")) as source:
        text = check_expression(f"CASE WHEN id < {picked} THEN 1 ELSE 0 END", ["id"])
        assert singles_out(source, [text], None, least) == is_few


def test_one_row_among_noise_acts_where_it_is_and_where_it_is_shuffled_to() -> None:
    """It holds a share of all distance that two rows have, and a little more: fewer than twice as many are few."""
    random = np.random.default_rng(3)
    x = np.zeros(ROWS)
    x[7] = 100.0
    table = pa.table({"id": np.arange(ROWS), "x": x, "y": random.normal(size=ROWS)})
    with closing(open_source(table, "t")) as source:
        text = check_expression("y + CASE WHEN id = 7 THEN x ELSE 0 END", ["id", "x", "y"])
        assert singles_out(source, [text], None, 3)


@pytest.mark.parametrize(
    ("sign", "turned", "ends"),
    [("<", ">", {False}), ("<=", ">=", {True}), (">", "<", {True}), (">=", "<=", {False}), ("=", "=", {True, False})],
)
def test_a_moment_cuts_times_alike_on_either_side_of_a_comparison(sign: str, turned: str, ends: set[bool]) -> None:
    time, moment = '"r"."day"', '"tablepuppet cutoffs"."at"'
    for condition in (f"{time} {sign} {moment}", f"{moment} {turned} {time}"):
        query = f'SELECT "r"."k" FROM "r" JOIN "tablepuppet cutoffs" ON {condition}'
        cuts = cuts_of_query(query, {"r": ["k", "day"]})["r"]
        assert {cut.is_last for cut in cuts} == ends
        assert {(cut.time, cut.moment) for cut in cuts} == {('"day"', '"at"')}
