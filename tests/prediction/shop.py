"""A small federation: two stores, a supplier and a bank, with a numeric, a two-class and a three-class label."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import tablepuppet as tp

ROWS, ITEMS, CARDS = 600, 40, 60
QUERY = """
    SELECT o.quantity, o.channel, i.price, i.category, c.credit, o.{label}
    FROM orders o JOIN items i ON o.item_id = i.item_id LEFT JOIN cards c ON o.card_id = c.card_id
"""
NEW = "SELECT o.quantity, o.channel, i.price, i.category, c.credit FROM orders o " + QUERY.split("orders o ")[1]


def tables(seed: int = 0) -> dict[str, pa.Table]:
    """Orders (some with a card that the bank does not know), items (one unsold), cards."""
    random = np.random.default_rng(seed)
    items = pa.table(
        {
            "item_id": np.arange(ITEMS),
            "price": pa.array(random.normal(50, 20, ITEMS), mask=random.random(ITEMS) < 0.1),
            "category": pa.array(random.choice(np.array(["book", "shoe", "lamp", None]), ITEMS)),
        }
    )
    cards = pa.table({"card_id": np.arange(CARDS), "credit": random.normal(size=CARDS)})
    item, card = random.integers(0, ITEMS - 1, ROWS), random.integers(0, CARDS + 20, ROWS)
    quantity = random.integers(1, 9, ROWS)
    price = items["price"].fill_null(50.0).to_numpy()[item]
    score = 0.5 * (quantity - 4) - 0.05 * (price - 50) + random.logistic(size=ROWS)
    orders = pa.table(
        {
            "order_id": np.arange(ROWS) + 1000 * seed,
            "item_id": item,
            "card_id": card,
            "quantity": quantity,
            "channel": random.choice(np.array(["web", "shop", "phone"]), ROWS),
            "returned": score > 0,
            "spent": score * 3 + 7,
            "mood": np.array(["bad", "fine", "good"])[np.digitize(score, [-1, 1])],
        }
    )
    return {"orders": orders, "items": items, "cards": cards}


def federation(given: dict[str, pa.Table]) -> tp.Federation:
    """The tables with their owners: orders and items are partitioned."""
    orders, items = given["orders"], given["items"]
    return tp.Federation(
        {"orders": [orders[:350], orders[350:]], "items": [items[:15], items[15:]], "cards": given["cards"]}
    )
