"""The noise of a private training, computed by the owner itself from the contract and its own counts.

In: a part that is about to start, and the facts of the run. Out: its private gradients, once their cost is charged.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tablepuppet.algorithms.noise import RunFacts, RunTerms, plan_noise
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.private import PrivateGradient
from tablepuppet.arrays import Array
from tablepuppet.owner import releases
from tablepuppet.owner.enforcement import breach
from tablepuppet.owner.state import ClientState, Part
from tablepuppet.privacy.gaussian import secure_generator
from tablepuppet.protocol.contract import Contract

if TYPE_CHECKING:
    from tablepuppet.exchanges.start import StartPart


def plan_run_noise(
    own: ClientState, part: Part, request: StartPart[AlgorithmOptions], multiplicity: Array
) -> PrivateGradient | None:
    """The noise that the contract asks for. The client prefers its own counts to those of the server."""
    contract = own.contracts.contract(request.job)
    use = own.tables.use(request.job, part.request.scan)
    if request.facts is None or contract is None:
        own.releases.charge_features(use, request, ())
        return None
    facts, terms = _own_facts(own, part, request), _agreed_terms(own, contract, request)
    plan = plan_noise(terms, facts)
    privacy = plan.gradients[request.block]
    assert privacy is not None
    most = Counter[str]()
    for (job, number), opened in own.parts.items():
        if job == request.job:
            given = multiplicity if number == request.part else opened.request.multiplicity
            read = own.tables.use(job, opened.request.scan)
            most[read.table] += releases.bound_reach(read) * (1 if given is None else int(given.max(initial=1)))
    if plan.model is not None and most[use.table] > plan.model.max_joined_rows(use.table):
        raise breach("rows of this table are joined more often than noise is computed for")
    own.releases.charge_features(use, request, plan.spends.get(use.table, ()), privacy)
    return PrivateGradient(privacy, secure_generator())


def _agreed_terms(own: ClientState, contract: Contract, request: StartPart[AlgorithmOptions]) -> RunTerms:
    under = own.contracts.jobs[request.job].part(request.part)
    assert under.training is not None
    return RunTerms(
        options=request.algorithm,
        is_linear=request.model.is_linear,
        batch=under.training.batch(request.joined_rows),
        l2=under.training.l2,
        features=contract.feature_privacy,
        predictions=contract.prediction_privacy,
        showings=under.allowed.showings,
    )


def _own_facts(own: ClientState, part: Part, request: StartPart[AlgorithmOptions]) -> RunFacts:
    """The facts of the run; those of this client's own block as it knows them."""
    assert request.facts is not None
    blocks, scan = list(request.facts.blocks), own.tables.scan(request.job, part.request.scan)
    peers = () if part.sealing is None else tuple(peer.client for peer in part.sealing.peers)
    told = blocks[request.block]
    blocks[request.block] = replace(
        told,
        is_masked=bool(peers),
        clients=peers or told.clients,
        squared_norm=float(sum(max(1, scan.columns[c].size) for c in part.request.columns) or 1),
        is_derived=told.is_derived or scan.query is not None,
    )
    opened = Counter[str]()
    for (job, _), other in own.parts.items():
        if job == request.job:
            use = own.tables.use(job, other.request.scan)
            opened[use.table] += releases.bound_reach(use)
    if any(count > request.facts.uses[table] for table, count in opened.items()):
        raise breach("noise is computed for fewer uses of a table than there are")
    return replace(request.facts, blocks=tuple(blocks))
