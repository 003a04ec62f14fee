"""The state of a client: its tables, its owner's rules and secrets, and the parts of the jobs under way.

A part is a client's share of a block: its rows, its model, and the state that rounds change. This module also limits
the work of a client: models and options fit this machine, or are refused before anything is allocated or begun.

Sealing: a part's summands leave under masks, so that the server reads only the sum over all clients. In: the
arrays that one part adds to its block's sum. Out: a `Masked` answer (privacy/masks.py) at the scale that the block's
parts agreed on. Where there is no scale yet, or a value does not fit, the answer has only the sizes of the arrays. The
server then names a scale that fits all clients (training/server.py), and asks for the same summands again: `Seal`.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Figures, PartSetup
from tablepuppet.arrays import Array
from tablepuppet.errors import JobError, TransportError
from tablepuppet.memory import memory_limit
from tablepuppet.models.linear import Features
from tablepuppet.models.modules import OWN, build_module
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.analyst_budget import budgeted_tables
from tablepuppet.owner.enforcement import ContractEnforcer
from tablepuppet.owner.owner_files import Approvals
from tablepuppet.owner.owner_log import OwnerLog
from tablepuppet.owner.part_store import PartStore
from tablepuppet.owner.policy import Policy
from tablepuppet.owner.releases import Releases
from tablepuppet.owner.row_sets import RowSets
from tablepuppet.owner.scans import Scan
from tablepuppet.owner.tables import ClientTables
from tablepuppet.owner.tokens import key_of
from tablepuppet.privacy.masks import MaskKey, Masks, check_key, exponent_of, mask_key, new_private, to_integers
from tablepuppet.protocol.base import Masked, Partial
from tablepuppet.protocol.columns import Encoder, Statistics
from tablepuppet.protocol.contract import Contract

if TYPE_CHECKING:
    from torch.nn import Module

    from tablepuppet.exchanges.features import OpenPart
    from tablepuppet.exchanges.start import StartPart

_State = TypeVar("_State")


@dataclass
class ClientState:
    """All that answers are made from."""

    name: str
    tables: ClientTables
    policy: Policy = field(default_factory=Policy)  # judges every contract before anything is read
    may_reveal: bool = False  # whether the centralised baseline may pool encoded features
    key: bytes | None = field(default=None, repr=False)  # shared by the clients, never with the server
    secret: bytes = field(default_factory=partial(secrets.token_bytes, 32), repr=False)  # this owner's own
    order_key: bytes | None = field(default=None, repr=False)  # for the order of rows; None: the same key
    part_store: PartStore = field(default_factory=PartStore, repr=False)  # the parts of models that this owner holds
    log: OwnerLog = field(default_factory=OwnerLog)  # of proposals, disclosures, refusals, and what all jobs spent
    approvals: Approvals = field(default_factory=Approvals)  # by a person
    row_sets: RowSets = field(default_factory=RowSets)  # that were agreed to in all jobs
    parts: dict[tuple[str, int], Part] = field(default_factory=dict, repr=False)  # by job and block

    def __post_init__(self) -> None:
        self.tables.protect(self.policy.hides_values_of)
        self.releases = Releases(self.policy, self.log, is_in_process=self.may_reveal)
        self.contracts = ContractEnforcer(self.policy)
        self.disclosed: dict[str, Counter[str]] = {}  # by job
        self.waiting: dict[tuple[str, str], tuple[str, ...]] = {}  # jobs and contracts that a person was notified of

    @property
    def shared_key(self) -> bytes:
        """The clients' key that orders rows and names ids; empty within one process that was given none, where there is
        nothing to hide."""
        return self.order_key if self.order_key is not None else key_of(self.key)

    def scan(self, request: Any) -> Scan:
        return self.tables.scan(request.job, request.scan)

    def name_rows(self, name: str) -> str:
        """A row set's name in the log, whose head is shown: without the secret, a guess of all rows could be tested."""
        return hmac.digest(self.secret, b"rows " + name.encode(), "sha256").hex()[:16]

    def hides_features(self, job: str) -> bool:
        """Whether features of a job leave under noise: nothing else may then depend on their values."""
        return self.agreed(job).feature_privacy is not None

    def shows_noise(self, request: Any) -> bool:
        """Whether the asker sees noisy values of a scan only: no exact count of its rows may then decide on the job."""
        is_analyst = self.agreed(request.job).analyst is not None
        return is_analyst and bool(budgeted_tables(self.policy, self.scan(request).use()))

    def agreed(self, job: str) -> Contract:
        return self.contracts.jobs[job].agreed

    def askers(self, job: str) -> tuple[str, ...]:
        """In whose name a job is, and with whom it is shared; nobody: within this process."""
        contract = self.agreed(job)
        return () if self.may_reveal else (contract.asker, *contract.readers)

    def part(self, request: Any) -> Part:
        if (request.job, request.part) not in self.parts:
            raise TransportError(f"job {request.job} has no part {request.part} at this client")
        return self.parts[request.job, request.part]

    def started_part(self, request: Any) -> Part:
        """The part that a request speaks of, which must have a model by now."""
        part = self.part(request)
        if part.setup is None:
            raise TransportError("a part must be started before it is trained")
        return part

    def module(self, spec: ModelSpec, width: int, outputs: int, name: str, seed: int = 0) -> Module:
        """A block's module; the user's own only if this process has its builder."""
        if spec.kind == "module" and spec.module not in OWN:
            raise JobError(
                f"this client knows no module {spec.module!r}, and code is never sent to a client; "
                "start it with the builder under that name"
            )
        return build_module(spec, width, outputs, seed=seed, name=name, builder=OWN.get(spec.module))


@dataclass
class Part:
    """One share of a block, from its rows to its trained parameters."""

    request: OpenPart
    statistics: Sequence[Statistics] = ()  # of its own train rows
    train: Features | None = None
    test: Features | None = None
    setup: PartSetup | None = None
    options: Any = None
    state: Any = None
    kept: Kept | None = None
    shown: int = 0  # exact numbers that left of each row
    unknowns: int | None = None  # bits that are enough to know a row
    figures: Figures = field(default_factory=Figures)  # numbers that the server half needs at the algorithm's start
    sealing: Sealing | None = None  # where summands leave under masks
    encoders: tuple[Encoder, ...] = ()
    started: StartPart | None = None
    ids: dict[int, list[str]] = field(default_factory=dict)  # the names in columns of ids, which nobody else knows
    trees: Any = None  # the data that boosted trees are grown from
    batches_left: NDArray[np.unsignedinteger[Any]] | None = None  # that each row may still be in

    @property
    def theta(self) -> Any:
        """The parameters that are evaluated and released."""
        return self.kept.theta if self.kept is not None and self.kept.is_restored else self.state.theta

    def sealed(self, partial: Partial, kind: str) -> Masked | Partial:
        """A summand as it may leave."""
        return partial if self.sealing is None else self.sealing.seal(partial, kind)

    def meet(self, peers: Sequence[MaskKey]) -> None:
        """The block's parts are known, and sums among them can be masked."""
        if self.sealing is None:
            raise TransportError("masks need a key of this part, which was not asked for")
        self.sealing.meet(peers)

    def checkpoint(self, asked: dict[str, int], run: str) -> Checkpoint[Any]:
        """All that rounds have changed; `asked`: how often the contract was made use of, in which run."""
        private = None if self.setup is None else self.setup.private
        taken, showings = (0, 0) if private is None else private.counts
        seal = None if self.sealing is None else self.sealing.state
        return Checkpoint(self.state, self.kept, seal, taken, showings, self.shown, asked, run)

    def restore(self, found: Checkpoint[Any]) -> None:
        self.state, self.kept, self.shown = found.state, found.kept, found.shown
        if self.setup is not None and self.setup.private is not None:
            self.setup.private.counts = (found.taken, found.showings)
        if self.sealing is not None and found.seal is not None:
            self.sealing.restore(found.seal)


class Kept(Struct, frozen=True):
    """The best parameters so far; once they are restored, they are the part's own."""

    theta: NDArray[np.float64]
    is_restored: bool = False


class Checkpoint(Struct, Generic[_State], frozen=True):
    """All that rounds have changed in a part: the state of its algorithm, its kept values, and its masks."""

    state: _State
    kept: Kept | None = None
    seal: SealState | None = None
    taken: int = 0  # noisy gradients
    showings: int = 0  # noisy predictions
    shown: int = 0  # exact ones
    asked: dict[str, int] = {}
    run: str = ""


_MOST_OUTPUTS = 10_000  # classes
_LARGEST_OPTION = 1_000_000  # steps, vectors kept: of an algorithm's options
_COPIES = 16  # arrays of the size of predictions or parameters that training holds


def check_outputs(outputs: int, rows: int) -> None:
    """Refuses more outputs a row than any label has, or than memory holds."""
    if not 1 <= outputs <= _MOST_OUTPUTS:
        raise TransportError(f"a model of {outputs:,} outputs is refused; 1 to {_MOST_OUTPUTS:,} are allowed")
    _check_bytes(8 * rows * outputs, "predictions")


def check_model(spec: ModelSpec, width: int, outputs: int) -> None:
    """Refuses layers that memory does not hold."""
    sizes = (width, *spec.hidden, outputs)
    _check_bytes(8 * sum((before + 1) * after for before, after in pairwise(sizes)), "parameters")


def check_options(options: Any) -> None:
    for name in getattr(options, "__struct_fields__", ()):
        value = getattr(options, name)
        if isinstance(value, int) and value > _LARGEST_OPTION:
            raise TransportError(f"{name} = {value:,} is refused; at most {_LARGEST_OPTION:,} is allowed")


def _check_bytes(size: int, what: str) -> None:
    most = memory_limit() // 2 // _COPIES
    if size > most:
        raise TransportError(f"{what} of {size:,} bytes are more than this client has memory for")


_ROUGH, _STEP = ("counts", "moments"), 16  # leaves 40 of a sum's bits and more


class SealState(msgspec.Struct, frozen=True):
    """A checkpoint of the masks: the key, the masks used, the scales in force, and summands not yet summed."""

    private: bytes
    counter: int = 0
    scales: dict[str, list[int]] = {}  # by the kind of sum: E of each array
    kind: str = ""
    pending: list[Array] = []


@dataclass
class Sealing:
    job: str
    client: str
    part: int
    shared: bytes = field(repr=False)
    state: SealState = field(default_factory=lambda: SealState(new_private()), repr=False)
    peers: Sequence[MaskKey] = ()
    _masks: Masks | None = field(default=None, repr=False)

    def offer(self) -> MaskKey:
        return mask_key(self.state.private, self.shared, self.job, self.client, self.part)

    def meet(self, peers: Sequence[MaskKey]) -> None:
        """The keys of all parts of the block, this one's among them; all of them must be clients'."""
        for peer in peers:
            check_key(peer, self.shared, self.job)
        self.peers, self._masks = peers, None

    def restore(self, state: SealState) -> None:
        self.state, self._masks = state, None

    @property
    def masks(self) -> Masks:
        if self._masks is None:
            self._masks = Masks.of(self.peers, self.state.private, self.job.encode(), self.part)
        return self._masks

    def seal(self, partial: Partial, kind: str) -> Masked | Partial:
        """The summands under masks; of numbers that are none (a run that diverges) just that."""
        values = list(partial.values)
        if not values:  # a block without numbers has no second moments
            return partial
        if not all(np.isfinite(v).all() for v in values):
            return Partial(values=[np.full_like(v, np.nan) for v in values])
        self.state = msgspec.structs.replace(self.state, kind=kind, pending=values)
        return self._masked()

    def seal_integers(self, values: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Whole numbers under masks; they need no scale."""
        counter = self.state.counter
        self.state = msgspec.structs.replace(self.state, counter=counter + 1)  # used up, whatever follows
        return self._mask(values, counter)

    def _mask(self, values: Sequence[NDArray[np.int64]], counter: int) -> list[NDArray[np.int64]]:
        joined = self.masks.masked(np.concatenate([v.ravel() for v in values]), counter)
        parts = np.split(joined, np.cumsum([v.size for v in values])[:-1])
        return [part.reshape(v.shape) for part, v in zip(parts, values, strict=True)]

    def again(self, scales: list[int]) -> Masked:
        """The same summands at another scale, and under other masks."""
        if not self.state.pending:
            raise TransportError("there is no sum under way to be sealed")
        self.rescale(self.state.kind, scales)
        return self._masked()

    def rescale(self, kind: str, scales: list[int]) -> None:
        self.state = msgspec.structs.replace(self.state, scales=self.state.scales | {kind: list(scales)})

    def _masked(self) -> Masked:
        state = self.state
        self.state = msgspec.structs.replace(state, counter=state.counter + 1)  # used up, whatever follows
        own = [_size(v, state.kind) for v in state.pending]
        kinds: list[Any] = [v.dtype.str for v in state.pending]
        scales = state.scales.get(state.kind, [])[: len(own)]
        if len(scales) < len(own) or any(e > scale for e, scale in zip(own, scales, strict=True)):
            return Masked(values=[], exponents=own, scales=[], kinds=kinds)
        integers = [to_integers(v, e, self.masks.parties) for v, e in zip(state.pending, scales, strict=True)]
        return Masked(values=self._mask(integers, state.counter), exponents=own, scales=scales, kinds=kinds)


def _size(values: Array, kind: str) -> int:
    """The power of two that a client discloses of an array: only roughly for a client's own sums of statistics."""
    exponent = exponent_of(values)
    return exponent if kind not in _ROUGH else -(-exponent // _STEP) * _STEP
