"""Means over seeds: per epoch for the figures, at the end for the tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

from evaluation.running import Outcome
from tablepuppet.report.record import Epoch
from tablepuppet.transport.meter import NETWORKS


@dataclass(frozen=True, slots=True)
class Moment:
    """The mean of an algorithm's runs after one epoch."""

    epoch: int
    value: float
    spread: float  # standard deviation over seeds
    seconds: dict[str, float]  # communication time so far, by network, the server's link shared as in the paper


def seconds_shared(rounds: int, size: int, network: str) -> float:
    """The paper's communication time: rounds × latency + all bytes over the server's bandwidth."""
    net = NETWORKS[network]
    return rounds * net.latency + size * 8 / (net.bandwidth * 1e9)


CLOSE = 1e-4


def seconds_to(outcome: Outcome, central: Outcome, metric: str, network: str, close: float = CLOSE) -> float | None:
    """Mean communication time until the metric stays this close to the centralised one; None: not in every run."""
    times = []
    for run, best in zip(outcome.runs, central.runs, strict=True):
        goal = best.metrics["test"].get(metric)
        arrived: Epoch | None = None
        for epoch in run.history:
            value = epoch.metrics["test"].get(metric)
            is_close = goal is not None and value is not None and abs(value - goal) <= close
            arrived = (arrived or epoch) if is_close else None
        if arrived is None:
            return None
        times.append(seconds_shared(arrived.rounds, arrived.bytes, network))
    return fmean(times)


def curve(outcome: Outcome, metric: str) -> list[Moment]:
    """One moment per epoch; a run that has converged stays where it is."""
    longest = max(len(run.history) for run in outcome.runs)
    moments = []
    for i in range(longest):
        at: list[Epoch] = [run.history[min(i, len(run.history) - 1)] for run in outcome.runs]
        values = [value for e in at if (value := e.metrics["test"].get(metric)) is not None]
        moments.append(
            Moment(
                epoch=i + 1,
                value=fmean(values) if len(values) == len(at) else math.nan,
                spread=stdev(values) if len(values) > 1 else 0.0,
                seconds={n: fmean(seconds_shared(e.rounds, e.bytes, n) for e in at) for n in NETWORKS},
            )
        )
    return moments
