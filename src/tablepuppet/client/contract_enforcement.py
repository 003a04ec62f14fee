"""Contract enforcement: a client answers what its owner agreed to, and nothing else.

In: every request before it is answered. Out: nothing, or a refusal. A job begins with scans that are described and a
contract that is proposed; from then on every request must be one that the contract has, with its columns, in its turn,
and no more often. Which rows take part, and how often each is joined, is said once (OpenPart) and holds for the job.
The stages of training are in contract_training.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.client.contract_terms import (
    JobUnderContract,
    PartUnderContract,
    block_of,
    check_columns,
    check_role,
    check_split,
    check_splits,
    count_request,
    opened_part,
    refused,
    scan_of,
    training_of,
    uses_of,
)
from tablepuppet.client.contract_training import TRAINING_CHECKS, agreed_start
from tablepuppet.client.policy_decisions import distinct_rows
from tablepuppet.errors import PolicyError
from tablepuppet.protocol.contract import Contract, Purpose, fingerprint
from tablepuppet.protocol.setup import Folds

BEFORE: frozenset[m.Stage] = frozenset({"schema", "scan", "propose", "close"})  # nothing of them reads a row
_GROUPS: frozenset[m.Stage] = frozenset({"groups", "sum groups", "hold groups"})
_SETUP: frozenset[m.Stage] = _GROUPS | frozenset({"count", "keys", "blind", "classes", "labels", "weights"})
_STATISTICS: frozenset[m.Stage] = frozenset({"find ids", "part", "summed statistics", "seal"})
_TREES: frozenset[m.Stage] = frozenset({"sketch", "start trees", "check trees"})
_TRAINING: frozenset[m.Stage] = _TREES | frozenset(
    {"encode", "start", "figure", "second moments", "step", "combine", "settle", "evaluate", "keep", "release", "hold"}
)
ALLOWED: dict[Purpose, frozenset[m.Stage]] = {
    "profile": _GROUPS | {"keys", "blind"},
    "explain": _SETUP | _STATISTICS,
    "train": _SETUP | _STATISTICS | _TRAINING | {"pool"},
    "evaluate": _SETUP | {"score", "score own"},
    "predict": _GROUPS | {"keys", "blind", "score", "score own", "identify", "sides"},
}


@dataclass
class ContractEnforcer:
    """Holds the server to the contracts that this owner agreed to."""

    minimum_rows: int = 1
    jobs: dict[str, JobUnderContract] = field(default_factory=dict)

    def check(self, request: Any) -> None:
        """Refuses whatever the job's contract does not have, and counts what it has."""
        stage = type(request).stage
        if stage == "schema":
            return
        if stage == "close":
            self.jobs.pop(request.job, None)
            return
        job = self.jobs.get(request.job)
        if job is None:
            job = self.jobs[request.job] = JobUnderContract(self.minimum_rows)
        if stage == "scan":
            if job.contract is not None:
                raise refused("a scan is opened before the contract is proposed, and not after")
            job.opened[request.scan] = request
            return
        if stage == "propose":
            _propose(job, request.contract)
            return
        if job.contract is None:
            raise refused("no contract was agreed to, and nothing is read before")
        if stage not in ALLOWED[job.contract.purpose] or stage not in _CHECKS:
            raise refused(f"a contract to {job.contract.purpose} has no {type(request).__name__}")
        _CHECKS[stage](job, job.contract, request)

    def agreed(self, name: str, contract: Contract, *, is_excused: bool = False) -> None:
        """From now on the job is held to this; `is_excused`: a person approved rows that no rule lets pass."""
        self.jobs[name].contract, self.jobs[name].is_excused = contract, is_excused

    def is_excused(self, name: str) -> bool:
        """Whether a person approved the job's rows, few as they may be."""
        return self.jobs[name].is_excused

    def contract(self, name: str) -> Contract | None:
        """What was agreed to for a job."""
        job = self.jobs.get(name)
        return None if job is None else job.contract

    def epochs(self, name: str, part: int) -> int | None:
        """How many epochs a part is trained for in batches; None: all its rows take part in every round."""
        return self.jobs[name].parts[part].epochs

    def start_of(self, request: m.StartPart[Any]) -> tuple[dict[str, list[float]], ...]:
        """The weights that a part's training was agreed to begin with."""
        return agreed_start(self.jobs[request.job], request)

    def asked(self, name: str, part: int) -> dict[str, int]:
        """What a checkpoint keeps of a part."""
        return dict(self.jobs[name].parts[part].asked)

    def restore(self, name: str, part: int, asked: dict[str, int]) -> None:
        """Goes on counting where a checkpoint was made."""
        self.jobs[name].parts[part].asked = Counter(asked)


def _propose(job: JobUnderContract, contract: Contract) -> None:
    if job.contract is not None and job.contract != contract:
        raise refused("the job has a contract already, and this is another one")
    terms = {scan.scan: scan for scan in contract.scans}
    if set(terms) != set(job.opened):
        raise refused("it does not name the scans that were opened")
    for number, opened in job.opened.items():
        scan = terms[number]
        texts = [column.expression for column in scan.columns]
        found = (opened.table, opened.columns, opened.filter, opened.query)
        if (scan.table, texts, scan.filter, scan.query) != found:
            raise refused("it does not name the expressions and filters that were opened")


def _once(job: JobUnderContract, stage: str, scan: int, limit: int = 1) -> None:
    job.asked[stage, scan] += 1
    if job.asked[stage, scan] > limit:
        raise refused(f"{stage} of one scan leave once, and were asked for again")


def _rows(job: JobUnderContract, contract: Contract, request: m.CountRows) -> None:
    scan_of(contract, request.scan)
    _once(job, "count", request.scan)


def _groups(job: JobUnderContract, contract: Contract, request: m.SendGroups | m.SumGroups | m.HoldGroups) -> None:
    """Groups are told, summed and held, each once and in this order, before any row is shown."""
    scan = scan_of(contract, request.scan)
    if not scan.merges:
        raise refused("groups of this scan are not merged with those of others")
    stage, last = type(request).stage, {"sum groups": "groups", "hold groups": "sum groups"}
    if stage in last and not job.asked[last[stage], request.scan]:
        raise refused(f"{last[stage]} comes before {stage}")
    if job.asked["count", request.scan] or job.asked["keys", request.scan]:
        raise refused("groups are merged before their rows are shown")
    if isinstance(request, m.SumGroups) and len(request.peers) != scan.clients:
        raise refused(f"figures of groups are masked among {scan.clients} owners, and these are {len(request.peers)}")
    _once(job, stage or "", request.scan)


def _keys(job: JobUnderContract, contract: Contract, request: m.SendKeys) -> None:
    scan = scan_of(contract, request.scan)
    check_columns(request.columns, scan.numbers("key"), "key")
    if request.tokens != contract.keys:
        raise refused(f"keys leave as {contract.keys}, and were asked for as {request.tokens}")
    _once(job, "keys", request.scan)
    job.domains.update(request.domains)


def _blind(job: JobUnderContract, contract: Contract, request: m.BlindKeys) -> None:
    """Whoever may ask without end learns of each guess whether this owner has it."""
    if contract.keys != "dh":
        raise refused(f"keys leave as {contract.keys}, and nobody else's are blinded")
    if request.domain not in job.domains:
        raise refused("keys are blinded that this owner's own are compared with, and no others")
    job.blinded += len(request.points)
    if job.blinded > contract.most_keys:
        raise refused(f"{contract.most_keys:,} keys of others are blinded at most, and more were sent")


def _classes(job: JobUnderContract, contract: Contract, request: m.DescribeLabels) -> None:
    scan = scan_of(contract, request.scan)
    check_role(scan, request.column, "label")
    if request.wants_classes and not contract.wants_classes:
        raise refused("the distinct values of the label do not leave")
    _once(job, f"classes {request.column}", request.scan)


def _labels(job: JobUnderContract, contract: Contract, request: m.SendLabels) -> None:
    scan = scan_of(contract, request.scan)
    check_role(scan, request.column, "label")
    check_split(contract, scan, request)
    if request.privacy != contract.label_privacy:
        raise refused("labels leave under the noise that was agreed on, and under no other")
    folds = Folds(0) if contract.folds is None else contract.folds
    if (request.folds, request.fold_by) != (folds.count, folds.by):
        raise refused("rows are shared out in the agreed folds")
    if request.fold_column is not None:
        check_role(scan, request.fold_column, "split")
    _once(job, f"labels {request.column}", request.scan, uses_of(scan, "split"))


def _weights(job: JobUnderContract, contract: Contract, request: m.SendWeights) -> None:
    scan = scan_of(contract, request.scan)
    check_role(scan, request.column, "weight")
    _once(job, f"weights {request.column}", request.scan, uses_of(scan, "split"))


def _find_ids(job: JobUnderContract, contract: Contract, request: m.FindIds) -> None:
    if not block_of(contract, request.scan, request.columns).finds_ids:
        raise refused("which texts are ids is not for this owner to say")
    _once(job, f"find ids {request.part}", request.scan)


def _open_part(job: JobUnderContract, contract: Contract, request: m.OpenPart) -> None:
    if request.part in job.parts:
        raise refused("which rows take part is said once, and this part is open already")
    block = block_of(contract, request.scan, request.columns)
    used = sum(1 for part in job.parts.values() if part.block.place == block.place)
    if used >= sum(1 for other in contract.blocks if other.place == block.place):
        raise refused("its features are a part already")
    if request.wants_key and not block.is_masked:  # fewer owners with rows than agreed is for policies to judge
        raise refused("sums are not masked")
    if request.finds_ids != block.finds_ids or (not block.finds_ids and request.ids != block.ids):
        raise refused("which texts are ids that stay here was agreed on otherwise")
    if request.wants_moments and contract.feature_privacy is not None:
        raise refused("means and spreads of a private job do not leave")
    rows = request.train_rows
    if rows is not None and not training_of(contract).is_expanded:
        missing = np.count_nonzero(rows < 0)
        if distinct_rows(rows) != len(rows) - missing or missing > 1:
            raise refused("a row takes part once, however often it is joined")
    given = request.multiplicity
    if given is not None and (bool((given < 1).any()) or (rows is not None and len(given) != len(rows))):
        raise refused("every row that takes part is joined at least once")
    job.parts[request.part] = PartUnderContract(block, -1 if rows is None else int(np.count_nonzero(rows >= 0)))


def _sums(job: JobUnderContract, contract: Contract, request: m.SumStatistics) -> None:
    part = opened_part(job, request.part)
    count_request(part, f"summed statistics {int(request.is_second)}", 1)


def _seal(job: JobUnderContract, contract: Contract, request: m.Seal) -> None:
    part = opened_part(job, request.part)
    sums = sum(part.asked[name] for name in ("summed statistics 0", "summed statistics 1", "figure"))
    sums += sum(part.asked[name] for name in ("second moments", "step", "combine"))
    count_request(part, "seal", 2 * sums + 2)


def _encode(job: JobUnderContract, contract: Contract, request: m.EncodeFeatures) -> None:
    count_request(opened_part(job, request.part), "encode", 1)


def _score(job: JobUnderContract, contract: Contract, request: m.ScoreRows | m.ScoreOwnRows | trees.AskRows) -> None:
    place = block_of(contract, request.scan, request.columns).place
    blocks = [block for block in contract.blocks if block.place == place]
    if isinstance(request, m.ScoreRows):
        name = fingerprint(request.encoders, request.theta, request.model, request.outputs)
        if name not in {block.model for block in blocks}:
            raise refused("the model is not the one that was agreed on")
    elif isinstance(request, trees.AskRows):
        check_splits(contract, place, request.rules)
    times = 1 + contract.shuffles * len(request.columns)
    fixed = request.fixed if isinstance(request, m.ScoreRows) else -1
    values = sum(block.values for block in blocks)
    if fixed >= 0 and fixed not in {block.fixed for block in blocks if block.values}:
        raise refused("this feature is not set to any value")
    if getattr(request, "shuffled", ()) and not contract.shuffles:
        raise refused("no feature is shuffled")
    job.scored[place] += 1
    limit = len(blocks) * times + values
    if job.scored[place] > limit:
        raise refused(f"a model is applied {'once' if times + values == 1 else f'{times + values:,} times'}")
    if job.minimum_rows > 1 and 0 < distinct_rows(request.rows) < job.minimum_rows:
        raise PolicyError(
            f"its policy refuses the request: a model is applied to at least {job.minimum_rows:,} distinct rows, "
            "and fewer were asked for; ask for more (rule minimum_rows)"
        )


def _identify(job: JobUnderContract, contract: Contract, request: m.SendIdentifiers) -> None:
    scan = scan_of(contract, request.scan)
    for column in request.columns:
        check_role(scan, column, "identifier")
    _once(job, f"identifiers {sorted(request.columns)}", request.scan)


def _sides(job: JobUnderContract, contract: Contract, request: m.SendSides) -> None:
    scan = scan_of(contract, request.scan)
    check_split(contract, scan, request)
    _once(job, "sides", request.scan, contract.sides.count(request.scan))


# By stage: what a contract says of it. A stage that is not here is refused.
_CHECKS: dict[m.Stage, Callable[[JobUnderContract, Contract, Any], None]] = {
    **dict.fromkeys(_GROUPS, _groups),
    "count": _rows,
    "keys": _keys,
    "blind": _blind,
    "classes": _classes,
    "labels": _labels,
    "weights": _weights,
    "find ids": _find_ids,
    "part": _open_part,
    "summed statistics": _sums,
    "seal": _seal,
    "encode": _encode,
    "score": _score,
    "score own": _score,
    "identify": _identify,
    "sides": _sides,
    **TRAINING_CHECKS,
}
DECIDED: frozenset[m.Stage] = BEFORE | frozenset(_CHECKS)
