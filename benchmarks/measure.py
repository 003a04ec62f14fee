"""One measurement in a process of its own, so that its peak memory is its own.

In: a case, and an algorithm or the name of a baseline. Out: Figures.
Clients run in this process too; the time in which the server waits for them is told apart.

Besides, the server's step by itself, of an algorithm that keeps something per joined row: its seconds, how many cores
it kept busy, and the time in which one thread copies the bytes that it must move at least once: row numbers, the one
value that is kept per joined row, read and written, labels, and for each row of the tables a prediction and a signal.

The baseline is what a user would do instead: pool the tables, materialise the join, fit scikit-learn or torch. Its
figures hold the time and the memory of the materialised join. Encoding is that of docs/algorithms.md (numbers
standardised, strings one-hot), so that objectives compare.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from benchmarks.cases import Case, Trial, check_memory, make_case
from benchmarks.figures import L2, Figures, copy_seconds, peak
from tablepuppet.algorithms.base import Problem
from tablepuppet.api import Federation
from tablepuppet.arrays import Array
from tablepuppet.errors import JobError
from tablepuppet.job import make_job
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.mapping import rows_here
from tablepuppet.models.spec import l2_of
from tablepuppet.plan.prepare import Prepared
from tablepuppet.protocol.codec import Frame
from tablepuppet.sources.duckdb_source import silence
from tablepuppet.train import Session, prepare_job, train
from tablepuppet.transport.link import Link, Transport

_TIMES = 3
_OURS, _POOLED = 210, 650  # bytes per joined row of TPC-H, clients or the materialised join included


@dataclass(frozen=True, slots=True)
class ServerStep:
    """What one server step takes."""

    seconds: float
    cores: float  # CPU seconds per second
    limit: float  # seconds to copy what must move

    @property
    def ratio(self) -> float:
        return self.seconds / self.limit


def server_step(prepared: Prepared) -> ServerStep:
    """The fastest of a few server steps, from predictions as large as a trained model's."""
    plan, joined = prepared.plan, rows_here(prepared.mapping.train)
    rng = np.random.default_rng(0)
    problem = Problem(
        loss=plan.loss,
        l2=[l2_of(plan.job.model.l2, block.name, block.table) for block in plan.mapping.bound.blocks],
        joined=joined,
        rows=tuple(index.rows for index in joined.indices),
        clients=(1,) * len(joined.indices),
        multiplicity=prepared.mapping.multiplicity,
        epochs=1,
        batch_size=None,
        seed=0,
    )
    before = set(joined.state)
    server = plan.algorithm.server(problem, plan.algorithm.options())
    predictions = [0.3 * rng.normal(size=(n, plan.loss.outputs)) for n in problem.rows]
    server.begin(predictions, [plan.algorithm.public_figures(1)] * problem.blocks)
    found = []
    for _ in range(_TIMES + 1):  # the first compiles
        began, cpu = time.perf_counter(), time.process_time()
        server.join_step()
        seconds = time.perf_counter() - began
        found.append((seconds, (time.process_time() - cpu) / seconds))
    for name in set(joined.state) - before:
        del joined.state[name]
    seconds, cores = min(found[1:])
    return ServerStep(seconds, cores, copy_seconds(moved_bytes(joined)))


def moved_bytes(joined: JoinedRows) -> int:
    """What one pass over joined rows moves, with labels as bytes and the state of a row in single precision."""
    numbers = sum(p.index is not None for p in joined.indices)
    return joined.rows * (4 * numbers + 8) + len(joined.labels) + 16 * sum(p.rows for p in joined.indices)


def measure(trial: Trial) -> Figures:
    """Measures in a fresh process."""
    check_room(trial)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, trial).result()


def check_room(trial: Trial) -> None:
    """Refuses what would not fit this machine's memory, where that is known before it is begun."""
    check_memory(trial.case, trial.algorithm, _POOLED if trial.algorithm in FITS else _OURS)


def _measure(trial: Trial) -> Figures:
    case = make_case(trial.case, trial.rows, trial.folder)
    if trial.algorithm in FITS:
        return measure_pooled(case, trial.algorithm, trial.model)
    return measure_federated(case, trial.algorithm, trial.model, trial.epochs)


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

    def accept(self) -> None:
        self.transport.accept()

    def close(self) -> None:
        self.transport.close()


def measure_federated(case: Case, algorithm: str, model: str, epochs: int) -> Figures:
    # All rows are trained on, as the baselines do, so that objectives compare.
    given = {"epochs": epochs, "l2": L2, "test_fraction": 0.0}
    job = make_job(case.query, label=case.label, model=model, algorithm=algorithm, given=given)
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
        highest = peak()
        began = time.perf_counter()
        prepared = prepare_job(job, Session(federation._tables, Link(federation._transport), "bench"))
        mapping = time.perf_counter() - began
    steps = max(1, len(marks) - 1)
    epoch, clients = ((marks[-1][k] - marks[0][k]) / steps for k in (0, 1))
    plan = result.plan
    keeps_state = plan.algorithm.state_memory(plan.shape, plan.job.options) > 0
    step = server_step(prepared) if keeps_state else None
    return Figures(
        case=case.name,
        algorithm=algorithm,
        joined_rows=plan.mapping.joined_rows,
        mapping=mapping,
        epoch=epoch,
        server=epoch - clients,
        clients=clients,
        cpu=cpu,
        total=total,
        epochs=len(result.history),
        objective=result.objective,
        bytes=result.traffic.bytes // max(1, len(result.history)),
        peak=highest,
        limit=copy_seconds(moved_bytes(rows_here(prepared.mapping.train))),
        step=None if step is None else step.seconds,
        cores=None if step is None else step.cores,
    )


Fit = Callable[[Array, Array, str], tuple[Array, float]]


def measure_pooled(case: Case, name: str, model: str) -> Figures:
    """Materialises and fits; an "epoch" is the whole fit."""
    fit = FITS[name]
    began, cpu = time.perf_counter(), time.process_time()
    features, labels = _materialise(case)
    materialised = time.perf_counter() - began
    theta, intercept = fit(features, labels, model)
    total, cpu = time.perf_counter() - began, time.process_time() - cpu
    highest = peak()
    scores = features @ theta + intercept
    loss = 0.5 * (scores - labels) ** 2 if model == "linear" else np.logaddexp(0.0, scores) - labels * scores
    return Figures(
        case=case.name,
        algorithm=name,
        joined_rows=len(labels),
        mapping=materialised,
        epoch=total - materialised,
        server=total - materialised,
        clients=0.0,
        cpu=cpu,
        total=total,
        epochs=1,
        objective=float(loss.mean()) + 0.5 * L2 * float(theta @ theta),
        bytes=0,
        peak=highest,
        limit=copy_seconds(features.nbytes),
    )


def _materialise(case: Case) -> tuple[Array, Array]:
    """The encoded features of the joined rows, and their labels."""
    import pandas as pd

    with duckdb.connect(":memory:") as connection:
        silence(connection)
        for name, table in case.tables.items():
            if isinstance(table, Path):
                connection.read_parquet(str(table)).create_view(name)
            else:
                connection.register(name, table)
        joined = connection.sql(case.query).df()
    labels = joined.pop(case.label).to_numpy(np.float64)
    numbers = joined.select_dtypes("number").to_numpy(np.float64, copy=True)
    strings = joined.select_dtypes(exclude="number").fillna("")  # missing is a category of its own
    one_hot = [pd.get_dummies(strings).to_numpy(np.float64)] if strings.shape[1] else []
    numbers -= np.nanmean(numbers, axis=0)
    missing = np.isnan(numbers)
    numbers[missing] = 0.0
    numbers /= np.maximum(numbers.std(axis=0), 1e-300)
    indicators = missing[:, missing.any(axis=0)]
    return np.hstack([numbers, indicators, *one_hot]), labels


def _scikit_learn(solver: str) -> Fit:
    def fit(features: Array, labels: Array, model: str) -> tuple[Array, float]:
        try:
            from sklearn.linear_model import LogisticRegression, Ridge
        except ImportError:
            raise JobError("this baseline needs scikit-learn: pip install scikit-learn, or leave it out") from None
        strength = L2 * len(labels)
        fitted: Any = (
            Ridge(alpha=strength).fit(features, labels)
            if model == "linear"
            else LogisticRegression(C=1.0 / strength, max_iter=1000, tol=1e-6, solver=solver).fit(features, labels)
        )
        return np.ravel(fitted.coef_), float(np.ravel(fitted.intercept_)[0])

    return fit


def _torch(features: Array, labels: Array, model: str) -> tuple[Array, float]:
    """Full-batch L-BFGS with a line search."""
    try:
        import torch
    except ImportError:
        raise JobError('this baseline needs torch: pip install "tablepuppet[torch]", or leave it out') from None
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    theta = torch.zeros(x.shape[1], dtype=x.dtype, requires_grad=True)
    intercept = torch.zeros(1, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [theta, intercept],
        max_iter=1000,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def objective() -> torch.Tensor:
        optimizer.zero_grad()
        scores = x @ theta + intercept
        if model == "linear":
            loss = 0.5 * ((scores - y) ** 2).mean()
        else:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, y)
        value: torch.Tensor = loss + 0.5 * L2 * theta.dot(theta)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(objective)  # type: ignore[no-untyped-call]
    return theta.detach().numpy(), float(intercept.detach()[0])


FITS: dict[str, Fit] = {
    "sklearn": _scikit_learn("lbfgs"),
    "sklearn-newton": _scikit_learn("newton-cholesky"),
    "torch": _torch,
}
