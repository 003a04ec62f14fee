"""Two stores hold the orders, a supplier the items: plan, train, look, keep, predict."""

import numpy as np
import pandas as pd

import tablepuppet as tp

random = np.random.default_rng(0)
items = pd.DataFrame(
    {
        "item_id": np.arange(200),
        "price": random.gamma(2.0, 10.0, 200),
        "category": random.choice(["book", "shoe", "lamp"], 200),
    }
)
orders = pd.DataFrame({"item_id": random.integers(0, 200, 5000), "quantity": random.integers(1, 9, 5000)})
score = 0.3 * orders.quantity - 0.05 * items.price[orders.item_id].to_numpy()
orders["returned"] = random.random(5000) < 1 / (1 + np.exp(-score))

query = """
    SELECT o.quantity, i.price, i.category, o.returned
    FROM orders o JOIN items i ON o.item_id = i.item_id
"""
with tp.Federation({"orders": [orders[:3000], orders[3000:]], "items": items}) as federation:
    print(federation.explain(query, label="returned"))

    result = federation.train(query, label="returned", model="logistic", algorithm="newton")
    print(result.metrics["test"])
    print(result.coefficients())
    print(
        f"{result.traffic.rounds} rounds, {result.traffic.bytes:,} bytes, {result.traffic.seconds('us-uk'):.2f} s US-UK"
    )

    result.save("model")
    print(federation.predict(tp.load("model"), query).slice(0, 3).to_pandas())
