"""The report's first sections: how good the runs are, and what they were trained on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from html import escape

from tablepuppet.formatting import number, seconds, size
from tablepuppet.report.charts import swatch
from tablepuppet.report.convergence import TITLES, communication_seconds, title_of
from tablepuppet.report.markup import code, table
from tablepuppet.report.record import BlockRecord, RunRecord
from tablepuppet.transport.meter import Network


def results(runs: Sequence[RunRecord], names: Sequence[str], networks: Mapping[str, Network]) -> str:
    """One column per run: metrics, objective and what the run took."""
    heads = [f"{swatch(style)} {escape(name)}" for style, name in enumerate(names)]
    columns = [_figures(run, networks) for run in runs]
    rows = list(dict.fromkeys(figure for column in columns for figure in column))
    links = ", ".join(
        f"{title_of(n)} ({net.latency * 1000:g} ms, {net.bandwidth:g} Gbit/s)" for n, net in networks.items()
    )
    return (
        _notes(runs, names)
        + table(["", *heads], [[escape(row), *(column.get(row, "–") for column in columns)] for row in rows])
        + '<p class="note">Rounds, bytes and times are those of training; set-up and evaluation are under Traffic. '
        f"Times on {escape(links)} are communication times: over all rounds, latency plus the bytes of the slowest "
        "client's path over the bandwidth. “Wall clock” is the time on the machine that ran it.</p>"
    )


def _notes(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """What is amiss with the runs, and how to go on."""
    found = [(name if len(runs) > 1 else "", note) for run, name in zip(runs, names, strict=True) for note in run.notes]
    items = "".join(f"<li>{escape(f'{name}: ' if name else '')}{escape(note)}</li>" for name, note in found)
    return f'<ul class="notes">{items}</ul>' if found else ""


def _figures(run: RunRecord, networks: Mapping[str, Network]) -> dict[str, str]:
    """What the results table says about a run, by row."""
    training = run.traffic.training
    return {
        "model": escape(str(run.job["model"])),
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
        **{
            f"time on {title_of(name)}": seconds(communication_seconds(training.rounds, training.slowest_bytes, net))
            for name, net in networks.items()
        },
        "wall clock": seconds(run.history[-1].seconds) if run.history else "–",
    }


def _epochs(run: RunRecord) -> str:
    """How many were run; whose parameters the model has, where those are not the last one's."""
    ran = len(run.history)
    return number(ran) if run.epoch in (0, ran) else f"{number(ran)} (the model is epoch {number(run.epoch)}’s)"


def tiles(run: RunRecord, networks: Mapping[str, Network]) -> str:
    """The few figures one looks for first."""
    side = "test" if run.metrics.get("test") else "train"
    first = [(f"{side} {TITLES.get(m, m)}", number(v, 4)) for m, v in run.metrics.get(side, {}).items()]
    training = run.traffic.training
    name, net = next(iter(networks.items()))
    figures = [
        *first,
        ("joined training rows", number(run.data.train_rows)),
        *(
            [("epoch of the model", f"{run.epoch} of {len(run.history)}")]
            if run.epoch not in (0, len(run.history))
            else []
        ),
        ("rounds", number(training.rounds)),
        ("sent and received", size(training.bytes_up + training.bytes_down)),
        (f"on {title_of(name)}", seconds(communication_seconds(training.rounds, training.slowest_bytes, net))),
    ]
    return '<dl class="tiles">' + "".join(f"<div><dt>{escape(k)}</dt><dd>{v}</dd></div>" for k, v in figures) + "</dl>"


def data(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """What was trained on: each different query or placement once, with the runs that share it."""
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        key = repr((run.job["query"], run.job["label"], run.data))
        groups.setdefault(key, []).append(i)
    parts = []
    for members in groups.values():
        run = runs[members[0]]
        if len(groups) > 1:
            parts.append(f"<h3>{escape(', '.join(names[i] for i in members))}</h3>")
        parts.append(_one(run))
    return "".join(parts)


def _one(run: RunRecord) -> str:
    label = str(run.job["label"])
    held = run.data.validation_rows
    validation = f", {number(held)} validation rows" if held else ""
    relations = table(
        ["Alias", "Table", "Clients", "Rows", "Matched", "Orphans", "Fan-out, mean", "most", "Join"],
        [
            [
                escape(r.alias),
                escape(r.table),
                number(r.clients),
                number(r.rows),
                number(r.matched),
                number(r.rows - r.matched),
                number(r.mean_fan_out, 3),
                number(r.max_fan_out),
                "left" if r.is_outer else "inner",
            ]
            for r in run.data.relations
        ],
        text_columns=2,
    )
    blocks = "".join(
        _block(block, "rows held out for test or validation" if held else "test rows") for block in run.data.blocks
    )
    return (
        f"<p>Predicts <strong>{escape(label)}</strong> over {number(run.data.train_rows)} joined training rows"
        f"{validation} and {number(run.data.test_rows)} test rows, which exist as row numbers only.</p>"
        + code(textwrap.dedent(str(run.job["query"])).strip())
        + f'<h3>Plan</h3><ul class="tree"><li><b>LoJ</b> joins {len(run.data.blocks)} '
        f"block{'s' * (len(run.data.blocks) != 1)} at the server<ul>"
        + blocks
        + "</ul></li></ul><h3>How the tables met</h3>"
        + relations
        + f"<details><summary>The plan in full, counted beside estimated</summary>{code(run.explanation)}</details>"
    )


def _block(block: BlockRecord, held_out: str) -> str:
    clients = "".join(
        f"<li><b>client</b> {escape(p.client)}: {number(p.train_rows)} training rows, "
        f"{number(p.test_rows)} {held_out}</li>"
        for p in block.parts
    )
    shown = ", ".join(block.features[:12]) + (f" and {len(block.features) - 12} more" * (len(block.features) > 12))
    what = f"{number(block.rows)} rows, {number(block.width)} encoded columns from {shown or 'no feature'}"
    if len(block.parts) > 1:
        return f"<li><b>LoU</b> {escape(block.name)} ({escape(block.table)}): {escape(what)}<ul>{clients}</ul></li>"
    return f"<li>{escape(block.name)} ({escape(block.table)}): {escape(what)}<ul>{clients}</ul></li>"
