"""Groups of several clients' rows, merged from what each computes: what DuckDB makes of the same text, pooled."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tablepuppet.errors import SourceError
from tablepuppet.exchanges.groups import Groups
from tablepuppet.join.groups import _Shared
from tablepuppet.owner.group_sums import words_of
from tablepuppet.owner.query_guard import DerivedSource, MergedSource, check_query, partials_of
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.sources.grouped_queries import UnmergeableError, split_groups
from tablepuppet.sources.memory import open_memory

KEY = bytes(range(32))
SUM = "SELECT k, sum(x) AS m FROM t GROUP BY k"


def merged(parts: Sequence[pa.Table], query: str) -> pd.DataFrame:
    """What all clients hold in the end, without the masks in between."""
    sources = []
    for part in parts:
        checked = check_query(query, {"t": part.column_names})
        sources.append(DerivedSource("t", checked, {"t": open_memory(part, "t")}))
    partials = [partials_of(source, KEY) for source in sources]
    key = MaskKey("", 0, b"", b"")
    given = [Groups(tokens=p.tokens, kinds=list(p.kinds), sizes=p.sizes(), key=key, salt=b"") for p in partials]
    assert all(one.kinds == given[0].kinds for one in given)
    shared = _Shared.among(given)
    scales = [max(sizes) for sizes in zip(*(one.sizes for one in given), strict=True)]
    words = [p.words(rows, scales, len(parts)) for p, rows in zip(partials, shared.rows, strict=True)]
    found = []
    for place, (source, own) in enumerate(zip(sources, partials, strict=True)):
        here, rows = shared.holders == place, shared.rows[place]
        kept = np.setdiff1d(np.arange(own.count), rows[~here & (rows >= 0)])
        total = np.sum([sums[here] for sums, _ in words], axis=0)
        others = [extremes[here] for other, (_, extremes) in enumerate(words) if other != place]
        groups = own.merge_words(kept, rows[here], total, others, scales, len(parts))
        names = [f'"{info.name}"' for info in source.describe()]
        rows = MergedSource(source, own, groups).read(names, None)
        found.append(rows.rename_columns([name.strip('"') for name in names]).to_pandas())
    return pd.concat(found, ignore_index=True)


def assert_pooled(parts: Sequence[pa.Table], query: str, rtol: float = 1e-9) -> None:
    found = merged(parts, query)
    with duckdb.connect() as connection:
        connection.register("t", pa.concat_tables(parts, promote_options="permissive"))
        expected = connection.sql(query).to_arrow_table().to_pandas()
    assert list(found.columns) == list(expected.columns)
    assert len(found) == len(expected)
    keys = [name for name in expected.columns if name.startswith("k")]
    found, expected = (f.sort_values(keys, na_position="first").reset_index(drop=True) for f in (found, expected))
    for name in expected.columns:
        if name in keys or expected[name].map(lambda v: isinstance(v, Decimal | str | bool | dt.date)).any():
            assert found[name].astype(str).tolist() == expected[name].astype(str).tolist(), name
        else:
            ours, theirs = (f[name].to_numpy(np.float64, na_value=np.nan) for f in (found, expected))
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-12, err_msg=name)


ITEMS = [
    "count(*) AS n",
    "count(x) AS nx",
    "sum(x) AS sx",
    "sum(i) AS si",
    "sum(d) AS sd",
    "avg(x) AS ax",
    "avg(d) AS ad",
    "avg(i) FILTER (WHERE x > 0) AS ai",
    "stddev(x) AS dx",
    "stddev_pop(i) AS di",
    "var_samp(d) AS vd",
    "sum(CASE WHEN i > 3 THEN x ELSE -d END) AS case_",
    "round(avg(x), 1) + coalesce(sum(i), 0) AS mixed",
    "count_if(i > 3) AS big",
    "bool_or(i > 8) AS any_",
    "bool_and(x > -5) AS all_",
    "min(x) AS lx",
    "max(i) AS hi",
    "max(d) - min(d) AS range",
    "min(day) AS first",
]


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    schema = pa.schema(
        [
            ("k1", pa.int64()),
            ("k2", pa.string()),
            ("x", pa.float64()),
            ("i", pa.int32()),
            ("d", pa.decimal128(9, 2)),
            ("day", pa.date32()),
        ]
    )
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


FLOATS = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda v: round(v, 6))
ROW = st.tuples(
    maybe(st.integers(0, 3)),
    maybe(st.sampled_from(["a", "B", ""])),
    maybe(FLOATS),
    maybe(st.integers(-9, 9)),
    maybe(st.decimals(-999, 999, places=2)),
    maybe(st.dates()),
)


@settings(
    max_examples=settings().max_examples // 4,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    parts=st.lists(st.lists(ROW, max_size=9), min_size=2, max_size=3),
    items=st.lists(st.sampled_from(ITEMS), min_size=1, max_size=4, unique=True),
    by=st.sampled_from(["k1", "k1, k2", "ALL", "1, 2"]),
    having=st.sampled_from(["", "HAVING count(*) > 1", "HAVING sum(i) > 0"]),
)
def test_merged_groups_are_those_of_all_rows(
    parts: list[list[tuple[Any, ...]]], items: list[str], by: str, having: str
) -> None:
    keys = "k1" if by == "k1" else "k1, k2"
    query = f"SELECT {keys}, {', '.join(items)} FROM t WHERE i IS NULL OR i <> 5 GROUP BY {by} {having}"
    assert_pooled([table(rows) for rows in parts], query, rtol=1e-7 if "stddev" in query or "var" in query else 1e-9)


def test_extremes_of_narrow_decimals_are_merged_whatever_their_number() -> None:
    rows = [(k, "a", 1.0, 1, Decimal(k) / 4 - 1, dt.date(2024, 1, 1)) for k in (1, 2, 3, 3, 5)]
    for cut in range(1, 5):
        query = "SELECT k1, min(d) AS least, max(d) AS most FROM t GROUP BY k1"
        assert_pooled([table(rows[:cut]), table(rows[cut:])], query)


def test_spreads_survive_means_that_are_far_from_zero() -> None:
    rng = np.random.default_rng(1)
    parts = [pa.table({"k": rng.integers(0, 9, 90), "x": rng.normal(1e5 * (c + 1), 10, 90)}) for c in range(3)]
    far = [pa.table({"k": rng.integers(0, 9, 90), "x": rng.normal(1e6, 1, 90)}) for _ in range(2)]
    tiny = [pa.table({"k": rng.integers(0, 9, 90), "x": rng.normal(0, 1e-9, 90)}) for _ in range(2)]
    for tables in (parts, far, tiny):
        assert_pooled(tables, "SELECT k, stddev(x) AS d, variance(x) AS v, avg(x) AS a FROM t GROUP BY k")


SHAPES = [
    "SELECT k, s * 2 AS twice FROM (SELECT k, sum(x) AS s FROM (SELECT * FROM t WHERE x > 0) AS big GROUP BY k) AS s "
    "WHERE s > 1",
    "SELECT * FROM (SELECT t.k, count(*) AS n, avg(x) AS a FROM t GROUP BY t.k) AS q WHERE q.n > 2",
    "SELECT k % 3 AS k3, sum(x) AS s FROM t GROUP BY k3",
    "SELECT k % 3 AS k3, upper(c) AS kc, sum(x) / count(*) AS s, s * 2 AS z FROM t GROUP BY ALL HAVING z < 100",
    "SELECT upper(c) AS k, count(*) AS n, min(x) AS m FROM t GROUP BY 1",
    "SELECT k, sum(u) AS s, avg(u) AS a FROM (SELECT k, x * x AS u FROM t WHERE k < 7) AS q GROUP BY k ORDER BY k",
    "SELECT k, sum(x > 0) AS positive, sum(k) * 2 AS whole FROM t GROUP BY k",
    "SELECT DISTINCT q.c0 AS k0 FROM (SELECT k AS c0 FROM t GROUP BY k HAVING count(*) > 14) AS q",
    "SELECT DISTINCT k, lower(c) AS kc FROM t WHERE x > 0",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("query", SHAPES)
def test_whatever_is_around_and_below_the_groups_means_the_same(query: str) -> None:
    rng = np.random.default_rng(2)
    letters = np.array(["a", "A", "b"])
    parts = [
        pa.table({"k": rng.integers(0, 9, 60), "x": rng.normal(size=60), "c": letters[rng.integers(0, 3, 60)]})
        for _ in range(3)
    ]
    assert_pooled(parts, query)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT k, median(x) AS m FROM t GROUP BY k", "median"),
        ("SELECT k, count(DISTINCT x) AS m FROM t GROUP BY k", "DISTINCT"),
        ("SELECT k, corr(x, y) AS m FROM t GROUP BY k", "corr"),
        ("SELECT k, sum(x) AS m FROM t GROUP BY k LIMIT 3", "LIMIT"),
        ("SELECT k, row_number() OVER (PARTITION BY k) AS m FROM t", "window"),
        ("SELECT sum(x) AS m FROM t", "one group of all rows"),
        ("SELECT k, sum(x) AS m FROM t GROUP BY ROLLUP (k)", "several groupings"),
        ("SELECT DISTINCT * FROM t", "DISTINCT"),
        ("SELECT DISTINCT n FROM (SELECT k, count(*) AS n FROM t GROUP BY k) AS q", "DISTINCT"),
        ("SELECT DISTINCT ON (k) k, x FROM t", "DISTINCT"),
        ("SELECT k FROM t UNION SELECT k FROM t", "UNION"),
    ],
)
def test_what_cannot_be_merged_is_named(query: str, why: str) -> None:
    with pytest.raises(UnmergeableError, match=why):
        split_groups(query)


@pytest.mark.parametrize(
    ("values", "item", "why"),
    [
        ([float("inf"), 1.0], "sum(x)", "not finite"),
        ([2**61, 2**61], "sum(x)", "too large to be merged exactly"),
        (["a", "b"], "min(x)", "cannot be merged"),
    ],
)
def test_figures_that_have_no_words_are_refused(values: list[Any], item: str, why: str) -> None:
    parts = [pa.table({"k": [1, 1], "x": values})] * 2
    with pytest.raises(SourceError, match=why):
        merged(parts, f"SELECT k, {item} AS m FROM t GROUP BY k")


@pytest.mark.parametrize("parties", [2, 5])
def test_sums_of_all_owners_together_never_wrap(parties: int) -> None:
    """Each owner's sum is below 2⁶⁰ over their number, so that the sum of all is, too; one more is refused."""
    most = 2**60 // parties - 1
    for value in (most, -most):
        [found] = merged([pa.table({"k": [1], "x": [value]})] * parties, SUM).m
        assert found == parties * value
        with pytest.raises(SourceError, match="too large to be merged exactly"):
            merged([pa.table({"k": [1], "x": [value + np.sign(value).item()]})] * parties, SUM)


@pytest.mark.parametrize(
    ("largest", "told"), [(0.0, -512), (2.0**-600, -512), (1.5, 16), (60_000.0, 16), (70_000.0, 32)]
)
def test_of_its_sums_an_owner_tells_a_power_of_two_in_steps_of_sixteen(largest: float, told: int) -> None:
    part = pa.table({"k": [1, 2], "x": [largest, -largest / 3]})
    source = DerivedSource("t", check_query(SUM, {"t": part.column_names}), {"t": open_memory(part, "t")})
    assert partials_of(source, KEY).sizes() == [told]


def test_how_many_words_of_each_state_are_sums_and_extremes() -> None:
    found = [words_of(kind) for kind in ("number integer", "number float", "spread float", "least date")]
    assert found == [(1, 0), (2, 0), (4, 0), (0, 2)]
