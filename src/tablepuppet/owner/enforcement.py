"""Contract enforcement: a client answers the requests that its owner agreed to, and nothing else.

In: every request before it is answered. Out: nothing, or a refusal. A job begins with descriptions of scans and a
proposed contract. From then on every request must be in the contract, with its columns, in its turn, and no more often.
The server names the rows that take part, and how often each is joined, once (OpenPart); they hold for the job.
The terms of one exchange stand with the exchange (exchanges/); this module has the common ones.
"""

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.algorithms.shape import Exchanges
from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import PolicyError
from tablepuppet.owner.policy import Policy
from tablepuppet.protocol.contract import BlockTerms, Contract, Role, ScanTerms, Training

if TYPE_CHECKING:
    from tablepuppet.exchanges.base import Exchange
    from tablepuppet.exchanges.labels import SplitRequest
    from tablepuppet.exchanges.schema import OpenScan
    from tablepuppet.exchanges.start import StartPart
    from tablepuppet.privacy.masks import MaskKey


def breach(why: str) -> PolicyError:
    return PolicyError(f"the request is outside its contract: {why}")


LEAST_MASKED = 3  # clients over which a sum hides its summands


@dataclass
class PartUnderContract:
    """One part of a job, once its rows are known, and the requests made of it."""

    block: BlockTerms
    rows: int  # distinct ones that exist
    exchanges: Exchanges | None = None  # once it is started
    training: Training | None = None  # that it was started for
    epochs: int | None = None  # of a training in batches
    requests: tuple[type, ...] = ()  # of its algorithm
    most_checks: int = 0  # of trees
    asked: Counter[str] = field(default_factory=Counter)

    @property
    def allowed(self) -> Exchanges:
        """How often what may be asked of it, once it is started."""
        assert self.exchanges is not None
        return self.exchanges

    def count(self, what: str, limit: int) -> None:
        self.asked[what] += 1
        if self.asked[what] > limit:
            raise breach(f"{what} was agreed on {limit:,} times, and was asked for once more")


@dataclass
class JobUnderContract:
    """One job under way, and the requests made for it."""

    policy: Policy
    opened: "dict[int, OpenScan]" = field(default_factory=dict)
    contract: Contract | None = None
    is_excused: bool = False  # whether a person approved the job's rows, few as they may be
    run: str = ""  # its name in the owner's account, whatever the server calls the job
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)  # by stage and scan
    parts: dict[int, PartUnderContract] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)  # of keys that left
    blinded: int = 0  # keys of other owners
    scored: Counter[tuple[int, tuple[int, ...]]] = field(default_factory=Counter)

    @property
    def minimum_rows(self) -> int:
        """Rows that meet those of a table with an analyst budget are not counted exactly."""
        return 1 if self.agreed.analyst is not None else self.policy.minimum_rows

    @property
    def agreed(self) -> Contract:
        """The contract, without which nothing is read."""
        if self.contract is None:
            raise breach("no contract was agreed to, and nothing is read before")
        return self.contract

    @property
    def training(self) -> Training:
        if self.agreed.training is None:
            raise breach("nothing is trained")
        return self.agreed.training

    def scan(self, number: int) -> ScanTerms:
        for scan in self.agreed.scans:
            if scan.scan == number:
                return scan
        raise breach("it has no such scan")

    def blocks(self, scan: int, columns: list[int]) -> list[BlockTerms]:
        """All blocks of these expressions: several, of a self-join or of several models."""
        found = [block for block in self.agreed.blocks if block.place == (scan, tuple(columns))]
        if not found:
            raise breach("these expressions are not the features of any block")
        return found

    def part(self, number: int) -> PartUnderContract:
        if number not in self.parts:
            raise breach("it speaks of a part that is not open")
        return self.parts[number]

    def started_part(self, number: int) -> PartUnderContract:
        part = self.part(number)
        if part.exchanges is None:
            raise breach("it speaks of a part that was not started")
        return part

    def start_of(self, request: "StartPart") -> tuple[dict[str, list[float]], ...]:
        """The weights that a part's training was agreed to begin with."""
        place = self.parts[request.part].block.place
        blocks = self.agreed.blocks
        return next((block.start for block in blocks if (block.place, block.name) == (place, request.name)), ())

    def check_peers(self, part: PartUnderContract, peers: "Sequence[MaskKey]") -> None:
        """Sums are masked over the clients of the block that the contract names. Clients without rows may be missing
        if enough others take part, by the policy too; nobody else may."""
        block, found = part.block, {peer.client for peer in peers}
        agreed = set(block.clients) if block.is_masked else set()
        if found != agreed and not (found <= agreed and len(found) >= LEAST_MASKED):
            missing = ", ".join(sorted(agreed - found)) or "none"
            raise breach(
                f"sums of {block.name} are masked over {len(agreed)} clients, and these would be over {len(found)}; "
                f"missing: {missing}"
            )
        self.policy.check_masked(max(1, len(found)))

    def check_role(self, scan: int, column: int | None, role: Role) -> None:
        """Refuses an expression that does not have the requested role; None: there is none."""
        if column is not None and column not in self.scan(scan).numbers(role):
            raise breach(f"an expression was asked for as the {role}, and it is not")

    def check_split(self, request: "SplitRequest") -> None:
        """Refuses a split by other columns than those that were agreed on."""
        for column in (request.test_column, request.validation_column):
            self.check_role(request.scan, column, "split")

    def check_model_kind(self, are_trees: bool) -> None:
        if bool(self.training.most_splits) != are_trees:
            raise breach("it is about another kind of model")

    def count_once(self, stage: str, scan: int, limit: int = 1) -> None:
        self.scan(scan)
        self.asked[stage, scan] += 1
        if self.asked[stage, scan] > limit:
            raise breach(f"{stage} of one scan leave once, and were asked for again")


@dataclass
class ContractEnforcer:
    """Holds the server to the contracts that this owner agreed to."""

    policy: Policy
    jobs: dict[str, JobUnderContract] = field(default_factory=dict)

    def check(self, exchange: "Exchange", request: Any) -> None:
        """Refuses requests outside the job's contract, and counts the others."""
        if "job" not in request.__struct_fields__:
            return
        job = self.jobs.get(request.job)
        if job is None:
            job = self.jobs[request.job] = JobUnderContract(self.policy)
        if exchange.purposes and job.agreed.purpose not in exchange.purposes:
            raise breach(f"a contract to {job.agreed.purpose} has no {type(request).__name__}")
        exchange.enforce(job, request)

    def agree(self, name: str, contract: Contract, *, is_excused: bool = False) -> None:
        """Holds the job to this contract from now on; `is_excused`: a person approved rows that the rules refuse."""
        job = self.jobs[name]
        job.contract, job.is_excused = contract, is_excused
        job.run = job.run or f"{contract.hash[:16]}-{secrets.token_hex(8)}"

    def contract(self, name: str) -> Contract | None:
        job = self.jobs.get(name)
        return None if job is None else job.contract


def distinct_rows(rows: RowNumbers) -> int:
    """The number of different rows; −1 is none. Ascending rows are counted faster; the order is verified."""
    found = rows if int(rows.min(initial=0)) >= 0 else rows[rows >= 0]
    return len(found) if bool((found[1:] > found[:-1]).all()) else len(np.unique(found))
