"""Runs → one self-contained HTML page, readable offline; and a run → a model card in Markdown.

In: run records. Out: HTML text with its styles, its script and the records themselves inside;
nothing is loaded from anywhere. Without the script everything is still there to read and to print.
Its last section is the exact job, and where it ran.

A card states the data, the model, its quality and all disclosures. The record does not know who may use the model for
what: the card leaves this to its owner, as a heading with a question.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tablepuppet.algorithms.registry import BY_NAME
from tablepuppet.errors import JobError
from tablepuppet.formatting import number, seconds, size
from tablepuppet.output_files import as_path, write_whole
from tablepuppet.report import charts
from tablepuppet.report.predictions import dependence, predictions, weights
from tablepuppet.report.record import RunRecord
from tablepuppet.transport.meter import NETWORKS, Network

RECORD_LIMIT = 800_000  # characters of all runs' records kept inside the page


def write_report(path: str | Path, runs: Sequence[RunRecord], networks: Mapping[str, Network] | None = None) -> Path:
    """Writes the report of one run, or of several side by side; `networks` come first among those it shows."""
    target = as_path(path, "the report")
    page = render(runs, networks)
    write_whole(target, lambda file: file.write_text(page, encoding="utf-8"), "the report")
    return target


def render(runs: Sequence[RunRecord], networks: Mapping[str, Network] | None = None) -> str:
    if not runs:
        raise JobError("a report needs at least one run")
    if not all(isinstance(network, Network) for network in (networks or {}).values()):
        raise JobError('networks names some, as in networks={"office": tp.Network(latency=0.02, bandwidth=0.1)}')
    known = {**(networks or {}), **{name: net for name, net in NETWORKS.items() if name not in (networks or {})}}
    names, axes = distinct_names(runs), charts.merits(runs)
    labels = dict.fromkeys(str(run.job["label"]) for run in runs)
    tables = dict.fromkeys(relation.table for run in runs for relation in run.data.relations)
    page = charts.render_template(
        "report.html",
        title=f"{', '.join(labels)} from {' ⋈ '.join(tables)}",
        names=names,
        runs=list(zip(names, runs, strict=True)),
        networks=known,
        tiles={"joined training rows": number(runs[0].data.train_rows), **_list_costs(runs[0], known)},
        notes=[
            f"{name}: {note}" if len(runs) > 1 else note
            for name, run in zip(names, runs, strict=True)
            for note in run.notes
        ],
        results=results(runs, names, known),
        convergence=[
            (scale, [charts.convergence(runs, names, merit, scale) for merit in axes])
            for scale in charts.scales(runs, known)
        ],
        predictions=predictions(runs, names),
        dependence=dependence(runs, names),
        dependence_rows="; ".join(dict.fromkeys(c.about for run in runs for c in run.dependence if c.about)),
        data=group_by_data(runs, names),
        weights=weights(runs, names),
        traffic=traffic_tables,
        dedent=lambda text: textwrap.dedent(str(text)).strip(),
        job_toml=job_toml,
        records=_records(runs),
    )
    return str(page)


def distinct_names(runs: Sequence[RunRecord]) -> list[str]:
    """A name for each run; runs of one name are distinguished by differences between their jobs, or by number."""
    names = [run.name for run in runs]
    for name in {n for n in names if names.count(n) > 1}:
        same = [i for i, n in enumerate(names) if n == name]
        jobs = [{**runs[i].job, **runs[i].job["options"]} for i in same]
        fields = [f for f in jobs[0] if f not in ("query", "options") and len({repr(j.get(f)) for j in jobs}) > 1]
        for order, (i, job) in enumerate(zip(same, jobs, strict=True), 1):
            what = ", ".join(f"{f}={job.get(f)}" for f in fields)
            names[i] = f"{name} ({what})" if what else f"{name} ({order})"
    return names if len(set(names)) == len(names) else [f"{i}: {n}" for i, n in enumerate(names, 1)]


def _records(runs: Sequence[RunRecord]) -> list[str]:
    """The runs' own records, so that every number can be traced; the longest parts are left out where too long."""
    kept = list(runs)
    left_out: tuple[dict[str, Any], ...] = ({}, {"coefficients": None}, {"history": []})
    for part in left_out:
        kept = [msgspec.structs.replace(run, **part) for run in kept]
        texts = [msgspec.json.encode(run).decode() for run in kept]
        if sum(map(len, texts)) <= RECORD_LIMIT:
            break
    return texts


NEURAL = ("hidden", "activation", "dropout", "dtype", "module")


def job_toml(job: dict[str, Any]) -> str:
    """A job as a job file: the names are those of the Python arguments and options.

    >>> print(job_toml({"query": "SELECT 1", "label": "y", "options": {"type": "newton", "memory": 8}}))
    query = '''
    SELECT 1
    '''
    label = "y"
    memory = 8
    """
    options = {name: value for name, value in job.get("options", {}).items() if name != "type"}
    options |= job.get("loss_options", {})
    left_out = {"query", "options", "loss_options", "epochs_by_rows", "l2_by_rows"}
    # Options of a network are refused where there is none.
    left_out |= set() if job.get("model") in ("mlp", "module") else set(NEURAL)
    if job.get("engine") == {"name": "local"}:
        left_out.add("engine")
    plain = {name: value for name, value in job.items() if name not in left_out}
    name = str(job.get("algorithm"))
    lines = [f"query = '''\n{textwrap.dedent(str(job['query'])).strip()}\n'''"]
    # TOML has no null. Left out, a name takes its default, which is None for all but batch_size.
    lines += [f"{name} = {_value(value)}" for name, value in (plain | options).items() if value is not None]
    if name in BY_NAME and BY_NAME[name].uses_batches and job.get("batch_size") is None:
        lines.append("# full batches: batch_size=None, from Python")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers, booleans and lists read alike in TOML


def model_card(record: RunRecord) -> str:
    found = {side: own for side, own in (record.metrics | {record.baseline_name: record.baseline}).items() if own}
    names = dict.fromkeys(name for own in found.values() for name in own)
    values = {name: [own.get(name) for own in found.values()] for name in names}
    card = charts.render_template(
        "card.md",
        run=record,
        owners=len({part.client for block in record.data.blocks for part in block.parts}),
        tables=len({relation.table for relation in record.data.relations}),
        sides=list(found),
        metrics=[(name, ["" if v is None else f"{v:.6g}" for v in own]) for name, own in values.items()],
        job={k: v for k, v in record.job.items() if k not in ("query", "label") and v not in (None, [], {}, ())},
    )
    return str(card)


def results(runs: Sequence[RunRecord], names: Sequence[str], networks: Mapping[str, Network]) -> dict[str, Any]:
    """A column for each run, with its costs; or for each side of a lone one, whose costs the tiles show.

    One more is for a constant. `runs`: columns that have the line of a run.
    """
    baselines = {repr(run.baseline): (run.baseline_name, run) for run in runs if run.baseline}
    alone = [name for name, _ in baselines.values()]
    if len(runs) == 1:
        sides = {side: runs[0].metrics.get(side, {}) for side in _SIDES if runs[0].metrics.get(side)}
        columns = [
            _title_metrics(values) for values in (*sides.values(), *(run.baseline for _, run in baselines.values()))
        ]
        return {"head": [*sides, *alone], "runs": 0, "rows": _rows(columns)}
    if len(alone) > 1:
        alone = [f"{name}, {run.name}" for name, run in baselines.values()]
    columns = []
    for run in runs:
        metrics = [_title_metrics(run.metrics.get(side, {}), f"{side} ") for side in _SIDES]
        named = {name: value for side in metrics for name, value in side.items()}
        columns.append({"model": str(run.job["model"]), **named, **_list_costs(run, networks)})
    for _, run in baselines.values():
        side = "test" if run.metrics.get("test") else "train"
        columns.append(_title_metrics(run.baseline, f"{side} "))
    return {"head": [*names, *alone], "runs": len(runs), "rows": _rows(columns)}


_SIDES = ("test", "validation", "train")


def _title_metrics(values: Mapping[str, float | None], before: str = "") -> dict[str, str]:
    return {f"{before}{charts.TITLES.get(name, name)}": number(value, 5) for name, value in values.items()}


def _rows(columns: Sequence[Mapping[str, str]]) -> list[list[str]]:
    names = list(dict.fromkeys(name for column in columns for name in column))
    return [[name, *(column.get(name, "–") for column in columns)] for name in names]


def _list_costs(run: RunRecord, networks: Mapping[str, Network]) -> dict[str, str]:
    training = run.traffic.training
    return {
        "objective": number(run.objective, 7),
        "trees" if run.trees else "epochs": _epochs(run),
        **({} if run.converged is None else {"converged": "yes" if run.converged else "no"}),
        "rounds": number(training.rounds),
        "bytes from clients": size(training.bytes_up),
        "bytes to clients": size(training.bytes_down),
        **{
            f"time on {charts.title_of(name)}": seconds(net.seconds(training.slowest_bytes, training.rounds))
            for name, net in networks.items()
        },
        "wall clock": seconds(run.history[-1].seconds) if run.history else "–",
    }


def _epochs(run: RunRecord) -> str:
    """How many were run; whose parameters the model has, where those are not the last one's. Of trees: how many."""
    ran = run.epoch if run.trees else len(run.history)
    return number(ran) if run.epoch in (0, ran) else f"{number(ran)} (the model is epoch {number(run.epoch)}’s)"


def group_by_data(runs: Sequence[RunRecord], names: Sequence[str]) -> list[tuple[str, RunRecord]]:
    """Each different query or placement once: the names of the runs that share it, and one of them."""
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(repr((run.job["query"], run.job["label"], run.data)), []).append(i)
    return [(", ".join(names[i] for i in members), runs[members[0]]) for members in groups.values()]


def traffic_tables(run: RunRecord) -> list[tuple[str, list[tuple[str, list[int], float]]]]:
    """Bytes by client and by message: of each, the bytes of every phase and its share of the largest sum."""
    phases, tables = (run.traffic.training, run.traffic.setup, run.traffic.evaluation), []
    for title, field in (("Client", "by_client"), ("Message", "by_message")):
        counted: list[dict[str, int]] = [getattr(account, field) for account in phases]
        rows = {key: [counts.get(key, 0) for counts in counted] for counts in counted for key in counts}
        ordered = sorted(rows.items(), key=lambda row: -sum(row[1]))
        largest = sum(ordered[0][1]) if ordered else 1
        tables.append((title, [(key, counts, sum(counts) / largest) for key, counts in ordered]))
    return tables
