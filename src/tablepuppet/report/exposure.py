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
    body = _pooled(run) if run.job["algorithm"] == "centralized" else _federated(run)
    return f"<details{' open' * is_open}><summary>{escape(name)}</summary>{body}</details>"


def _pooled(run: RunRecord) -> str:
    return "<p>The centralised baseline: the server saw every encoded feature of every row. Nothing was kept apart.</p>"


def _federated(run: RunRecord) -> str:
    data = run.data
    parties = [
        [
            "server",
            "join keys, the join graph and how often each row occurs; labels; "
            "each row's predictions in every round in which it took part"
            + ("; sums over the clients of a table" if any(len(b.parts) > 1 for b in data.blocks) else ""),
        ],
        *(
            [
                escape(", ".join(part.client for part in block.parts)),
                f"one signal per own row and round, how often each own row occurs, the model of {escape(block.name)}",
            ]
            for block in data.blocks
            if block.parts
        ),
    ]
    epochs = len(run.history)
    shown = [
        [
            escape(block.name),
            number(block.width),
            number(epochs * data.outputs),
            "yes" if block.width and epochs * data.outputs >= block.width else "no",
        ]
        for block in data.blocks
    ]
    return (
        table(["Party", "Saw"], parties, text_columns=2)
        + "<h3>Exposure of rows to the server</h3>"
        + '<p class="note">Every row was predicted at least once an epoch. As many exact predictions as a row has '
        "encoded columns are enough to solve for it, if the server also learns the parameters.</p>"
        + table(["Block", "Encoded columns", "Predictions per row, at least", "Enough to solve for a row"], shown)
    )
