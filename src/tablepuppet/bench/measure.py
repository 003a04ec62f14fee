"""One measurement in a process of its own, so that its peak memory is its own.

In: a case, and an algorithm or the name of a baseline (pooled.py). Out: Figures.
Clients run in this process too; the time in which the server waits for them is told apart.

Besides, the server's step by itself, of an algorithm that keeps something per joined row: its seconds, how many cores
it kept busy, and the time in which one thread copies the bytes that it must move at least once: row numbers, the one
value that is kept per joined row, read and written, labels, and for each row of the tables a prediction and a signal.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tablepuppet.algorithms.base import Problem
from tablepuppet.api import Federation
from tablepuppet.bench.cases import Case, make_case
from tablepuppet.bench.figures import L2, Figures, copy_seconds, peak
from tablepuppet.bench.pooled import FITS, pooled
from tablepuppet.job import make_job
from tablepuppet.mapping.mapping import rows_here
from tablepuppet.mapping.rows.joined import JoinedRows
from tablepuppet.models.penalty import l2_of
from tablepuppet.plan.prepare import Prepared
from tablepuppet.protocol.codec import Frame
from tablepuppet.train import prepare_job, train
from tablepuppet.transport.link import Link, Transport

_TIMES = 3


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
        l2=[l2_of(plan.job.l2, block.name, block.table) for block in plan.mapping.bound.blocks],
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


def measure(name: str, rows: int, folder: Path | None, algorithm: str, model: str, epochs: int) -> Figures:
    """Measures in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, name, rows, folder, algorithm, model, epochs).result()


def _measure(name: str, rows: int, folder: Path | None, algorithm: str, model: str, epochs: int) -> Figures:
    case = make_case(name, rows, folder)
    return pooled(case, algorithm, model) if algorithm in FITS else _trained(case, algorithm, model, epochs)


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


def _trained(case: Case, algorithm: str, model: str, epochs: int) -> Figures:
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
        prepared = prepare_job(job, federation._tables, Link(federation._transport), "bench")
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
