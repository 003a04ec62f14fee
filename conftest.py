"""What examples in docstrings find: `tp`, a small shop as `federation`, its `query`, a `result` and its `model`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import tablepuppet as tp

QUERY = "SELECT o.quantity, i.price, i.kind, o.returned FROM orders o JOIN items i ON o.item_id = i.item_id"
_NEEDS_SHOP = re.compile(r"^ *>>> .*\b(federation|result|model)\b", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def _shop(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> Iterator[None]:
    """Orders of two stores and a supplier's items, for modules whose examples use them."""
    path = request.node.path
    if request.config.rootpath / "src" not in path.parents or not _NEEDS_SHOP.search(path.read_text(encoding="utf-8")):
        yield
        return
    numbers = range(120)
    orders = pa.table(
        {
            "order_id": numbers,
            "item_id": [n % 8 for n in numbers],
            "quantity": [n * 7 % 5 for n in numbers],
            "returned": [n * n % 3 == 1 for n in numbers],
        }
    )
    items = pa.table({"item_id": range(8), "price": [3.0, 9, 4, 8, 5, 7, 2, 6], "kind": ["book", "shoe"] * 4})
    with tp.Federation({"orders": [orders[:70], orders[70:]], "items": items}) as federation:
        result = federation.train(QUERY, label="returned", progress=False)
        doctest_namespace |= {"tp": tp, "federation": federation, "query": QUERY, "result": result}
        doctest_namespace["model"] = result.model
        yield
    for name in ("federation", "query", "result", "model"):
        del doctest_namespace[name]
