"""How keys meet: orphans, duplicates and NULL keys, as plain counting gives them."""

from __future__ import annotations

import pyarrow as pa

import tablepuppet as tp

ORDERS = pa.table(
    {"item": [1, 1, 2, 9, None], "card": ["a", "a", "b", None, "z"], "x": [1.0, 2, 3, 4, 5], "y": [1.0] * 5}
)
ITEMS = pa.table({"item": [1, 2, 2, 3, None, None], "price": [1.0, 2, 3, 4, 5, 6]})
QUERY = "SELECT o.x, i.price, o.y FROM orders o JOIN items i ON o.item = i.item"


def test_each_side_of_a_join_is_counted() -> None:
    with tp.Federation({"orders": [ORDERS[:2], ORDERS[2:]], "items": ITEMS}) as federation:
        [join] = federation.profile(QUERY, label="y").joins
    left, right = join.left, join.right
    assert (left.key, right.key, join.kind, join.shape) == ("o.item", "i.item", "inner", "many-to-many")
    assert (left.rows, left.without_key, left.distinct, left.duplicates, left.orphans) == (5, 1, 3, 2, 2)
    assert (right.rows, right.without_key, right.distinct, right.duplicates, right.orphans) == (6, 2, 3, 2, 3)


def test_filters_and_composite_keys_count_too() -> None:
    other = pa.table({"item": [1, 1, 2], "card": ["a", "b", "b"], "z": [1.0, 2.0, 3.0]})
    query = "SELECT o.x, c.z, o.y FROM orders o LEFT JOIN c ON o.item = c.item AND c.card = o.card WHERE o.x < 5"
    with tp.Federation({"orders": ORDERS, "c": other}) as federation:
        profile = federation.profile(query, label="y")
    [join] = profile.joins
    assert (join.kind, join.shape, join.left.key) == ("left", "many-to-one", "(o.item, o.card)")
    assert (join.left.rows, join.left.without_key, join.left.orphans) == (4, 1, 1)
    assert (join.right.rows, join.right.duplicates, join.right.orphans) == (3, 0, 1)
    assert str(profile).splitlines() == [
        "LEFT JOIN (o.item, o.card) = (c.item, c.card): many-to-one",
        "  o (orders): 4 rows, 2 distinct keys",
        "      1 rows have no key (NULL) and match nothing",
        "      2 rows share their key with another",
        "      1 rows find no partner (25.0%)",
        "  c (c): 3 rows, 3 distinct keys",
        "      1 rows find no partner (33.3%)",
    ]


def test_a_query_without_a_join_says_so() -> None:
    with tp.Federation({"orders": ORDERS}) as federation:
        assert str(federation.profile("SELECT x, y FROM orders", label="y")) == "The query joins nothing."
