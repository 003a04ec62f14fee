"""ClientTables: all that one client holds, and the scans that jobs have opened on it.

In: the client's sources by table name, then requests of the server. Out: schemas, and each
scan's rows as Arrow, read once a job. Every expression passes the guard before it runs.
"""

import hmac
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tablepuppet.errors import SourceError, TransportError
from tablepuppet.owner.query_guard import DerivedSource, check_query
from tablepuppet.owner.scans import Scan
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.columns import absent_value
from tablepuppet.sources.duckdb_source import absent_row, quote_name
from tablepuppet.sources.guard import check_expression
from tablepuppet.sources.infallible import InfallibleSource
from tablepuppet.sources.source import Source

if TYPE_CHECKING:
    from tablepuppet.exchanges.schema import OpenScan


class ClientTables:
    """One client's tables. Calls may come from any thread; they are served one at a time."""

    def __init__(self, tables: Mapping[str, Source]) -> None:
        self._sources = dict(tables)
        self._scans: dict[tuple[str, int], Scan] = {}
        self._secret = secrets.token_bytes(32)
        self._lock = threading.RLock()

    @property
    def names(self) -> list[str]:
        return sorted(self._sources)

    def protect(self, hides_values_of: Callable[[str], bool]) -> None:
        """Makes expressions over these tables never fail for single rows, from now on (sources/infallible.py)."""
        self._sources = {t: InfallibleSource(s) if hides_values_of(t) else s for t, s in self._sources.items()}

    def describe(self, table: str, query: str | None = None, cutoffs: str = "") -> tuple[list[ColumnInfo], bytes]:
        """The columns of a table, or of a query over this client's tables, and a stamp that is another one whenever the
        table may have changed."""
        with self._lock:
            source = self._source(table, query, cutoffs)
            columns = source.describe()
            stamp = source.stamp()
            # A hash for comparison: paths, times and transactions are the owner's business.
            shown = b"" if stamp is None else hmac.digest(self._secret, f"{table} {stamp}".encode(), "sha256")[:16]
            return columns, shown

    def open_scan(self, request: "OpenScan") -> list[ColumnInfo]:
        """Checks a scan's expressions and finds their types; reads nothing."""
        with self._lock:
            source = self._source(request.table, request.query, request.cutoffs)
            names = [column.name for column in source.describe()]
            expressions = tuple(check_expression(expression, names) for expression in request.columns)
            filter = None if request.filter is None else check_expression(request.filter, names, "filter")
            described = source.describe_scan(expressions, filter)
            columns = [replace(c, name=text) for c, text in zip(described, request.columns, strict=True)]
            if request.is_outer:
                columns = _with_absent(request.table, source.describe(), expressions, columns)
            if request.missing_is_null:
                columns = [c if c.absent is not None else replace(c, absent=True) for c in columns]
            given = (source, self._sources, request.table, expressions, filter, columns, self._lock)
            self._scans[request.job, request.scan] = Scan(*given)
            return columns

    def scan(self, job: str, number: int) -> Scan:
        with self._lock:
            if (job, number) not in self._scans:
                raise TransportError(f"job {job} has no open scan {number} at this client; it must be opened first")
            return self._scans[job, number]

    def fingerprints(self, job: str) -> dict[int, int]:
        """For each scan that a job has read, a checksum that changes with any value or the order of its rows."""
        with self._lock:
            own = {number: scan for (of, number), scan in self._scans.items() if of == job and scan.was_read}
            return {number: own[number].fingerprint() for number in sorted(own)}

    def find_changed(self, job: str, fingerprints: Mapping[int, int]) -> list[str]:
        """The tables whose fingerprints have changed; scans whose rows were freed are read again."""
        with self._lock:
            known = [(self._scans[job, s], before) for s, before in fingerprints.items() if (job, s) in self._scans]
            return sorted({scan.table for scan, before in known if scan.fingerprint() != before})

    def close(self, job: str) -> None:
        with self._lock:
            self._scans = {key: scan for key, scan in self._scans.items() if key[0] != job}

    def shutdown(self) -> None:
        """Forgets all jobs and closes the sources."""
        with self._lock:
            self._scans.clear()
            for source in self._sources.values():
                source.close()

    def _source(self, table: str, query: str | None = None, cutoffs: str = "") -> Source:
        if table not in self._sources:
            has = ", ".join(self.names) or "no table"
            raise SourceError(f"there is no table {table!r} at this client; it has {has}")
        if query is None:
            return self._sources[table]
        named = {name: [column.name for column in source.describe()] for name, source in self._sources.items()}
        checked = check_query(query, named, has_cutoffs=bool(cutoffs))
        if table not in checked.reads:
            raise TransportError(f"the query does not read the table {table!r} that it is said to be over")
        return DerivedSource(table, checked, self._sources, cutoffs)


def _with_absent(
    table: str, own: Sequence[ColumnInfo], expressions: Sequence[str], columns: Sequence[ColumnInfo]
) -> list[ColumnInfo]:
    """The columns with what each expression is where a LEFT JOIN finds no row; a plain column is NULL there."""
    names = {quote_name(column.name) for column in own}
    computed = [number for number, text in enumerate(expressions) if text not in names]
    found = list(columns)
    if computed:
        row = absent_row(table, own, [expressions[number] for number in computed])
        for number, value in zip(computed, row.columns, strict=True):
            found[number] = replace(found[number], absent=absent_value(value, found[number]))
    return found
