"""The contract keeper: a client answers what its owner agreed to, and nothing else.

In: every request before it is answered. Out: nothing, or a refusal. A job begins with scans that are described and a
contract that is proposed; from then on every request must be one that the contract has, with its columns, in its turn,
and no more often. Which rows take part, and how often each is joined, is said once (OpenPart) and holds for the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.algorithms.shape import Exchanges, RunShape
from tablepuppet.client.policy import distinct_rows
from tablepuppet.errors import PolicyError
from tablepuppet.models.spec import l2_of
from tablepuppet.protocol.contract import BlockTerms, Contract, Purpose, Role, ScanTerms, Training, fingerprint
from tablepuppet.protocol.setup import Folds

BEFORE: frozenset[m.Stage] = frozenset({"schema", "scan", "propose", "close"})  # nothing of them reads a row
_SETUP: frozenset[m.Stage] = frozenset({"count", "keys", "blind", "classes", "labels", "weights"})
_ONCE = ("start", "encode", "summed statistics 0", "summed statistics 1")  # what a part is asked for all its models
_STATISTICS: frozenset[m.Stage] = frozenset({"find ids", "part", "summed statistics", "seal"})
_TREES: frozenset[m.Stage] = frozenset({"sketch", "start trees", "check trees"})
_TRAINING: frozenset[m.Stage] = _TREES | frozenset(
    {"encode", "start", "figure", "second moments", "step", "combine", "settle", "evaluate", "keep", "release", "hold"}
)
ALLOWED: dict[Purpose, frozenset[m.Stage]] = {
    "profile": frozenset({"keys", "blind"}),
    "explain": _SETUP | _STATISTICS,
    "train": _SETUP | _STATISTICS | _TRAINING | {"pool"},
    "evaluate": _SETUP | {"score", "score own"},
    "predict": frozenset({"keys", "blind", "score", "score own", "identify", "sides"}),
}


@dataclass
class _Part:
    """One part of a job, once its rows are known."""

    block: BlockTerms
    rows: int  # distinct ones that exist
    exchanges: Exchanges | None = None  # once it is started
    epochs: int | None = None  # of a training in batches
    requests: tuple[type, ...] = ()  # of its algorithm
    most_checks: int = 0  # of trees
    asked: Counter[str] = field(default_factory=Counter)


@dataclass
class _Job:
    """One job under way."""

    opened: dict[int, m.OpenScan] = field(default_factory=dict)
    contract: Contract | None = None
    is_excused: bool = False
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)  # by stage and scan
    parts: dict[int, _Part] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)  # of keys that left
    blinded: int = 0  # keys of other owners
    scored: Counter[tuple[int, tuple[int, ...]]] = field(default_factory=Counter)


@dataclass
class Keeper:
    """Holds the server to the contracts that this owner agreed to."""

    minimum_rows: int = 1
    jobs: dict[str, _Job] = field(default_factory=dict)

    def check(self, request: Any) -> None:
        """Refuses whatever the job's contract does not have, and counts what it has."""
        stage = type(request).stage
        if stage == "schema":
            return
        if stage == "close":
            self.jobs.pop(request.job, None)
            return
        job = self.jobs.setdefault(request.job, _Job())
        if stage == "scan":
            if job.contract is not None:
                raise refused("a scan is opened before the contract is proposed, and not after")
            job.opened[request.scan] = request
            return
        if stage == "propose":
            self._proposed(job, request.contract)
            return
        if job.contract is None:
            raise refused("no contract was agreed to, and nothing is read before")
        if stage not in ALLOWED[job.contract.purpose] or stage not in _CHECKS:
            raise refused(f"a contract to {job.contract.purpose} has no {type(request).__name__}")
        _CHECKS[stage](self, job, job.contract, request)

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
        job = self.jobs[request.job]
        place = job.parts[request.part].block.place
        blocks = () if job.contract is None else job.contract.blocks
        return next((block.start for block in blocks if (block.place, block.name) == (place, request.name)), ())

    def asked(self, name: str, part: int) -> dict[str, int]:
        """What a checkpoint keeps of a part."""
        return dict(self.jobs[name].parts[part].asked)

    def restore(self, name: str, part: int, asked: dict[str, int]) -> None:
        """Goes on counting where a checkpoint was made."""
        self.jobs[name].parts[part].asked = Counter(asked)

    # -- the proposal ----------------------------------------------------------------------

    def _proposed(self, job: _Job, contract: Contract) -> None:
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

    # -- set-up ----------------------------------------------------------------------------

    def _once(self, job: _Job, stage: str, scan: int, limit: int = 1) -> None:
        job.asked[stage, scan] += 1
        if job.asked[stage, scan] > limit:
            raise refused(f"{stage} of one scan leave once, and were asked for again")

    def _count(self, job: _Job, contract: Contract, request: m.CountRows) -> None:
        _scan(contract, request.scan)
        self._once(job, "count", request.scan)

    def _keys(self, job: _Job, contract: Contract, request: m.SendKeys) -> None:
        scan = _scan(contract, request.scan)
        _same_columns(request.columns, scan.numbers("key"), "key")
        if request.tokens != contract.keys:
            raise refused(f"keys leave as {contract.keys}, and were asked for as {request.tokens}")
        self._once(job, "keys", request.scan)
        job.domains.update(request.domains)

    def _blind(self, job: _Job, contract: Contract, request: m.BlindKeys) -> None:
        """Whoever may ask without end learns of each guess whether this owner has it."""
        if contract.keys != "dh":
            raise refused(f"keys leave as {contract.keys}, and nobody else's are blinded")
        if request.domain not in job.domains:
            raise refused("keys are blinded that this owner's own are compared with, and no others")
        job.blinded += len(request.points)
        if job.blinded > contract.most_keys:
            raise refused(f"{contract.most_keys:,} keys of others are blinded at most, and more were sent")

    def _classes(self, job: _Job, contract: Contract, request: m.DescribeLabels) -> None:
        scan = _scan(contract, request.scan)
        _has_role(scan, request.column, "label")
        if request.wants_classes and not contract.wants_classes:
            raise refused("the distinct values of the label do not leave")
        self._once(job, f"classes {request.column}", request.scan)

    def _labels(self, job: _Job, contract: Contract, request: m.SendLabels) -> None:
        scan = _scan(contract, request.scan)
        _has_role(scan, request.column, "label")
        _held_out_as_agreed(contract, scan, request)
        if request.privacy != contract.label_privacy:
            raise refused("labels leave under the noise that was agreed on, and under no other")
        folds = Folds(0) if contract.folds is None else contract.folds
        if (request.folds, request.fold_by) != (folds.count, folds.by):
            raise refused("rows are shared out in the agreed folds")
        if request.fold_column is not None:
            _has_role(scan, request.fold_column, "split")
        self._once(job, f"labels {request.column}", request.scan, _uses(scan, "split"))

    def _weights(self, job: _Job, contract: Contract, request: m.SendWeights) -> None:
        scan = _scan(contract, request.scan)
        _has_role(scan, request.column, "weight")
        self._once(job, f"weights {request.column}", request.scan, _uses(scan, "split"))

    # -- features --------------------------------------------------------------------------

    def _find_ids(self, job: _Job, contract: Contract, request: m.FindIds) -> None:
        if not _block(contract, request.scan, request.columns).finds_ids:
            raise refused("which texts are ids is not for this owner to say")
        self._once(job, f"find ids {request.part}", request.scan)

    def _part(self, job: _Job, contract: Contract, request: m.OpenPart) -> None:
        if request.part in job.parts:
            raise refused("which rows take part is said once, and this part is open already")
        block = _block(contract, request.scan, request.columns)
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
        if rows is not None and not _training(contract).is_expanded:
            missing = np.count_nonzero(rows < 0)
            if distinct_rows(rows) != len(rows) - missing or missing > 1:
                raise refused("a row takes part once, however often it is joined")
        given = request.multiplicity
        if given is not None and (bool((given < 1).any()) or (rows is not None and len(given) != len(rows))):
            raise refused("every row that takes part is joined at least once")
        job.parts[request.part] = _Part(block, -1 if rows is None else int(np.count_nonzero(rows >= 0)))

    def _sums(self, job: _Job, contract: Contract, request: m.SumStatistics) -> None:
        part = _opened(job, request.part)
        _count(part, f"summed statistics {int(request.is_second)}", 1)

    def _seal(self, job: _Job, contract: Contract, request: m.Seal) -> None:
        part = _opened(job, request.part)
        sums = sum(part.asked[name] for name in ("summed statistics 0", "summed statistics 1", "figure"))
        sums += sum(part.asked[name] for name in ("second moments", "step", "combine"))
        _count(part, "seal", 2 * sums + 2)

    def _encode(self, job: _Job, contract: Contract, request: m.EncodeFeatures) -> None:
        _count(_opened(job, request.part), "encode", 1)

    # -- training --------------------------------------------------------------------------

    def _start(self, job: _Job, contract: Contract, request: m.StartPart[Any]) -> None:
        part = _opened(job, request.part)
        training = _agreed_training(contract, part, request)
        if request.algorithm.sends_second_moments and not training.sends_second_moments:
            raise refused("second moments do not leave")
        self._start_privacy(contract, request)
        if (request.weights is not None) and not training.has_weights:
            raise refused("joined rows count alike, and weights were sent")
        if request.multiplicity is not None and contract.folds is None:
            raise refused("all rows take part as often as they are joined, and no folds were agreed on")
        if request.starts and not self.start_of(request):
            raise refused("it begins with weights, and none were agreed on")
        if request.continues and contract.fits == 1:
            raise refused("one model is trained, from the start")
        for counted in (request.weights, request.multiplicity):
            if counted is None:
                continue
            rows = np.atleast_1d(counted)
            weighed = int(np.count_nonzero(rows.any(axis=tuple(range(1, rows.ndim)))))
            if weighed < min(self.minimum_rows, len(rows)):
                raise refused(f"at least {self.minimum_rows:,} rows count, and the weights leave fewer")
        if training.most_rows is not None and request.joined_rows > training.most_rows:
            raise refused(f"at most {training.most_rows:,} joined rows were agreed on")
        _count(part, "start", contract.fits)
        part.asked = Counter({name: count for name, count in part.asked.items() if name in _ONCE})
        run = RunShape(
            epochs=training.epochs,
            rows=request.joined_rows,
            batch_size=training.batch(request.joined_rows),
            is_linear=training.model.is_linear,
            is_private=contract.feature_privacy is not None,
        )
        is_batched = run.batch_size is not None and run.batch_size < request.joined_rows
        part.epochs = training.epochs if is_batched else None
        part.exchanges = algorithm_of(request.algorithm).exchanges(request.algorithm, run)
        part.requests = tuple(algorithm_of(request.algorithm).requests)

    def _start_privacy(self, contract: Contract, request: m.StartPart[Any]) -> None:
        """Noise that was agreed on is added, by an algorithm that has a private form."""
        privacy = request.privacy
        is_local = contract.prediction_privacy.mode == "local"
        clips = privacy is not None and privacy.clips
        if clips != (contract.feature_privacy is not None):
            raise refused("gradients are noised as agreed, or not at all")
        if is_local != (privacy is not None and privacy.hides_predictions):
            raise refused("predictions are noised as agreed, or not at all")
        has_form = algorithm_of(request.algorithm).why_not_private(request.algorithm) is None
        if privacy is not None and (not has_form or (clips and privacy.noise <= 0)):
            raise refused("what was agreed to be noised has no noise")
        agreed = contract.feature_privacy
        if privacy is not None and privacy.summed_over != 1 and (agreed is None or not agreed.shared_noise):
            raise refused("each client adds all of the noise, and no share of it")
        if privacy is not None and not 0 < privacy.prediction_bound < np.inf:
            raise refused("under noise, predictions leave within bounds")

    def _step(self, job: _Job, contract: Contract, request: Any) -> None:
        part = _started(job, request.part)
        assert part.exchanges is not None
        if not isinstance(request, part.requests):
            raise refused(f"{type(request).__name__} is of another algorithm")
        _count(part, "step", part.exchanges.steps + 1)  # an opening, or a small block's second step

    def _combine(self, job: _Job, contract: Contract, request: m.Combined) -> None:
        part = _started(job, request.part)
        assert part.exchanges is not None
        _count(part, "combine", part.asked["step"] * part.exchanges.inner)

    def _settle(self, job: _Job, contract: Contract, request: m.Move) -> None:
        part = _started(job, request.part)
        _count(part, "settle", part.asked["step"] + 1)

    def _figure(self, job: _Job, contract: Contract, request: m.SendFigures) -> None:
        _count(_started(job, request.part), "figure", 1)

    def _second_moments(self, job: _Job, contract: Contract, request: m.MultiplyGram) -> None:
        part = _started(job, request.part)
        assert part.exchanges is not None
        _count(part, "second moments", part.exchanges.power_rounds)

    def _evaluate(self, job: _Job, contract: Contract, request: m.Evaluate) -> None:
        part = _started(job, request.part)
        assert part.exchanges is not None
        _count(part, "evaluate", part.exchanges.evaluations)
        if request.train:  # the last time also after the best epoch was restored
            _count(part, "evaluate train", part.exchanges.evaluations if part.exchanges.evaluates_train else 1)

    def _keep(self, job: _Job, contract: Contract, request: Any) -> None:
        _count(_started(job, request.part), "keep", _training(contract).epochs + 1)

    def _sketch(self, job: _Job, contract: Contract, request: trees.SketchFeatures) -> None:
        _same_model(contract, True)
        part = _opened(job, request.part)
        if request.bins != _training(contract).algorithm["bins"]:
            raise refused("as many values leave to agree on bins by as bins were agreed on")
        _count(part, "sketch", 1)

    def _start_trees(self, job: _Job, contract: Contract, request: trees.StartTrees) -> None:
        part, training = _opened(job, request.part), _training(contract)
        if msgspec.to_builtins(request.algorithm) != training.algorithm:
            raise refused("the algorithm is not the one that was agreed on")
        earlier = 1 if isinstance(request.before, str) else len(request.before)  # a held part is as large as it was
        if earlier > training.earlier_splits:
            raise refused("it speaks of more splits of earlier trees than were agreed on")
        if not isinstance(request.before, str) and request.before:
            self._same_splits(contract, part.block.place, request.before)
        if contract.feature_privacy is not None or contract.prediction_privacy.mode == "local":
            raise refused("trees have no noise")
        is_shared = sum(block.name == part.block.name for block in contract.blocks) > 1
        if request.bins is not None and not is_shared and _scan(contract, part.block.scan).clients == 1:
            raise refused("a table with one owner is put in bins by that owner")
        _count(part, "start trees", 1)
        part.exchanges, part.most_checks = Exchanges(request.algorithm.trees), request.algorithm.most_checks

    def _check_trees(self, job: _Job, contract: Contract, request: Any) -> None:
        part = _started(job, request.part)
        _count(part, "check trees", part.most_checks)

    def _release(self, job: _Job, contract: Contract, request: m.Release) -> None:
        if not _training(contract).releases:
            raise refused("trained parameters stay here")
        _same_model(contract, isinstance(request, trees.ReleaseSplits))
        _count(_started(job, request.part), "release", 1)

    def _hold(self, job: _Job, contract: Contract, request: m.HoldPart) -> None:
        _same_model(contract, isinstance(request, trees.HoldSplits))
        _count(_started(job, request.part), "hold", 1)

    def _pool(self, job: _Job, contract: Contract, request: m.RevealFeatures) -> None:
        if not _training(contract).is_pooled:
            raise refused("features are not pooled")
        _count(_opened(job, request.part), "pool", 1)

    # -- prediction ------------------------------------------------------------------------

    def _score(self, job: _Job, contract: Contract, request: m.ScoreRows | m.ScoreOwnRows | trees.AskRows) -> None:
        place = _block(contract, request.scan, request.columns).place
        blocks = [block for block in contract.blocks if block.place == place]
        if isinstance(request, m.ScoreRows):
            name = fingerprint(request.encoders, request.theta, request.model, request.outputs)
            if name not in {block.model for block in blocks}:
                raise refused("the model is not the one that was agreed on")
        elif isinstance(request, trees.AskRows):
            self._same_splits(contract, place, request.rules)
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
        if self.minimum_rows > 1 and 0 < distinct_rows(request.rows) < self.minimum_rows:
            raise PolicyError(
                f"its policy refuses the request: a model is applied to at least {self.minimum_rows:,} distinct rows, "
                "and fewer were asked for; ask for more (rule minimum_rows)"
            )

    def _same_splits(self, contract: Contract, place: Any, rules: Sequence[trees.SplitRule]) -> None:
        if trees.splits_name(rules) not in {block.model for block in contract.blocks if block.place == place}:
            raise refused("the splits are not those that were agreed on")

    def _identify(self, job: _Job, contract: Contract, request: m.SendIdentifiers) -> None:
        scan = _scan(contract, request.scan)
        for column in request.columns:
            _has_role(scan, column, "identifier")
        self._once(job, f"identifiers {sorted(request.columns)}", request.scan)

    def _sides(self, job: _Job, contract: Contract, request: m.SendSides) -> None:
        scan = _scan(contract, request.scan)
        _held_out_as_agreed(contract, scan, request)
        self._once(job, "sides", request.scan, contract.sides.count(request.scan))


def refused(why: str) -> PolicyError:
    """The refusal of a request that its contract does not have."""
    return PolicyError(f"the request is outside its contract: {why}")


def _scan(contract: Contract, number: int) -> ScanTerms:
    for scan in contract.scans:
        if scan.scan == number:
            return scan
    raise refused("it has no such scan")


def _block(contract: Contract, scan: int, columns: list[int]) -> BlockTerms:
    for block in contract.blocks:
        if block.place == (scan, tuple(columns)):
            return block
    raise refused("these expressions are not the features of any block")


def _has_role(scan: ScanTerms, column: int, role: Role) -> None:
    if column not in scan.numbers(role):
        raise refused(f"an expression was asked for as the {role}, and it is not")


def _held_out_as_agreed(contract: Contract, scan: ScanTerms, request: m.SendLabels | m.SendSides) -> None:
    for column in (request.test_column, request.validation_column):
        if column is not None:
            _has_role(scan, column, "split")
    if (request.test_fraction, request.validation_fraction) != contract.split:
        raise refused("rows are split in the agreed shares")


def _same_columns(asked: list[int], agreed: tuple[int, ...], role: Role) -> None:
    if sorted(asked) != sorted(agreed):
        raise refused(f"the {role} expressions are not those that were agreed on")


def _uses(scan: ScanTerms, role: Role) -> int:
    """A label is read once for each way to split rows by it; usually there is one."""
    return max(1, len(scan.numbers(role)))


def _opened(job: _Job, number: int) -> _Part:
    if number not in job.parts:
        raise refused("it speaks of a part that is not open")
    return job.parts[number]


def _started(job: _Job, number: int) -> _Part:
    part = _opened(job, number)
    if part.exchanges is None:
        raise refused("it speaks of a part that was not started")
    return part


def _same_model(contract: Contract, are_trees: bool) -> None:
    if bool(_training(contract).most_splits) != are_trees:
        raise refused("it is about another kind of model")


def _training(contract: Contract) -> Training:
    if contract.training is None:
        raise refused("nothing is trained")
    return contract.training


def _agreed_training(contract: Contract, part: _Part, request: m.StartPart[Any]) -> Training:
    """The training that a part is started for, if it was agreed on."""
    table = _scan(contract, part.block.scan).table
    names = [block.name for block in contract.blocks if block.place == part.block.place]  # several, in a self-join
    for training in (_training(contract), *contract.others):
        spec = msgspec.structs.replace(request.model, unit=training.model.unit)  # the label's unit is known since then
        given = (msgspec.to_builtins(request.algorithm), spec, request.l1)
        if given != (training.algorithm, training.model, training.l1) or (request.signs and not training.signs):
            continue
        more = training.l2_by_rows / max(1, request.joined_rows)
        if request.l2 in [l2_of(training.l2, name, table) + more for name in names]:
            return training
    raise refused("the algorithm and the model are not those that were agreed on")


def _count(part: _Part, what: str, limit: int) -> None:
    part.asked[what] += 1
    if part.asked[what] > limit:
        raise refused(f"{what} was agreed on {limit:,} times, and was asked for once more")


# By stage: what a contract says of it. A stage that is not here is refused.
_CHECKS: dict[m.Stage, Callable[[Keeper, _Job, Contract, Any], None]] = {
    "count": Keeper._count,
    "keys": Keeper._keys,
    "blind": Keeper._blind,
    "classes": Keeper._classes,
    "labels": Keeper._labels,
    "weights": Keeper._weights,
    "find ids": Keeper._find_ids,
    "part": Keeper._part,
    "summed statistics": Keeper._sums,
    "seal": Keeper._seal,
    "encode": Keeper._encode,
    "start": Keeper._start,
    "sketch": Keeper._sketch,
    "start trees": Keeper._start_trees,
    "check trees": Keeper._check_trees,
    "figure": Keeper._figure,
    "second moments": Keeper._second_moments,
    "step": Keeper._step,
    "combine": Keeper._combine,
    "settle": Keeper._settle,
    "evaluate": Keeper._evaluate,
    "keep": Keeper._keep,
    "release": Keeper._release,
    "hold": Keeper._hold,
    "pool": Keeper._pool,
    "score": Keeper._score,
    "score own": Keeper._score,
    "identify": Keeper._identify,
    "sides": Keeper._sides,
}
DECIDED: frozenset[m.Stage] = BEFORE | frozenset(_CHECKS)
