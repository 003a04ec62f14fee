"""The answer to a proposed contract: agreed, waiting for a person, or (as an error) refused by a rule."""

from __future__ import annotations

from tablepuppet import protocol as m
from tablepuppet.client.state import ClientState
from tablepuppet.errors import PolicyError


def propose(own: ClientState, request: m.ProposeContract) -> m.Agreement:
    """The policy and the keeper have looked at it: what is left are budgets, and a person where the owner wants one."""
    contract, name = request.contract, request.contract.hash
    if contract.label_privacy is not None:
        for scan in contract.scans:
            if scan.numbers("label"):
                own.tables.identify(request.job, scan.scan)
    if own.owner.is_restoring:
        own.keeper.agreed(request.job, contract)
        return m.Agreement(contract=name, is_agreed=True)
    own.log.write("proposed", request.job, name, {"asker": contract.asker, "purpose": contract.purpose})
    own.owner.contract(contract)
    if own.policy.ask:
        decision = own.approvals.decision(contract, request.job)
        if decision is None:
            own.approvals.wait(contract)
            own.log.write("waiting", request.job, name)
            return m.Agreement(contract=name, is_agreed=False, waits_for=f"the owner of {own.name}")
        if not decision.is_approved:
            raise PolicyError("a person looked at the contract and denied it")
    own.keeper.agreed(request.job, contract)
    own.log.write("agreed", request.job, name, {"tables": list(contract.tables)})
    return m.Agreement(contract=name, is_agreed=True)
