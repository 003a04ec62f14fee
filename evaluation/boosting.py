"""Boosted trees beside LightGBM, HistGradientBoosting, the linear optimum and a network: accuracy, rounds, bytes,
seconds on two networks, CPU seconds and memory.

    python -m evaluation boosting --data /path/to/data

Everybody gets the same rows, features, bins and settings: 100 trees of depth 6, rate 0.1, λ = 1, strings as categories.
15 % of the label's rows are for the test, drawn by the seed. LightGBM has the materialised join, and one thread. Every
line is a process of its own, which has compiled its loops before the clock starts: CPU seconds are of all its threads,
from the tables in memory to the trained model; memory is the most that it held beyond what it began with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
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
from evaluation.tables import KeptLines, WorkloadTable
from evaluation.workload import Workload

_LABEL_TABLES = {"flights": "flights", "walmart": "sales", "movielens-linear": "ratings"}
_WIDE = "movielens-wide"
_FURTHER = 100  # columns of users, and of movies, of the wide data
TREES, DEPTH, RATE = 100, 6, 0.1
_HEAD = ["rounds", "MB", "US-UK s", "US-US s", "CPU s", "memory, MB", "bits told of a row"]


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    metric: float
    cpu: float = 0.0
    memory: float = 0.0
    rounds: int = 0
    megabytes: float = 0.0
    uk: float = 0.0
    us: float = 0.0
    told: int = 0


@dataclass(frozen=True)
class Task:
    """A data set as it is prepared: its name, tables and query."""

    name: str
    workload: Workload
    query: str

    @property
    def is_number(self) -> bool:
        return self.workload.model == "linear"

    @property
    def least(self) -> float:
        """Σh of a leaf."""
        return 20.0 if self.is_number else 5.0


def boosting(data: Path, line: KeptLines, seed: int = 0) -> Iterator[tuple[str, WorkloadTable]]:
    """The name and the table of every workload whose data are there."""
    for name, task in tasks().items():
        if not (data / task.workload.folder).is_dir():
            continue
        with TemporaryDirectory() as folder:
            _prepare(task, data / task.workload.folder, Path(folder), seed)
            lines = {
                title: line(f"{name} {title}", partial(_apart, name, title, Path(folder))) for title in _titles(name)
            }
        head = ["", "test RMSE" if task.is_number else "test AUC", *_HEAD]
        rows = [_cells(title, Line(**found)) for title, found in lines.items()]
        yield name, WorkloadTable(_name(name, task), [f"### {_name(name, task)}"], head, rows)


def lines_of(data: Path) -> int:
    """How many lines the tables have."""
    return sum(len(_titles(name)) for name, task in tasks().items() if (data / task.workload.folder).is_dir())


def tasks() -> dict[str, Task]:
    """What is measured, by name."""
    plain = {w.name: Task(w.name, w, w.query) for w in (flights.FLIGHTS, walmart.WALMART, movielens.LINEAR)}
    further = "".join(f"{alias}.x{k}, " for alias in ("u", "g") for k in range(_FURTHER))
    wide = movielens.LINEAR.query.replace("SELECT ", f"SELECT {further}", 1)
    return plain | {_WIDE: Task(_WIDE, movielens.LINEAR, wide)}


def _name(name: str, task: Task) -> str:
    title = task.workload.title.split(",")[0]
    return f"{title}, with {_FURTHER} further columns of users and {_FURTHER} of movies" if name == _WIDE else title


def _titles(name: str) -> list[str]:
    """The lines of a table; of the wide one, LightGBM's and ours."""
    return [t for t in LINES if name != _WIDE or "boosting" in t or "LightGBM" in t]


def _prepare(task: Task, data: Path, folder: Path, seed: int) -> None:
    """Writes the tables; the label's has a column that says which rows are for the test."""
    with duckdb.connect() as connection:
        paths = task.workload.prepare(connection, data, folder)
    for name, path in paths.items():
        table, rng = pq.read_table(path), np.random.default_rng(seed)
        if name == _LABEL_TABLES[task.workload.name]:
            table = table.append_column("held", pa.array(rng.random(table.num_rows) < 0.15))
        elif task.name == _WIDE:
            first = np.unique(table.column(0).to_numpy(), return_index=True)[1]  # a movie has one row, of a genre
            table = table.take(pa.array(first))
            for k in range(_FURTHER):
                table = table.append_column(f"x{k}", pa.array(rng.normal(size=table.num_rows)))
        pq.write_table(table, folder / f"{name}.table")


def _apart(name: str, title: str, folder: Path) -> dict[str, Any]:
    """A line, measured in a process of its own."""
    command = [sys.executable, "-m", "evaluation.boosting", name, title, str(folder)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # others' loops would wait for each other, busily
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=alone)
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def _cells(title: str, line: Line) -> list[str]:
    wire = ("", "", "", "")
    if line.rounds:
        wire = (f"{line.rounds:,}", f"{line.megabytes:,.1f}", f"{line.uk:.1f}", f"{line.us:.1f}")
    return [title, f"{line.metric:.4f}", *wire, f"{line.cpu:.1f}", f"{line.memory:,.0f}", str(line.told or "")]


# -- in a process of its own -----------------------------------------------------------------


def measure(name: str, title: str, folder: Path) -> Line:
    """One line; what loads, and compiles, is over before it begins."""
    task = tasks()[name]
    tables = {path.stem: pq.read_table(path) for path in sorted(folder.glob("*.table"))}
    run = LINES[title]
    if "boosting" in title:
        _train(task, tables, algorithm=tp.Boosting(trees=2, depth=DEPTH))
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, began = _memory("VmRSS"), time.process_time()
    line = run(task, tables)
    cpu, memory = line.cpu or time.process_time() - began, _memory("VmHWM") - before
    return Line(**asdict(line) | {"cpu": cpu, "memory": memory})


def _memory(which: str) -> float:
    """Megabytes of this process."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(which)).split()[1]) / 1024


def _train(task: Task, tables: dict[str, pa.Table], **job: Any) -> tp.Result:
    return tp.Federation(tables).train(task.query, label=task.workload.label, test_where="held", **job)


def _ours(task: Task, tables: dict[str, pa.Table], **job: Any) -> Line:
    began = time.process_time()
    result = _train(task, tables, **job)
    cpu = time.process_time() - began
    traffic = result.traffic
    seconds = {"uk": traffic.seconds("us-uk"), "us": traffic.seconds("us-us")}
    told = int(result.history[-1].residuals.get("splits", 0))
    metric = result.metrics["test"]["rmse" if task.is_number else "auc"]
    return Line(metric, cpu, rounds=traffic.rounds, megabytes=traffic.bytes / 1e6, told=told, **seconds)


def _linear(task: Task, tables: dict[str, pa.Table]) -> Line:
    return _ours(task, tables, model=task.workload.model)


def _network(task: Task, tables: dict[str, pa.Table]) -> Line:
    return _ours(task, tables, model="mlp")


def _boosting(task: Task, tables: dict[str, pa.Table]) -> Line:
    size: dict[str, Any] = {"trees": TREES, "depth": DEPTH, "learning_rate": RATE}
    return _ours(task, tables, algorithm=tp.Boosting(**size, min_child_weight=task.least))


def _joined(task: Task, tables: dict[str, pa.Table]) -> tuple[pd.DataFrame, Any, Any]:
    """The materialised join: features, strings as categories; labels; which rows are for the test."""
    alias = {"flights": "f", "walmart": "t", "movielens-linear": "r"}[task.workload.name]
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for name, table in tables.items():
            connection.register(name, table)
        joined = connection.sql(task.query.replace("SELECT", f"SELECT {alias}.held AS held,", 1)).df()
    held = joined.pop("held").to_numpy(bool)
    label = joined.pop(task.workload.label).to_numpy(np.float64)
    for column in joined.columns:
        if not pd.api.types.is_numeric_dtype(joined[column]):
            joined[column] = joined[column].astype("category")
    return joined, label, held


def _lightgbm(task: Task, tables: dict[str, pa.Table]) -> Line:
    import lightgbm

    began = time.process_time()
    joined, label, held = _joined(task, tables)
    settings = {
        "objective": "regression" if task.is_number else "binary",
        "num_leaves": 2**DEPTH,
        "max_depth": DEPTH,
        "learning_rate": RATE,
        "lambda_l2": 1.0,
        "min_sum_hessian_in_leaf": task.least,
        "min_data_in_leaf": 1,
        "num_threads": 1,
        "verbosity": -1,
    }
    train = lightgbm.Dataset(joined[~held], label[~held], params={"max_bin": 255, "verbosity": -1})
    booster = lightgbm.train(settings, train, TREES)
    cpu = time.process_time() - began
    return Line(_metric(task, np.asarray(booster.predict(joined[held])), label[held]), cpu)


def _hist_gradient_boosting(task: Task, tables: dict[str, pa.Table]) -> Line:
    """scikit-learn's, at the same depth, rate and bins; a leaf has twenty rows, as it is used to."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    began = time.process_time()
    joined, label, held = _joined(task, tables)
    kind = HistGradientBoostingRegressor if task.is_number else HistGradientBoostingClassifier
    settings = {"max_iter": TREES, "max_depth": DEPTH, "max_leaf_nodes": 2**DEPTH, "learning_rate": RATE}
    model = kind(**settings, l2_regularization=1.0, early_stopping=False, categorical_features="from_dtype")
    model.fit(joined[~held], label[~held])
    cpu = time.process_time() - began
    rows = joined[held]
    scores = model.predict(rows) if task.is_number else model.decision_function(rows)
    return Line(_metric(task, scores, label[held]), cpu)


def _metric(task: Task, scores: Any, truth: Any) -> float:
    """The root mean squared error, or the area under the ROC curve by ranks (Mann and Whitney)."""
    if task.is_number:
        return float(np.sqrt(np.mean((scores - truth) ** 2)))
    is_positive = np.asarray(truth) > 0.5
    high, low = np.count_nonzero(is_positive), np.count_nonzero(~is_positive)
    ranks = pd.Series(np.asarray(scores).reshape(-1)).rank().to_numpy()
    return float((ranks[is_positive].sum() - high * (high + 1) / 2) / (high * low))


LINES: dict[str, Callable[[Task, dict[str, pa.Table]], Line]] = {
    "linear optimum (newton)": _linear,
    "network (mlp)": _network,
    "LightGBM on the join": _lightgbm,
    "HistGradientBoosting on the join": _hist_gradient_boosting,
    "boosting": _boosting,
}

if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1], sys.argv[2], Path(sys.argv[3])))))
