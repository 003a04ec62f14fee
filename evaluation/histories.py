"""What histories are worth: boosted trees at defaults with `suggest_history`, and without, tested on the latest rows.

    python -m evaluation.histories FOLDER

FOLDER holds one folder per data set (walmart, movielens1m, nycflights13). It prints the table of docs/history.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

import tablepuppet as tp
from evaluation.sources import scan


@dataclass(frozen=True)
class Task:
    """A label at a moment, and the tables whose histories may help."""

    name: str
    folder: str
    stem: str  # of the file that all of its tables are made from
    tables: Mapping[str, str]  # SQL over {file}
    query: str
    metric: str
    histories: Sequence[str]
    windows: Sequence[str | None]


TASKS = (
    Task(
        "Walmart: a department's weekly sales (five stores)",
        "walmart",
        "train",
        {
            "sales": "SELECT Store AS store_id, Store * 100 + Dept AS series_id, CAST(Dept AS VARCHAR) AS dept, "
            "CAST(Date AS DATE) AS week, IsHoliday AS is_holiday, Weekly_Sales / 1000 AS sales FROM {file} "
            "WHERE Store <= 5 ORDER BY ALL"
        },
        "SELECT s.dept, s.is_holiday, s.sales FROM sales s",
        "rmse",
        ("sales",),
        ("5 weeks", "1 year", None),
    ),
    Task(
        "MovieLens: a rating (300 users)",
        "movielens1m",
        "ratings",
        {
            "ratings": "SELECT CAST(user_id AS BIGINT) AS user_id, CAST(movie_id AS BIGINT) AS movie_id, "
            "CAST(to_timestamp(timestamp) AS DATE) AS day, CAST(rating AS DOUBLE) AS rating FROM {file} "
            "WHERE user_id % 20 = 0 ORDER BY ALL"
        },
        "SELECT month(r.day) AS month, r.rating FROM ratings r",
        "rmse",
        ("ratings",),
        (None,),
    ),
    Task(
        "Flights: late by half an hour (a tenth of them)",
        "nycflights13",
        "flights",
        {
            "flights": "SELECT carrier AS carrier_id, origin AS origin_id, tailnum AS tail_id, make_date(year, month, "
            "day) AS day, hour, distance, arr_delay > 30 AS is_late FROM {file} WHERE arr_delay IS NOT NULL AND "
            "flight % 10 = 0 ORDER BY ALL",
            "departures": "SELECT carrier AS carrier_id, origin AS origin_id, tailnum AS tail_id, make_date(year, "
            "month, day) AS day, dep_delay AS delay FROM {file} WHERE dep_delay IS NOT NULL ORDER BY ALL",
        },
        "SELECT f.hour, f.distance, f.carrier_id, f.origin_id, f.is_late FROM flights f",
        "auc",
        ("departures",),
        ("2 days", "30 days"),
    ),
)


def measure(task: Task, data: Path) -> str:
    """A line of the table."""
    with duckdb.connect() as connection:
        file = scan(data / task.folder, task.stem)
        tables = {name: connection.sql(sql.format(file=file)).to_arrow_table() for name, sql in task.tables.items()}
    label = task.query.partition(" FROM ")[0].rpartition(".")[2]
    with tp.Federation(tables) as federation:
        text = federation.suggest_history(task.query, label=label, tables=task.histories, windows=task.windows)
        found = [
            federation.train(query, label=label, model="boosted", split="time", test_fraction=0.2)
            for query in (task.query, text)
        ]
    plain, with_history = (result.metrics["test"][task.metric] for result in found)
    features = text.count(" AS ") - task.query.count(" AS ")
    return f"| {task.name} | {task.metric} | {plain:.3f} | {with_history:.3f} | {features} |"


def main(folder: str) -> None:
    print("| task | metric on the latest fifth | without | with `suggest_history` | features added |")
    print("|---|---|---|---|---|")
    for task in TASKS:
        print(measure(task, Path(folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
