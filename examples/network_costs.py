"""How long a job takes on your own network: latency and bandwidth are yours to give."""

import numpy as np
import pandas as pd

import tablepuppet as tp

random = np.random.default_rng(0)
patients = pd.DataFrame({"patient": np.arange(3000), "age": random.integers(1, 95, 3000)})
visits = pd.DataFrame({"patient": random.integers(0, 3000, 20_000), "days": random.poisson(4, 20_000)})
visits["cost"] = 300.0 * visits.days + 10.0 * patients.age[visits.patient].to_numpy() + random.normal(0, 50, 20_000)

query = "SELECT v.days, p.age, v.cost FROM visits v JOIN patients p ON v.patient = p.patient"
satellite = tp.Network(latency=0.6, bandwidth=0.05)  # seconds per round trip, gigabits per second

with tp.Federation({"visits": [visits[::2], visits[1::2]], "patients": patients}) as federation:
    plan = federation.explain(query, label="cost", model="linear")
    for row in plan.costs:
        print(f"{row.algorithm:12} {row.epoch.rounds:4} rounds an epoch, {row.run.seconds(satellite):7.1f} s for ten")

    result = federation.train(query, label="cost", model="linear", algorithm=tp.Admm(union="exact"), epochs=10)
    print(result.metrics["test"], f"{result.traffic.seconds(satellite):.1f} s by satellite")
    print(result.explain())
