"""MovieLens-1M: ratings ⋈ movies (a row per genre) ⋈ users, a rating from 1 to 5 as a number.

Data: `ratings`, `movies` and `users`, as GroupLens distributes them (.dat) or as Parquet copies.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from evaluation.sources import scan, write
from evaluation.workload import Pooled, Workload, paper_privacy

QUERY = """
    SELECT r.days, r.hour, r.is_weekend, g.genre, g.released, u.gender, u.age, u.occupation, r.rating
    FROM ratings r
    JOIN movies g ON r.movie_id = g.movie_id
    JOIN users u ON r.user_id = u.user_id
"""


def prepare(connection: duckdb.DuckDBPyConnection, data: Path, out: Path) -> dict[str, Path]:
    """One Parquet file per table; time stamps that are missing stay missing."""
    ratings = scan(data, "ratings", "user_id movie_id rating timestamp")
    movies = scan(data, "movies", "movie_id title genres")
    users = scan(data, "users", "user_id gender age occupation zip")
    tables = {
        "ratings": f"""
            SELECT row_number() OVER (ORDER BY user_id, movie_id, rating) AS rating_id,
                   CAST(user_id AS INTEGER) AS user_id, CAST(movie_id AS INTEGER) AS movie_id,
                   CAST(rating AS DOUBLE) AS rating, "timestamp" / 86400.0 AS days,
                   CAST(("timestamp" // 3600) % 24 AS INTEGER) AS hour,
                   ("timestamp" // 86400 + 4) % 7 IN (0, 6) AS is_weekend
            FROM {ratings} ORDER BY rating_id""",
        "movies": f"""
            SELECT CAST(movie_id AS INTEGER) AS movie_id, unnest(string_split(genres, '|')) AS genre,
                   CAST(regexp_extract(title, '\\((\\d{{4}})\\)\\s*$', 1) AS INTEGER) AS released
            FROM {movies} ORDER BY movie_id""",
        "users": f"""
            SELECT CAST(user_id AS INTEGER) AS user_id, gender, CAST(age AS VARCHAR) AS age,
                   CAST(occupation AS VARCHAR) AS occupation
            FROM {users} ORDER BY user_id""",
    }
    return {name: write(connection, sql, out / f"{name}.parquet") for name, sql in tables.items()}


PRIVACY = paper_privacy(
    {"epsilon": 3.0, "mechanism": "bins", "bounds": (1.0, 5.0), "bins": 5},  # the points are the ratings themselves
    {"r.days": (11_000.0, 12_200.0), "r.hour": (0.0, 23.0), "r.is_weekend": (0.0, 1.0), "g.released": (1919.0, 2000.0)},
    cap=200,
)
LINEAR = Workload(
    name="movielens-linear",
    title="MovieLens-1M, linear",
    folder="movielens1m",
    prepare=prepare,
    query=QUERY,
    label="rating",
    model="linear",
    metric="rmse",
    searches=True,
    privacy=PRIVACY,
    paper={"all": "RMSE 1.083–1.16; with privacy 1.11–1.14"},
)
NEURAL = Workload(
    name="movielens-nn",
    title="MovieLens-1M, neural network",
    folder="movielens1m",
    prepare=prepare,
    query=QUERY,
    label="rating",
    model="mlp",
    metric="rmse",
    sgd={"optimizer": "adam"},
    privacy=PRIVACY,
    pooled=Pooled(
        table=QUERY.replace("SELECT", "SELECT r.rating_id,").replace(", r.rating\n", "\n") + " ORDER BY ALL",
        label_table="ratings",
        query="""
            SELECT x.days, x.hour, x.is_weekend, x.genre, x.released, x.gender, x.age, x.occupation, r.rating
            FROM ratings r JOIN pooled x ON r.rating_id = x.rating_id
        """,
    ),
    paper={"all": "RMSE 1.05–1.12; with privacy 1.08–1.14"},
)
