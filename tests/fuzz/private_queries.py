"""Random SELECTs over a protected table: what analysts write, and what attackers would.

Everything follows from one `random.Random`. The table is orders (id, item, amount, salary, note, y); items (item,
price) is its partner. Outputs are named f0, f1, … and z; `bounds` has public ones for them.
"""

from __future__ import annotations

from random import Random

PLAIN = ("o.amount", "o.salary", "o.amount + 2 * o.salary", "abs(o.amount)", "coalesce(o.amount, 0)")
SINGLING = (
    "CASE WHEN o.id = 7 THEN o.amount ELSE 0 END",
    "CASE WHEN o.amount > 1.5 THEN o.salary END",
    "NULLIF(o.amount, 2)",
    "floor(o.amount * 1000) * 1000000 + o.salary",  # two numbers in one
    "o.amount * power(0, abs(o.id - 7))",
)
FAILING = (
    "CAST(CASE WHEN o.amount > 1.5 THEN 'x' ELSE '1' END AS INTEGER)",
    "CAST(9223372036854775807 AS BIGINT) + CASE WHEN o.amount > 1.5 THEN 1 ELSE 0 END",
    "1 / (o.amount - 2)",
    "ln(2 - o.amount)",
    "sqrt(o.salary)",
    "length(repeat('a', CAST(o.amount * 5 AS INTEGER)))",
)
TEXTS = (
    "o.note",
    "upper(o.note)",
    "NULLIF(o.note, 'b')",
    "concat(o.note, CASE WHEN o.id = 7 THEN '!' ELSE '' END)",
    "CAST(floor(o.amount) AS VARCHAR)",
    "CASE WHEN o.amount > 1.5 THEN 'high' ELSE 'low' END",
    "CASE WHEN o.y = 1 THEN 'yes' ELSE 'no' END",
)
CONDITIONS = (
    "o.item < 20",
    "o.id <> 7",
    "o.amount > 1.5",
    "o.salary IS NOT NULL",
    "o.y IS NOT NULL",
    "o.id BETWEEN 5 AND 60",
    "o.id % 2 = 0 OR o.amount > 0",
    "o.amount / (o.salary - 1) > 0",
)
AGAIN = (  # the protected table under another alias
    "JOIN orders p ON o.id = p.id",
    "JOIN orders p ON o.item = p.item",
    "JOIN orders p ON o.id = p.id AND p.amount > 1.5",
    "JOIN orders p ON o.id = p.id AND p.y = 1",
    "LEFT JOIN orders p ON o.id = p.id AND p.salary > 0.5",
    "JOIN (SELECT id, amount, salary, note, y FROM orders WHERE amount > 1.5) p ON o.id = p.id",
)
AGAIN_OUTPUTS = ("p.amount", "p.salary * 2", "p.note", "p.y", "1 - p.y", "p.amount + p.salary")
AGAIN_CONDITIONS = ("p.amount > 1.5", "p.y = 1", "p.note = 'b'", "p.salary IS NOT NULL", "p.y IS NULL")
SUBQUERIES = (
    "SELECT item, avg(amount) AS m FROM orders GROUP BY item",
    "SELECT item, sum(amount) AS m, max(salary) AS s FROM orders GROUP BY item",
    "SELECT item, count(*) AS m FROM orders WHERE amount > 1.5 GROUP BY item",
    "SELECT item, avg(amount) AS m FROM orders GROUP BY item HAVING sum(salary) > 0",
    "SELECT item, amount - avg(amount) OVER (PARTITION BY item) AS m FROM orders",
    "SELECT item, amount AS m, row_number() OVER (ORDER BY amount) AS r FROM orders",
    "SELECT a.item, b.amount AS m FROM orders a JOIN orders b ON a.item = b.item",
    "SELECT DISTINCT item, amount AS m FROM orders",
    "SELECT item, amount AS m FROM orders ORDER BY amount LIMIT 50",
    "SELECT item, price - (SELECT avg(amount) FROM orders) AS m FROM items",
    "SELECT item, amount AS m FROM orders UNION ALL SELECT item, salary AS m FROM orders",
    "SELECT item, max(m) AS m FROM (SELECT item, id, sum(amount) AS m FROM orders GROUP BY item, id) GROUP BY item",
)
LABELS = ("o.y", "1 - o.y", "CASE WHEN o.id = 7 THEN o.y ELSE 0 END", "NULLIF(o.y, 1)", "o.y + 0", "o.y + o.id % 2")


def draw_query(rng: Random) -> str:
    """A query whose features are of orders, by themselves or through a subquery."""
    kinds = (PLAIN, PLAIN, PLAIN, SINGLING, FAILING, TEXTS)
    chosen = [rng.choice(rng.choice(kinds)) for _ in range(rng.randint(1, 2))]
    source = "orders o"
    if rng.random() < 0.5:
        source += " JOIN items i ON o.item = i.item"
        chosen.append("i.price")
    if rng.random() < 0.4:
        source += f" JOIN ({rng.choice(SUBQUERIES)}) g ON o.item = g.item"
        chosen.append("g.m")
    conditions: tuple[str, ...] = CONDITIONS
    if rng.random() < 0.3:
        source += f" {rng.choice(AGAIN)}"
        conditions += AGAIN_CONDITIONS
        chosen += rng.sample(AGAIN_OUTPUTS, rng.randint(0, 1))
    where = f" WHERE {rng.choice(conditions)}" if rng.random() < 0.3 else ""
    label = rng.choice(LABELS) if rng.random() < 0.5 else "o.y"
    outputs = ", ".join(f"{text} AS f{number}" for number, text in enumerate(chosen))
    return f"SELECT {outputs}, {label} AS z FROM {source}{where}"
