"""The answer to a proposed contract: agreed, waiting for a person, or (as an error) refused by a rule.

And how much of a row exact predictions tell. A prediction is one equation about a row. A column whose values are nearly
all different is an unknown of it; one with few values is none, for whoever knows the model tries them all (age, gender
and occupation follow from one number). How many features a job makes of a column does not matter, nor how many
categories a server lists.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

import numpy as np

from tablepuppet import protocol as m
from tablepuppet.client import row_rules
from tablepuppet.client.owner import Shown
from tablepuppet.client.policy import Policy
from tablepuppet.client.state import ClientState
from tablepuppet.errors import PolicyError
from tablepuppet.tables.columns import NUMBER_KINDS, numbers


def reads(own: ClientState, job: str, scan: int, columns: Iterable[int]) -> tuple[str, ...]:
    """The columns of tables behind some expressions of a scan."""
    use = own.tables.use(job, scan)
    places = list(columns)
    found = {f"{base.table}.{name}".lower() for base in (use, *use.others) for c in places for name in base.columns[c]}
    return tuple(sorted(found))


def unknowns(own: ClientState, job: str, scan: int, columns: Sequence[int]) -> int:
    """How many exact numbers of a row are enough to know some features of it: at least one."""
    use = own.tables.use(job, scan)
    entries, by_column = 0, dict[str, int]()
    for c in columns:
        values, info = own.column(job, scan, c)
        if info.kind not in NUMBER_KINDS:
            continue
        array = numbers(values, info)
        present = array[~np.isnan(array).any(axis=1)]
        if 2 * len(np.unique(present, axis=0)) <= len(present):
            continue
        entries += array.shape[1]
        for base in (use, *use.others):
            for name in base.columns[c]:
                place = f"{base.table}.{name}".lower()
                by_column[place] = max(by_column.get(place, 0), array.shape[1])
    return max(1, min(entries, sum(by_column.values())))


def tells_label(own: ClientState, job: str, columns: Iterable[str]) -> bool:
    """Whether a job's label is made of columns that its features are made of too: what is learned would show them.

    A subquery may make features of other rows' labels (of the week before, of the same place), and is left out.
    """
    contract = own.contracts.contract(job)
    scans = [] if contract is None else [scan for scan in contract.scans if scan.query is None]
    return any(set(columns) & set(reads(own, job, scan.scan, scan.numbers("label"))) for scan in scans)


def propose(own: ClientState, request: m.ProposeContract) -> m.Agreement:
    """Its policy and its contract passed: what is left are budgets, and a person where the owner wants one."""
    contract, name = request.contract, request.contract.hash
    for scan in contract.scans:
        if contract.label_privacy is not None and scan.numbers("label"):
            own.tables.identify(request.job, scan.scan)
        if row_rules.applies(own):
            own.tables.compare(request.job, scan.scan)
    if own.owner.is_restoring:
        earlier = own.approvals.decision(contract, request.job)
        own.contracts.agreed(request.job, contract, is_excused=earlier is not None and bool(earlier.notes))
        return _agreed(own, name)
    told = own.waiting.get((request.job, name))
    if told is not None and own.approvals.decision(contract, request.job, told) is None:  # asked again, and still open
        return _waits(own, name)
    if told is None:
        own.log.write("proposed", request.job, name, {"asker": contract.asker, "purpose": contract.purpose})
    own.owner.contract(contract)
    sets, notes = row_rules.review(own, request.job, contract) if row_rules.is_on(own) else ([], [])
    if not own.may_reveal or own.policy != Policy():  # in one process, whoever says nothing lets everything pass
        row_rules.check_texts(own, request.job, contract)
    _first_prediction(own, request.job, contract)
    decision = own.approvals.decision(contract, request.job, tuple(notes)) if notes or own.policy.ask else None
    if decision is not None and not decision.is_approved:
        raise PolicyError("a person looked at the contract and denied it")
    if decision is None and (notes or own.policy.ask):
        own.approvals.wait(contract, tuple(notes))
        if not own.policy.ask:
            raise row_rules.few_rows(notes[0])
        if told is None:
            own.log.write("waiting", request.job, name, {"notes": notes})
        own.waiting[request.job, name] = tuple(notes)
        return _waits(own, name)
    own.waiting.pop((request.job, name), None)
    row_rules.keep(own, sets)
    own.contracts.agreed(request.job, contract, is_excused=decision is not None and bool(decision.notes))
    rows = {f"{rows.kind} of {rows.table}": rows.sketch.name for rows in sets}
    own.log.write("agreed", request.job, name, {"tables": list(contract.tables), **({"rows": rows} if rows else {})})
    return _agreed(own, name)


def _agreed(own: ClientState, name: str) -> m.Agreement:
    least = own.policy.minimum_rows
    key = hmac.digest(own.secret, b"figures", hashlib.sha256) if least > 1 else b""
    return m.Agreement(contract=name, is_agreed=True, least_rows=least, figures_key=key)


def _first_prediction(own: ClientState, job: str, contract: m.Contract) -> None:
    """Refuses training whose first exact prediction would be one too many, and the explanation of it."""
    training, is_noisy = contract.training, contract.prediction_privacy.mode == "local"
    if training is None or training.most_splits or is_noisy or not own.owner.limits_predictions(forbids=False):
        return
    tables = {scan.scan: scan.table for scan in contract.scans}
    for block in contract.blocks:
        place = (own, job, block.scan, list(block.columns))
        shown = Shown(tables[block.scan], reads(*place), 1)
        own.owner.first_prediction(shown, unknowns(*place))


def _waits(own: ClientState, name: str) -> m.Agreement:
    return m.Agreement(contract=name, is_agreed=False, waits_for=f"the owner of {own.name}")
