"""DatabaseSource: a table in the owner's database, asked in its own dialect and read as a stream of Arrow.

In: a driver that describes one table and streams the answer to a SELECT. Out: a Source.

Types come from an empty DuckDB table with the same columns, the *twin*, so that an expression has the same type
wherever its table lies, and nothing is read to learn it. A scan is divided by pushdown.py; the answer passes through a
private DuckDB batch by batch, so that only the result is ever held in full.

Row order: a scan is read once a job and kept (store.py), so row numbers cannot change during a job. Drivers ask for
plans that do not reorder, so that two reads of an unchanged table agree too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from msgspec.structs import replace

from tablepuppet.errors import SourceError
from tablepuppet.protocol import ColumnInfo
from tablepuppet.tables import duck
from tablepuppet.tables.memory import check_names
from tablepuppet.tables.pushdown import Dialect, OwnerColumn, PushDown, push_down


class Driver(Protocol):
    """One table of one database. Its errors are SourceErrors without a secret or a row's value in them."""

    dialect: Dialect
    relation: str  # the table's name, quoted

    def columns(self) -> list[OwnerColumn]:
        """The table's columns, as they are now."""
        ...

    def stream(self, scan: PushDown) -> Iterator[pa.RecordBatch]:
        """The answer to a scan's SELECT: at least one batch, even if it has no rows."""
        ...

    def stamp(self) -> str | None:
        """A text that is another one whenever the table may have changed; None: there is no telling."""
        ...

    def close(self) -> None: ...


class DatabaseSource:
    """A table behind a driver."""

    def __init__(self, name: str, driver: Driver) -> None:
        self._name = name
        self._driver = driver
        self._columns: list[OwnerColumn] = []
        self._twin: duck.DuckSource | None = None
        try:
            self.describe()
        except SourceError:
            self.close()
            raise

    def describe(self) -> list[ColumnInfo]:
        """The columns as they are now: what a job begins with."""
        now = self._driver.columns()
        if self._twin is None or now != self._columns:
            check_names([column.name for column in now], self._name)
            twin = duck.from_types(self._name, [(column.name, column.type) for column in now])
            if self._twin is not None:
                self._twin.close()
            self._twin, self._columns = twin, now
        described = zip(self._twin.describe(), now, strict=True)
        return [info if column.nullable else replace(info, nullable=False) for info, column in described]

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        assert self._twin is not None
        return self._twin.describe_scan(expressions, filter)

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        assert self._twin is not None
        types = self._twin.types(expressions, filter)  # a wrong name or type is found here, as in every source
        scan = push_down(self._driver.relation, expressions, filter, self._columns, self._driver.dialect)
        self._check_unchanged(scan.used)
        columns = [f"CAST({c} AS {t})" for c, t in zip(scan.columns, types, strict=True)]
        return duck.project(self._name, self._driver.stream(scan), scan.inner, columns, scan.filter)

    def stamp(self) -> str | None:
        return self._driver.stamp()

    def close(self) -> None:
        if self._twin is not None:
            self._twin.close()
        self._driver.close()

    def _check_unchanged(self, used: Sequence[OwnerColumn]) -> None:
        """The columns that a scan reads are still what the job's query was checked against."""
        now = {column.name: column.type for column in self._driver.columns()}
        changed = [
            f"{c.name} was {c.type} and is {now[c.name]}" if c.name in now else f"{c.name} is gone"
            for c in used
            if now.get(c.name) != c.type
        ]
        if changed:
            raise SourceError(
                f"table {self._name} has changed since the job began: {'; '.join(changed)}; run the job again"
            )
