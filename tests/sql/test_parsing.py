"""From text to Ucq: what is read, and that no text whatever makes anything but a Ucq or a QueryError."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.errors import QueryError
from tablepuppet.sql import Ucq, parse
from tablepuppet.sql.parsing import MAX_CHARACTERS
from tablepuppet.sql.ucq import Item, Star

VOCABULARY = """
    SELECT FROM WHERE JOIN LEFT RIGHT FULL CROSS NATURAL ON USING UNION ALL DISTINCT GROUP BY ORDER LIMIT WITH AS AND OR
    NOT IN IS NULL LIKE BETWEEN CASE WHEN THEN ELSE END CAST EXISTS LATERAL OVER FILTER INTERVAL DATE TRUE VALUES PIVOT
    ( ) ( ) [ ] { } , . ; * = < > <> + - / // % ^ || :: : := -> ? $1 @ ~ !~ & | # \\ ` -- /* */
    o i c o.x i.y c.z orders items 1 2.5 1e9 0x1F 'a' '' "q" "" e'a' $$a$$ sum count abs ln coalesce now random lambda é
"""
WORDS = st.sampled_from(VOCABULARY.split())
WHOLE = """
    SELECT o.x , i.y , o.l FROM orders o JOIN items i ON o.id = i.id LEFT JOIN cards c ON c.k = o.k AND c.z > 1
    WHERE o.x > 0 AND i.y IN ( 1 , 2 ) UNION ALL SELECT a.x , b.y , a.l FROM a , b WHERE a.x = b.x
"""
QUERY = WHOLE.split()


def survives(text: str) -> None:
    """The text is read, or refused by the one error that we promise."""
    with suppress(QueryError):
        assert isinstance(parse(text), Ucq)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    survives(text)
    survives(f"SELECT {text}")


@given(st.lists(WORDS, max_size=25))
def test_any_sequence_of_sql_words_is_read_or_refused(words: list[str]) -> None:
    survives("SELECT " + " ".join(words))


@given(st.lists(st.tuples(st.integers(0, len(QUERY) - 1), WORDS), max_size=4), st.booleans())
def test_a_damaged_query_is_read_or_refused(changes: list[tuple[int, str]], inserted: bool) -> None:
    words = list(QUERY)
    for place, word in changes:
        words[place : place + (0 if inserted else 1)] = [word]
    survives(" ".join(words))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("times", [50, 300, 5_000])
@pytest.mark.parametrize(
    ("before", "repeated", "after", "closing"),
    [
        ("SELECT ", "(", "o.x", ")"),
        ("SELECT ", "abs(", "o.x", ")"),
        ("SELECT ", "CASE WHEN ", "o.x", " THEN 1 END"),
        ("SELECT ", "NOT ", "o.x", ""),
        ("SELECT ", "- ", "o.x", ""),
        ("SELECT ", "(SELECT ", "o.x", ")"),
        ("SELECT o.x", " + o.x", "", ""),
        ("SELECT o.x", "::int", "", ""),
        ("SELECT o.x", ".x", "", ""),
        ("SELECT o.x IN (1", ", 1", ")", ""),
        ("SELECT o.x > 1", " OR o.x > 1", "", ""),
        ("SELECT o.x > 1", " AND o.x > 1", "", ""),
        ("", "(", "SELECT o.x", ")"),
        ("SELECT ", "[", "o.x", "]"),
        ("SELECT ", "{", "o.x", "}"),
    ],
)
def test_any_depth_is_read_or_refused(before: str, repeated: str, after: str, closing: str, times: int) -> None:
    survives(before + repeated * times + after + closing * times + " FROM o")


@pytest.mark.parametrize("text", ["\ud800", "SELECT '\udfff'", "SELECT o.x\0 FROM o", None, 3, b"SELECT 1"])
def test_what_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="text"):
        parse(text)


def test_a_text_of_any_length_is_refused_quickly() -> None:
    with pytest.raises(QueryError, match="at most 100,000"):
        parse("SELECT o.x FROM o --" + "x" * MAX_CHARACTERS)


def test_an_error_knows_its_line_and_column() -> None:
    with pytest.raises(QueryError) as caught:
        parse("SELECT o.größe,\n       o.y\nFROM orders o\n  GROUP BY 1")
    assert (caught.value.line, caught.value.column) == (4, 3)


def test_branches_come_in_the_order_of_the_text() -> None:
    query = parse(
        "SELECT a.x FROM a UNION ALL (SELECT b.x FROM b UNION ALL SELECT c.x FROM c) UNION ALL SELECT d.x FROM d;"
    )
    assert [branch.sources[0].alias.name for branch in query.branches] == ["a", "b", "c", "d"]


def test_comments_and_semicolons_do_not_matter() -> None:
    query = parse("-- features\nSELECT o.x /* a */, o.y FROM orders /* theirs */ o WHERE o.x > 1 -- only these\n;;")
    assert len(query.branches[0].items) == 2


def test_items_keep_their_names_and_stars() -> None:
    (branch,) = parse('SELECT o.x, (o.y) AS "a B", o.*, * FROM orders AS o').branches
    first, second, third, fourth = branch.items
    assert isinstance(first, Item)
    assert first.name is None
    assert isinstance(second, Item)
    assert second.name is not None
    assert second.name.name == "a B"
    assert isinstance(third, Star)
    assert third.alias is not None
    assert isinstance(fourth, Star)
    assert fourth.alias is None


def test_sources_keep_their_joins() -> None:
    (branch,) = parse(
        'SELECT a.x FROM a, b AS "B" JOIN c USING (k, l) LEFT OUTER JOIN d ON (d.x = c.x AND (d.y = 1)), e '
        "WHERE a.x = b.x AND e.x = a.x"
    ).branches
    sources = branch.sources
    assert [s.alias.name for s in sources] == ["a", "B", "c", "d", "e"]
    assert [s.join for s in sources] == ["inner", "inner", "inner", "left", "inner"]
    assert [s.tree for s in sources] == [0, 1, 1, 1, 2]
    assert [name.name for name in sources[2].using] == ["k", "l"]
    assert len(sources[3].on) == 2
    assert len(branch.where) == 2


def test_a_name_of_with_stands_for_its_query() -> None:
    query = parse("WITH w(i) AS (SELECT k FROM b), v AS (SELECT i FROM w) SELECT c.x, c.y FROM c JOIN v ON v.i = c.k")
    derived = query.branches[0].sources[1].derived
    assert derived is not None
    assert derived.sql("duckdb") == "SELECT i FROM (SELECT * FROM (SELECT k FROM b) AS w(i)) AS w"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "WITH a0 AS (SELECT k FROM t), "
            + ", ".join(f"a{i} AS (SELECT p.k FROM a{i - 1} p JOIN a{i - 1} q ON p.k = q.k)" for i in range(1, 41))
            + " SELECT a40.k, c.y FROM c JOIN a40 ON a40.k = c.k",
            "so often",
        ),
        ("WITH w AS (SELECT k FROM b) SELECT w.k, c.y FROM c JOIN w TABLESAMPLE 10% ON w.k = c.k", "sample"),
    ],
    ids=["names that double", "a sample of a name"],
)
def test_names_of_with_that_mean_too_much_are_refused(text: str, words: str) -> None:
    with pytest.raises(QueryError, match=words):
        parse(text)
