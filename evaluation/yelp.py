"""Yelp restaurants: reviews (text embeddings) ⋈ restaurants ⋈ users, one to five stars by softmax.

Data: `yelp_academic_dataset_{review,business,user}.json`. Where they are not at hand, `generated` makes
tables of the same shape at a chosen scale, and `reviews` takes a file of reviews alone (review_10k).
Averages of stars (of a business, of a user) contain the label and are left out, as are votes on the review.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tablepuppet as tp
from evaluation.embedding import encoder, kept_in
from evaluation.sources import find, scan, write
from evaluation.workload import Workload, paper_privacy

QUERY = """
    SELECT r.embedding, b.reviews, b.is_open, b.latitude, b.longitude, b.state, u.reviews, u.fans, u.since, r.stars
    FROM review r
    JOIN business b ON r.business_id = b.business_id
    JOIN person u ON r.user_id = u.user_id
"""
QUERY_10K = """
    SELECT r.embedding, r.length, b.reviews, u.reviews, r.stars
    FROM review r
    JOIN business b ON r.business_id = b.business_id
    JOIN person u ON r.user_id = u.user_id
"""
PIECE = 1000  # reviews


def prepare_original(connection: duckdb.DuckDBPyConnection, data: Path, out: Path) -> dict[str, Path]:
    """The three original files; only restaurants, and reviews of restaurants."""
    prefix = "yelp_academic_dataset_"
    business, review = scan(data, f"{prefix}business"), scan(data, f"{prefix}review")
    restaurants = f"SELECT business_id FROM {business} WHERE categories LIKE '%Restaurant%'"
    texts = connection.sql(
        f"""SELECT business_id, user_id, CAST(stars AS VARCHAR) AS stars, text FROM {review}
            WHERE business_id IN ({restaurants}) ORDER BY review_id"""
    ).to_arrow_table()
    tables = {
        "business": f"""
            SELECT business_id, review_count AS reviews, is_open = 1 AS is_open, latitude, longitude, state
            FROM {business} WHERE categories LIKE '%Restaurant%' ORDER BY ALL""",
        "person": f"""
            SELECT user_id, review_count AS reviews, fans, year(CAST(yelping_since AS TIMESTAMP)) AS since
            FROM {scan(data, f"{prefix}user")} ORDER BY ALL""",
    }
    written = {name: write(connection, sql, out / f"{name}.parquet") for name, sql in tables.items()}
    return {"review": _with_embeddings(texts, out), **written}


def prepare_reviews(connection: duckdb.DuckDBPyConnection, data: Path, out: Path) -> dict[str, Path]:
    """A file of reviews alone: restaurants and users are what the reviews say about them, without any star."""
    review = scan(data, "review_10k")
    texts = connection.sql(
        f"""SELECT business_id, user_id, CAST(stars AS VARCHAR) AS stars, length(text) AS length, text
            FROM {review} ORDER BY review_id"""
    ).to_arrow_table()
    tables = {
        "business": f"SELECT business_id, count(*) AS reviews FROM {review} GROUP BY ALL ORDER BY ALL",
        "person": f"SELECT user_id, count(*) AS reviews FROM {review} GROUP BY ALL ORDER BY ALL",
    }
    written = {name: write(connection, sql, out / f"{name}.parquet") for name, sql in tables.items()}
    return {"review": _with_embeddings(texts, out), **written}


def generate(rows: int, size: int, out: Path, seed: int = 0) -> Path:
    """Original-shaped files: as many users as 3 in 8 reviews and restaurants as 1 in 90, as in the paper."""
    random = np.random.default_rng(seed)
    users, businesses = max(1, rows * 3 // 8), max(1, rows // 90)
    stars_of = random.normal(0, 0.6, businesses), random.normal(0, 0.6, users)
    business, user = random.integers(0, businesses, rows), random.integers(0, users, rows)
    mood = random.normal(0, 1, rows)
    score = 0.9 + stars_of[0][business] + stars_of[1][user] + mood
    stars = np.digitize(score, [-0.9, -0.2, 0.5, 1.4]) + 1
    directions = random.normal(0, 1, (4, size)) / np.sqrt(size)
    factors = np.column_stack([mood, score, random.normal(0, 1, (rows, 2))])
    embedding = (factors @ directions + random.normal(0, 1.2 / np.sqrt(size), (rows, size))).astype(np.float32)
    values = pa.FixedSizeListArray.from_arrays(pa.array(embedding.ravel()), size)
    tables = {
        "review": pa.table(
            {"business_id": business, "user_id": user, "stars": [str(s) for s in stars], "embedding": values}
        ),
        "business": pa.table(
            {
                "business_id": np.arange(businesses),
                "reviews": random.poisson(90 * np.exp(0.3 * stars_of[0])),
                "is_open": random.random(businesses) < 0.7,
                "latitude": random.uniform(27, 54, businesses),
                "longitude": random.uniform(-120, -74, businesses),
                "state": random.choice(["PA", "FL", "TN", "IN", "MO", "LA", "AZ", "NJ", "NV", "AB"], businesses),
            }
        ),
        "person": pa.table(
            {
                "user_id": np.arange(users),
                "reviews": random.poisson(20, users),
                "fans": random.poisson(np.exp(0.5 * stars_of[1])),
                "since": random.integers(2005, 2022, users),
            }
        ),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        pq.write_table(table, out / f"{name}.parquet")
    return out


def prepare_generated(connection: duckdb.DuckDBPyConnection, data: Path, out: Path) -> dict[str, Path]:
    """What `generate` wrote, as it is."""
    return {name: find(data, name) for name in ("review", "business", "person")}


def _with_embeddings(texts: pa.Table, out: Path) -> Path:
    """The reviews with vectors in place of their texts; equal texts are embedded once, in this run and the next."""
    out.mkdir(parents=True, exist_ok=True)
    using = encoder()
    # Piece by piece: what is embedded stays embedded when a run is interrupted.
    pieces = [
        tp.embed(texts.slice(at, PIECE), "text", using=using, to="embedding", cache=kept_in(out, using))
        for at in range(0, len(texts), PIECE)
    ]
    table = pa.concat_tables(pieces)
    pq.write_table(table.drop_columns(["text"]), out / "review.parquet")
    return out / "review.parquet"


# Numbers of an embedding of length one are about ±0.05.
BOUNDS = {
    "r.embedding": (-0.2, 0.2),
    "r.length": (0.0, 5000.0),
    "b.reviews": (0.0, 2000.0),
    "b.is_open": (0.0, 1.0),
    "b.latitude": (25.0, 55.0),
    "b.longitude": (-125.0, -70.0),
    "u.reviews": (0.0, 500.0),
    "u.fans": (0.0, 100.0),
    "u.since": (2004.0, 2022.0),
}
PRIVACY = paper_privacy({}, BOUNDS, cap={"review": 1, "business": 200, "person": 50})
PAPER = {"all": "64.6–65.4 %; with privacy 57.8–60.1 %"}
ORIGINAL = Workload(
    name="yelp",
    title="Yelp restaurants, softmax",
    folder="yelp",
    prepare=prepare_original,
    has_texts=True,
    query=QUERY,
    label="stars",
    model="softmax",
    metric="accuracy",
    searches=True,
    privacy=PRIVACY,
    paper=PAPER,
)
GENERATED = Workload(
    name="yelp-generated",
    title="Yelp-shaped generated data, softmax",
    folder="yelp_generated",
    prepare=prepare_generated,
    query=QUERY,
    label="stars",
    model="softmax",
    metric="accuracy",
    privacy=PRIVACY,
    batch_size=256,  # where the paper's reviews are hundreds of batches an epoch, 20,000 are two of 10,240
    searches=True,
    sgd={"momentum": 0.9},
    paper=PAPER,
)
REVIEWS = Workload(
    name="yelp-10k",
    title="Yelp, 10,000 reviews, softmax",
    folder="yelp_reviews",
    prepare=prepare_reviews,
    has_texts=True,
    query=QUERY_10K,
    label="stars",
    model="softmax",
    metric="accuracy",
    privacy=PRIVACY,
    batch_size=512,
    searches=True,
    sgd={"momentum": 0.9},
    l2=1e-3,
    paper=PAPER,
)
