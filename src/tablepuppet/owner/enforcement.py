"""Contract enforcement: a client answers what its owner agreed to, and nothing else.

In: every request before it is answered. Out: nothing, or a refusal. A job begins with scans that are described and a
contract that is proposed; from then on every request must be one that the contract has, with its columns, in its turn,
and no more often. Which rows take part, and how often each is joined, is said once (OpenPart) and holds for the job.
What a contract says of one exchange stands with the exchange (exchanges/); here is what they share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.algorithms.shape import Exchanges
from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import PolicyError
from tablepuppet.protocol.contract import BlockTerms, Contract, Role, ScanTerms, Training

if TYPE_CHECKING:
    from tablepuppet.exchanges.base import Exchange
    from tablepuppet.exchanges.labels import SendLabels, SendSides
    from tablepuppet.exchanges.schema import OpenScan
    from tablepuppet.exchanges.start import StartPart


@dataclass
class PartUnderContract:
    """One part of a job, once its rows are known, and what was asked of it."""

    block: BlockTerms
    rows: int  # distinct ones that exist
    exchanges: Exchanges | None = None  # once it is started
    epochs: int | None = None  # of a training in batches
    requests: tuple[type, ...] = ()  # of its algorithm
    most_checks: int = 0  # of trees
    asked: Counter[str] = field(default_factory=Counter)


@dataclass
class JobUnderContract:
    """One job under way, and what was asked for it."""

    minimum_rows: int = 1
    opened: dict[int, OpenScan] = field(default_factory=dict)
    contract: Contract | None = None
    is_excused: bool = False
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)  # by stage and scan
    parts: dict[int, PartUnderContract] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)  # of keys that left
    blinded: int = 0  # keys of other owners
    scored: Counter[tuple[int, tuple[int, ...]]] = field(default_factory=Counter)


@dataclass
class ContractEnforcer:
    """Holds the server to the contracts that this owner agreed to."""

    minimum_rows: int = 1
    jobs: dict[str, JobUnderContract] = field(default_factory=dict)

    def check(self, exchange: Exchange, request: Any) -> None:
        """Refuses whatever the job's contract does not have, and counts what it has."""
        if "job" not in request.__struct_fields__:
            return
        job = self.jobs.get(request.job)
        if job is None:
            job = self.jobs[request.job] = JobUnderContract(self.minimum_rows)
        if exchange.purposes:
            if job.contract is None:
                raise refused("no contract was agreed to, and nothing is read before")
            if job.contract.purpose not in exchange.purposes:
                raise refused(f"a contract to {job.contract.purpose} has no {type(request).__name__}")
        exchange.enforce(job, job.contract, request)

    def close(self, name: str) -> None:
        """The job is over, and its contract with it."""
        self.jobs.pop(name, None)

    def agree(self, name: str, contract: Contract, *, is_excused: bool = False) -> None:
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

    def start_of(self, request: StartPart[Any]) -> tuple[dict[str, list[float]], ...]:
        """The weights that a part's training was agreed to begin with."""
        return agreed_start(self.jobs[request.job], request)

    def asked(self, name: str, part: int) -> dict[str, int]:
        """What a checkpoint keeps of a part."""
        return dict(self.jobs[name].parts[part].asked)

    def restore(self, name: str, part: int, asked: dict[str, int]) -> None:
        """Goes on counting where a checkpoint was made."""
        self.jobs[name].parts[part].asked = Counter(asked)


def refused(why: str) -> PolicyError:
    """The refusal of a request that its contract does not have."""
    return PolicyError(f"the request is outside its contract: {why}")


def scan_of(contract: Contract, number: int) -> ScanTerms:
    for scan in contract.scans:
        if scan.scan == number:
            return scan
    raise refused("it has no such scan")


def block_of(contract: Contract, scan: int, columns: list[int]) -> BlockTerms:
    for block in contract.blocks:
        if block.place == (scan, tuple(columns)):
            return block
    raise refused("these expressions are not the features of any block")


def blocks_of(contract: Contract, scan: int, columns: list[int]) -> list[BlockTerms]:
    """All blocks of these expressions: several, of a self-join or of several models."""
    place = block_of(contract, scan, columns).place
    return [block for block in contract.blocks if block.place == place]


def check_role(scan: ScanTerms, column: int, role: Role) -> None:
    if column not in scan.numbers(role):
        raise refused(f"an expression was asked for as the {role}, and it is not")


def check_split(agreed: Sequence[tuple[float, float]], scan: ScanTerms, request: SendLabels | SendSides) -> None:
    """Refuses a split by other columns, or in other shares, than those that were agreed on."""
    for column in (request.test_column, request.validation_column):
        if column is not None:
            check_role(scan, column, "split")
    if (request.test_fraction, request.validation_fraction) not in agreed:
        raise refused("rows are split in the agreed shares")


def check_columns(asked: list[int], agreed: tuple[int, ...], role: Role) -> None:
    if sorted(asked) != sorted(agreed):
        raise refused(f"the {role} expressions are not those that were agreed on")


def uses_of(scan: ScanTerms, role: Role) -> int:
    """A label is read once for each way to split rows by it; usually there is one."""
    return max(1, len(scan.numbers(role)))


def opened_part(job: JobUnderContract, number: int) -> PartUnderContract:
    if number not in job.parts:
        raise refused("it speaks of a part that is not open")
    return job.parts[number]


def started_part(job: JobUnderContract, number: int) -> PartUnderContract:
    part = opened_part(job, number)
    if part.exchanges is None:
        raise refused("it speaks of a part that was not started")
    return part


def check_model_kind(contract: Contract, are_trees: bool) -> None:
    if bool(training_of(contract).most_splits) != are_trees:
        raise refused("it is about another kind of model")


def training_of(contract: Contract) -> Training:
    if contract.training is None:
        raise refused("nothing is trained")
    return contract.training


def agreed_start(job: JobUnderContract, request: StartPart[Any]) -> tuple[dict[str, list[float]], ...]:
    """The weights that a part's training was agreed to begin with."""
    place = job.parts[request.part].block.place
    blocks = () if job.contract is None else job.contract.blocks
    return next((block.start for block in blocks if (block.place, block.name) == (place, request.name)), ())


def count_request(part: PartUnderContract, what: str, limit: int) -> None:
    part.asked[what] += 1
    if part.asked[what] > limit:
        raise refused(f"{what} was agreed on {limit:,} times, and was asked for once more")


def count_once(job: JobUnderContract, stage: str, scan: int, limit: int = 1) -> None:
    job.asked[stage, scan] += 1
    if job.asked[stage, scan] > limit:
        raise refused(f"{stage} of one scan leave once, and were asked for again")


def distinct_rows(rows: RowNumbers) -> int:
    """How many different rows; −1 is none. A server sends them ascending, and need not be believed."""
    found = rows if int(rows.min(initial=0)) >= 0 else rows[rows >= 0]
    return len(found) if bool((found[1:] > found[:-1]).all()) else len(np.unique(found))
