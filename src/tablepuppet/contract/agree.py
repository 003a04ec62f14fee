"""Contracts are proposed to all owners at once: one round, and nothing goes on before all of them agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tablepuppet.errors import ApprovalError
from tablepuppet.formatting import printable
from tablepuppet.protocol.contract import Agreement, Contract, ProposeContract
from tablepuppet.transport.link import Link


def agree(contracts: Mapping[str, Contract], link: Link, job: str) -> None:
    """Proposes; a refusal is the owner's own sentence, and a job that waits says for whom."""
    asked = {client: [ProposeContract(job=job, contract=contract)] for client, contract in contracts.items()}
    answers = link.ask(asked)
    waiting = {c: a for c, found in answers.items() if not (a := cast(Agreement, found[0])).is_agreed}
    if waiting:
        names = {client: printable(a.waits_for) or client for client, a in waiting.items()}
        whom = "; ".join(f"{names[client]} (contract {a.contract[:16]})" for client, a in waiting.items())
        raise ApprovalError(
            f"the job waits for a person to approve it: {whom}. Nothing was read. They run `tablepuppet approve` with "
            "the contract's name; over a network the job then goes on by itself, in one process run it again"
        )
