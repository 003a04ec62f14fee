"""A plan as a document for machines: the figures of its text, unrounded."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tablepuppet.plan.costs import Cost

if TYPE_CHECKING:
    from tablepuppet.plan.plan import Plan

NETWORKS = ("us-uk", "us-us")


def document(plan: Plan) -> dict[str, Any]:
    """Operators, rows, costs, memory, advice, who learns what."""
    shape, job = plan.shape, plan.job
    return {
        "label": plan.mapping.bound.label,
        "model": job.model,
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
        "advice": asdict(plan.advice) | ({} if plan.hint is None else {"hint": plan.hint}),
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
        "seconds": {name: cost.seconds(name) for name in NETWORKS},
    }
