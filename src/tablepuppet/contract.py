"""A bound query and a job → the contract of each owner.

In: the expressions of each scan that the query reads, with their roles; the job's algorithm and privacy. Out: a
`Contract` for each client, over its own scans and blocks alone. Every later request to a client must be in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import replace

from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.errors import ApprovalError, JobError
from tablepuppet.exchanges.proposal import Agreement, ProposeContract
from tablepuppet.formatting import printable
from tablepuppet.job import Job
from tablepuppet.privacy.analyst import AnalystTerms
from tablepuppet.privacy.options import KeyMode, Privacy, Rounding
from tablepuppet.protocol import contract as terms
from tablepuppet.protocol.base import What
from tablepuppet.sources.columns import STRING_KINDS
from tablepuppet.sql.bound import Block, BoundQuery, key_domains
from tablepuppet.transport.link import Link

Place = tuple[int, int]  # scan, expression
Roles = dict[Place, list[terms.Role]]


def roles_of(bound: BoundQuery, identifiers: Sequence[tuple[int, int]] = ()) -> Roles:
    roles: Roles = {}

    def play(scan: int, column: int, role: terms.Role) -> None:
        found = roles.setdefault((scan, column), [])
        if role not in found:
            found.append(role)

    for branch in bound.branches:
        for pair in branch.pairs:
            play(branch.relations[pair.left].scan, pair.left_column, "key")
            play(branch.relations[pair.right].scan, pair.right_column, "key")
        place = branch.label_place
        sides = (place.test, place.validation, place.fold)
        named: dict[terms.Role, tuple[int, ...]] = {"label": (place.label,), "weight": (place.weight,), "split": sides}
        for role, columns in named.items():
            for column in (column for column in columns if column >= 0):
                play(place.scan, column, role)
    for block in bound.blocks:
        for branch, member in zip(bound.branches, block.members, strict=True):
            for column in member.columns:
                play(branch.relations[member.relation].scan, column, "feature")
    for number, scan in enumerate(bound.scans):
        if scan.witness_of:
            play(number, 0, "key")
    for scan_number, uses in bound.moment_uses.items():
        for _, column in uses:
            play(scan_number, column, "cutoff")
    for place_of, column in identifiers:
        play(place_of, column, "identifier")
    return roles


class ModelUse(msgspec.Struct, frozen=True):
    """Models that are applied to rows of a query, and further requests to their owners."""

    models: tuple[Mapping[str, str], ...] = ()  # of each: the fingerprint of every block
    sides: tuple[terms.SideTerms, ...] = ()
    shuffles: int = 0  # of every feature
    fixed: tuple[str, int, int] | None = None  # a block, the place of a feature in it, how many values that is set to
    analyst: AnalystTerms | None = None  # the asker's payment


def job_contracts(
    bound: BoundQuery, job: Job, purpose: terms.Purpose, asker: str, use: ModelUse | None = None
) -> dict[str, terms.Contract]:
    """The contract of each client for a training run, an explanation of it, or an evaluation of models."""
    use, privacy, loss = use or ModelUse(), job.privacy, job.model.loss_name
    check_ids(job, bound)
    if job.warm_start is not None and purpose != "evaluate":
        use = replace(use, models=(job.warm_start.names,))
    asked = {block.name: _block_options(bound, block, job, purpose, use) for block in bound.blocks}
    labelled = sum(len(bound.scans[p.scan].clients) for p in dict.fromkeys(b.label_place for b in bound.branches))
    has_numbers = loss == "squared" or (loss == "auto" and privacy.label is not None)
    common = msgspec.structs.replace(
        _common_terms(bound, purpose, asker, privacy),
        training=None if purpose == "evaluate" else _training(job),
        others=() if job.search is None else tuple(_training(other) for other in job.search.jobs),
        fits=job.fits,
        folds=None if job.search is None else job.search.folds,
        wants_classes=not job.data.negatives and not has_numbers,
        label_privacy=privacy.label,
        feature_privacy=privacy.features,
        prediction_privacy=privacy.predictions,
        analyst=use.analyst,
        allow_reconstruction=privacy.allow_reconstruction,
        split=(job.split.test_fraction, job.split.validation_fraction),
        seed=job.seed,
        holds_all_labels=labelled == 1,
        shuffles=use.shuffles,
    )
    every = {client for block in bound.blocks for client in _holders(bound, block)}
    return {
        client: _with_disclosures(contract, tuple(sorted(every - {client})))
        for client, contract in _for_clients(bound, common, use, asked).items()
    }


def _block_options(bound: BoundQuery, block: Block, job: Job, purpose: terms.Purpose, use: ModelUse) -> dict[str, Any]:
    found: dict[str, Any] = {"is_masked": job.privacy.masks(len(_holders(bound, block)))}
    if job.start:
        found["start"] = tuple(job.start.get(name, {}) for name in block.features)
    if use.fixed is not None and use.fixed[0] == block.name:
        _, found["fixed"], found["values"] = use.fixed
    if job.privacy.features is not None:
        named = zip(block.features, block.columns, strict=True)
        bounds_of = job.privacy.features.bounds_of
        found["bounds"] = tuple(None if column.kind in STRING_KINDS else bounds_of(name) for name, column in named)
    if purpose in ("train", "explain"):
        found["ids"], found["finds_ids"] = id_features(job, block)
    return found


def id_features(job: Job, block: Block) -> tuple[tuple[int, ...], bool]:
    """The places of a block's features that are ids and stay with their owner; whether owners find them themselves."""
    if job.data.ids is None:
        is_sum = job.model.is_sum and not job.probe  # a probe stands for heads
        is_open = is_sum or job.data.max_categories is not None or job.is_expanded
        return (), not (is_open or algorithm_of(job.options).is_pooled)
    wanted = {name.lower() for name in job.data.ids}
    return tuple(i for i, name in enumerate(block.features) if wanted & _names_of(name)), False


def check_ids(job: Job, bound: BoundQuery) -> None:
    """Every id that a job names is a text among the features."""
    kinds = {
        known: column.kind
        for block in bound.blocks
        for name, column in zip(block.features, block.columns, strict=True)
        for known in _names_of(name)
    }
    for name in job.data.ids or ():
        if name.lower() not in kinds:
            raise JobError(f"ids name {name!r}, which is no feature of the query")
        if kinds[name.lower()] not in STRING_KINDS:
            raise JobError(f"ids name {name!r}, which is a number; write CAST({name} AS VARCHAR) in the query")


def _names_of(feature: str) -> set[str]:
    return {feature.lower(), feature.rpartition(".")[2].lower()}


def _training(job: Job) -> terms.Training:
    return terms.Training(
        algorithm=msgspec.to_builtins(job.options_for_run),
        model=job.model.spec,
        epochs=job.epochs,
        batch_size=job.batch_size if algorithm_of(job.options).uses_batches else None,
        l2=job.model.l2,
        l2_by_rows=job.model.l2_by_rows,
        l1=job.model.l1,
        signs=job.model.signs,
        loss=job.model.loss_name,
        negatives=job.data.negatives,
        loss_options=job.model.loss_options,
        has_weights=job.data.has_weights,
        releases=job.release and job.search is None,
        is_expanded=job.is_expanded,
        is_pooled=algorithm_of(job.options).is_pooled,
        sends_second_moments=job.options.sends_second_moments,
        most_rows=job.data.max_joined_rows,
        earlier_splits=0 if job.warm_start is None else max((b.splits for b in job.warm_start.blocks), default=0),
    )


def key_contracts(bound: BoundQuery, purpose: terms.Purpose, asker: str, privacy: Privacy) -> dict[str, terms.Contract]:
    """The contract of each client for a profile: keys and nothing else."""
    return _for_clients(bound, _common_terms(bound, purpose, asker, privacy), ModelUse())


def score_contracts(
    bound: BoundQuery, use: ModelUse, identifiers: Sequence[Place], asker: str, privacy: Privacy
) -> dict[str, terms.Contract]:
    common = _common_terms(bound, "predict", asker, privacy)
    contracts = _for_clients(bound, common, use, identifiers=identifiers)
    return {client: _with_disclosures(contract) for client, contract in contracts.items()}


def _common_terms(bound: BoundQuery, purpose: terms.Purpose, asker: str, privacy: Privacy) -> terms.Contract:
    return terms.Contract(
        purpose=purpose,
        asker=asker,
        label=bound.label,
        scans=(),
        blocks=(),
        keys=privacy.keys,
        most_keys=privacy.max_keys if privacy.keys == "dh" else 0,
    )


def _moments(bound: BoundQuery, number: int) -> tuple[terms.Moments, ...]:
    """The histories that a scan's moments are cutoffs of, and the moments until which it is read itself."""

    paired = bound.pairs

    def name_moments(place: Place, history: int, column: int) -> terms.Moments:
        giver, receiver = bound.scans[place[0]], bound.scans[history]
        keys = tuple(there if column >= 0 else here for here, there in paired.get((history, place), ()))
        return terms.Moments(giver.table, giver.expressions[place[1]], receiver.table, receiver.clients, column, keys)

    given = (name_moments((number, column), history, column) for history, column in bound.moment_uses.get(number, ()))
    return (*given, *(name_moments(place, number, -1) for place in bound.moments.get(number, ())))


def _for_clients(
    bound: BoundQuery,
    common: terms.Contract,
    use: ModelUse,
    asked: Mapping[str, dict[str, Any]] | None = None,
    identifiers: Sequence[Place] = (),
) -> dict[str, terms.Contract]:
    """The contract of each client: common terms, and its own scans and blocks. `asked`: terms of blocks, by name."""
    roles = roles_of(bound, identifiers)
    found = {}
    for client in dict.fromkeys(client for scan in bound.scans for client in scan.clients):
        own = [number for number, scan in enumerate(bound.scans) if client in scan.clients]
        blocks = [
            terms.BlockTerms(block.name, *place, model=model.get(block.name, ""), **further)
            for model in use.models or ({},)
            for block in bound.blocks
            for further in [(asked or {}).get(block.name, {}) | _sharing(bound, block)]
            for place in _places(bound, block)
            if place[0] in own
        ]
        found[client] = msgspec.structs.replace(
            common,
            scans=tuple(_scan_terms(bound, number, client, roles, common.keys) for number in own),
            blocks=tuple(blocks),
            sides=tuple(side for side in use.sides if side.scan in own),
        )
    return found


def _scan_terms(bound: BoundQuery, number: int, client: str, roles: Roles, keys: KeyMode) -> terms.ScanTerms:
    scan, texts, domains = bound.scans[number], bound.texts_for(number, client), key_domains(bound)
    return terms.ScanTerms(
        scan=number,
        table=scan.table,
        columns=tuple(
            terms.Column(text, tuple(roles.get((number, c), ())), domains.get((number, c), -1))
            for c, text in enumerate(texts.columns)
        ),
        filter=texts.filter,
        clients=len(scan.clients),
        query=scan.query,
        merges=bound.merges(number, keys),
        moments=_moments(bound, number),
        stability=scan.stability,
        subject=scan.subject,
    )


def _places(bound: BoundQuery, block: Block) -> list[tuple[int, tuple[int, ...]]]:
    members = zip(bound.branches, block.members, strict=True)
    return list(dict.fromkeys((b.relations[m.relation].scan, m.columns) for b, m in members))


def _holders(bound: BoundQuery, block: Block) -> tuple[str, ...]:
    return tuple(sorted({client for scan, _ in _places(bound, block) for client in bound.scans[scan].clients}))


def _sharing(bound: BoundQuery, block: Block) -> dict[str, Any]:
    parts = sum(len(bound.scans[scan].clients) for scan, _ in _places(bound, block))
    return {"is_shared": parts > 1, "clients": _holders(bound, block)}


def _with_disclosures(contract: terms.Contract, partners: tuple[str, ...] = ()) -> terms.Contract:
    """The contract with its disclosures; `partners`: clients that learn the slope of the loss at its rows."""
    found, training = _disclosures(contract), contract.training
    is_by_slopes = contract.purpose == "train" and training is not None and not training.most_splits
    if partners and is_by_slopes and training is not None and not training.is_pooled:
        labelled = dict.fromkeys(scan.table for scan in contract.scans if scan.numbers("label"))
        found += tuple(terms.Disclosure("labels", "partners", table, 1, partners) for table in labelled)
    return msgspec.structs.replace(contract, disclosures=found)


def _disclosures(contract: terms.Contract) -> tuple[terms.Disclosure, ...]:
    """The disclosures from and to each table, with limits; in batches, once for each joined row."""
    found: list[terms.Disclosure] = []
    purpose, scans, blocks, fits = contract.purpose, contract.scans, contract.blocks, contract.fits
    trainings = () if contract.training is None else (contract.training, *contract.others)
    tables = {scan.scan: scan.table for scan in scans}

    def tell(table: str, *values: What, times: int | None = 1, to: Literal["server", "client"] = "server") -> None:
        found.extend(terms.Disclosure(what, to, table, times) for what in values)

    for scan in scans:
        tell(scan.table, "row count", "key tokens")
        tell(scan.table, "cutoff count", times=sum(moments.column >= 0 for moments in scan.moments))
        tell(scan.table, "cutoffs", times=int(any(moments.column < 0 for moments in scan.moments)), to="client")
        if scan.merges:
            tell(scan.table, "group tokens", "magnitudes", "masked group sums")
            tell(scan.table, "shared groups", "group sums", to="client")
        if scan.merges == "extremes":
            tell(scan.table, "masked group extremes")
            tell(scan.table, "group extremes", to="client")
        if purpose in ("train", "explain", "evaluate"):
            tell(scan.table, "labels", times=int(bool(scan.numbers("label"))))
            tell(scan.table, "weights", times=int(bool(scan.numbers("weight"))))
        if purpose == "predict" and scan.numbers("identifier"):
            tell(scan.table, "identifiers")
        tell(scan.table, "split", times=sum(own.scan == scan.scan for own in contract.sides))
    for block in blocks:
        table = tables[block.scan]
        if purpose in ("predict", "evaluate"):
            copies = [other for other in blocks if other.place == block.place]
            values = sum(other.values for other in copies)
            tell(table, "scores", times=len(copies) * (1 + contract.shuffles * len(block.columns)) + values)
            continue
        if purpose in ("train", "explain"):
            tell(table, "category names" if block.is_masked else "statistics")
            tell(table, "multiplicities", to="client")
        if purpose == "train" and any(training.most_splits for training in trainings):
            most = max(training.most_splits + training.earlier_splits for training in trainings)
            tell(table, "splits", times=fits * most)
        elif purpose == "train" and trainings:
            is_whole = all(training.batch_size is None for training in trainings)
            epochs = max(training.epochs for training in trainings)
            tell(table, "predictions", times=fits * (2 * epochs + 2) if is_whole else None)
            tell(table, "held-out predictions", times=fits * (epochs + 1))
            tell(table, "signals", times=fits * (epochs + 1) if is_whole else None, to="client")
            tell(table, "parameters", times=int(trainings[0].releases))
    return tuple(dict.fromkeys(d for d in found if d.times != 0))


def agree(contracts: Mapping[str, terms.Contract], link: Link, job: str) -> Rounding:
    """Proposes. A refusal is the owner's own sentence; a job that waits names the person. Out: how metrics are rounded
    for the asker, and the rest of its analyst budget."""
    if link.readers:
        contracts = {c: msgspec.structs.replace(own, readers=link.readers) for c, own in contracts.items()}
    signed = link.sign(contracts)
    asked = {c: [ProposeContract(job=job, contract=own, signature=signed.get(c))] for c, own in contracts.items()}
    answers = {client: cast("Agreement", found[0]) for client, found in link.ask(asked).items()}
    waiting = {client: answer for client, answer in answers.items() if not answer.is_agreed}
    if waiting:
        names = {client: printable(a.waits_for, most=200) or client for client, a in waiting.items()}
        whom = "; ".join(f"{names[client]} (contract {a.contract[:16]})" for client, a in waiting.items())
        raise ApprovalError(
            f"the job waits for a person to approve it: {whom}. Nothing was read. They run `tablepuppet approve` with "
            "the contract's name; over a network the job then goes on by itself, in one process run it again"
        )
    link.heads |= {client: answer.head for client, answer in answers.items() if answer.head is not None}
    asking = sorted((answer.least_rows, answer.figures_key) for answer in answers.values())
    keys = b"".join(key for least, key in asking if least > 1)
    own = tuple((client, answer.least_rows) for client, answer in answers.items())
    left = [answer.analyst_left for answer in answers.values() if answer.analyst_left is not None]
    return Rounding(max((least for least, _ in asking), default=1), keys, own, min(left, default=None))
