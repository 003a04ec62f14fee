"""Small federations whose plans the tests read."""

from __future__ import annotations

import numpy as np
import pandas as pd

import tablepuppet as tp

QUERY = """
    SELECT o.quantity, o.channel, i.price, i.category, o.returned, o.refund
    FROM orders o LEFT JOIN items i ON o.item_id = i.item_id
    WHERE o.quantity > 0
"""


def without(*labels: str) -> str:
    """The query without the labels that are not asked for."""
    text = QUERY
    for label in labels:
        text = text.replace(f", o.{label}", "")
    return text


LABELS = {
    "logistic": ("returned", without("refund", "channel")),
    "mlp": ("returned", without("refund", "channel")),
    "linear": ("refund", without("returned", "channel")),
    "softmax": (
        "channel",
        without("returned", "refund")
        .replace("o.quantity, o.channel,", "o.quantity,")
        .replace("i.category", "i.category, o.channel"),
    ),
}


def shop(orders: int = 3, items: int = 1) -> tp.Federation:
    """Orders of several stores, items of several suppliers; a few orders are of unknown items."""
    random = np.random.default_rng(0)
    item = pd.DataFrame(
        {
            "item_id": np.arange(60),
            "price": random.gamma(2.0, 10.0, 60),
            "category": random.choice(["book", "shoe", "lamp"], 60),
        }
    )
    order = pd.DataFrame(
        {
            "item_id": random.integers(0, 66, 1500),
            "quantity": random.integers(0, 9, 1500),
            "channel": random.choice(["web", "shop", "phone"], 1500),
        }
    )
    order["refund"] = 0.3 * order.quantity + random.normal(size=1500)
    order["returned"] = order.refund > 1
    return tp.Federation(
        {"orders": [order[k::orders] for k in range(orders)], "items": [item[k::items] for k in range(items)]}
    )
