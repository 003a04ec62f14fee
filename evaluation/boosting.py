"""Boosted trees beside LightGBM, HistGradientBoosting, the linear optimum and a network: accuracy, rounds, bytes,
seconds on two networks, CPU seconds.

    python -m evaluation boosting --data /path/to/data

Everybody gets the same rows, features, bins and settings: 100 trees of depth 6, rate 0.1, λ = 1, strings as categories.
15 % of the label's rows are for the test, drawn by the seed. LightGBM has the materialised join, and one thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import tablepuppet as tp
from evaluation import flights, movielens, walmart
from evaluation.workload import Workload
from tablepuppet.engine.curves import area_under_curve

_LABEL_TABLES = {"flights": "flights", "walmart": "sales", "movielens-linear": "ratings"}
WORKLOADS = (flights.FLIGHTS, walmart.WALMART, movielens.LINEAR)
TREES, DEPTH, RATE = 100, 6, 0.1


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    name: str
    metric: float
    cpu: float
    rounds: int = 0
    megabytes: float = 0.0
    uk: float = 0.0
    us: float = 0.0
    told: int = 0


def boosting(data: Path, seed: int = 0) -> str:
    """The table of every workload whose data are there, as Markdown."""
    pages = ["# Boosted trees\n"]
    for workload in WORKLOADS:
        if (data / workload.folder).is_dir():
            tables = _tables(workload, data / workload.folder, seed)
            pages.append(_page(workload, _lines(workload, tables)))
            print(pages[-1], flush=True)
    return "\n".join(pages)


def _tables(workload: Workload, folder: Path, seed: int) -> dict[str, pa.Table]:
    """The tables in memory; the label's has a column that says which rows are for the test."""
    with TemporaryDirectory() as out, duckdb.connect() as connection:
        paths = workload.prepare(connection, folder, Path(out))
        tables = {name: pq.read_table(path) for name, path in paths.items()}
    name = _LABEL_TABLES[workload.name]
    held = np.random.default_rng(seed).random(tables[name].num_rows) < 0.15
    return {**tables, name: tables[name].append_column("held", pa.array(held))}


def _lines(workload: Workload, tables: dict[str, pa.Table]) -> list[Line]:
    is_number = workload.model == "linear"
    least = 20.0 if is_number else 5.0
    job: dict[str, Any] = {"label": workload.label, "test_where": "held"}
    trees: dict[str, Any] = {"trees": TREES, "depth": DEPTH, "learning_rate": RATE, "min_child_weight": least}
    tp.Federation(tables).train(workload.query, **job, algorithm=tp.Boosting(trees=2, depth=3))  # compiles
    return [
        _ours("linear optimum (newton)", workload, tables, {**job, "model": workload.model}),
        _ours("network (mlp)", workload, tables, {**job, "model": "mlp"}),
        _lightgbm(workload, tables, least),
        _hist_gradient_boosting(workload, tables),
        _ours("boosting, strict", workload, tables, job | {"algorithm": tp.Boosting(**trees)}),
        _ours("boosting, lazy", workload, tables, job | {"algorithm": tp.Boosting(**trees, checks="lazy")}),
    ]


def _ours(name: str, workload: Workload, tables: dict[str, pa.Table], job: dict[str, Any]) -> Line:
    began = time.process_time()
    result = tp.Federation(tables).train(workload.query, **job)
    cpu = time.process_time() - began
    metric = result.metrics["test"]["rmse" if workload.model == "linear" else "auc"]
    traffic = result.traffic
    told = int(result.history[-1].residuals.get("splits", 0))
    seconds = (traffic.seconds("us-uk"), traffic.seconds("us-us"))
    return Line(name, metric, cpu, traffic.rounds, traffic.bytes / 1e6, *seconds, told)


def _joined(workload: Workload, tables: dict[str, pa.Table]) -> tuple[pd.DataFrame, Any, Any]:
    """The materialised join: features, strings as categories; labels; which rows are for the test."""
    alias = {"flights": "f", "walmart": "t", "movielens-linear": "r"}[workload.name]
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for name, table in tables.items():
            connection.register(name, table)
        joined = connection.sql(workload.query.replace("SELECT", f"SELECT {alias}.held AS held,", 1)).df()
    held = joined.pop("held").to_numpy(bool)
    label = joined.pop(workload.label).to_numpy(np.float64)
    for column in joined.columns:
        if not pd.api.types.is_numeric_dtype(joined[column]):
            joined[column] = joined[column].astype("category")
    return joined, label, held


def _lightgbm(workload: Workload, tables: dict[str, pa.Table], least: float) -> Line:
    import lightgbm

    is_number = workload.model == "linear"
    began = time.process_time()
    joined, label, held = _joined(workload, tables)
    settings = {
        "objective": "regression" if is_number else "binary",
        "num_leaves": 2**DEPTH,
        "max_depth": DEPTH,
        "learning_rate": RATE,
        "lambda_l2": 1.0,
        "min_sum_hessian_in_leaf": least,
        "min_data_in_leaf": 1,
        "num_threads": 1,
        "verbosity": -1,
    }
    train = lightgbm.Dataset(joined[~held], label[~held], params={"max_bin": 255, "verbosity": -1})
    booster = lightgbm.train(settings, train, TREES)
    cpu = time.process_time() - began
    metric = _metric(workload, np.asarray(booster.predict(joined[held])), label[held])
    return Line("LightGBM on the join", metric, cpu)


def _hist_gradient_boosting(workload: Workload, tables: dict[str, pa.Table]) -> Line:
    """scikit-learn's, at the same depth, rate and bins; a leaf has twenty rows, as it is used to."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    is_number = workload.model == "linear"
    began = time.process_time()
    joined, label, held = _joined(workload, tables)
    kind = HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
    settings = {"max_iter": TREES, "max_depth": DEPTH, "max_leaf_nodes": 2**DEPTH, "learning_rate": RATE}
    model = kind(**settings, l2_regularization=1.0, early_stopping=False, categorical_features="from_dtype")
    model.fit(joined[~held], label[~held])
    cpu = time.process_time() - began
    rows = joined[held]
    scores = model.predict(rows) if is_number else model.decision_function(rows)
    return Line("HistGradientBoosting on the join", _metric(workload, scores, label[held]), cpu)


def _metric(workload: Workload, scores: Any, truth: Any) -> float:
    is_number = workload.model == "linear"
    return float(np.sqrt(np.mean((scores - truth) ** 2))) if is_number else area_under_curve(scores, truth)


def _page(workload: Workload, lines: list[Line]) -> str:
    metric = "test RMSE" if workload.model == "linear" else "test AUC"
    rows = [
        f"\n## {workload.title.split(',')[0]}\n",
        f"| | {metric} | rounds | MB | US-UK s | US-US s | CPU s | bits told of a row |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        wire = (
            ("", "", "", "")
            if not line.rounds
            else (line.rounds, f"{line.megabytes:.1f}", f"{line.uk:.1f}", f"{line.us:.1f}")
        )
        cells = (line.name, f"{line.metric:.4f}", *wire, f"{line.cpu:.1f}", line.told or "")
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)
