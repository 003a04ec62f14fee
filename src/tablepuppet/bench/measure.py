"""One measurement in a process of its own, so that its peak memory is its own.

In: a case, an algorithm (or "pooled": materialise the join and fit scikit-learn). Out: Figures.
Clients run in this process too; the time in which the server waits for them is told apart.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np

from tablepuppet.bench.cases import Case, make_case
from tablepuppet.errors import JobError
from tablepuppet.federation import Federation
from tablepuppet.job import make_job
from tablepuppet.train import plan_job, train
from tablepuppet.transport.codec import Frame
from tablepuppet.transport.link import Link, Transport

POOLED = "pooled"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one measurement found. Times in seconds; an epoch's are means over all but the first."""

    case: str
    algorithm: str
    joined_rows: int
    mapping: float  # pooled: materialising the join
    epoch: float  # pooled: the whole fit
    server: float  # of an epoch
    clients: float  # of an epoch
    cpu: float  # of the whole run
    total: float
    epochs: int
    objective: float
    bytes: int  # of an epoch
    peak: int  # bytes of memory, the tables included
    limit: float  # time to copy what an epoch must move at least once


def measure(name: str, rows: int, folder: Path | None, algorithm: str, model: str, epochs: int) -> Figures:
    """Measures in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, name, rows, folder, algorithm, model, epochs).result()


def _measure(name: str, rows: int, folder: Path | None, algorithm: str, model: str, epochs: int) -> Figures:
    case = make_case(name, rows, folder)
    return _pooled(case, model) if algorithm == POOLED else _trained(case, algorithm, model, epochs)


class _Stopwatch:
    """A transport that knows how long the server has waited for clients."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.seconds = 0.0

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        began = time.perf_counter()
        try:
            return self.transport.exchange(frames, wait=wait)
        finally:
            self.seconds += time.perf_counter() - began

    def close(self) -> None:
        self.transport.close()


def _trained(case: Case, algorithm: str, model: str, epochs: int) -> Figures:
    job = make_job(case.query, label=case.label, model=model, algorithm=algorithm, given={"epochs": epochs})
    with Federation(case.tables) as federation:
        watch = _Stopwatch(federation._transport)
        marks: list[tuple[float, float]] = []
        began, cpu = time.perf_counter(), time.process_time()
        result = train(
            job,
            federation._tables,
            Link(watch),
            lambda event: marks.append((time.perf_counter(), watch.seconds)) if event.record else None,
        )
        total, cpu = time.perf_counter() - began, time.process_time() - cpu
        peak = _peak()
        began = time.perf_counter()
        plan_job(job, federation._tables, Link(federation._transport), "bench")
        mapping = time.perf_counter() - began
    steps = max(1, len(marks) - 1)
    epoch, clients = ((marks[-1][k] - marks[0][k]) / steps for k in (0, 1))
    train_rows = result.plan.mapping.train
    # row numbers, labels, and ADMM's one value per joined row, read and written
    moved = train_rows.rows * (4 * sum(p.index is not None for p in train_rows.indices) + 1 + 8)
    return Figures(
        case=case.name,
        algorithm=algorithm,
        joined_rows=result.plan.mapping.joined_rows,
        mapping=mapping,
        epoch=epoch,
        server=epoch - clients,
        clients=clients,
        cpu=cpu,
        total=total,
        epochs=len(result.history),
        objective=result.objective,
        bytes=result.traffic.bytes // max(1, len(result.history)),
        peak=peak,
        limit=copy_seconds(moved),
    )


def copy_seconds(size: int) -> float:
    """The time to copy this many bytes from one place in memory to another."""
    piece = min(size, 1 << 28)
    source, target = np.ones(piece, np.uint8), np.empty(piece, np.uint8)
    np.copyto(target, source)  # touches the pages
    began = time.perf_counter()
    np.copyto(target, source)
    return (time.perf_counter() - began) * size / max(1, piece)


def _pooled(case: Case, model: str) -> Figures:
    """What a user would do instead: pool the tables, materialise the join, fit scikit-learn."""
    import pandas as pd

    try:
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise JobError("pooling needs scikit-learn: pip install scikit-learn, or choose other algorithms") from None

    began, cpu = time.perf_counter(), time.process_time()
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET enable_progress_bar = false")
        for name, table in case.tables.items():
            if isinstance(table, Path):
                connection.read_parquet(str(table)).create_view(name)
            else:
                connection.register(name, table)
        joined = connection.sql(case.query).df()
    labels = joined.pop(case.label).to_numpy()
    numbers = joined.select_dtypes("number").fillna(0.0)
    strings = joined.select_dtypes(exclude="number")
    one_hot = [pd.get_dummies(strings).to_numpy(np.float64)] if strings.shape[1] else []
    features = np.hstack([StandardScaler().fit_transform(numbers), *one_hot])
    rows = len(labels)
    del joined, numbers, strings
    materialised = time.perf_counter() - began
    l2 = 1e-4 * rows
    fitted = (
        Ridge(alpha=l2).fit(features, labels)
        if model == "linear"
        else LogisticRegression(C=1.0 / l2, max_iter=1000, tol=1e-6).fit(features, labels)
    )
    total = time.perf_counter() - began
    theta = np.ravel(fitted.coef_)
    scores = features @ theta + np.ravel(fitted.intercept_)[0]
    loss = 0.5 * (scores - labels) ** 2 if model == "linear" else np.logaddexp(0.0, scores) - labels * scores
    return Figures(
        case=case.name,
        algorithm=POOLED,
        joined_rows=rows,
        mapping=materialised,
        epoch=total - materialised,
        server=total - materialised,
        clients=0.0,
        cpu=time.process_time() - cpu,
        total=total,
        epochs=1,
        objective=float(loss.mean()) + 0.5e-4 * float(theta @ theta),
        bytes=0,
        peak=_peak(),
        limit=copy_seconds(features.nbytes),
    )


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
