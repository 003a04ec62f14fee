"""Generated expressions over hostile values: a protected table answers all of them, the same way for every content."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.errors import SourceError
from tablepuppet.sources.duckdb_source import from_arrow, from_query
from tablepuppet.sources.infallible import InfallibleSource, make_infallible

HOSTILE = pa.table(
    {
        "i": pa.array([1, 0, -(2**63), 2**63 - 1, None, 7], pa.int64()),
        "f": pa.array([0.5, 0.0, 1e308, float("inf"), None, float("nan")]),
        "s": pa.array(["1", "x", "", "2020-02-30", None, "9" * 40]),
    }
)
TAME = pa.table({"i": pa.array([1, 2], pa.int64()), "f": pa.array([0.5, 1.5]), "s": pa.array(["1", "2"])})
NUMBERS = [
    *('"i"', '"f"', 'CAST("s" AS INTEGER)', "({n} + {n})", "({n} * {n})", "({n} / {n})", "({n} % {n})", "abs({n})"),
    *("CAST({n} AS TINYINT)", "NULLIF({n}, 1)", "CASE WHEN {n} > {n} THEN {n} ELSE 0 END", "(- {n})", "ln({n})"),
    *("CAST({n} AS DECIMAL(9, 2))", 'length("s")', 'CAST("s" AS DOUBLE)', "coalesce({n}, 3)", "round({n} * 1e300, 1)"),
    'year(CAST("s" AS DATE))',
]


def expression(random: np.random.Generator, depth: int) -> str:
    choices = NUMBERS if depth else ['"i"', '"f"', 'CAST("s" AS INTEGER)']
    text = choices[random.integers(len(choices))]
    while "{n}" in text:
        text = text.replace("{n}", expression(random, depth - 1), 1)
    return text


def check_answers(seed: int) -> bool:
    """Whether an expression fails without protection; with it, neither it nor a query with it does."""
    random = np.random.default_rng(seed)
    text, where = expression(random, 3), expression(random, 2)
    failed = False
    for rows in (HOSTILE, TAME):
        with closing(from_arrow("t", rows)) as source:
            try:
                infos = source.describe_scan([text], f"{where} > 0")
            except SourceError:  # types that do not fit: said before any row is read
                return False
            try:
                source.read([text], f"{where} > 0")
            except SourceError:
                failed = True
            found = InfallibleSource(source).read([text], f"{where} > 0")
            assert len(infos) == found.num_columns == 1
        grouped = (
            f'SELECT "i", sum({text}) AS a, count(*) AS n FROM t WHERE {where} > 0 GROUP BY "i" HAVING max({where}) > 0'
        )
        with closing(from_query("q", {"t": rows}, make_infallible(grouped))) as source:
            source.read(['"a"'], None)
    return failed


BIG = "CASE WHEN i > 1 THEN 170141183460469231731687303715884105727 ELSE 1 END"


@pytest.mark.parametrize(
    "item",
    [
        *("max(i) * 2", "CAST(max(f) AS INT)", "min(i) - 1", "CASE WHEN count(*) > 1 THEN max(i) + max(i) END"),
        *(f"avg({BIG})", f"sum(DISTINCT {BIG})", f"avg(DISTINCT {BIG})", "kurtosis(f)", "skewness(f * 1e100)"),
        *(
            "stddev(f)",
            "corr(f, i)",
            "1 / sum(i) FILTER (WHERE CAST(s AS INT) = 1)",
            "CAST(max(s) AS DATE) + CAST(max(i) AS INT)",
        ),
    ],
)
def test_what_is_computed_from_groups_is_a_number_or_nothing(item: str) -> None:
    query = f"SELECT g, {item} AS a FROM (SELECT *, 1 AS g FROM t) t GROUP BY g HAVING count(*) + 1 > 0"
    for rows in (HOSTILE, TAME):
        with closing(from_query("q", {"t": rows}, make_infallible(query))) as source:
            (found,) = InfallibleSource(source).read(['"a"'], None).column(0).to_pylist()
        assert not isinstance(found, float) or abs(found) != float("inf")


def test_groups_of_tame_rows_have_the_values_that_they_have_without_protection() -> None:
    query = "SELECT i % 2 AS k, avg(f) AS a, max(i) * 2 + k AS b, 1 / sum(f) AS c, kurtosis(f) AS d FROM t GROUP BY k"
    windows = (
        "SELECT i AS a, first_value(f) OVER (ORDER BY abs(i - 7)) AS b, sum(f) OVER (ORDER BY i) AS c, f AS d FROM t"
    )
    rows = pa.table({"i": np.arange(20), "f": np.random.default_rng(0).normal(size=20)})
    for given in (query, windows):
        found = []
        for text in (given, make_infallible(given)):
            with closing(from_query("q", {"t": rows}, text)) as source:
                found.append(source.read(['"a"', '"b"', '"c"', '"d"'], None).to_pydict())
        assert found[0] == found[1]


def test_generated_expressions_never_fail_on_a_protected_table() -> None:
    assert sum(check_answers(seed) for seed in range(15)) > 5  # which do fail on one that is not


@pytest.mark.slow
def test_many_generated_expressions_never_fail_on_a_protected_table() -> None:
    assert sum(check_answers(seed) for seed in range(1000, 1600)) > 80
