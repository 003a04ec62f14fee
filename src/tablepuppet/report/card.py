"""model_card: a run record → a model card in Markdown: what was trained on what, how well, and what was told to whom.

What the record does not know (who may use the model for what) is left to its owner, as a heading with a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tablepuppet.report.record import RunRecord


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
