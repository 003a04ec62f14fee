"""On which side of its model's split a predicted row is: for training, validation or the test.

In: what a model's record says of its split, and the rows of a prediction. Out: a text for each joined row. Sides are
drawn by the label's owners, by a hash of the seed and the row's number among the rows that the model's query reads of
that table, or by a condition (owner/labels.py); so they can be drawn again where the query reads the same rows, and a
condition's for any rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import ModelError
from tablepuppet.exchanges.labels import SendSides, Sides
from tablepuppet.job import Job
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.join.new_rows import NewRows
from tablepuppet.prediction.model import Model
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.contract import SideTerms
from tablepuppet.sql.bound import BoundQuery
from tablepuppet.transport.link import Link

_NAMES = ["train", "validation", "test"]
_OTHER_ROWS = "retrain the model, with test_where instead of fractions if it is to tell the side of any row"


class SplitRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a branch of the model's query read of the table with the label: which rows, and how many of each owner."""

    table: str
    filter: str | None
    query: str | None
    offset: int  # the number of the first of them
    rows: dict[str, int]


class SplitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the rows of a model were shared out."""

    seed: int
    test_fraction: float
    validation_fraction: float
    test_where: str | None
    validation_where: str | None
    branches: list[SplitRows]

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
    return cast("dict[str, Any]", msgspec.to_builtins(SplitRecord(job.seed, *shares, rows)))


def split_record(model: Model) -> SplitRecord:
    """What a model's record says of its split."""
    if "split" not in model.metadata:
        raise ModelError(
            "the model does not say how its rows were split, for it was saved by an earlier release; retrain it, or "
            "predict without the column split"
        )
    try:
        return msgspec.convert(model.metadata["split"], SplitRecord)
    except msgspec.ValidationError as error:
        raise ModelError(f"the model's record of its split cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class AskedSides:
    """What is asked of the owners of the predicted rows."""

    record: SplitRecord
    places: tuple[tuple[int, int, int, int], ...]  # of each branch: scan, first row's number, and the two conditions

    @classmethod
    def of(cls, record: SplitRecord, bound: BoundQuery) -> AskedSides:
        """The places of a query's branches, if its rows are those whose sides are known."""
        found = [branch.label_place for branch in bound.branches]
        offsets = [0] * len(found)
        if record.goes_by_number:
            scans = [bound.scans[place.scan] for place in found]
            read = [(scan.table, scan.filter, scan.query) for scan in scans]
            if read != [(own.table, own.filter, own.query) for own in record.branches]:
                raise ModelError(
                    "a row's side of the split follows from its number among the rows that the model's own query reads "
                    "of the label's table, and this query reads others. Predict by the model's query, without keys, or "
                    + _OTHER_ROWS
                )
            offsets = [own.offset for own in record.branches]
        places = zip(found, offsets, strict=True)
        return cls(record, tuple((place.scan, at, place.test, place.validation) for place, at in places))

    @property
    def terms(self) -> tuple[SideTerms, ...]:
        """What a contract says of each request; nothing where every row was for training."""
        shares = (self.record.test_fraction, self.record.validation_fraction)
        return tuple(SideTerms(scan, *shares) for scan, *_ in dict.fromkeys(self.places)) if self._is_split else ()

    @property
    def _is_split(self) -> bool:
        record = self.record
        return record.goes_by_number or record.test_where is not None or record.validation_where is not None

    def sides(self, rows: NewRows, link: Link, job: str) -> pa.Array:
        """train, validation or test, for each joined row."""
        asked = dict.fromkeys(self.places) if self._is_split else {}
        requests: dict[str, list[Message]] = {}
        for place in asked:
            for client, request in self._requests(place, rows, job).items():
                requests.setdefault(client, []).append(request)
        answers = {client: iter(messages) for client, messages in link.ask(requests, "evaluation").items()}
        numbers = {}
        for place in asked:
            clients = rows.bound.scans[place[0]].clients
            numbers[place] = np.concatenate([_numbers(cast("Sides", next(answers[client]))) for client in clients])
        nothing = np.zeros(1, np.int8)
        found = [
            numbers[place][base] if asked else np.zeros(len(base), np.int8)
            for place, base in zip(self.places, rows.base_rows, strict=True)
        ]
        return pa.array(_NAMES).take(pa.array(np.concatenate([nothing, *found])[1:]))

    def _requests(self, place: tuple[int, int, int, int], rows: NewRows, job: str) -> dict[str, SendSides]:
        scan, offset, test, validation = place
        counts = rows.client_rows[scan]
        recorded = [own.rows for own, at in zip(self.record.branches, self.places, strict=False) if at == place]
        if self.record.goes_by_number and list(counts.items()) != list(recorded[0].items()):
            raise ModelError(
                f"table {rows.bound.scans[scan].table} does not have as many rows, at the same owners, as it had in "
                f"training, so that nobody can tell which is which; {_OTHER_ROWS}"
            )
        found = {}
        for client in rows.bound.scans[scan].clients:
            found[client] = SendSides(
                job=job,
                scan=scan,
                offset=offset,
                seed=self.record.seed,
                test_fraction=self.record.test_fraction,
                validation_fraction=self.record.validation_fraction,
                test_column=test if test >= 0 else None,
                validation_column=validation if validation >= 0 else None,
            )
            offset += counts[client]
        return found


def _numbers(answer: Sides) -> NDArray[np.int8]:
    """0 for training, 1 for validation, 2 for the test."""
    found = answer.is_test.astype(np.int8) * np.int8(2)
    return found if answer.is_validation is None else found + answer.is_validation.astype(np.int8)
