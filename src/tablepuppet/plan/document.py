"""A plan for machines and for notebooks: as a JSON document with the figures of its text (explain.py), unrounded, and
as one HTML fragment of tables and lists. Names, counts and estimates; nothing of a row.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tablepuppet.formatting import details, fragment, items, lines, plural, seconds, size, table
from tablepuppet.plan.costs import RUN_EPOCHS, Cost
from tablepuppet.plan.explain import cpu_text, gain_lines, title_lines, tree_lines

if TYPE_CHECKING:
    from tablepuppet.plan.plan import Plan


NETWORKS = ("us-uk", "us-us")


def document(plan: Plan) -> dict[str, Any]:
    """Operators, rows, costs, memory, advice, who learns what."""
    shape, job = plan.shape, plan.job
    return {
        "label": plan.mapping.bound.label,
        "model": job.model.name,
        "algorithm": job.algorithm,
        "epochs": job.epochs,
        "batch_size": plan.batch_size if plan.algorithm.uses_batches else None,
        "joined_rows": plan.mapping.joined_rows,
        "train_rows": shape.joined,
        "validation_rows": shape.validation_joined,
        "test_rows": shape.test_joined,
        "blocks": [
            {
                "name": block.name,
                "table": block.table,
                "rows": block.rows,
                "features": block.features,
                "columns": block.width if shape.has_widths else None,
                "clients": [{"client": part.client, "rows": part.rows} for part in block.parts],
            }
            for block in shape.blocks
        ],
        "tables": [asdict(fit) | {"orphans": fit.orphans} for fit in plan.mapping.fits],
        "costs": [
            {
                "algorithm": row.algorithm,
                "epoch": _cost(row.epoch),
                "run": _cost(row.run) | {"epochs": row.run.epochs},
                "server_memory": row.server_memory,
                "client_memory": row.client_memory,
            }
            for row in plan.costs
        ],
        "advice": asdict(plan.advice),
        "gains": [asdict(gain) for gain in plan.gains],
        "who_learns_what": [asdict(insight) for insight in plan.insights],
        "privacy": plan.ledger.to_dict(),
        "exposure": [asdict(e) | {"reconstructs": e.reconstructs} for e in plan.exposures],
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "rounds": cost.rounds,
        "bytes": round(cost.bytes),
        "payload_down": round(cost.payload_down),
        "payload_up": round(cost.payload_up),
        "cpu": cost.cpu,
        "seconds": {name: cost.seconds(name) for name in NETWORKS},
    }


def plan_html(plan: Plan) -> str:
    """One self-contained fragment."""
    title, *notes = title_lines(plan)
    parts = [lines(notes)] if notes else []
    parts += [lines(tree_lines(plan)), _rows(plan), _costs(plan)]
    advice = plan.advice
    parts.append(details(f"Advice: {advice.algorithm}", items([advice.why])))
    if plan.gains:
        title_of, *rest = gain_lines(plan.gains)
        parts.append(details(title_of, lines(rest)))
    parts.append(details("Who learns what", _knowledge(plan), _exposure(plan)))
    if plan.ledger.releases:
        parts.append(details("Privacy that the job spends, if every epoch is run", items(plan.ledger.lines())))
    return fragment(title, *parts)


def _rows(plan: Plan) -> str:
    head = ["alias", "table", "owners", "rows", "matched", "orphans", "joined rows per row", "at most"]
    rows = [
        [
            fit.alias,
            fit.table,
            f"{fit.clients:,}",
            f"{fit.rows:,}",
            f"{fit.matched:,}",
            f"{fit.orphans:,}",
            f"{fit.mean_fan_out:,.1f}",
            f"{fit.max_fan_out:,}",
        ]
        for fit in plan.mapping.fits
    ]
    return table(head, rows, text_columns=2, caption="Rows and how they meet")


def _costs(plan: Plan) -> str:
    """One line per algorithm; this job's is marked."""
    algorithm = plan.algorithm
    run = plural(algorithm.run_epochs(plan.job.options, RUN_EPOCHS), algorithm.epoch)
    each = f"of {run}" if algorithm.own_model else "an epoch"  # no two trees are alike
    head = ["", f"rounds {each}", f"bytes {each}", f"CPU {each}", f"US-UK, {run}", f"US-US, {run}"]
    head += ["memory of the server", "of a client"]
    costs = plan.costs
    rows = []
    for row in costs:
        shown = row.run if algorithm.own_model else row.epoch
        cells = [row.algorithm, f"{shown.rounds:,}", size(shown.bytes), cpu_text(shown)]
        cells += [seconds(row.run.seconds(network)) for network in ("us-uk", "us-us")]
        rows.append([*cells, size(row.server_memory), size(row.client_memory)])
    names = [row.algorithm for row in costs]
    own = names.index(plan.job.algorithm) if plan.job.algorithm in names else -1
    return table(head, rows, caption="Estimated cost (bold: this job)", marked=own)


def _knowledge(plan: Plan) -> str:
    return "".join(fragment(insight.party, items(insight.learns)) for insight in plan.insights)


def _exposure(plan: Plan) -> str:
    rows = [
        [
            exposure.block,
            f"{exposure.numbers:,}",
            f"{exposure.width:,}",
            "enough to reconstruct it"
            if exposure.reconstructs
            else "fewer than its features, and yet enough for columns with few values",
        ]
        for exposure in plan.exposures
    ]
    head = ["block", "numbers that the server may see of one row", "columns of the row", "which is"]
    return table(head, rows, caption="Exposure")
