"""The owner's side of a client: budgets over all jobs, and how much of a row predictions may reveal.

A prediction is one number about a row and reveals up to 64 bits: a server that chooses the weights packs several
columns into it. A column whose values are nearly all different has as many bits as its values need. A column with few
values has none: an attacker who knows the model tries them all (age, gender and occupation follow from one number).
Neither the number of features that a job makes of a column matters, nor the number of categories that a server lists.
Exposure belongs to a run of a contract. The owner names the run itself, whatever the server calls the job.

In: the release that a request asks for. Out: nothing, or a refusal before anything has left. Every
release is first written to the owner's log (owner/owner_log.py).

plan_run_noise: the noise of a private training, computed by the owner itself from the contract and its own counts.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.algorithms.base import PrivateGradient
from tablepuppet.algorithms.noise import RunFacts, RunTerms, plan_noise
from tablepuppet.arrays import Array
from tablepuppet.errors import PolicyError
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.enforcement import breach
from tablepuppet.owner.owner_log import OwnerLog
from tablepuppet.owner.part_store import to_plain
from tablepuppet.owner.policy import Policy, refused_by
from tablepuppet.owner.scans import Scan, ScanUse
from tablepuppet.privacy.accounting import Mechanism
from tablepuppet.privacy.gaussian import GradientPrivacy, secure_generator
from tablepuppet.privacy.ledger import Spending, without_noise
from tablepuppet.protocol.columns import Encoder
from tablepuppet.protocol.contract import Contract
from tablepuppet.sources.columns import NUMBER_KINDS, numbers

if TYPE_CHECKING:
    from tablepuppet.exchanges.start import StartPart
    from tablepuppet.owner.state import ClientState, Part

_BITS_OF_NUMBER = 64  # that an exact number reveals at most: several columns fit into one
ScoredModel = tuple[Sequence[Encoder], ModelSpec, int]  # encoders, what each block is, outputs


@dataclass
class Charged:
    """A job's noisy steps on a table, as the account has them."""

    spends: tuple[Mechanism, ...]
    name: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass
class Releases:
    """An owner's policy, and its log of spent privacy."""

    policy: Policy
    log: OwnerLog = field(default_factory=OwnerLog)
    is_in_process: bool = False  # server and client are one process: there is nobody to hide from
    charged: dict[tuple[str, str], Charged] = field(default_factory=dict)  # by job and table
    is_restoring: bool = False  # a checkpoint is being restored: its releases were written down then

    def check_contract(self, contract: Contract, uses: Mapping[int, ScanUse]) -> None:
        """A contract was proposed: tables with a budget leave under noise only, whatever subquery reads them."""
        for scan in contract.scans if contract.purpose in ("train", "explain", "evaluate") else ():
            for base in uses[scan.scan].bases:
                if scan.numbers("label") and contract.label_privacy is None:
                    self.check_plain_label(base.table, is_derived=scan.query is not None)
                if contract.training is not None and scan.numbers("feature") and contract.feature_privacy is None:
                    self._refuse_plain(base.table, "features")
        noisy = {column for s in self.log.account.spendings if s.what == "label" for column in s.columns}
        for scan in contract.scans if noisy else ():
            others = [n for n, column in enumerate(scan.columns) if set(column.roles) - {"label"}]
            for base in uses[scan.scan].bases:
                read = (base.filter | base.grouping).union(*(base.columns[n] for n in others))
                self._refuse_other_roles(base.table, sorted(c for c in read if f"{base.table}.{c}".lower() in noisy))

    def _refuse_other_roles(self, table: str, columns: Sequence[str]) -> None:
        """What left as noisy labels plays no other role, which would tell it exactly, unless its owner names roles."""
        if columns and self.policy.limits_labels(table) and self.policy.rules_of(table) is None:
            raise refused_by(
                f"tables.{table}",
                f"labels made of column {columns[0]} left under noise, and as a feature, key or condition it would "
                "leave as it is; leave it out, or ask the owner to name what each column may be used for",
            )

    def charge_label(self, table: str, columns: tuple[str, ...], epsilon: float, release: str) -> None:
        """Noisy labels are about to leave: the ε of all labels made of the same columns adds up."""
        spending = Spending(table=table, what="label", name=release, epsilon=epsilon, columns=columns)
        limit, account = self.policy.labels.epsilon, self.log.account
        if limit is not None and not account.knows(spending):
            after = account.told_of_labels(table, columns) + epsilon
            if after > limit * (1 + 1e-9):
                raise PolicyError(
                    f"its policy refuses the request: labels of {table} leave with ε of at most {limit:g} over all "
                    f"jobs, and this label or ε, which is another than before, would bring it to {after:g}; use the "
                    "label and the ε of an earlier job; of a table that changes, its owner names the key of a row "
                    "(row_key), or each version of it is drawn anew (rule labels.epsilon)"
                )
        self.log.spend(spending, budget=self.policy.budget.get(table))

    def check_plain_label(self, table: str, *, is_derived: bool) -> None:
        """Labels are about to leave as they are; a subquery makes labels of features, too."""
        self._refuse_plain(table, "label")
        if is_derived:
            self._refuse_plain(table, "features")

    def _refuse_plain(self, table: str, what: Literal["label", "features"]) -> None:
        """Refuses plain values of a table with a budget: they leave under noise only."""
        budget = self.policy.budget.get(table)
        if budget is not None and getattr(budget, what) is not None:
            raise without_noise(table, what)

    def charge_features(
        self, use: ScanUse, request: StartPart, spends: tuple[Mechanism, ...], privacy: GradientPrivacy | None = None
    ) -> None:
        """A part is about to be trained: a release of its own, whatever follows. `spends`: the cost of the whole model
        for a row of its table, the same for all parts that a job makes of it; none: there is no noise."""
        charged = self.charge_whole_model(request.job, use, spends)
        if privacy is not None and privacy.hides_predictions and not self.is_restoring:
            noise = privacy.prediction_noise / (2.0 * privacy.prediction_bound * bound_reach(use))
            name, steps = f"{charged.name}-{request.part}", privacy.prediction_limit
            self.log.spend(Spending(table=use.table, what="noisy predictions", name=name, noise=noise, steps=steps))

    def close_job(self, job: str) -> None:
        """A job is over: one that comes under its name pays for itself."""
        self.charged = {key: found for key, found in self.charged.items() if key[0] != job}

    def limits_predictions(self, forbids: bool) -> bool:
        """Whether exact predictions in training end before they reveal a row; `forbids`: the job promises it."""
        return (forbids or self.policy.allow_reconstruction is False) and not self.is_restoring

    def check_exposure(self, shown: Spending, unknowns: int, what: str) -> None:
        """Checks that the exact numbers of each row, with those of earlier jobs, are too few to reveal it."""
        numbers = self.log.account.shown(shown.table, shown.columns, but=shown.name) + shown.numbers
        bits = _BITS_OF_NUMBER * numbers
        self.policy.rule(
            bits < unknowns,
            "allow_reconstruction",
            f"{what} would show {numbers:,} exact numbers of each row, over all jobs, which tell up to {bits:,} bits, "
            f"and {unknowns:,} may be enough to reconstruct it",
        )

    def record_predictions(self, shown: Spending) -> None:
        """Writes down how many exact numbers of each row have left a job."""
        if shown.numbers and not self.is_restoring:
            self.log.spend(shown)

    def unknowns(self, scan: Scan, columns: Sequence[int], contract: Contract) -> int:
        """Under noise no value has a say, for a refusal would reveal it: as few as any row could have."""
        return unknowns(scan, columns) if contract.feature_privacy is None else 1

    def charge_scores(self, scan: Scan, columns: Sequence[int], numbers: int, name: str, contract: Contract) -> None:
        """A model is about to be applied to rows of a scan; the same model again, by its name, reveals nothing new."""
        spending = Spending(table=scan.table, what="scores", name=name, numbers=numbers, columns=reads(scan, columns))
        if not self.log.account.knows(spending):
            why = "one more model that was not trained here, applied to its rows,"
            self.check_exposure(spending, self.unknowns(scan, columns, contract), why)
            self.log.spend(spending)

    def record_scores(self, table: str, *names: str) -> None:
        """A model that was trained here is about to leave: rows will be scored by it, as they were in training."""
        if self.limits_scores:
            self.log.spend(*(Spending(table=table, what="scores", name=name) for name in names))

    def charge_whole_model(self, job: str, use: ScanUse, spends: tuple[Mechanism, ...]) -> Charged:
        """A model is about to be trained on a table as one release, at a cost. Without noise, a table that has a
        budget does not take part. Blocks that read one table pay once: the cost counts all of them."""
        for base in use.bases if not spends else ():
            self._refuse_plain(base.table, "features")
        charged = self.charged.setdefault((job, use.table), Charged(spends))
        if charged.spends != spends:
            raise PolicyError("the job counts what a row of one table costs in two ways")
        if spends and not self.is_restoring:
            bound_reach(use)
            spent = [
                Spending(table=use.table, what="features", name=f"{charged.name}-{number}", **mechanism._asdict())
                for number, mechanism in enumerate(spends)
            ]
            self.log.spend(*spent, budget=self.policy.budget.get(use.table))
        return charged

    @property
    def limits_scores(self) -> bool:
        """Whether the number of models that the server may choose is limited."""
        allowed = self.policy.allow_reconstruction
        return not self.is_in_process if allowed is None else not allowed


def bound_reach(use: ScanUse) -> int:
    """How many rows of a scan one row of its table changes; noise is added to no other."""
    if use.stability is None or use.others:
        raise breach("one row of a table may change any number of its rows")
    return use.stability


def score_name(model: ScoredModel, theta: Array) -> str:
    described = msgspec.msgpack.encode(model, enc_hook=to_plain)
    return hashlib.sha256(described + np.ascontiguousarray(theta, np.float64).tobytes()).hexdigest()


def start_name(features: Sequence[str], weights: Sequence[dict[str, list[float]]]) -> str:
    """The name of initial weights. It stays the same when features are added that begin at zero."""
    given = sorted((name, sorted(units.items())) for name, units in zip(features, weights, strict=True) if units)
    return hashlib.sha256(b"start" + msgspec.msgpack.encode(given)).hexdigest()


def reads(scan: Scan, columns: Sequence[int]) -> tuple[str, ...]:
    bases = scan.use().bases
    return tuple(
        sorted({f"{base.table}.{name}".lower() for base in bases for c in columns for name in base.columns[c]})
    )


def unknowns(scan: Scan, columns: Sequence[int]) -> int:
    """How many bits of a row are enough to know some features of it: at least one."""
    bases, total, by_column = scan.use().bases, 0.0, dict[str, float]()
    for c in columns:
        info = scan.columns[c]
        if info.kind not in NUMBER_KINDS - {"boolean"}:
            continue
        bits = _bits_of_all(numbers(*scan.column(c)))
        total += bits
        for base in bases:
            for name in base.columns[c]:
                place = f"{base.table}.{name}".lower()
                by_column[place] = max(by_column.get(place, 0.0), bits)
    return max(1, math.ceil(min(total, sum(by_column.values()))))


def _bits_of_all(values: Array) -> float:
    present = values[~np.isnan(values).any(axis=1)]
    are_few = 2 * len(np.unique(present, axis=0)) <= len(present)
    return 0.0 if are_few else sum(map(_bits_of, present.T))


def _bits_of(values: Array) -> float:
    """The bits of a column's numbers: its range, in steps of the smallest difference of two values."""
    distinct = np.unique(values)
    if len(distinct) < 2:
        return 0.0
    steps = (distinct[-1] - distinct[0]) / float(np.diff(distinct).min()) + 1.0
    return min(float(_BITS_OF_NUMBER), math.log2(steps))


def tells_label(own: ClientState, job: str, columns: Iterable[str]) -> bool:
    """Whether a job's label and its features share columns: the model would reveal them.

    A subquery may make features of other rows' labels (of the week before, of the same place), and is left out.
    """
    scans = [scan for scan in own.agreed(job).scans if scan.query is None]
    labels = (reads(own.tables.scan(job, scan.scan), scan.numbers("label")) for scan in scans)
    return any(not set(columns).isdisjoint(label) for label in labels)


def release_predictions(own: ClientState, part: Part, predictions: Array) -> Array:
    """Predictions of train rows as they may leave."""
    assert part.setup is not None
    count_predictions(own, part)
    return predictions if part.setup.private is None else part.setup.private.disclose(predictions)


def count_predictions(own: ClientState, part: Part, times: int = 1) -> None:
    """Counts the exact numbers that leave of each row, up to the owner's limit."""
    assert part.setup is not None
    assert part.train is not None
    is_noisy = part.setup.private is not None and part.setup.private.privacy.hides_predictions
    after = part.shown + (0 if is_noisy else times * part.setup.outputs)
    if not is_noisy and limits_predictions(own, part):
        shown = disclosed_values(own, part, after)
        own.releases.check_exposure(shown, count_unknowns(own, part), "this round of training")
        own.releases.record_predictions(shown)
    part.shown = after


def limits_predictions(own: ClientState, part: Part) -> bool:
    """Whether exact predictions of a part end before they reveal a row."""
    contract = own.agreed(part.request.job)
    forbids = contract.feature_privacy is not None and not contract.allow_reconstruction
    return own.releases.limits_predictions(forbids)


def count_unknowns(own: ClientState, part: Part) -> int:
    """How many exact numbers of a row are enough to know its features; counted once, best while its rows are here."""
    if part.unknowns is None:
        contract = own.agreed(part.request.job)
        part.unknowns = own.releases.unknowns(own.scan(part.request), part.request.columns, contract)
    return part.unknowns


def disclosed_values(own: ClientState, part: Part, numbers: int) -> Spending:
    """The exact numbers of each row that left a part."""
    name, scan = f"{own.contracts.jobs[part.request.job].run} {part.request.part}", own.scan(part.request)
    columns = reads(scan, part.request.columns)
    return Spending(table=scan.table, what="predictions", name=name, numbers=numbers, columns=columns)


def plan_run_noise(own: ClientState, part: Part, request: StartPart, multiplicity: Array) -> PrivateGradient | None:
    """The noise that the contract asks for. The client prefers its own counts to those of the server."""
    contract = own.contracts.contract(request.job)
    use = own.scan(part.request).use()
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
            read = own.scan(opened.request).use()
            most[read.table] += bound_reach(read) * (1 if given is None else int(given.max(initial=1)))
    if plan.model is not None and most[use.table] > plan.model.max_joined_rows(use.table):
        raise breach("rows of this table are joined more often than noise is computed for")
    own.releases.charge_features(use, request, plan.spends.get(use.table, ()), privacy)
    return PrivateGradient(privacy, secure_generator())


def _agreed_terms(own: ClientState, contract: Contract, request: StartPart) -> RunTerms:
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


def _own_facts(own: ClientState, part: Part, request: StartPart) -> RunFacts:
    """The facts of the run; those of this client's own block as it knows them."""
    assert request.facts is not None
    blocks, scan = list(request.facts.blocks), own.scan(part.request)
    peers = () if part.sealing is None else tuple(peer.client for peer in part.sealing.peers)
    block = blocks[request.block]
    blocks[request.block] = replace(
        block,
        is_masked=bool(peers),
        clients=peers or block.clients,
        squared_norm=float(sum(max(1, scan.columns[c].size) for c in part.request.columns) or 1),
        is_derived=block.is_derived or scan.query is not None,
    )
    opened = Counter[str]()
    for (job, _), other in own.parts.items():
        if job == request.job:
            use = own.scan(other.request).use()
            opened[use.table] += bound_reach(use)
    if any(count > request.facts.uses[table] for table, count in opened.items()):
        raise breach("noise is computed for fewer uses of a table than there are")
    return replace(request.facts, blocks=tuple(blocks))
