"""The contract: the terms that one owner agrees to before anything of its tables is read.

It is data: the owner's scans with the role of every expression, the algorithm with its options, every disclosure with
its receiver and its limit, and the noise. Its hash names it in logs and approvals. The client that agreed to it
answers within it, and nothing else (owner/enforcement.py).
"""

import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Literal

import msgspec
import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.analyst import AnalystTerms
from tablepuppet.privacy.options import FeaturePrivacy, KeyMode, LabelPrivacy, PredictionPrivacy
from tablepuppet.protocol.columns import Encoder, Merges

Purpose = Literal["train", "explain", "profile", "predict", "evaluate"]
Role = Literal["key", "feature", "label", "weight", "split", "identifier", "cutoff"]
FoldBy = Literal["row", "group", "time"]


class Folds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the label's rows are shared out for cross-validation."""

    count: int
    by: FoldBy = "row"
    column: str | None = None  # of undivided groups, or of a time: over the label's table


# Joined rows in a batch by default: N/40, at least 16 and at most 10,240. The ten epochs that are the
# default are then some 400 steps on any table up to 400,000 rows, and N/1,024 on larger ones, where every batch costs
# a round trip.
_BATCHES, _SMALLEST_BATCH, _LARGEST_BATCH = 40, 16, 10_240


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expression: str
    roles: tuple[Role, ...]
    domain: int = -1  # of a key: it is compared with keys of the same domain, at every owner; −1: it is none


class Moments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The distinct values of an expression, which one owner discloses to another as cutoffs of its history."""

    table: str  # whose moments they are
    expression: str
    history: str  # the table that is read until them
    clients: tuple[str, ...]  # of the history
    column: int = -1  # the expression, at its owner; −1: these are the terms of the history's owner
    keys: tuple[int, ...] = ()  # columns of the owner's own scan: each moment goes with the keys that it is about


class ScanTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expressions that are read of one table under one filter."""

    scan: int
    table: str
    columns: tuple[Column, ...]
    filter: str | None
    clients: int = 1  # how many owners the table has
    query: str | None = None  # whose rows are read instead of a table's
    merges: Merges = ""  # its groups are merged with those of the table's other owners
    moments: tuple[Moments, ...] = ()  # of a history: its cutoffs; of their own table: who learns them
    stability: dict[str, int | None] = {}  # of a query: how many of its rows one row of each table changes; None: any
    subject: str = ""  # the column of a row's subject, where the owner names one: stability is then of their rows

    def numbers(self, role: Role) -> tuple[int, ...]:
        return tuple(n for n, column in enumerate(self.columns) if role in column.roles)


class BlockTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Features of one scan that enter one block of the model."""

    name: str
    scan: int
    columns: tuple[int, ...]
    is_masked: bool = False  # whether sums leave under masks only
    model: str = ""  # fingerprint of the model to apply, or of the trees to extend; "": the one that the owner holds
    start: tuple[dict[str, list[float]], ...] = ()  # train: weights of each feature's units to begin with; none: zero
    ids: tuple[int, ...] = ()  # features, by their place in `columns`, whose texts are ids and stay with the owner
    finds_ids: bool = False  # the owner takes further texts for ids, by its own rule
    fixed: int = -1  # evaluate: a feature, by its place, that is set to some values, and all rows scored for each
    values: int = 0  # how many
    is_shared: bool = False  # whether the block has rows of other clients or scans too
    bounds: tuple[tuple[float, float] | None, ...] = ()  # public, of each feature of a private job; None: none given
    clients: tuple[str, ...] = ()  # all that hold rows of the block: where sums are masked, over these and no fewer

    @property
    def place(self) -> tuple[int, tuple[int, ...]]:
        """Its scan and columns; two blocks of a self-join may have the same."""
        return self.scan, self.columns


class Disclosure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that leaves, or that the owner receives, at most so many times (None: once for each joined row)."""

    what: str
    to: Literal["server", "client", "partners"]
    table: str
    times: int | None
    partners: tuple[str, ...] = ()  # other clients, who learn it through the server's messages


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is trained."""

    algorithm: dict[str, Any]  # its options, its name among them as "type"
    model: ModelSpec
    epochs: int
    batch_size: int | Literal["auto"] | None
    l2: float | dict[str, float]  # for all tables, or by table or alias
    has_weights: bool  # joined rows count differently: the owner receives sums of weights of its rows
    releases: bool  # whether trained parameters leave
    is_expanded: bool = False  # a baseline over joined rows
    is_pooled: bool = False  # a baseline over pooled features
    sends_second_moments: bool = False  # of each owner, where a table has several
    most_rows: int | None = None  # joined rows, by which an epoch has its batches
    earlier_splits: int = 0  # of each table: of boosted trees that more are added to
    l2_by_rows: float = 0.0  # a further l2, divided by the joined rows
    l1: float = 0.0
    signs: dict[str, int] = {}  # of features: parameters that may not be negative (1) or positive (−1)
    loss: str = ""  # "auto": by the kind of label
    loss_options: dict[str, float] = {}  # which quantile
    negatives: int = 0  # further pairs of rows that the server draws for each joined row

    @property
    def name(self) -> str:
        return str(self.algorithm["type"])

    @property
    def most_splits(self) -> int:
        """Distinct splits of a table that boosted trees may use; 0: they are no trees."""
        options = self.algorithm
        if "trees" not in options:
            return 0
        whole = 2 ** options["depth"]
        most = 4 * min(whole, 2 * (options.get("leaves") or whole))
        most = 2 * (whole - 1) if options.get("splits") == "random" else most
        return int(options.get("max_splits") or options["trees"] * most)

    def batch(self, rows: int) -> int | None:
        """How many of so many joined rows are a batch; None: all of them."""
        return automatic_batch(rows) if self.batch_size == "auto" else self.batch_size


class SideTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scan whose rows disclose their side of a split, and the fractions of its sides."""

    scan: int
    test_fraction: float
    validation_fraction: float = 0.0
    seed: int = 0
    is_keyed: bool = True  # False: drawn by an earlier release, by a function that everybody knows


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One owner's share of one job."""

    purpose: Purpose
    asker: str
    label: str  # as the query names it
    readers: tuple[str, ...] = ()  # train: further users who see the result and may apply the model
    scans: tuple[ScanTerms, ...]
    blocks: tuple[BlockTerms, ...]
    training: Training | None = None
    keys: KeyMode = "hmac"
    most_keys: int = 0  # keys of other owners that this one blinds, at most
    wants_classes: bool = True  # whether the distinct values of the label leave, where it is a number
    label_privacy: LabelPrivacy | None = None
    feature_privacy: FeaturePrivacy | None = None
    prediction_privacy: PredictionPrivacy = PredictionPrivacy()
    analyst: AnalystTerms | None = None  # the asker's payment for a table with an analyst budget
    allow_reconstruction: bool = False  # whether exact predictions of a private job may reveal its features
    split: tuple[float, float] = (0.0, 0.0)  # fractions of test and validation rows
    seed: int = 0  # that they are drawn by, with the clients' key
    # Nobody else has rows with labels: they are numbered from 0, groups dealt out evenly
    holds_all_labels: bool = False
    others: tuple[Training, ...] = ()  # further settings that a search tries
    fits: int = 1  # how many models are trained: a setting on all folds but one, each
    folds: Folds | None = None  # of cross-validation
    shuffles: int = 0  # evaluate: how often every feature is shuffled at its owner, and its rows scored again
    sides: tuple[SideTerms, ...] = ()  # predict, evaluate: scans that disclose their rows' sides
    disclosures: tuple[Disclosure, ...] = ()
    days: int = 30  # how long an approval of it lasts at most
    version: int = 1

    @property
    def is_noisy(self) -> bool:
        """Whether disclosures of features carry noise."""
        return self.feature_privacy is not None or self.prediction_privacy.mode == "local"

    @property
    def hash(self) -> str:
        """Its name: SHA-256 of its canonical form."""
        return hashlib.sha256(canonical(self)).hexdigest()

    def lines(self) -> list[str]:
        """It in words, for the person who decides."""
        return list(_lines(self))

    def _repr_html_(self) -> str:
        rows = "".join(f"<li>{escape(line.strip())}</li>" for line in self.lines())
        return f"<details open><summary>Contract {self.hash[:16]}</summary><ul>{rows}</ul></details>"

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(scan.table for scan in self.scans))

    def scan(self, number: int) -> ScanTerms:
        return next(scan for scan in self.scans if scan.scan == number)


def automatic_batch(rows: int) -> int:
    """
    >>> automatic_batch(500), automatic_batch(20_000), automatic_batch(10**7)
    (16, 500, 10240)
    """
    return min(max(-(-rows // _BATCHES), _SMALLEST_BATCH), _LARGEST_BATCH)


def canonical(value: Any) -> bytes:
    """The one way to write it down: JSON with sorted names and no spaces."""
    return msgspec.json.encode(value, order="sorted")


def fingerprint(encoders: Sequence[Encoder], theta: Array, spec: ModelSpec, outputs: int) -> str:
    """One block of a model in thirty-two digits: parameters, encoders and their meaning."""

    def write_array(value: Any) -> Any:
        return [value.shape, value.astype(np.int64 if value.dtype.kind == "i" else np.float64).tobytes().hex()]

    digest = hashlib.sha256(msgspec.json.encode([encoders, spec, outputs], enc_hook=write_array))
    digest.update(np.ascontiguousarray(theta, np.float64).tobytes())
    return digest.hexdigest()[:32]


_ROLES = {
    "key": "join key",
    "feature": "feature",
    "label": "label",
    "weight": "weight",
    "split": "which rows are test or validation rows",
    "identifier": "shown beside predictions",
    "cutoff": "cutoffs of a history at another owner",
}


def _lines(contract: Contract) -> Iterator[str]:
    """The asker and its request, the disclosures with their limits, and the noise."""
    yield f"{contract.asker} asks to {contract.purpose}; label {contract.label}"
    if contract.readers:
        yield f"the result is shared with {', '.join(contract.readers)}, who may apply the model too"
    for scan in contract.scans:
        yield from _scan_lines(scan)
    training = contract.training
    if training is not None:
        name, kind = training.name, training.model.kind
        kept = "leave" if training.releases else "stay here"
        loss = " ".join([training.loss, *(f"{value:g}" for value in training.loss_options.values())])
        yield f"{name}, {kind} model, at most {training.epochs} epochs; trained parameters {kept}"
        if loss:
            yield f"what is minimised: {loss}"
        if training.negatives:
            pairs = "a pair" if training.negatives == 1 else f"{training.negatives} pairs"
            yield f"the server draws {pairs} of rows that did not meet for each joined row: rows take part in these too"
        for block in contract.blocks:
            if block.start:
                count = sum(map(len, block.start))
                yield f"training of {block.name} begins with {count} weights of the asker's, and what they predict"
            if block.model:
                yield f"training of {block.name} begins with splits of the asker's, and what rows answer to them"
    for block in contract.blocks if training is not None else ():
        columns = contract.scan(block.scan).columns
        named = ", ".join(columns[block.columns[i]].expression for i in block.ids)
        found = "texts that name nearly every row, or more than 10,000 of them" if block.finds_ids else ""
        if named or found:
            yield f"ids that stay here, or leave as tokens where the table has several owners: {named or found}"
    for block in contract.blocks:
        if block.values:
            name = contract.scan(block.scan).columns[block.columns[block.fixed]].expression
            yield f"{name} is set to {block.values} values in all rows, which are scored for each"
    noise = {
        "labels": contract.label_privacy,
        "features": contract.feature_privacy,
        "predictions": contract.prediction_privacy if contract.prediction_privacy.mode == "local" else None,
    }
    for what, given in noise.items():
        yield f"{what}: no noise" if given is None else f"{what}: under noise, {given}"
    if contract.analyst is not None:
        yield from contract.analyst.lines()
    if contract.keys == "dh":
        yield f"at most {contract.most_keys:,} join keys of other owners are blinded with this owner's secret"
    for item in contract.disclosures:
        if item.partners:
            noisy = "noisy " if contract.label_privacy is not None else ""
            yield (
                f"{noisy}{item.what} of {item.table} to {', '.join(item.partners)}: the first derivatives of the loss "
                f"reveal the {noisy}label of each of their rows that is joined once, and sums of labels of the others"
            )
            continue
        how = (
            "once for each joined row of a row, in every epoch" if item.times is None else f"at most {item.times} times"
        )
        yield f"{item.what} of {item.table} to the {item.to if item.to == 'server' else 'owner'}: {how}"
    yield f"an approval lasts at most {contract.days} days"


def _scan_lines(scan: ScanTerms) -> Iterator[str]:
    where = "all rows" if scan.filter is None else f"rows where {scan.filter}"
    if scan.merges:
        sums = "counts, sums, least and greatest values" if scan.merges == "extremes" else "counts and sums"
        learns = "them" if scan.clients == 2 else "their sums over the others"
        each = ", and each one's least and greatest" if scan.merges == "extremes" and scan.clients > 2 else ""
        yield (
            f"groups that other owners of {scan.table} have too are merged: {sums} of each leave under masks, for the "
            f"first of the table's {scan.clients} owners that has it, which learns {learns}{each}"
        )
    yield f"table {scan.table}, {where}:" if scan.query is None else f"table {scan.table}, {where} of {scan.query}:"
    for table, rows in scan.stability.items():
        if scan.subject:
            yield f"  under noise on features, at most {rows:,} of them are about one {scan.subject}; no other trains"
            continue
        changed = "any number of them" if rows is None else f"at most {rows:,} of them, before and after counted"
        yield f"  one row of {table} changes {changed}"
    for moments in scan.moments:
        values = f"the distinct values of {moments.expression}"
        if moments.keys:
            keys = " and ".join(scan.columns[key].expression for key in moments.keys)
            values = f"{values}, each with the keys ({keys}) that it is about,"
        yield (
            f"{values} are told to {', '.join(moments.clients)}, the owner of {moments.history}"
            if moments.column >= 0
            else f"{moments.history} is read until {values} of {moments.table}"
        )
    for column in scan.columns:
        roles = [f"{_ROLES[role]} {column.domain}" if role == "key" else _ROLES[role] for role in column.roles]
        yield f"  {column.expression}: {', '.join(roles) or 'no use'}"
