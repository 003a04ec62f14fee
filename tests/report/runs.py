"""Small runs for the report's tests: two owners of orders, one of items, an outer join."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd

import tablepuppet as tp

QUERY = """
    SELECT o.quantity, i.price, i.category, o.returned, o.stars
    FROM orders o LEFT JOIN items i ON o.item_id = i.item_id
"""


def tables(rows: int = 300) -> dict[str, object]:
    random = np.random.default_rng(3)
    items = pd.DataFrame(
        {
            "item_id": np.arange(40),
            "price": random.gamma(2.0, 10.0, 40),
            "category": random.choice(["<b>book</b>", "shoe & co", "lamp"], 40),
        }
    )
    orders = pd.DataFrame(
        {
            "item_id": random.integers(0, 44, rows),
            "quantity": random.integers(1, 9, rows),
            "stars": random.integers(1, 6, rows),
        }
    )
    orders["returned"] = random.random(rows) < 1 / (1 + np.exp(2.0 - 0.4 * orders.quantity))
    return {"orders": [orders[:200], orders[200:]], "items": items}


@cache
def trained(algorithms: Sequence[str] = ("newton", "admm", "sgd", "centralized")) -> tuple[tp.Result, ...]:
    """One result per algorithm, the same problem for all."""
    with tp.Federation(tables()) as federation:
        return tuple(
            federation.train(QUERY, label="returned", model="logistic", algorithm=name, epochs=3, batch_size=64)
            for name in algorithms
        )
