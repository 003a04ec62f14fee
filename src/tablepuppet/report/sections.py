"""The report's sections: how good the runs are, what they were trained on, who sent how much, and who saw what.

Above them the pieces of HTML that all sections share; what is given to them as text is escaped there.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from tablepuppet.formatting import number, seconds, size
from tablepuppet.report.charts import TITLES, communication_seconds, swatch, title_of
from tablepuppet.report.record import AccountRecord, BlockRecord, RunRecord
from tablepuppet.transport.meter import Network


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", text_columns: int = 1) -> str:
    """A table whose first columns are text and whose other columns are numbers; heads and cells are HTML."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ["" if i < text_columns else ' class="number"' for i in range(len(row))]
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table>{title}<thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def bar(share: float, text: str) -> str:
    """A number with a bar behind it."""
    return f'<span class="bar" style="--share: {max(0.0, min(share, 1.0)) * 100:.1f}%">{escape(text)}</span>'


def section(key: str, title: str, body: str) -> str:
    """One section with a heading that can be linked to."""
    return (
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(title)}</h2>{body}</section>'
    )


def code(text: str) -> str:
    """A block of code that can be scrolled and copied."""
    button = '<button type="button" class="copy">Copy</button>'
    return f'<div class="code">{button}<pre tabindex="0">{escape(text)}</pre></div>'


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
                "anti" if r.is_anti else "left" if r.is_outer else "inner",
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


def privacy(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """What each party saw, and how close the predictions came to giving rows away."""
    return "".join(_run(run, name, is_open=len(runs) == 1) for run, name in zip(runs, names, strict=True))


def _run(run: RunRecord, name: str, *, is_open: bool) -> str:
    parties = [
        [escape(insight.party), f"<ul>{''.join(f'<li>{escape(what)}</li>' for what in insight.learns)}</ul>"]
        for insight in run.insights
    ]
    shown = [
        [
            escape(exposure.block),
            number(exposure.width),
            number(exposure.numbers),
            "yes" if exposure.numbers >= exposure.width else "no",
        ]
        for exposure in run.exposures
    ]
    claims = [
        [
            escape(release.what),
            escape(release.table),
            escape(release.observer),
            f'<span class="claim">{escape(release.claim)}</span>',
            number(release.epsilon, 4),
            f"{release.delta:g}",
        ]
        for release in run.ledger
    ]
    ledger = (
        table(["What", "Table", "Towards", "Claim", "ε", "δ"], claims, text_columns=4)
        if claims
        else '<p class="note">No differential privacy was asked for: labels and the released model are exact.</p>'
    )
    body = (
        table(["Party", "Saw"], parties, text_columns=2)
        + "<h3>Exposure of rows to the server</h3>"
        + '<p class="note">A prediction is one equation in a row\'s encoded columns: as many of them as there are '
        "columns solve for the row, if the server also learns the parameters.</p>"
        + table(["Block", "Encoded columns", "Numbers seen per row, at most", "Enough to solve for a row"], shown)
    )
    body += f"<h3>Privacy ledger</h3>{ledger}"
    return f"<details{' open' * is_open}><summary>{escape(name)}</summary>{body}</details>"


def traffic(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """Every byte that passed, as the meter counted it."""
    return "".join(_traffic_of(run, name, is_open=len(runs) == 1) for run, name in zip(runs, names, strict=True))


def _traffic_of(run: RunRecord, name: str, *, is_open: bool) -> str:
    phases = {"training": run.traffic.training, "set-up": run.traffic.setup, "evaluation": run.traffic.evaluation}
    totals = table(
        ["Phase", "Rounds", "To clients", "From clients", "of which arrays", "In all"],
        [
            [
                escape(phase),
                number(a.rounds),
                size(a.bytes_down),
                size(a.bytes_up),
                size(a.payload_up + a.payload_down),
                size(a.bytes_up + a.bytes_down),
            ]
            for phase, a in phases.items()
        ],
    )
    body = (
        totals + '<div class="pair">' + _split(phases, "by_client", "Client") + _split(phases, "by_message", "Message")
    )
    return f"<details{' open' * is_open}><summary>{escape(name)}</summary>{body}</div></details>"


def _split(phases: dict[str, AccountRecord], field: str, title: str) -> str:
    parts: dict[str, dict[str, int]] = {phase: getattr(account, field) for phase, account in phases.items()}
    total: dict[str, int] = {}
    for counts in parts.values():
        for key, count in counts.items():
            total[key] = total.get(key, 0) + count
    largest = max(total.values(), default=1)
    rows = [
        [
            escape(key),
            *(size(counts[key]) if counts.get(key) else "–" for counts in parts.values()),
            bar(total[key] / largest, size(total[key])),
        ]
        for key in sorted(total, key=lambda key: -total[key])
    ]
    return table([title, *parts, "In all"], rows)
