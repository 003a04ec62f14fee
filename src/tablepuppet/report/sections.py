"""What the report's tables hold: how good the runs are, what they were trained on, who sent how much.

In: run records. Out: rows and cells for the template, numbers formatted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tablepuppet.formatting import number, seconds, size
from tablepuppet.report.charts import TITLES, communication_seconds
from tablepuppet.report.record import RunRecord
from tablepuppet.report.templates import title_of
from tablepuppet.transport.meter import Network


def result_rows(runs: Sequence[RunRecord], networks: Mapping[str, Network]) -> list[list[str]]:
    """One column per run: metrics, objective and what the run took."""
    columns = [_figures(run, networks) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    return [[name, *(column.get(name, "–") for column in columns)] for name in names]


def note_lines(runs: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """What is amiss with the runs, and how to go on."""
    said = [(name, note) for run, name in zip(runs, names, strict=True) for note in run.notes]
    return [f"{name}: {note}" if len(runs) > 1 else note for name, note in said]


def _figures(run: RunRecord, networks: Mapping[str, Network]) -> dict[str, str]:
    """What the results table says about a run, by row."""
    training = run.traffic.training
    return {
        "model": str(run.job["model"]),
        **{
            f"{side} {TITLES.get(name, name)}": number(value, 5)
            for side in ("test", "validation", "train")
            for name, value in run.metrics.get(side, {}).items()
        },
        "objective": number(run.objective, 7),
        "epochs": _epochs(run),
        **({} if run.converged is None else {"converged": "yes" if run.converged else "no"}),
        "rounds": number(training.rounds),
        "bytes from clients": size(training.bytes_up),
        "bytes to clients": size(training.bytes_down),
        **{f"time on {title_of(name)}": _time_on(run, net) for name, net in networks.items()},
        "wall clock": seconds(run.history[-1].seconds) if run.history else "–",
    }


def _time_on(run: RunRecord, net: Network) -> str:
    return seconds(communication_seconds(run.traffic.training.rounds, run.traffic.training.slowest_bytes, net))


def _epochs(run: RunRecord) -> str:
    """How many were run; whose parameters the model has, where those are not the last one's. Of trees: how many."""
    ran = run.epoch if run.trees else len(run.history)
    return number(ran) if run.epoch in (0, ran) else f"{number(ran)} (the model is epoch {number(run.epoch)}’s)"


def tile_figures(run: RunRecord, networks: Mapping[str, Network]) -> list[tuple[str, str]]:
    """The few figures one looks for first."""
    side = "test" if run.metrics.get("test") else "train"
    training, ran = run.traffic.training, len(run.history)
    name, net = next(iter(networks.items()))
    return [
        *((f"{side} {TITLES.get(m, m)}", number(v, 4)) for m, v in run.metrics.get(side, {}).items()),
        ("joined training rows", number(run.data.train_rows)),
        *([] if run.epoch in (0, ran) or run.trees else [("epoch of the model", f"{run.epoch} of {ran}")]),
        ("rounds", number(training.rounds)),
        ("sent and received", size(training.bytes_up + training.bytes_down)),
        (f"on {title_of(name)}", _time_on(run, net)),
    ]


def group_by_data(runs: Sequence[RunRecord], names: Sequence[str]) -> list[tuple[str, RunRecord]]:
    """Each different query or placement once: the names of the runs that share it, and one of them."""
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(repr((run.job["query"], run.job["label"], run.data)), []).append(i)
    return [(", ".join(names[i] for i in members), runs[members[0]]) for members in groups.values()]


def traffic_tables(run: RunRecord) -> list[tuple[str, list[tuple[str, list[int], float]]]]:
    """Bytes by client and by message: of each, the bytes of every phase and its share of the largest sum."""
    phases = (run.traffic.training, run.traffic.setup, run.traffic.evaluation)
    return [
        (title, _sum_up([getattr(account, field) for account in phases]))
        for title, field in (("Client", "by_client"), ("Message", "by_message"))
    ]


def _sum_up(phases: Sequence[dict[str, int]]) -> list[tuple[str, list[int], float]]:
    keys = dict.fromkeys(key for counts in phases for key in counts)
    rows = [(key, [counts.get(key, 0) for counts in phases]) for key in keys]
    rows.sort(key=lambda row: -sum(row[1]))
    largest = sum(rows[0][1]) if rows else 1
    return [(key, counts, sum(counts) / largest) for key, counts in rows]
