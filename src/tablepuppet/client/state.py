"""What a client has: its tables, its owner's rules and secrets, and the parts of the jobs under way."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tablepuppet.client.keeper import Keeper
from tablepuppet.client.owner import Owner
from tablepuppet.client.part import Part
from tablepuppet.client.policy import Policy
from tablepuppet.errors import JobError, TransportError
from tablepuppet.models.modules import Builder, build_module
from tablepuppet.models.spec import ModelSpec
from tablepuppet.protocol import ColumnInfo
from tablepuppet.tables.approvals import Approvals
from tablepuppet.tables.owner_files import AccountFile, OwnerLog
from tablepuppet.tables.part_store import PartStore
from tablepuppet.tables.row_sets import RowSets
from tablepuppet.tables.store import ClientTables

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass
class ClientState:
    """All that answers are made from."""

    name: str
    tables: ClientTables
    policy: Policy = field(default_factory=Policy)  # judges every request before it is answered
    may_reveal: bool = False  # whether the centralised baseline may pool encoded features
    modules: dict[str, Builder] = field(default_factory=dict)  # builders of torch modules that jobs may name
    key: bytes | None = field(default=None, repr=False)  # shared by the clients, never with the server
    secret: bytes = field(default_factory=partial(secrets.token_bytes, 32), repr=False)  # this owner's own
    order_key: bytes | None = field(default=None, repr=False)  # for the order of rows; None: the same key
    part_store: PartStore = field(default_factory=PartStore, repr=False)  # the parts of models that this owner holds
    account: AccountFile = field(default_factory=AccountFile)  # of what all jobs have spent
    log: OwnerLog = field(default_factory=OwnerLog)  # of proposals, decisions, disclosures and refusals
    approvals: Approvals = field(default_factory=Approvals)  # by a person
    row_sets: RowSets = field(default_factory=RowSets)  # that were agreed to in all jobs
    parts: dict[tuple[str, int], Part] = field(default_factory=dict, repr=False)  # by job and block

    def __post_init__(self) -> None:
        self.owner = Owner(self.policy, self.account, is_in_process=self.may_reveal)
        self.keeper = Keeper(self.policy.minimum_rows)
        self.told: dict[str, Counter[str]] = {}  # by job: what left
        self.waiting: dict[tuple[str, str], tuple[str, ...]] = {}  # jobs and contracts that a person was told of

    def column(self, job: str, scan: int, column: int) -> tuple[pa.ChunkedArray, ColumnInfo]:
        """The values of a scan's column, and its kind."""
        table = self.tables.scan(job, scan)
        return table.column(f"c{column}"), self.tables.columns(job, scan)[column]

    def asker(self, job: str) -> str | None:
        """In whose name a job is; None: within this process."""
        contract = self.keeper.contract(job)
        return None if self.may_reveal or contract is None else contract.asker

    def part(self, request: Any) -> Part:
        """The part that a request speaks of."""
        if (request.job, request.part) not in self.parts:
            raise TransportError(f"job {request.job} has no part {request.part} at this client")
        return self.parts[request.job, request.part]

    def started(self, request: Any) -> Part:
        """The part that a request speaks of, which must have a model by now."""
        part = self.part(request)
        if part.setup is None:
            raise TransportError("a part must be started before it is trained")
        return part

    def module(self, spec: ModelSpec, width: int, outputs: int, name: str, seed: int = 0) -> Module:
        """A block's module; the user's own only if this client was given its builder."""
        if spec.kind == "module" and spec.module not in self.modules:
            raise JobError(
                f"this client knows no module {spec.module!r}, and code is never sent to a client; "
                "start it with the builder under that name"
            )
        return build_module(spec, width, outputs, seed=seed, name=name, builder=self.modules.get(spec.module))
