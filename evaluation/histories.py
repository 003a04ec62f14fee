"""What histories are worth: boosted trees at defaults with `suggest_history`, and without, tested on the latest rows.

    python -m evaluation.histories FOLDER [TASK …]

FOLDER holds one folder per data set (walmart, movielens1m, nycflights13, mimic3demo, yelp_reviews). It prints the table
of docs/history.md. LightGBM at its defaults is trained on the same features, computed by DuckDB on pooled tables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import lightgbm
import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score, root_mean_squared_error

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
    moment: str  # of a row of the query
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
        "s.week",
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
            "WHERE user_id % 20 = 0 AND timestamp IS NOT NULL ORDER BY ALL"
        },
        "SELECT month(r.day) AS month, r.rating FROM ratings r",
        "r.day",
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
        "f.day",
        "auc",
        ("departures",),
        ("2 days", "30 days"),
    ),
    Task(
        "Weather: rain in an hour at an airport",
        "nycflights13",
        "weather",
        {
            "hours": "SELECT origin AS origin_id, make_timestamp(year, month, day, hour, 0, 0) AS ts, hour, precip > 0 "
            "AS rains FROM {file} ORDER BY ALL",
            "weather": "SELECT origin AS origin_id, make_timestamp(year, month, day, hour, 0, 0) AS ts, temp, dewp, "
            "humid, wind_speed, precip, pressure, visib FROM {file} ORDER BY ALL",
        },
        "SELECT h.hour, h.origin_id, h.rains FROM hours h",
        "h.ts",
        "auc",
        ("weather",),
        ("3 hours", "1 day"),
    ),
    Task(
        "MIMIC demo: a patient's creatinine",
        "mimic3demo",
        "labevents",
        {
            "tests": "SELECT subject_id, charttime AS ts, hour(charttime) AS hour, max(valuenum) AS creatinine FROM "
            "{file} WHERE itemid = 50912 AND valuenum IS NOT NULL GROUP BY ALL ORDER BY ALL",
            "labs": "SELECT subject_id, charttime AS ts, max(valuenum) FILTER (itemid = 50912) AS creatinine, "
            "max(valuenum) FILTER (itemid = 51006) AS urea, max(valuenum) FILTER (itemid = 50971) AS potassium, "
            "max(valuenum) FILTER (itemid = 50902) AS chloride FROM {file} WHERE itemid IN (50912, 51006, 50971, "
            "50902) GROUP BY ALL ORDER BY ALL",
        },
        "SELECT t.hour, t.creatinine FROM tests t",
        "t.ts",
        "rmse",
        ("labs",),
        ("2 days", None),
    ),
    Task(
        "Yelp: the stars of a review",
        "yelp_reviews",
        "review_10k",
        {
            "reviews": "SELECT user_id, business_id, CAST(date AS DATE) AS day, CAST(length(text) AS DOUBLE) AS "
            "length, CAST(stars AS DOUBLE) AS stars FROM {file} ORDER BY ALL"
        },
        "SELECT r.length, r.stars FROM reviews r",
        "r.day",
        "rmse",
        ("reviews",),
        (None,),
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
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        pooled = connection.execute(f"SELECT {task.moment} AS _moment, {text.partition('SELECT ')[2]}").df()
    features = len(pooled.columns) - 2 - task.query.partition(" FROM ")[0].count(",")
    best = train_pooled(pooled, label, task.metric, found[1].plan.mapping.test_rows)
    return f"| {task.name} | {task.metric} | {plain:.3f} | {with_history:.3f} | {best:.3f} | {features} |"


def train_pooled(pooled: pd.DataFrame, label: str, metric: str, test_rows: int) -> float:
    """The metric of LightGBM at its defaults, trained on pooled rows and tested on the same latest ones."""
    pooled = pooled.sort_values("_moment", kind="stable")
    features = pooled.drop(columns=["_moment", label])
    for name, column in features.items():
        if column.dtype == object or column.dtype == bool or isinstance(column.dtype, pd.StringDtype):
            features[name] = column.astype("category")
    is_class = metric == "auc"
    model = (lightgbm.LGBMClassifier if is_class else lightgbm.LGBMRegressor)(verbose=-1, n_jobs=1)
    target = pooled[label].to_numpy().astype(float)
    model.fit(features[:-test_rows], target[:-test_rows])
    if is_class:
        return float(roc_auc_score(target[-test_rows:], np.asarray(model.predict_proba(features[-test_rows:]))[:, 1]))
    return float(root_mean_squared_error(target[-test_rows:], np.asarray(model.predict(features[-test_rows:]))))


def main(folder: str, *names: str) -> None:
    print("| task | metric on the latest fifth | without | with `suggest_history` | pooled LightGBM | features added |")
    print("|---|---|---|---|---|---|")
    for task in TASKS:
        if not names or any(task.name.startswith(name) for name in names):
            print(measure(task, Path(folder)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
