"""Arithmetic that overflows says which, and how to widen it; a row's value is never shown."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.errors import SourceError

ORDERS = pa.table(
    {"k": range(50), "small": pa.array(range(0, 15000, 300), pa.int16()), "y": [i % 7.0 for i in range(50)]}
)
ITEMS = pa.table({"k": range(50), "price": [float(i) for i in range(50)]})
QUERY = "SELECT o.small, i.price, o.y FROM orders o JOIN items i ON o.k = i.k"


def test_an_overflow_in_test_where_says_which_cast_helps() -> None:
    with tp.Federation({"orders": ORDERS, "items": ITEMS}) as owner:
        with pytest.raises(SourceError, match=r"a multiplication overflows INT16.*CAST\(column AS BIGINT\)") as refused:
            owner.train(QUERY, label="y", test_where="small * 100 > 700000")
        assert "filter" not in str(refused.value)
        assert "14700" not in str(refused.value)
        result = owner.train(QUERY, label="y", test_where="CAST(small AS BIGINT) * 100 > 700000")
    assert result.plan.mapping.test_rows == 26


def test_an_overflow_of_the_widest_integers_is_widened_to_a_float() -> None:
    large = pa.table({"k": range(50), "price": pa.array([2**62] * 50, pa.int64())})
    with (
        tp.Federation({"orders": ORDERS, "items": large}) as owner,
        pytest.raises(SourceError, match=r"an addition overflows INT64.*CAST\(column AS DOUBLE\)"),
    ):
        owner.train(QUERY.replace("i.price", "i.price + i.price AS p"), label="y")
