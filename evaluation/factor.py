"""MovieLens-1M with user and movie ids: factor heads beside the sum of tables and the paper's figures.

    python -m evaluation movielens-factor --data /path/to/data

A rating is joined with its user and its movie (one row each, without genres); ids are text columns of their own tables.
15 % of the ratings are for the test, the same for every line; everything else is at its default.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

import tablepuppet as tp
from evaluation.movielens import LINEAR, NEURAL, prepare
from evaluation.tables import KeptLines, WorkloadTable

JOIN = """
    FROM ratings r
    JOIN users u ON r.user_id = u.user_id
    JOIN movies m ON r.movie_id = m.movie_id
"""
FEATURES = f"SELECT u.gender, u.age, u.occupation, m.released, r.rating {JOIN}"
IDS = f"SELECT u.name, m.name AS movie, r.rating {JOIN}"
BOTH = f"SELECT u.name, u.gender, u.age, u.occupation, m.name AS movie, m.released, r.rating {JOIN}"
LINES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("sum, features", FEATURES, {}),
    ("sum, ids", IDS, {"l2": 5e-6}),
    ("factor by als, ids, 6 sweeps", IDS, {"head": "factor", "epochs": 6}),
    ("factor by als, ids", IDS, {"head": "factor"}),
    ("factor by als, ids, 24 sweeps", IDS, {"head": "factor", "epochs": 24}),
    ("factor by als, ids and features", BOTH, {"head": "factor"}),
    ("factor by sgd, ids", IDS, {"head": "factor", "algorithm": "sgd"}),
)


def factor(data: Path, line: KeptLines) -> WorkloadTable:
    """One line for each model."""
    tables = tables_with_ids(data)

    def measured(name: str, query: str, given: dict[str, Any]) -> list[str]:
        began = time.process_time()
        with tp.Federation(tables) as owners:
            result = owners.train(query, label="rating", **given)
        traffic, cpu = result.traffic, time.process_time() - began
        figures = (f"{traffic.rounds:,}", f"{traffic.bytes / 1e6:.0f}", f"{traffic.seconds('us-uk'):.0f}", f"{cpu:.0f}")
        return [name, f"{result.metrics['test']['rmse']:.4f}", *figures]

    rows = [line(name, partial(measured, name, query, given)) for name, query, given in LINES]
    paper = f"The paper, without ids: linear {LINEAR.paper['all']}; network {NEURAL.paper['all']}."
    return WorkloadTable(
        "MovieLens-1M with ids", [paper], ["model", "test RMSE", "rounds", "MB", "US-UK s", "CPU s"], rows
    )


def tables_with_ids(data: Path) -> dict[str, pa.Table]:
    """Ratings, users and movies, the latter two with their ids as names."""
    with TemporaryDirectory() as out, duckdb.connect() as connection:
        files = prepare(connection, data, Path(out))

        def read(sql: str) -> pa.Table:
            return connection.sql(sql).to_arrow_table()

        movies = "SELECT movie_id, CAST(movie_id AS VARCHAR) AS name, any_value(released) AS released"
        return {
            "ratings": read(
                f"SELECT rating_id, user_id, movie_id, rating FROM '{files['ratings']}' ORDER BY rating_id"
            ),
            "users": read(f"SELECT CAST(user_id AS VARCHAR) AS name, * FROM '{files['users']}' ORDER BY user_id"),
            "movies": read(f"{movies} FROM '{files['movies']}' GROUP BY movie_id ORDER BY movie_id"),
        }
