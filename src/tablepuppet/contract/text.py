"""A contract in words, for the person who decides."""

from __future__ import annotations

from collections.abc import Iterator

from tablepuppet.protocol.contract import Contract, ScanTerms

_ROLES = {
    "key": "join key",
    "feature": "feature",
    "label": "label",
    "weight": "weight",
    "split": "which rows are test or validation rows",
    "identifier": "shown beside predictions",
}


def contract_lines(contract: Contract) -> Iterator[str]:
    """Who asks for what, what leaves how often, and under which noise."""
    yield f"{contract.asker} asks to {contract.purpose}; label {contract.label}"
    for scan in contract.scans:
        yield from _scan(scan)
    training = contract.training
    if training is not None:
        name, kind = training.name, training.model.kind
        kept = "leave" if training.releases else "stay here"
        yield f"{name}, {kind} model, {training.epochs} epochs; trained parameters {kept}"
    noise = {
        "labels": contract.label_privacy,
        "features": contract.feature_privacy,
        "predictions": contract.prediction_privacy if contract.prediction_privacy.mode == "local" else None,
    }
    for what, given in noise.items():
        yield f"{what}: no noise" if given is None else f"{what}: under noise, {given}"
    for told in contract.disclosures:
        how = (
            "once for each joined row of a row, in every epoch" if told.times is None else f"at most {told.times} times"
        )
        yield f"{told.what} of {told.table} to the {told.to if told.to == 'server' else 'owner'}: {how}"
    yield f"an approval lasts at most {contract.days} days"


def _scan(scan: ScanTerms) -> Iterator[str]:
    where = "all rows" if scan.filter is None else f"rows where {scan.filter}"
    yield f"table {scan.table}, {where}:"
    for column in scan.columns:
        yield f"  {column.expression}: {', '.join(_ROLES[role] for role in column.roles) or 'no use'}"
