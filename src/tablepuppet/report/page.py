"""Runs → one self-contained HTML page, readable offline; and a run → a model card in Markdown.

In: run records. Out: HTML text with its styles, its script and the records themselves inside;
nothing is loaded from anywhere. Without the script everything is still there to read and to print.
Its last section is the exact job, and where it ran.

A card says what was trained on what, how well, and what was told to whom. What the record does not know (who may use
the model for what) is left to its owner, as a heading with a question.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from tablepuppet.algorithms.registry import BY_NAME
from tablepuppet.errors import JobError
from tablepuppet.output_files import as_path, write_whole
from tablepuppet.report.charts import convergence, merits, scales, svg, swatch
from tablepuppet.report.predictions import coefficients, dependence, predictions
from tablepuppet.report.record import RunRecord
from tablepuppet.report.sections import code, data, privacy, results, section, table, tiles, traffic
from tablepuppet.transport.meter import NETWORKS, Network

RECORD_LIMIT = 800_000  # characters of all runs' records kept inside the page


def write_report(path: str | Path, runs: Sequence[RunRecord], networks: Mapping[str, Network] | None = None) -> Path:
    """Writes the report of one run, or of several side by side; `networks` come first among those it shows."""
    target = as_path(path, "the report")
    page = render(runs, networks)
    write_whole(target, lambda file: file.write_text(page, encoding="utf-8"), "the report")
    return target


def render(runs: Sequence[RunRecord], networks: Mapping[str, Network] | None = None) -> str:
    """The report as HTML text."""
    if not runs:
        raise JobError("a report needs at least one run")
    known = {**(networks or {}), **{name: net for name, net in NETWORKS.items() if name not in (networks or {})}}
    names = distinct_names(runs)
    sections = {
        "results": ("Results", (tiles(runs[0], known) if len(runs) == 1 else "") + results(runs, names, known)),
        "convergence": ("Convergence", _charts(runs, names, known)),
        **({"predictions": ("What it predicts", shown)} if (shown := predictions(runs, names)) else {}),
        **({"dependence": ("What a feature does", drawn)} if (drawn := dependence(runs, names)) else {}),
        "data": ("What it was trained on", data(runs, names)),
        "coefficients": ("Coefficients", coefficients(runs, names)),
        "traffic": ("Traffic", traffic(runs, names)),
        "privacy": ("Who saw what", privacy(runs, names)),
        "job": ("Run it again", environment(runs, names)),
    }
    links = "".join(f'<a href="#{key}">{escape(title)}</a>' for key, (title, _) in sections.items())
    body = "".join(section(key, title, content) for key, (title, content) in sections.items())
    records = "".join(_embedded(text, i) for i, text in enumerate(_records(runs)))
    title = _title(runs)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(title)}</title>\n'
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{_asset('report.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#results">Skip to results</a>\n'
        f'<header><h1>{escape(title)}</h1><button type="button" id="theme">Light or dark</button></header>\n'
        f'<nav aria-label="Sections">{links}</nav>\n<main>\n{body}\n</main>\n'
        '<div id="tip" role="status" hidden></div>\n'
        f"{records}\n<script>\n{_asset('report.js')}</script>\n</body>\n</html>\n"
    )


def distinct_names(runs: Sequence[RunRecord]) -> list[str]:
    """A name for each run; runs of one name are told apart by what differs in their jobs, or by number."""
    names = [run.name for run in runs]
    for name in {n for n in names if names.count(n) > 1}:
        same = [i for i, n in enumerate(names) if n == name]
        jobs = [{**runs[i].job, **runs[i].job["options"]} for i in same]
        fields = [f for f in jobs[0] if f not in ("query", "options") and len({repr(j.get(f)) for j in jobs}) > 1]
        for order, (i, job) in enumerate(zip(same, jobs, strict=True), 1):
            what = ", ".join(f"{f}={job.get(f)}" for f in fields)
            names[i] = f"{name} ({what})" if what else f"{name} ({order})"
    return names if len(set(names)) == len(names) else [f"{i}: {n}" for i, n in enumerate(names, 1)]


def _title(runs: Sequence[RunRecord]) -> str:
    labels = list(dict.fromkeys(str(run.job["label"]) for run in runs))
    tables = list(dict.fromkeys(r.table for run in runs for r in run.data.relations))
    return f"{', '.join(labels)} from {' ⋈ '.join(tables)}"


def _charts(runs: Sequence[RunRecord], names: Sequence[str], networks: Mapping[str, Network]) -> str:
    """Every figure of merit on every horizontal axis; the page shows one axis at a time."""
    axes = scales(networks)
    choice = "".join(f'<option value="{escape(s.key)}">{escape(s.label)}</option>' for s in axes)
    legend = "".join(f"<li>{swatch(i)} {escape(name)}</li>" for i, name in enumerate(names))
    panels = []
    for scale in axes:
        figures = "".join(
            f"<figure>{svg(convergence(runs, names, merit, scale))}"
            f"<figcaption>{escape(merit.label)}</figcaption></figure>"
            for merit in merits(runs)
        )
        hidden = "" if scale is axes[0] else " hidden"
        panels.append(f'<div class="charts" data-axis="{escape(scale.key)}"{hidden}>{figures}</div>')
    return (
        f'<p class="controls"><label>Against <select id="axis">{choice}</select></label></p>'
        f'<ul class="legend">{legend}</ul>{"".join(panels)}'
        '<p class="note">Point at a chart, or focus it and use the arrow keys, to read its values. The gap of an '
        "objective is its distance to the lowest that any of the runs reached; 1e-15 stands for none.</p>"
    )


def _records(runs: Sequence[RunRecord]) -> list[str]:
    """The runs' own records, so that every figure can be traced; the longest parts are left out where too long."""
    kept = list(runs)
    left_out: tuple[dict[str, Any], ...] = ({}, {"coefficients": None}, {"history": []})
    for part in left_out:
        kept = [msgspec.structs.replace(run, **part) for run in kept]
        texts = [msgspec.json.encode(run).decode() for run in kept]
        if sum(map(len, texts)) <= RECORD_LIMIT:
            break
    return texts


def _embedded(text: str, number: int) -> str:
    safe = text.replace("<", "\\u003c")  # no tag can end the element early
    return f'<script type="application/json" class="run" id="run-{number}">{safe}</script>'


def _asset(name: str) -> str:
    return (files("tablepuppet.report") / name).read_text(encoding="utf-8")


NEURAL = ("hidden", "activation", "dropout", "dtype", "module")


def job_toml(job: dict[str, Any]) -> str:
    """A job as a job file: the names are those of the Python arguments, options beside them.

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
    # What describes a network is refused where there is none.
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


def environment(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """How to run it again, and what it ran on."""
    parts = []
    for run, name in zip(runs, names, strict=True):
        rows = [[escape(k), escape(v)] for k, v in {"created": run.created, **run.environment}.items()]
        body = (
            "<p>The job file; the same data, job and seed give the same model bit for bit.</p>"
            + code(job_toml(run.job))
            + table(["Environment", ""], rows, text_columns=2)
        )
        parts.append(f"<details{' open' * (len(runs) == 1)}><summary>{escape(name)}</summary>{body}</details>")
    return "".join(parts)


def model_card(record: RunRecord) -> str:
    """The card's text."""
    parts = [
        [f"# {record.job['model']} model for `{record.job['label']}`"],
        _about(record),
        ["## Intended use", "", "*Who may use it for which decisions, and who must not?*"],
        ["## Data", "", *_data(record), "", "```sql", str(record.job["query"]).strip(), "```"],
        ["## How good it is", "", *_metrics(record), *(f"\n> {note}" for note in record.notes)],
        ["## What it rests on", "", *_features(record)],
        ["## Privacy", "", *_privacy(record)],
        ["## How it was made", "", *_made(record)],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _about(record: RunRecord) -> list[str]:
    owners = len({part.client for block in record.data.blocks for part in block.parts})
    tables = len({relation.table for relation in record.data.relations})
    return [
        f"Trained on {record.created[:10]} by {record.job['algorithm']} on the join of {tables} tables of {owners} "
        f"owners, which were not pooled (TablePuppet {record.environment.get('tablepuppet', '')})."
    ]


def _data(record: RunRecord) -> Iterable[str]:
    data = record.data
    yield (
        f"{data.train_rows:,} joined rows for training, {data.validation_rows:,} for validation, "
        f"{data.test_rows:,} for the test."
    )
    yield ""
    rows = [(r.alias, r.table, f"{r.clients:,}", f"{r.rows:,}", f"{r.matched:,}") for r in data.relations]
    yield from _table(("alias", "table", "owners", "rows", "rows in the join"), rows)


def _metrics(record: RunRecord) -> Iterable[str]:
    sides = [side for side, found in record.metrics.items() if found]
    if not sides:
        return iter(("No metrics were released.",))
    names = list(dict.fromkeys(name for side in sides for name in record.metrics[side]))
    rows = [(name, *(_number(record.metrics[side].get(name)) for side in sides)) for name in names]
    return _table(("metric", *sides), rows)


def _features(record: RunRecord) -> Iterable[str]:
    rows = [(b.name, b.table, ", ".join(b.features), f"{b.width:,}") for b in record.data.blocks]
    return _table(("block", "table", "features", "encoded columns"), rows)


def _privacy(record: RunRecord) -> Iterable[str]:
    yield from (f"- {release.claim}" for release in record.ledger)
    if not record.ledger:
        yield "- No differential privacy: nothing bounds what the model itself tells about a row."
    for insight in record.insights:
        yield from (f"- {insight.party} learned {what}" for what in insight.learns)


def _made(record: RunRecord) -> Iterable[str]:
    shown = {k: v for k, v in record.job.items() if k not in ("query", "label") and v not in (None, [], {}, ())}
    yield from (f"- `{name}`: {value}" for name, value in shown.items())
    yield from (f"- {name} {version}" for name, version in record.environment.items())


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    yield from (f"| {' | '.join(cell.replace('|', '∣') for cell in row)} |" for row in rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
