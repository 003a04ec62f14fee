"""What a query may say: LEFT JOIN, filters and expressions at the owner, a self-join, UNION ALL."""

import numpy as np
import pyarrow as pa

import tablepuppet as tp

random = np.random.default_rng(0)
n = 2000
flights = pa.table(
    {
        "origin": random.choice(["EWR", "JFK", "LGA"], n),
        "dest": random.choice(["BOS", "ORD", "SFO"], n),
        "miles": random.integers(200, 2600, n),
        "late": random.random(n) < 0.3,
    }
)
trains = pa.table(
    {
        "from_city": random.choice(["EWR", "LGA"], n),
        "to_city": random.choice(["BOS", "ORD"], n),
        "km": random.integers(300, 4000, n),
        "was_late": random.random(n) < 0.1,
    }
)
airports = pa.table({"code": ["EWR", "JFK", "LGA", "BOS", "ORD"], "runways": [3, 4, 2, 6, 8]})  # nothing about SFO

with tp.Federation({"flights": flights, "trains": trains, "airports": airports}) as federation:
    # Expressions and filters over one table run at its owner. One table, two aliases: each is a block of its own.
    # A flight to SFO finds no partner in d: LEFT JOIN keeps it, with zeros in d's columns.
    one = """
        SELECT ln(f.miles) AS log_miles, o.runways, d.runways AS there, f.late
        FROM flights f
        JOIN airports o ON f.origin = o.code
        LEFT JOIN airports d ON f.dest = d.code
        WHERE f.miles BETWEEN 250 AND 2500
    """
    result = federation.train(one, label="late")
    print(result.coefficients())

    # Columns of the branches match by position, and so do their blocks.
    both = """
        SELECT f.miles, o.runways, f.late FROM flights f JOIN airports o ON f.origin = o.code
        UNION ALL
        SELECT t.km * 0.6214, o.runways, t.was_late FROM trains t JOIN airports o ON t.from_city = o.code
    """
    print(federation.explain(both, label="late"))
    print(federation.train(both, label="late").metrics["test"])
