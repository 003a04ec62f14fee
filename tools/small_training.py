"""Trains, saves, loads and predicts with whatever tablepuppet is installed: the trial of a wheel (make wheel)."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa

import tablepuppet as tp

QUERY = "SELECT o.quantity, i.price, o.returned FROM orders o JOIN items i ON o.item_id = i.item_id"


def main() -> None:
    random = np.random.default_rng(0)
    price = random.gamma(2.0, 10.0, 50)
    item, quantity = random.integers(0, 50, 1000), random.integers(1, 9, 1000)
    returned = random.random(1000) < 1 / (1 + np.exp(0.05 * price[item] - 0.3 * quantity))
    orders = pa.table({"item_id": item, "quantity": quantity, "returned": returned})
    items = pa.table({"item_id": np.arange(50), "price": price})
    with tempfile.TemporaryDirectory() as folder, tp.Federation({"orders": orders, "items": items}) as federation:
        result = federation.train(QUERY, label="returned")
        result.save(f"{folder}/model")
        report = result.report(f"{folder}/report.html")
        predictions = federation.predict(tp.load(f"{folder}/model"), QUERY)
        assert predictions.num_rows == 1000
        print(
            f"{tp.__file__}: accuracy {result.metrics['test']['accuracy']:.2f}, report of {report.stat().st_size:,} B"
        )


if __name__ == "__main__":
    main()
