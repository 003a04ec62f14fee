"""One measurement in a process of its own, so that its peak memory is its own.

In: a case, and an algorithm or the name of a baseline (pooled.py). Out: Figures.
Clients run in this process too; the time in which the server waits for them is told apart.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tablepuppet.api import Federation
from tablepuppet.bench.cases import Case, make_case
from tablepuppet.bench.figures import L2, Figures, copy_seconds, peak
from tablepuppet.bench.pooled import FITS, pooled
from tablepuppet.bench.steps import moved_bytes, server_step
from tablepuppet.job import make_job
from tablepuppet.mapping.mapping import rows_here
from tablepuppet.protocol.codec import Frame
from tablepuppet.train import prepare_job, train
from tablepuppet.transport.link import Link, Transport


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
