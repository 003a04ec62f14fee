"""Which side of a model's split rows are on: of predicted rows, and of the rows that a verdict is about.

In: a model's record of its split, and a bound query. Out: train, validation or test for each predicted row
(`AskedSides`). Or a mark for every row of the label's table that a measurement asks for (`RowSelection`): rows that no
compared model was trained on, training rows, or all.

The label's owners draw sides by a hash or by a condition (owner/labels.py). The hash is of the seed and the row's
number among the rows that the model's query reads of that table. A condition (`test_where`) gives the side of any row.
A fraction holds for the same table under the same filter; rows after the original ones are new. Rows of another label
table were never trained on. For the same table under another filter the side is unknown.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.contract import ModelUse
from tablepuppet.errors import JobError, ModelError
from tablepuppet.exchanges.labels import SendSides, Sides
from tablepuppet.formatting import format_count
from tablepuppet.job import Job
from tablepuppet.join.build import RowChoice
from tablepuppet.join.labels import LabelSpace
from tablepuppet.join.mapping import MappingSummary, TableMapping
from tablepuppet.join.new_rows import NewRows
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.saved import block_fingerprints
from tablepuppet.protocol.contract import SideTerms
from tablepuppet.sql.bound import BoundQuery, LabelPlace
from tablepuppet.transport.link import Link

_NAMES = ["train", "validation", "test"]
_OTHER_ROWS = "retrain the model, with test_where instead of fractions if it is to tell the side of any row"


class SplitRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows that a branch of the model's query read of the label's table: which ones, and how many of each owner."""

    table: str
    filter: str | None
    query: str | None
    offset: int  # the number of the first of them
    rows: dict[str, int]

    @property
    def source(self) -> tuple[str, str | None, str | None]:
        return self.table, self.filter, self.query


class SplitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the rows of a model were shared out."""

    seed: int
    test_fraction: float
    validation_fraction: float
    test_where: str | None
    validation_where: str | None
    branches: list[SplitRows]
    is_keyed: bool = False  # by the clients' key; earlier releases drew by the seed alone

    @property
    def goes_by_number(self) -> bool:
        """Whether a side follows from where a row stands, and not from a condition alone."""
        is_drawn = self.test_where is None and self.test_fraction > 0
        return is_drawn or (self.validation_where is None and self.validation_fraction > 0)


def split_of(job: Job, mapping: MappingSummary) -> dict[str, Any]:
    """The record of a finished run, as a model's metadata hold it."""
    bound = mapping.bound
    scans = [bound.scans[branch.label_place.scan] for branch in bound.branches]
    rows = [
        SplitRows(scan.table, scan.filter, scan.query, own.offset, own.rows)
        for scan, own in zip(scans, mapping.label_rows, strict=True)
    ]
    shares = (job.split.test_fraction, job.split.validation_fraction, job.split.test_where, job.split.validation_where)
    return cast("dict[str, Any]", msgspec.to_builtins(SplitRecord(job.seed, *shares, rows, is_keyed=True)))


def split_record(model: Model, way_out: str = "retrain it, or predict without the column split") -> SplitRecord:
    if "split" not in model.metadata:
        raise ModelError(
            f"the model does not say which rows it was trained on, for it was saved by an earlier release; {way_out}"
        )
    try:
        return msgspec.convert(model.metadata["split"], SplitRecord)
    except msgspec.ValidationError as error:
        raise ModelError(f"the model's record of its split cannot be read: {error}") from None


class AskedSides(msgspec.Struct, frozen=True):
    """The request for sides to the owners of the predicted rows."""

    record: SplitRecord
    places: tuple[tuple[SideTerms, int, int, int], ...]  # of each branch: its first row's number, two conditions

    @classmethod
    def of(cls, record: SplitRecord, bound: BoundQuery) -> "AskedSides":
        """The places of a query's branches, if its rows are those whose sides are known."""
        found = [branch.label_place for branch in bound.branches]
        offsets = [0] * len(found)
        if record.goes_by_number:
            if _label_sources(bound) != [own.source for own in record.branches]:
                raise ModelError(
                    "a row's side of the split follows from its number among the rows that the model's own query reads "
                    "of the label's table, and this query reads others. Predict by the model's query, without keys, or "
                    + _OTHER_ROWS
                )
            offsets = [own.offset for own in record.branches]
        drawn = (record.test_fraction, record.validation_fraction, record.seed, record.is_keyed)
        places = zip(found, offsets, strict=True)
        return cls(record, tuple((SideTerms(p.scan, *drawn), at, p.test, p.validation) for p, at in places))

    @property
    def terms(self) -> tuple[SideTerms, ...]:
        """A contract's terms for each request; nothing where every row was for training."""
        return tuple(terms for terms, *_ in dict.fromkeys(self.places)) if self._is_split else ()

    @property
    def _is_split(self) -> bool:
        record = self.record
        return record.goes_by_number or record.test_where is not None or record.validation_where is not None

    def sides(self, rows: NewRows, link: Link, job: str) -> pa.Array:
        """train, validation or test, for each joined row."""
        asked = dict.fromkeys(self.places) if self._is_split else {}
        answers = link.ask_groups([self._requests(place, rows, job) for place in asked], "evaluation")
        numbers = {
            place: np.concatenate([_numbers(answer) for answer in given.values()])
            for place, given in zip(asked, answers, strict=True)
        }
        found = [
            numbers[place][base] if asked else np.zeros(len(base), np.int8)
            for place, base in zip(self.places, rows.base_rows, strict=True)
        ]
        return pa.array(_NAMES).take(pa.array(np.concatenate(found)))

    def _requests(self, place: tuple[SideTerms, int, int, int], rows: NewRows, job: str) -> dict[str, SendSides]:
        terms, offset, *conditions = place
        counts = rows.client_rows[terms.scan]
        recorded = [own.rows for own, at in zip(self.record.branches, self.places, strict=False) if at == place]
        if self.record.goes_by_number and list(counts.items()) != list(recorded[0].items()):
            raise ModelError(
                f"table {rows.bound.scans[terms.scan].table} does not have as many rows, at the same owners, as it had "
                f"in training, so that nobody can tell which is which; {_OTHER_ROWS}"
            )
        test, validation = (column if column >= 0 else None for column in conditions)
        return {
            client: _request(terms, job, start, test_column=test, validation_column=validation)
            for client, start in _starts(counts, offset).items()
        }


def _request(terms: SideTerms, job: str, offset: int, **others: Any) -> SendSides:
    return SendSides(job=job, scan=terms.scan, terms=terms, offset=offset, **others)


def _starts(rows: Mapping[str, int], first: int) -> dict[str, int]:
    """The number of each client's first row, where the first of all is `first`."""
    ends = itertools.accumulate(rows.values(), initial=first)
    return dict(zip(rows, ends, strict=False))


def _label_sources(bound: BoundQuery) -> list[tuple[str, str | None, str | None]]:
    scans = [bound.scans[branch.label_place.scan] for branch in bound.branches]
    return [(scan.table, scan.filter, scan.query) for scan in scans]


def _numbers(answer: Sides) -> NDArray[np.int8]:
    """0 for training, 1 for validation, 2 for the test."""
    found = answer.is_test.astype(np.int8) * np.int8(2)
    return found if answer.is_validation is None else found + answer.is_validation.astype(np.int8)


RowsWanted = Literal["test", "train", "all"]
_ALL = 'rows="all" (--rows all) measures all rows, training rows included'


class MeasuredRows(msgspec.Struct, frozen=True):
    """The joined rows that a verdict is about."""

    wanted: str  # test, train or all
    joined: int
    models: int = 1
    whole: int | None = None  # from which these were drawn; None: they are all

    def __str__(self) -> str:
        rows = f"{self.joined:,}" if self.whole is None else f"{self.joined:,} drawn rows of {format_count(self.whole)}"
        if self.wanted == "all":
            return f"all {rows} rows, training rows included"
        whom = {
            ("test", 1): "that the model was not trained on",
            ("test", 2): "that neither model was trained on",
            ("train", 1): "that the model was trained on",
            ("train", 2): "that both models were trained on",
        }
        return f"{rows} rows {whom[self.wanted, self.models]}"

    def to_dict(self) -> dict[str, Any]:
        drawn = {} if self.whole is None else {"drawn_from": self.whole}
        return {"rows": self.joined, "which_rows": self.wanted, **drawn}


class _Draw(msgspec.Struct, frozen=True):
    """Rows of a label's place whose side follows from their numbers, or by the condition if no label is read."""

    place: LabelPlace
    terms: SideTerms
    known: SplitRows | None  # the rows that sides were drawn for; None: the condition decides


class RowSelection(msgspec.Struct, frozen=True):
    """The rows that models are measured on, how the rows of each model were split, and what becomes of features."""

    wanted: RowsWanted
    records: tuple[SplitRecord, ...]
    models: tuple[Model, ...]
    shuffles: int = 0  # of every feature, at its owner
    fixed: tuple[str, int, int] | None = None  # a block, the place of a feature in it, and how many values it is set to

    @classmethod
    def of(cls, wanted: Any, *models: Model, **features: Any) -> "RowSelection":
        if wanted not in ("test", "train", "all"):
            raise JobError(f'rows must be "test" (not trained on), "train" or "all", not {str(wanted)[:64]!r}')
        records = () if wanted == "all" else tuple(split_record(model, _ALL) for model in models)
        return cls(wanted, records, models, **features)

    @property
    def condition(self) -> str | None:
        """The condition on all requested rows, in SQL over the label's table; None: any."""
        found: dict[str, None] = {}
        for record in self.records:
            if self.wanted == "test" and record.test_where is not None:
                found[f"({record.test_where})"] = None
            elif self.wanted == "train":
                held = [where for where in (record.test_where, record.validation_where) if where is not None]
                found |= dict.fromkeys(f"(NOT COALESCE(({where}), FALSE))" for where in held)
        return " AND ".join(found) or None

    def use(self, bound: BoundQuery) -> ModelUse:
        """A contract's terms for the owners' answers."""
        sides = tuple(draw.terms for draw in self._draws(bound))
        return ModelUse(tuple(map(block_fingerprints, self.models)), sides, self.shuffles, self.fixed)

    def choice(self, bound: BoundQuery, link: Link, job: str) -> RowChoice:
        """The marks of the requested rows, once owners have given their sides."""

        def marks(labels: LabelSpace, client_rows: Sequence[dict[str, int]]) -> NDArray[np.bool_]:
            is_known = self.condition is not None and not _is_unlabelled(bound)
            chosen = labels.is_test.copy() if is_known else np.ones(len(labels.values), np.bool_)
            for draw, is_test in self._ask(bound, link, job, client_rows):
                start = labels.offsets[draw.place]
                is_wanted = is_test if self.wanted == "test" or draw.known is None else ~is_test
                chosen[start : start + len(is_test)] &= is_wanted
            return chosen

        return RowChoice(marks, self._nothing_left)

    def count(self, mapping: TableMapping) -> MeasuredRows:
        whole = None if mapping.whole is None else mapping.whole.train
        return MeasuredRows(self.wanted, mapping.train.rows, len(self.models), whole)

    def _draws(self, bound: BoundQuery) -> list[_Draw]:
        found: list[_Draw] = []
        for record in self.records:
            if self.wanted == "test" and record.test_where is not None:
                continue  # the condition decides
            fraction = 0.0 if record.test_where is not None else record.test_fraction
            if self.wanted == "train" and record.validation_where is None:
                fraction = min(1.0, fraction + record.validation_fraction)
            for number, branch in enumerate(bound.branches):
                known = _known_rows(record, bound, number)
                terms = SideTerms(branch.label_place.scan, fraction, 0.0, record.seed, record.is_keyed)
                draw = _Draw(branch.label_place, terms, known)
                if draw not in found and (known.rows or self.wanted == "train"):
                    found.append(draw)
        if self.condition is not None and _is_unlabelled(bound):
            seed, is_keyed = self.records[0].seed, self.records[0].is_keyed
            for place in dict.fromkeys(branch.label_place for branch in bound.branches):
                found.append(_Draw(place, SideTerms(place.scan, 0.0, 0.0, seed, is_keyed), None))
        return found

    def _ask(
        self, bound: BoundQuery, link: Link, job: str, client_rows: Sequence[dict[str, int]]
    ) -> list[tuple[_Draw, NDArray[np.bool_]]]:
        """The rows of each draw that are its test rows, or new."""
        draws, requests = self._draws(bound), []
        for draw in draws:
            scan, known = draw.place.scan, client_rows[draw.place.scan]
            if draw.known is None:
                own = _request(draw.terms, job, 0, test_column=draw.place.test)
                requests.append(dict.fromkeys(bound.scans[scan].clients, own))
                continue
            if not bound.scans[scan].budgeted:  # of a table with an analyst budget nobody compares numbers of rows
                known = _rows_by_client(draw.known.rows, known, bound.scans[scan].table)
            starts = _starts(known, draw.known.offset)
            requests.append(
                {
                    client: _request(draw.terms, job, starts.get(client, 0), known_rows=known.get(client, 0))
                    for client in bound.scans[scan].clients
                }
            )
        sides = [[answer.is_test for answer in given.values()] for given in link.ask_groups(requests, "evaluation")]
        nothing = np.zeros(0, np.bool_)
        return [(draw, np.concatenate([nothing, *own])) for draw, own in zip(draws, sides, strict=True)]

    @property
    def _nothing_left(self) -> str:
        if self.wanted == "train":
            return f"the query reads no row that the model was trained on; {_ALL}"
        whom = "the model was not" if len(self.models) == 1 else "neither model was"
        return (
            f"the query has no row that {whom} trained on. Measure on new rows, train with test_fraction or "
            f"test_where, or say so: {_ALL}"
        )


def _is_unlabelled(bound: BoundQuery) -> bool:
    return bound.branches[0].label_place.label < 0


def _known_rows(record: SplitRecord, bound: BoundQuery, number: int) -> SplitRows:
    """The rows of a branch's label table that the model was split by; none: it is another table."""
    read, then = _label_sources(bound), [own.source for own in record.branches]
    if read == then:
        return record.branches[number]
    same = [own for own, key in zip(record.branches, then, strict=True) if key == read[number]]
    if same and all(own.offset == same[0].offset for own in same):
        return same[0]
    if not any(own.table == read[number][0] for own in record.branches):
        return SplitRows(*read[number], 0, {})
    raise ModelError(
        f"the query reads other rows of {read[number][0]} than the model's own query does, and nobody can tell which "
        f"of them the model was trained on: its split goes by a row's number there. Use the model's query, train with "
        f"test_where, which tells the side of any row, or, if you know that the rows are new, {_ALL}"
    )


def _rows_by_client(then: dict[str, int], now: dict[str, int], table: str) -> dict[str, int]:
    """How many rows of each client there were; owners that have other names are known by the rows that they hold."""
    if not set(then) <= set(now) and list(then.values()) == list(now.values()):
        return dict(zip(now, then.values(), strict=True))
    if any(now.get(client, -1) < rows for client, rows in then.items()):
        raise ModelError(
            f"table {table} has fewer rows than in training, or other owners, so that nobody can tell which of them a "
            f"model was trained on. If none was, {_ALL}; else train with test_where"
        )
    return then
