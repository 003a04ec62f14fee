"""Convergence charts: any figure of merit of some runs against epochs, rounds, bytes or seconds on a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tablepuppet.formatting import number, seconds, size, tick_text
from tablepuppet.models.losses import metrics_by_name
from tablepuppet.report.charts import Chart, Point, Series
from tablepuppet.report.record import Epoch, RunRecord
from tablepuppet.transport.meter import NETWORKS, Network

TITLES = {name: metric.title for name, metric in metrics_by_name().items()}


@dataclass(frozen=True, slots=True)
class Scale:
    """What a convergence chart has on its horizontal axis."""

    key: str
    label: str
    value: Callable[[Epoch], float]
    text: Callable[[float], str] = tick_text
    unit: str = ""  # after a value in words


def scales(networks: Mapping[str, Network]) -> list[Scale]:
    """Epochs, rounds, bytes, and communication time on each network."""

    def on(net: Network) -> Callable[[Epoch], float]:
        return lambda e: communication_seconds(e.rounds, e.slowest_bytes, net)

    return [
        Scale("epochs", "epochs", lambda e: e.epoch, unit=" epochs"),
        Scale("rounds", "communication rounds", lambda e: e.rounds, unit=" rounds"),
        Scale("bytes", "bytes, up and down", lambda e: e.bytes, size),
        *(
            Scale(f"network-{name}", f"communication time on {title_of(name)}", on(net), seconds)
            for name, net in networks.items()
        ),
    ]


def title_of(name: str) -> str:
    """A network's name for people: the profiles in capitals, a user's own as it was given."""
    return name.upper() if name in NETWORKS else name


def communication_seconds(rounds: int, slowest_bytes: int, net: Network) -> float:
    """Σ over rounds of (latency + bytes of the slowest path / bandwidth)."""
    return rounds * net.latency + slowest_bytes * 8 / (net.bandwidth * 1e9)


@dataclass(frozen=True, slots=True)
class Merit:
    """What a convergence chart has on its vertical axis."""

    key: str
    label: str
    value: Callable[[Epoch], float | None]
    is_log: bool = False


def merits(runs: Sequence[RunRecord]) -> list[Merit]:
    """The test metrics of the runs (training metrics where nothing was kept for testing), and the objective."""
    side = "test" if any(run.metrics.get("test") for run in runs) else "train"
    known = metrics_by_name()
    names = dict.fromkeys(name for run in runs for name in run.metrics.get(side, {}))
    found = [name for name in names if name not in known or known[name].is_headline]

    def metric(name: str) -> Callable[[Epoch], float | None]:
        return lambda e: e.metrics.get(side, {}).get(name)

    first = [Merit(name, f"{side} {TITLES.get(name, name)}", metric(name)) for name in found]
    return [*first, _objective(runs)]


def _objective(runs: Sequence[RunRecord]) -> Merit:
    """The objective; its gap to the lowest reached, on a log scale, where all runs minimise the same function."""
    reached = [e.objective for run in runs for e in run.history if e.objective is not None]
    if len(runs) < 2 or not reached or not _is_same_problem(runs):
        return Merit("objective", "objective", lambda e: e.objective)
    best = min(reached)

    def gap(epoch: Epoch) -> float | None:
        return None if epoch.objective is None else max(epoch.objective - best, 1e-15)

    return Merit("gap", "objective gap", gap, is_log=True)


def _is_same_problem(runs: Sequence[RunRecord]) -> bool:
    names = ("query", "label", "model", "l2", "test_fraction", "standardize", "seed", "max_categories")
    return len({repr([run.job.get(name) for name in names]) + str(run.data.train_rows) for run in runs}) == 1


def convergence(runs: Sequence[RunRecord], names: Sequence[str], merit: Merit, scale: Scale) -> Chart:
    """One figure of merit of all runs on one horizontal axis."""
    lines = []
    for style, (run, name) in enumerate(zip(runs, names, strict=True)):
        points = []
        for epoch in run.history:
            y = merit.value(epoch)
            if y is not None:
                chosen = ", the model" if epoch.epoch == run.epoch != run.history[-1].epoch else ""
                where = scale.text(scale.value(epoch)) + scale.unit
                text = f"{name}, epoch {epoch.epoch}{chosen}\n{merit.label} {number(y, 6)}\n{where}"
                points.append(Point(scale.value(epoch), y, text))
        lines.append(Series(name, style, tuple(points)))
    return Chart(
        f"{merit.label} against {scale.label}",
        scale.label,
        merit.label,
        tuple(lines),
        is_log=merit.is_log,
        is_log_x=scale.key != "epochs" and is_wide([p.x for line in lines for p in line.points]),
        x_text=scale.text,
    )


def is_wide(values: Sequence[float]) -> bool:
    """Whether values lie so far apart that a linear axis would hide the small ones."""
    return bool(values) and min(values) > 0 and max(values) > 30 * min(values)
