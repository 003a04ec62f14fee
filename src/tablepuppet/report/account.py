"""The report's traffic section: who sent how much of what, in each phase."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tablepuppet.report.format import number, size
from tablepuppet.report.markup import bar, table
from tablepuppet.report.record import AccountRecord, RunRecord


def traffic(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """Every byte that passed, as the meter counted it."""
    return "".join(_run(run, name, is_open=len(runs) == 1) for run, name in zip(runs, names, strict=True))


def _run(run: RunRecord, name: str, *, is_open: bool) -> str:
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
