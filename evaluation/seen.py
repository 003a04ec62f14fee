"""MovieLens-1M as what was seen: one rating of each user is held out, and found again among 99 films never rated.

    python -m evaluation movielens-seen --data /path/to/data

Every other rating counts as seen, whatever it says, and the server draws pairs that did not meet beside it
(docs/heads.md). The held-out film and 99 that the user never rated are then put in order by the model, or by how often
films were rated: the share of users whose film is among the first ten (HR@10), and NDCG@10.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import tablepuppet as tp
from evaluation.factor import IDS, tables_with_ids
from evaluation.tables import KeptLines, WorkloadTable

LINES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sum, 4 negatives", {"negatives": 4, "l2": 5e-6}),
    ("factor by als, 4 negatives", {"negatives": 4, "head": "factor"}),
    ("factor by sgd, 4 negatives", {"negatives": 4, "head": "factor", "algorithm": "sgd"}),
)
_OTHERS = 99  # films that a held-out one is found among


def seen(data: Path, line: KeptLines) -> WorkloadTable:
    """One line for each model."""
    tables = tables_with_ids(data)
    kept, asked = _split(tables["ratings"])
    user, movie = asked["user_id"].to_numpy(), asked["movie_id"].to_numpy()
    relevant, often = asked["rating"].to_numpy(), np.bincount(kept["movie_id"].to_numpy(), minlength=movie.max() + 1)

    def measured(name: str, given: dict[str, Any]) -> list[str]:
        began = time.process_time()
        with tp.Federation(tables | {"ratings": kept}) as owners:
            result = owners.train(IDS, label="rating", test_fraction=0.0, **given)
        cpu, traffic = time.process_time() - began, result.traffic
        with tp.Federation(tables | {"ratings": asked}) as owners:
            found = owners.predict(result, key=["user_id", "movie_id"])
        pairs = asked.append_column("place", pa.array(np.arange(len(asked))))
        both = found.join(pairs, ["user_id", "movie_id"])
        scores = np.empty(len(asked))
        scores[both["place"].to_numpy()] = both["probability"].to_numpy()
        figures = _figures(tp.ranking_metrics(user, scores, relevant))
        return [name, *figures, f"{traffic.rounds:,}", f"{traffic.bytes / 1e6:.0f}", f"{cpu:.0f}"]

    rows = [["how often films were rated", *_figures(tp.ranking_metrics(user, often[movie], relevant)), "", "", ""]]
    rows += [line(name, partial(measured, name, given)) for name, given in LINES]
    said = "MovieLens-1M with ids: one rating of each user is held out, among 99 films that the user never rated."
    return WorkloadTable(
        "MovieLens-1M as what was seen", [said], ["order by", "HR@10", "NDCG@10", "rounds", "MB", "CPU s"], rows
    )


def _figures(found: dict[str, float]) -> tuple[str, str]:
    return f"{found['hit_rate']:.3f}", f"{found['ndcg']:.3f}"


def _split(ratings: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Ratings without one of each user, and that one (rating 1) beside films never rated (rating 0)."""
    with duckdb.connect() as connection:
        connection.register("ratings", ratings)

        def read(sql: str) -> pa.Table:
            return connection.sql(sql).to_arrow_table()

        last = "SELECT *, row_number() OVER (PARTITION BY user_id ORDER BY hash(rating_id)) AS place FROM ratings"
        kept = read(f"SELECT rating_id, user_id, movie_id, rating FROM ({last}) WHERE place > 1 ORDER BY rating_id")
        asked = read(f"""
            WITH pairs AS (
                SELECT user_id, movie_id, row_number() OVER (PARTITION BY user_id ORDER BY hash(user_id, movie_id)) AS n
                FROM (SELECT * FROM (SELECT DISTINCT user_id FROM ratings), (SELECT DISTINCT movie_id FROM ratings))
                ANTI JOIN ratings USING (user_id, movie_id))
            SELECT row_number() OVER (ORDER BY user_id, movie_id) AS rating_id, * FROM (
                SELECT user_id, movie_id, 1.0::DOUBLE AS rating FROM ({last}) WHERE place = 1
                UNION ALL SELECT user_id, movie_id, 0.0::DOUBLE FROM pairs WHERE n <= {_OTHERS})
            ORDER BY rating_id""")
    return kept, asked
