"""The report's privacy section: who saw what in a run, counted from the run itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tablepuppet.report.format import number
from tablepuppet.report.markup import table
from tablepuppet.report.record import RunRecord


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
