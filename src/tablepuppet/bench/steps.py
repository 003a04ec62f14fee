"""The server's step by itself, of an algorithm that keeps something per joined row; nothing of the clients.

In: a plan. Out: its seconds, how many cores it kept busy, and the time in which one thread copies the bytes that it
must move at least once: row numbers, the one value that is kept per joined row, read and written, labels, and for
each row of the tables a prediction and a signal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from tablepuppet.algorithms.base import Problem
from tablepuppet.bench.figures import copy_seconds
from tablepuppet.mapping.mapping import rows_here
from tablepuppet.mapping.rows.joined import JoinedRows
from tablepuppet.models.penalty import l2_of
from tablepuppet.plan.prepare import Prepared

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
