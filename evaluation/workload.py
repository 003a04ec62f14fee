"""A workload: which tables, which query, which model, and what the paper reports for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from evaluation.sources import write

Prepare = Callable[[duckdb.DuckDBPyConnection, Path, Path], dict[str, Path]]


def paper_privacy(
    label: dict[str, object], bounds: dict[str, tuple[float, float]], cap: int | dict[str, int]
) -> dict[str, object]:
    """ε = 1, δ = 1e-5 for features, ε = 5.66 for labels (2√2/λ at λ = ½); predictions are trusted to the server.

    Public bounds stand in for statistics of the data, and at most `cap` joined rows of a base row take part.
    """
    return {
        "label": {"epsilon": 5.66, **label},
        "features": {"epsilon": 1.0, "delta": 1e-5, "cap": cap, "bounds": bounds},
        "allow_reconstruction": True,
    }


@dataclass(frozen=True, slots=True)
class Pooled:
    """How a neural model is trained centrally: one network over the materialised join, which is one table.

    The label stays in its own table, so that the same rows are test rows as in the federated runs.
    """

    table: str  # SQL over the workload's tables that makes the table `pooled`
    label_table: str
    query: str


@dataclass(frozen=True, slots=True)
class Workload:
    """One data set with one model.

    `prepare(connection, data, out)` turns the original files in `data` into one Parquet file per
    table in `out`, each by one SQL statement over its own table.
    """

    name: str
    title: str
    folder: str  # the data set's folder below the folder of all data
    prepare: Prepare
    query: str
    label: str
    model: str
    metric: str  # shown per epoch
    paper: dict[str, str] = field(default_factory=dict)  # what the paper reports, by name of algorithm
    l2: float = 1e-4
    batch_size: int = 10_240
    learning_rates: tuple[float, ...] = (0.01, 0.05, 0.1, 0.5)  # where the paper searched
    rhos: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0)
    searches: bool = False  # whether that is searched, or left to our defaults
    sgd: dict[str, object] = field(default_factory=dict)  # further arguments of train, for SGD
    privacy: dict[str, object] | None = None  # the paper's setting, where a run with privacy is asked for
    has_texts: bool = False  # which an encoder turns into vectors (embedding.py)
    pooled: Pooled | None = None  # the centralised baseline of a neural model


def halves(connection: duckdb.DuckDBPyConnection, table: Path, out: Path) -> list[Path]:
    """A table cut in two clients' shares; rows keep their order, so that the split in train and test is the same."""
    source = str(table).replace("'", "''")
    numbered = f"read_parquet('{source}', file_row_number = true)"
    shares = []
    for half, side in enumerate(("<", ">=")):
        share = out / f"{table.stem}_{half}.parquet"
        middle = f"(SELECT count(*) // 2 FROM read_parquet('{source}'))"
        rows = f"SELECT * FROM {numbered} WHERE file_row_number {side} {middle} ORDER BY file_row_number"
        shares.append(write(connection, f"SELECT * EXCLUDE (file_row_number) FROM ({rows})", share))
    return shares
