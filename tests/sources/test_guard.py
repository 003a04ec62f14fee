"""A client runs only scalar expressions over its own columns, and knows each construct that it refuses."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.expressions import ACCEPTED, COLUMNS, HOSTILE, RUNNABLE

from tablepuppet.errors import PolicyError
from tablepuppet.owner.singling_out import is_computed
from tablepuppet.sources.guard import MAX_LENGTH, check_expression, compared_columns, is_one_column
from tablepuppet.sources.history_queries import is_plain_column, name_for_people
from tablepuppet.sources.syntax import unused_name


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute(
        "CREATE TABLE source AS SELECT 3 AS a, 4 AS b, 'x' AS name, TIMESTAMP '2020-02-03 04:05:06' AS t, "
        'DATE \'2020-02-03\' AS d, [1.0, 2.0] AS v, 1 AS "We ird", 2 AS "order"'
    )
    return connection


@pytest.mark.parametrize("sql", HOSTILE)
def test_what_is_not_a_scalar_expression_over_own_columns_is_refused(sql: str) -> None:
    with pytest.raises(PolicyError, match="is refused by this client: "):
        check_expression(sql, COLUMNS)
    with pytest.raises(PolicyError, match="the filter is refused"):
        check_expression(sql, COLUMNS, "filter")


@pytest.mark.parametrize("sql", [sql for sql in HOSTILE if sql.strip() and sql != "a, b"])  # () and (a, b) are tuples
def test_what_is_refused_alone_is_refused_within_an_expression(sql: str) -> None:
    with pytest.raises(PolicyError):
        check_expression(f"coalesce(a, CASE WHEN a > 1 THEN ({sql}) END)", COLUMNS)


@pytest.mark.parametrize(("sql", "run"), ACCEPTED.items())
def test_an_expression_is_written_anew_with_quoted_names_and_without_comments(sql: str, run: str) -> None:
    assert check_expression(sql, COLUMNS) == run


@pytest.mark.parametrize("sql", [*ACCEPTED, *RUNNABLE])
def test_an_accepted_expression_means_the_same_as_the_text_it_came_from(
    sql: str, connection: duckdb.DuckDBPyConnection
) -> None:
    checked = check_expression(sql, COLUMNS)
    assert check_expression(checked, COLUMNS) == checked
    text, rewritten = (connection.execute(f"SELECT ({e}\n) FROM source").fetchall() for e in (sql, checked))
    assert rewritten == text


@pytest.mark.parametrize(
    ("sql", "construct"),
    [
        ("getenv('HOME')", "the function getenv"),
        ("(SELECT 1)", "SUBQUERY"),
        ("sum(a)", "the function sum"),
        ("row_number() OVER ()", "WINDOW"),
        ("b2", "has no column 'b2'; it has a, b, "),
        ("source.a", "carries the name of a table"),
        ("a::STRUCT(x INTEGER)", "a cast to"),
        ("a AS x", "not one scalar SQL expression"),
        ("a; b", "a semicolon"),
    ],
)
def test_the_refusal_names_the_construct(sql: str, construct: str) -> None:
    with pytest.raises(PolicyError) as refused:
        check_expression(sql, COLUMNS)
    assert construct in str(refused.value)


def test_a_text_that_is_too_long_is_not_even_parsed() -> None:
    with pytest.raises(PolicyError, match="characters long"):
        check_expression("a" + " " * MAX_LENGTH, COLUMNS)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("depth", [300, 5000])
@pytest.mark.parametrize(
    ("before", "after"), [("(", ")"), ("abs(", ")"), ("- ", ""), ("", "+a"), ("[", "]"), ("", "[1]")]
)
def test_deep_nesting_is_refused_and_does_not_exhaust_the_stack(before: str, after: str, depth: int) -> None:
    with pytest.raises(PolicyError, match="nested too deeply"):
        check_expression(before * depth + "a" + after * depth, COLUMNS)


def nested(function: str) -> str:
    sql = "name"
    for _ in range(25):
        sql = function.format(sql)
    return sql


@pytest.mark.parametrize("function", ["strpos({}, 'x', 1, 1)", "instr({}, 'x', 2)"])
def test_a_function_that_would_be_written_with_its_arguments_twice_cannot_be_nested_without_end(function: str) -> None:
    with pytest.raises(PolicyError, match="in a way that DuckDB does not know"):
        check_expression(nested(function), COLUMNS)


@pytest.mark.parametrize("function", ["strpos({}, 'x')", "date_trunc('week', {})", "log({})", "ceil({}, 1)"])
def test_what_is_written_stays_in_proportion_to_the_text(function: str) -> None:
    assert len(check_expression(nested(function), COLUMNS)) < 6 * len(nested(function))


def test_long_lists_and_wide_expressions_are_fine() -> None:
    check_expression(f"a IN ({', '.join(map(str, range(5000)))})", COLUMNS)
    check_expression(" AND ".join(["a > 1"] * 150), COLUMNS)


MARKS = [*"()[]{},;:.*+-/%<>=|&^~!?$#@'\"\\ \n", "--", "/*", "*/", "::", "->", "$$", "1", "0.5", "'x'"]
WORDS = (
    "SELECT FROM source WHERE AS CASE WHEN THEN END NOT IN IS NULL CAST INTERVAL DAY FOR IF OVER FILTER DISTINCT ALL "
    "ANY getenv read_text sum abs coalesce lambda"
)
PIECES = st.sampled_from([*COLUMNS, *MARKS, *WORDS.split()])


@given(st.lists(PIECES, max_size=12).map(" ".join) | st.text(max_size=30))
def test_any_text_is_either_refused_or_runs_on_the_own_row_alone(sql: str) -> None:
    try:
        checked = check_expression(sql, COLUMNS)
    except PolicyError:
        return
    # DuckDB's own binder says what an expression refers to: nothing but the row it is given.
    with duckdb.connect(":memory:", config={"enable_external_access": False}) as connection:
        connection.execute(
            "CREATE TABLE source AS SELECT 3 AS a, 4 AS b, 'x' AS name, now()::TIMESTAMP AS t, today() AS d, "
            '[1.0] AS v, 1 AS "We ird", 2 AS "order" FROM range(3)'
        )
        try:
            rows = connection.execute(f"SELECT ({checked}) FROM source").fetchall()
        except (duckdb.ProgrammingError, duckdb.DataError, duckdb.InvalidInputException, duckdb.NotSupportedError):
            return  # of the wrong type, say: DuckDB refuses it in its turn
        assert len(rows) == 3
        assert len(rows[0]) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"levenshtein(name, '{'x' * 15_000}')",
        f"levenshtein(name, {' || '.join(['name'] * 300)})",
        f"strftime(day, '{'%A' * 5_000}')",
        " || ".join(["strftime(day, '%A')"] * 17),
        " + ".join(["levenshtein(name, 'x')"] * 5),
        f"name = '{'x' * 3_000}'",
        f"concat({', '.join(['name'] * 65)})",
        f"length({' || '.join(['name'] * 65)})",
    ],
)
def test_an_expression_that_takes_long_or_grows_is_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        check_expression(text, ["name", "day"])


def test_names_of_histories_and_plain_columns_are_told_from_expressions() -> None:
    assert [name_for_people(text) for text in ('"tablepuppet key 0"', '"item"')] == ["key", '"item"']
    assert [is_plain_column(text) for text in ('"item"', 'lower("item")')] == [True, False]
    assert [is_computed(text) for text in ('("x")', '"x" + 1')] == [False, True]


def test_columns_are_told_from_expressions_and_values_from_tests_for_null() -> None:
    assert [is_one_column(text) for text in ('CAST("x" AS BIGINT)', '"x" > 1')] == [True, False]
    assert compared_columns('"x" IS NOT NULL AND "y" > 3') == {"y"}
    assert unused_name("o", ["O", "i"]) == "o_2"
