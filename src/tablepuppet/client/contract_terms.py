"""What a contract says of a request, and what was asked under it so far: look-ups that refuse what is not there.

In: a contract and the numbers that a request names. Out: the scan, block, part or training that they stand for, or a
refusal: `the request is outside its contract`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.shape import Exchanges
from tablepuppet.errors import PolicyError
from tablepuppet.protocol.contract import BlockTerms, Contract, Role, ScanTerms, Training


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
    opened: dict[int, m.OpenScan] = field(default_factory=dict)
    contract: Contract | None = None
    is_excused: bool = False
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)  # by stage and scan
    parts: dict[int, PartUnderContract] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)  # of keys that left
    blinded: int = 0  # keys of other owners
    scored: Counter[tuple[int, tuple[int, ...]]] = field(default_factory=Counter)


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


def check_role(scan: ScanTerms, column: int, role: Role) -> None:
    if column not in scan.numbers(role):
        raise refused(f"an expression was asked for as the {role}, and it is not")


def check_split(contract: Contract, scan: ScanTerms, request: m.SendLabels | m.SendSides) -> None:
    for column in (request.test_column, request.validation_column):
        if column is not None:
            check_role(scan, column, "split")
    if (request.test_fraction, request.validation_fraction) != contract.split:
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


def count_request(part: PartUnderContract, what: str, limit: int) -> None:
    part.asked[what] += 1
    if part.asked[what] > limit:
        raise refused(f"{what} was agreed on {limit:,} times, and was asked for once more")


def check_splits(contract: Contract, place: Any, rules: Sequence[trees.SplitRule]) -> None:
    if trees.splits_name(rules) not in {block.model for block in contract.blocks if block.place == place}:
        raise refused("the splits are not those that were agreed on")
