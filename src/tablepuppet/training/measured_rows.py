"""Which rows a verdict is about: rows that no compared model was trained on, training rows, or all.

In: how each model's rows were split, as the model records it, and a bound query. Out: a mark for every row of the
label's table. A condition (`test_where`) tells the side of any row. A fraction goes by a row's number among the rows
that the model's own query reads of the label's table at each owner, so that it holds for the same table under the same
filter; rows behind those that there were are new. Rows of another label table were never trained on. For the same table
under another filter nobody can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import JobError, ModelError
from tablepuppet.exchanges.labels import SendSides, Sides
from tablepuppet.join.build import RowChoice
from tablepuppet.join.labels import LabelSpace
from tablepuppet.join.mapping import TableMapping
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.split import SplitRecord, SplitRows, split_record
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.contract import SideTerms
from tablepuppet.sql.bound import BoundQuery, LabelPlace
from tablepuppet.transport.link import Link

RowsWanted = Literal["test", "train", "all"]
_ALL = 'rows="all" (--rows all) measures all rows, training rows included'


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """The joined rows that a verdict is about."""

    wanted: str  # test, train or all
    joined: int
    models: int = 1

    def __str__(self) -> str:
        if self.wanted == "all":
            return f"all {self.joined:,} rows, training rows included"
        whom = {
            ("test", 1): "that the model was not trained on",
            ("test", 2): "that neither model was trained on",
            ("train", 1): "that the model was trained on",
            ("train", 2): "that both models were trained on",
        }
        return f"{self.joined:,} rows {whom[self.wanted, self.models]}"

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.joined, "which_rows": self.wanted}


@dataclass(frozen=True, slots=True)
class _Draw:
    """Rows of a label's place whose side follows from their numbers."""

    place: LabelPlace
    seed: int
    fraction: float
    known: SplitRows  # the rows that sides were drawn for


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows that are asked for, and how the rows of each model were split."""

    wanted: RowsWanted
    records: tuple[SplitRecord, ...]
    models: int = 1

    @classmethod
    def of(cls, wanted: Any, models: Sequence[Model]) -> RowSelection:
        if wanted not in ("test", "train", "all"):
            raise JobError(f'rows must be "test" (not trained on), "train" or "all", not {str(wanted)[:64]!r}')
        records = () if wanted == "all" else tuple(_record(model) for model in models)
        return cls(wanted, records, len(models))

    @property
    def condition(self) -> str | None:
        """What all rows that are asked for meet, in SQL over the label's table; None: any."""
        found: dict[str, None] = {}
        for record in self.records:
            if self.wanted == "test" and record.test_where is not None:
                found[f"({record.test_where})"] = None
            elif self.wanted == "train":
                held = [where for where in (record.test_where, record.validation_where) if where is not None]
                found |= dict.fromkeys(f"(NOT COALESCE(({where}), FALSE))" for where in held)
        return " AND ".join(found) or None

    def terms(self, bound: BoundQuery) -> tuple[SideTerms, ...]:
        """What a contract says of the owners' answers."""
        return tuple(SideTerms(draw.place.scan, draw.fraction) for draw in self._draws(bound))

    def choice(self, bound: BoundQuery, link: Link, job: str) -> RowChoice:
        """The marks of the rows that are asked for, once owners have said on which side they are."""

        def marks(labels: LabelSpace, client_rows: Sequence[dict[str, int]]) -> NDArray[np.bool_]:
            chosen = np.ones(len(labels.values), np.bool_) if self.condition is None else labels.is_test.copy()
            for draw, is_test in self._ask(bound, link, job, client_rows):
                start = labels.offsets[draw.place]
                chosen[start : start + len(is_test)] &= is_test if self.wanted == "test" else ~is_test
            return chosen

        return RowChoice(marks, self._nothing_left)

    def count(self, mapping: TableMapping) -> MeasuredRows:
        return MeasuredRows(self.wanted, mapping.train.rows, self.models)

    def _draws(self, bound: BoundQuery) -> list[_Draw]:
        found: list[_Draw] = []
        for record in self.records:
            if self.wanted == "test" and record.test_where is not None:
                continue  # the condition tells
            fraction = 0.0 if record.test_where is not None else record.test_fraction
            if self.wanted == "train" and record.validation_where is None:
                fraction = min(1.0, fraction + record.validation_fraction)
            for number, branch in enumerate(bound.branches):
                known = _known_rows(record, bound, number)
                draw = _Draw(branch.label_place, record.seed, fraction, known)
                if draw not in found and (known.rows or self.wanted == "train"):
                    found.append(draw)
        return found

    def _ask(
        self, bound: BoundQuery, link: Link, job: str, client_rows: Sequence[dict[str, int]]
    ) -> list[tuple[_Draw, NDArray[np.bool_]]]:
        """Of each draw, which rows are test rows of it, or new."""
        draws, requests = self._draws(bound), dict[str, list[Message]]()
        for draw in draws:
            scan, offset, starts = draw.place.scan, draw.known.offset, dict[str, int]()
            known = _rows_by_client(draw.known.rows, client_rows[scan], bound.scans[scan].table)
            for client, rows in known.items():
                starts[client], offset = offset, offset + rows
            for client in bound.scans[scan].clients:
                request = SendSides(
                    job=job,
                    scan=scan,
                    offset=starts.get(client, 0),
                    seed=draw.seed,
                    test_fraction=draw.fraction,
                    validation_fraction=0.0,
                    known_rows=known.get(client, 0),
                )
                requests.setdefault(client, []).append(request)
        answers = {client: iter(given) for client, given in link.ask(requests, "evaluation").items()}
        found = []
        for draw in draws:
            clients = bound.scans[draw.place.scan].clients
            sides = [cast(Sides, next(answers[client])).is_test for client in clients]
            found.append((draw, np.concatenate([np.zeros(0, np.bool_), *sides])))
        return found

    @property
    def _nothing_left(self) -> str:
        if self.wanted == "train":
            return f"the query reads no row that the model was trained on; {_ALL}"
        whom = "the model was not" if self.models == 1 else "neither model was"
        return (
            f"the query has no row that {whom} trained on. Measure on new rows, train with test_fraction or "
            f"test_where, or say so: {_ALL}"
        )


def _record(model: Model) -> SplitRecord:
    if "split" not in model.metadata:
        raise ModelError(
            f"the model does not say which rows it was trained on, for it was saved by an earlier release; {_ALL}"
        )
    return split_record(model)


def _known_rows(record: SplitRecord, bound: BoundQuery, number: int) -> SplitRows:
    """The rows of a branch's label table that the model was split by; none: it is another table."""
    scans = [bound.scans[branch.label_place.scan] for branch in bound.branches]
    read = [(scan.table, scan.filter, scan.query) for scan in scans]
    then = [(own.table, own.filter, own.query) for own in record.branches]
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
