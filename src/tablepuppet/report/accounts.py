"""The report's sections on traffic and privacy: who sent how much of what in each phase, and who saw what."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tablepuppet.formatting import number, size
from tablepuppet.report.markup import bar, table
from tablepuppet.report.record import AccountRecord, RunRecord


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
