"""Random SQL over random clients: training sees the rows that DuckDB has on pooled tables, or the SQL is refused.

An hour of it: `python -m tests.fuzz --minutes 60 --seed 1000`.
"""

from __future__ import annotations

import pytest
from tests.fuzz.differential import judge
from tests.fuzz.queries import make_case
from tests.fuzz.wide_queries import make_wide_case

QUICK = 120


@pytest.mark.one_in(20)
@pytest.mark.parametrize("first", range(0, QUICK, 6))
def test_random_queries_mean_what_duckdb_means(first: int) -> None:
    verdicts = [judge(make(seed))[0] for make in (make_case, make_wide_case) for seed in range(first, first + 6)]
    assert "equal" in verdicts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 5_000, 200))
def test_many_random_queries_mean_what_duckdb_means(first: int) -> None:
    for make in (make_case, make_wide_case):
        assert {judge(make(seed))[0] for seed in range(first, first + 100)} >= {"equal", "refused"}


@pytest.mark.parametrize(
    ("seed", "words"),
    [(500_072, "Binder Error"), (500_082, "has no table b (WITH 1). Known: c, b, a.")],
    ids=["QUALIFY by an alias in a subquery of IN", "WITH that is named like its own table"],
)
def test_a_refusal_is_in_our_own_words(seed: int, words: str) -> None:
    assert words not in judge(make_case(seed))[1]


@pytest.mark.parametrize("seed", [20263552], ids=["a LEFT JOIN with groups that no client has"])
def test_what_random_queries_once_found_stays_right(seed: int) -> None:
    assert judge(make_case(seed)) == ("equal", "")
