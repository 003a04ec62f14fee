"""What an analyst gets for a month's budget: boosted trees on three joins, ε = 1, 2, 4, 8 a month, and without noise.

    python -m evaluation.analysts --data FOLDER [--only flights] [--what models|search|drift]

The table with the label has the budget. A month goes into one training with its metrics. Of each line: the test metric
that the analyst is shown, what the same model has on the same rows without noise, and how far the noisy number of
joined rows is off. Means over the runs; what is exact is computed beside, by whoever has all tables.

A search spends the month on two depths and two folds. For drift, a model of January to June meets July to December.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import duckdb
import pyarrow.parquet as parquet

import tablepuppet as tp
from evaluation import flights, movielens, walmart
from evaluation.workload import Workload
from tablepuppet.owner.policy import Policy
from tablepuppet.privacy.analyst import AnalystBudget
from tablepuppet.privacy.ledger import TableBudget

EPSILONS = (1.0, 2.0, 4.0, 8.0)
TREES: dict[str, Any] = {"model": "boosted", "splits": "random", "trees": 60, "depth": 6, "learning_rate": 0.3}
SEARCHED: dict[str, Any] = {"model": "boosted", "trees": 60}


FLIGHTS = """
    SELECT CAST(f.month AS INTEGER) AS month, f.hour, f.distance, w.temp, w.humid, w.wind_speed, w.precip, w.visib,
           CASE WHEN f.carrier = 'UA' THEN 1 ELSE 0 END AS ua, CASE WHEN f.carrier = 'EV' THEN 1 ELSE 0 END AS ev,
           CASE WHEN f.carrier = 'B6' THEN 1 ELSE 0 END AS b6, CASE WHEN f.carrier = 'DL' THEN 1 ELSE 0 END AS dl,
           p.seats, p.built, a.alt, a.lat, a.lon, f.is_late
    FROM flights f
    JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
    JOIN planes p ON f.tailnum = p.tailnum
    JOIN airports a ON f.dest = a.faa
"""
RATINGS = """
    SELECT r.days, r.hour, r.is_weekend, g.released, CAST(u.age AS INTEGER) AS age,
           CASE WHEN g.genre = 'Drama' THEN 1 ELSE 0 END AS drama,
           CASE WHEN g.genre = 'Comedy' THEN 1 ELSE 0 END AS comedy,
           CASE WHEN g.genre = 'Horror' THEN 1 ELSE 0 END AS horror,
           CASE WHEN g.genre = 'Film-Noir' THEN 1 ELSE 0 END AS noir,
           CASE WHEN u.gender = 'F' THEN 1 ELSE 0 END AS female, r.rating
    FROM ratings r
    JOIN movies g ON r.movie_id = g.movie_id
    JOIN users u ON r.user_id = u.user_id
"""
SALES = """
    SELECT CAST(t.dept AS INTEGER) AS dept, t.is_holiday, w.temperature, w.fuel_price, w.markdown1, w.cpi,
           w.unemployment, CASE WHEN s.kind = 'A' THEN 1 ELSE 0 END AS a, s.size, t.sales
    FROM sales t
    JOIN weeks w ON t.store = w.store AND t.week = w.week
    JOIN stores s ON t.store = s.store
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A join, the table with the budget, and what is public of it."""

    workload: Workload
    query: str  # without texts, whose names would leave
    table: str
    metric: str
    bounds: dict[str, tuple[float, float]]
    cap: int = 1


CASES = (
    Case(
        flights.FLIGHTS,
        FLIGHTS,
        "flights",
        "auc",
        flights.BOUNDS | {"month": (1.0, 12.0), **dict.fromkeys(("ua", "ev", "b6", "dl"), (0.0, 1.0))},
    ),
    Case(
        movielens.LINEAR,
        RATINGS,
        "ratings",
        "rmse",
        {
            "days": (11_000.0, 12_200.0),
            "hour": (0.0, 23.0),
            "released": (1919.0, 2000.0),
            "age": (1.0, 56.0),
            **dict.fromkeys(("is_weekend", "drama", "comedy", "horror", "noir", "female"), (0.0, 1.0)),
            "rating": (1.0, 5.0),
        },
        cap=2,
    ),
    Case(
        walmart.WALMART,
        SALES,
        "sales",
        "rmse",
        walmart.BOUNDS | {"dept": (1.0, 99.0), "a": (0.0, 1.0), "sales": (-5.0, 250.0)},
    ),
)


@contextmanager
def open_federations(case: Case, data: Path) -> Iterator[tuple[tp.Federation, tp.Federation]]:
    """One whose owners have no rules, and one in which a table has a budget."""
    with tempfile.TemporaryDirectory() as folder:
        files = case.workload.prepare(duckdb.connect(), data / case.workload.folder, Path(folder))
        tables: Any = {name: parquet.read_table(path) for name, path in files.items()}
    budget = TableBudget(analyst=AnalystBudget(epsilon=100.0))
    policies: Any = {case.table: Policy(budget={case.table: budget})}
    with tp.Federation(tables) as open_, tp.Federation(tables, policies=policies) as owners:
        yield open_, owners


def measure(case: Case, data: Path, epsilons: list[float], runs: int) -> list[list[str]]:
    """A line without noise, then one for each ε."""
    given: dict[str, Any] = {"label": case.workload.label, **TREES}
    with open_federations(case, data) as (open_, owners):
        lines = []
        for name, options in (("no budget, splits searched", SEARCHED), ("no budget, splits drawn", TREES)):
            loss = "logistic" if case.metric == "auc" else "squared"
            plain = open_.train(case.query, label=case.workload.label, loss=loss, **options)
            rows, value = plain.plan.mapping.joined_rows, plain.metrics["test"][case.metric]
            lines.append([name, f"{value:.4f}", f"{value:.4f}", "0"])
            print(case.workload.name, *lines[-1], flush=True)
        lines.append(["a constant", "", f"{plain.baseline.get(case.metric, 0.5):.4f}", ""])
        for epsilon in epsilons:
            shown, exact, off = [], [], []
            for seed in range(runs):
                result = owners.train(case.query, **given, seed=seed, privacy=ask(case, epsilon))
                shown.append(result.metrics["test"][case.metric])
                exact.append(open_.evaluate(result, rows="all")[case.metric])
                off.append(abs(result.plan.mapping.joined_rows - rows))
            figures = (f"{fmean(shown):.4f}", f"{fmean(exact):.4f}", f"{fmean(off):,.0f}")
            lines.append([f"ε = {epsilon:g}", *figures])
            print(case.workload.name, *lines[-1], flush=True)
        return lines


def ask(case: Case, epsilon: float) -> dict[str, Any]:
    """A job's part of the budget."""
    return {"analyst": {"epsilon": epsilon, "cap": case.cap, "bounds": case.bounds}}


def measure_search(case: Case, data: Path, epsilons: list[float], runs: int) -> list[list[str]]:
    """The metric of each depth, as a search shows it, without noise and for each ε."""
    options: dict[str, Any] = {"label": case.workload.label, "folds": 2}
    options |= {k: v for k, v in TREES.items() if k != "depth"}
    lines = []
    with open_federations(case, data) as (open_, owners):
        for epsilon in (0.0, *epsilons):
            privacy = ask(case, epsilon) if epsilon else None
            loss = {} if epsilon else {"loss": "logistic" if case.metric == "auc" else "squared"}
            given = {**options, **loss, "privacy": privacy}
            found = tp.search(owners if epsilon else open_, case.query, {"depth": [1, 6]}, **given).table
            values = [found.set_index("depth").loc[depth, case.metric] for depth in (1, 6)]
            lines.append([f"ε = {epsilon:g}" if epsilon else "no budget", *(f"{v:.4f}" for v in values), ""])
            print(case.workload.name, *lines[-1], flush=True)
    return lines


def measure_drift(case: Case, data: Path, epsilons: list[float], runs: int) -> list[list[str]]:
    """What moved in the same rows, which is nothing, and from the first half of a year to the second."""
    given: dict[str, Any] = {"label": case.workload.label, **TREES, "test_fraction": 0.0}
    lines = []
    halves = [f"{case.query} WHERE CAST(f.month AS INTEGER) {side} 6" for side in ("<=", ">")]
    with open_federations(case, data) as (_, owners):
        for epsilon in epsilons:
            result = owners.train(halves[0], **given, privacy=ask(case, epsilon))
            found = [owners.drift(result, query, privacy=ask(case, epsilon)) for query in halves]
            said = [
                ", ".join(f"{f.feature} {f.moved:+.2f}" for f in one.features if abs(f.moved) > 0.05) for one in found
            ]
            lines.append([f"ε = {epsilon:g}", *(one or "nothing" for one in said), ""])
            print(case.workload.name, *lines[-1], flush=True)
    return lines


_MEASURES = {
    "models": (measure, "shown | exact | joined rows off by"),
    "search": (measure_search, "depth 1 | depth 6 | "),
    "drift": (measure_drift, "the same months | later months | "),
}


def main() -> None:
    """Prints a table for each join."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epsilons", type=float, nargs="*", default=list(EPSILONS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=[case.workload.name for case in CASES])
    parser.add_argument("--what", choices=list(_MEASURES), default="models")
    asked = parser.parse_args()
    measure_case, head = _MEASURES[asked.what]
    for case in CASES:
        if asked.only in (None, case.workload.name):
            lines = measure_case(case, asked.data, asked.epsilons, asked.runs)
            print(f"\n| {case.workload.name}, {case.metric} | {head} |")
            print("|---|---:|---:|---:|")
            for line in lines:
                print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
