"""ClientTables: all that one client holds, and the scans that jobs have opened on it.

In: the client's sources by table name, then requests of the server. Out: schemas, and each
scan's rows as Arrow, read once a job. Every expression passes the guard before it runs.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import SourceError, TransportError
from tablepuppet.owner.conditions import Condition, conditions_of, conditions_of_query
from tablepuppet.owner.group_sums import Partials
from tablepuppet.owner.query_guard import CheckedQuery, DerivedSource, MergedSource, check_query, partials_of
from tablepuppet.owner.row_ids import identity_expressions, in_order, order_bits, row_ids, whole_rows
from tablepuppet.owner.row_sets import row_keys
from tablepuppet.owner.singling_out import expressions_of_query, few_match, joins_of_query, singles_out
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.columns import absent_value, holds_of, in_another_order
from tablepuppet.sources.duckdb_source import absent_row, quote_name
from tablepuppet.sources.guard import check_expression, check_predicate, columns_of, compared_columns
from tablepuppet.sources.source import Source

if TYPE_CHECKING:
    from tablepuppet.exchanges.groups import SumGroups
    from tablepuppet.exchanges.schema import OpenScan

_PIECE = 1 << 18  # rows that are looked at together


class TableDescription(NamedTuple):
    """A table's columns, and a stamp that is another one whenever the table may have changed."""

    columns: list[ColumnInfo]
    stamp: bytes


@dataclass(frozen=True, slots=True)
class ScanUse:
    """An open scan as a policy sees it: its table, the columns behind each expression and behind the filter."""

    table: str
    columns: tuple[frozenset[str], ...]
    filter: frozenset[str]
    rows: Callable[[], int]
    others: tuple[ScanUse, ...] = ()  # of a query over several tables: what it reads of the others
    compared: frozenset[str] = frozenset()  # of the filter: columns whose values it looks at


@dataclass(slots=True)
class _Scan:
    """An open scan; `rows` is filled by its first reader, and put in the order that the server sees."""

    source: Source
    expressions: tuple[str, ...]  # as the guard wrote them
    filter: str | None
    columns: list[ColumnInfo]
    rows: pa.Table | None = None
    name: str = ""
    table: str = ""
    order: RowNumbers | None = None  # for each row, its position at the owner; None: the same, or let go with the rows
    bits: Callable[[], NDArray[np.uint64]] | None = None  # that the order follows; None: there is no other order
    is_identified: bool = False  # whether each row is known again in other jobs
    ids: NDArray[np.uint64] | None = None
    is_let_go: bool = False  # whether the rows were read, and would have to be read again
    fingerprint: int | None = None  # of the rows in the order that the server sees
    is_keyed: bool = False  # whether its rows are compared with those of other jobs
    keys: NDArray[np.uint64] | None = None
    partials: Partials | None = None  # where groups are merged with those of other clients
    agreed: SumGroups | None = None  # which of them

    def find_order(self) -> RowNumbers | None:
        """The order, found again where it was let go."""
        if self.order is None and self.bits is not None:
            self.order = in_order(self.bits())
        return self.order

    def put_in_order(self) -> None:
        """The rows as the server sees them; one column at a time is there twice."""
        order = self.find_order()
        if self.rows is None or order is None or not self.rows.num_columns:
            return
        self.fingerprint = None
        columns, names, self.rows = self.rows.columns, self.rows.column_names, None
        self.rows = pa.table(list(in_another_order(columns, order)), names)

    def read_again(self) -> None:
        """The rows that were let go; sources over files refuse to read what has changed since the job began."""
        rows = self.source.read(self.expressions, self.filter).select(range(len(self.expressions)))
        order = self.find_order()
        if order is not None and len(order) != rows.num_rows:
            raise SourceError(f"table {self.table} has changed since the job began; run the job again")
        self.rows = rows
        del rows
        self.put_in_order()


@dataclass(frozen=True, slots=True, eq=False)
class TableConditions:
    """What a job compares in one table, or in what a query over it gives."""

    table: str
    source: Source
    conditions: tuple[Condition, ...]
    filter: str | None

    def read(self) -> tuple[NDArray[np.uint64], list[NDArray[np.bool_]], NDArray[np.bool_] | None]:
        """Of all rows: their keys, where each condition holds, and where the filter does."""
        whole = whole_rows(self.source)
        asked = [condition.text for condition in self.conditions] + ([] if self.filter is None else [self.filter])
        rows = self.source.read((*whole, *asked), None)
        keys = row_keys(rows.select(range(len(whole))))
        holds = [holds_of(rows.column(len(whole) + number)) for number in range(len(asked))]
        return keys, holds[: len(self.conditions)], None if self.filter is None else holds[-1]


class ClientTables:
    """One client's tables. Calls may come from any thread; they are served one at a time."""

    def __init__(self, tables: Mapping[str, Source]) -> None:
        self._sources = dict(tables)
        self._scans: dict[tuple[str, int], _Scan] = {}
        self._secret = secrets.token_bytes(32)
        self._lock = threading.RLock()

    @property
    def names(self) -> list[str]:
        return sorted(self._sources)

    def describe(self, table: str, query: str | None = None) -> TableDescription:
        """The columns of a table, or of what a query over this client's tables gives."""
        with self._lock:
            source = self._source(table, query)
            columns = source.describe()
            stamp = source.stamp()
            # A figure for comparison: paths, times and transactions are the owner's business.
            shown = b"" if stamp is None else hmac.digest(self._secret, f"{table} {stamp}".encode(), "sha256")[:16]
            return TableDescription(columns, shown)

    def open_scan(self, request: OpenScan) -> list[ColumnInfo]:
        """Checks a scan's expressions and says their types; reads nothing."""
        with self._lock:
            source = self._source(request.table, request.query)
            names = [column.name for column in source.describe()]
            expressions = tuple(check_expression(expression, names) for expression in request.columns)
            filter = None if request.filter is None else check_predicate(request.filter, names)
            described = source.describe_scan(expressions, filter)
            columns = [replace(c, name=text) for c, text in zip(described, request.columns, strict=True)]
            if request.is_outer:
                columns = _with_absent(request.table, source.describe(), expressions, columns)
            read = request.table if request.query is None else _query(source).text
            self._scans[request.job, request.scan] = _Scan(
                source, expressions, filter, columns, name=f"{read} {filter}", table=request.table
            )
            return columns

    def scan(self, job: str, scan: int) -> pa.Table:
        """The rows of an open scan, columns c0, c1, …: read at the first call, kept until they are let go."""
        with self._lock:
            opened = self._find_scan(job, scan)
            if opened.rows is None and opened.is_let_go:
                opened.read_again()
            if opened.rows is None:
                whole = identity_expressions(opened.source) if opened.is_identified else ()
                raw = whole_rows(opened.source) if opened.is_keyed else ()
                asked = (*opened.expressions, *whole)
                asked += tuple(text for text in raw if text not in asked)
                rows = opened.source.read(asked, opened.filter)
                kept = len(opened.expressions)
                if opened.is_identified:
                    opened.ids = row_ids(rows.select(range(kept, kept + len(whole))))
                if opened.is_keyed:
                    opened.keys = row_keys(rows.select([asked.index(text) for text in raw]))
                opened.rows = rows.select(range(kept))
            return opened.rows

    def partials(self, job: str, scan: int, key: bytes = b"") -> Partials:
        """The groups that a scan's query makes of this client's rows; `key`: for their tokens, the first time."""
        with self._lock:
            opened = self._find_scan(job, scan)
            if opened.partials is None:
                if not key or not isinstance(opened.source, DerivedSource):
                    raise TransportError(f"scan {scan} of job {job} has no groups to be merged")
                opened.partials = partials_of(opened.source, key)
            return opened.partials

    def agree(self, job: str, scan: int, request: SumGroups) -> None:
        """Keeps which groups are shared with whom, until they are merged."""
        with self._lock:
            self._find_scan(job, scan).agreed = request

    def agreed_groups(self, job: str, scan: int) -> SumGroups:
        with self._lock:
            agreed = self._find_scan(job, scan).agreed
            if agreed is None:
                raise TransportError(f"it was not said which groups of scan {scan} of job {job} are shared")
            return agreed

    def merge(self, job: str, scan: int, groups: pa.Table) -> None:
        """From now on the scan's rows are those of merged groups."""
        with self._lock:
            opened = self._find_scan(job, scan)
            assert isinstance(opened.source, DerivedSource)
            opened.source = MergedSource(opened.source, self.partials(job, scan), groups)
            opened.rows = opened.ids = opened.keys = opened.partials = opened.agreed = opened.fingerprint = None
            opened.is_let_go = False

    def identify(self, job: str, scan: int) -> None:
        """Rows of a scan that is not read yet will be known again, whatever filter or order they come in."""
        with self._lock:
            self._find_scan(job, scan).is_identified = True

    def compare(self, job: str, scan: int) -> None:
        """Rows of a scan that is not read yet will be compared with those of other jobs."""
        with self._lock:
            self._find_scan(job, scan).is_keyed = True

    def row_keys(self, job: str, scan: int) -> NDArray[np.uint64]:
        """64 bits of each row, in the order in which the rows are shown."""
        with self._lock:
            self.scan(job, scan)
            keys = self._find_scan(job, scan).keys
            if keys is None:
                raise TransportError(f"scan {scan} of job {job} was read before its contract")
            return keys

    def row_ids(self, job: str, scan: int) -> NDArray[np.uint64]:
        """What each row is at its owner, in the order in which the rows are shown."""
        with self._lock:
            self.scan(job, scan)
            ids = self._find_scan(job, scan).ids
            if ids is None:
                raise TransportError(f"scan {scan} of job {job} was read before its contract asked for noise")
            return ids

    def conditions(self, job: str, scan: int, predicates: Collection[int]) -> list[TableConditions]:
        """What a scan compares, table by table; `predicates`: which of its expressions are conditions as a whole."""
        with self._lock:
            opened = self._find_scan(job, scan)
            texts = [(text, number in predicates) for number, text in enumerate(opened.expressions)]
            texts += [] if opened.filter is None else [(opened.filter, True)]
            own = [c for text, whole in texts for c in conditions_of(text, is_predicate=whole)]
            found = [TableConditions(opened.table, opened.source, tuple(dict.fromkeys(own)), opened.filter)]
            if isinstance(opened.source, DerivedSource):
                query = opened.source.query
                for table, inner in conditions_of_query(query.text, query.reads).items():
                    found.append(TableConditions(table, self._sources[table], tuple(inner), None))
            return found

    def everywhere(self, job: str, scan: int, columns: Sequence[int]) -> pa.Table:
        """Some columns of a scan in all rows of what it reads, whatever its filter."""
        with self._lock:
            opened = self._find_scan(job, scan)
            return opened.source.read([opened.expressions[c] for c in columns], None)

    def singles_out(self, job: str, scan: int, numbers: Sequence[int], least: int) -> list[str]:
        """The tables of whose rows some expressions of a scan, or its query, tell fewer than `least`."""
        with self._lock:
            opened = self._find_scan(job, scan)
            asked = [opened.expressions[number] for number in numbers]
            found = [opened.table] if singles_out(opened.source, asked, opened.filter, least) else []
            if isinstance(opened.source, DerivedSource):
                query = opened.source.query
                for table, inner in expressions_of_query(query.text, query.reads).items():
                    found += [table] if singles_out(self._sources[table], inner, None, least) else []
                for (left, ours), (right, theirs) in joins_of_query(query.text, query.reads):
                    pair = [
                        self._sources[left].read([quote_name(ours)], None),
                        self._sources[right].read([quote_name(theirs)], None),
                    ]
                    found += [left] if few_match(pair[0].column(0), pair[1].column(0), least) else []
            return found

    def shuffle(
        self, job: str, scan: int, key: bytes, seed: int, offset: int, *, wants_bits: bool
    ) -> NDArray[np.int64] | None:
        """Puts the rows of an open scan in a secret order, for the whole job; if wanted, the bits that it follows."""
        with self._lock:
            opened = self._find_scan(job, scan)
            rows = self.scan(job, scan)
            if opened.bits is not None:
                raise TransportError(f"scan {scan} of job {job} is in an order already; open it again")
            opened.bits = partial(order_bits, key, opened.name, seed, offset, rows.num_rows)
            del rows
            order = opened.order = in_order(opened.bits())
            shown = (opened.bits()[order] ^ np.uint64(1 << 63)).view(np.int64) if wants_bits else None
            opened.put_in_order()
            opened.ids = None if opened.ids is None else opened.ids[order]
            opened.keys = None if opened.keys is None else opened.keys[order]
            return shown

    def let_go(self, job: str, scan: int) -> None:
        """Gives up the rows of a scan, which nobody is expected to ask for; if so, they are read again. Where there is
        no telling whether a table has changed, they stay."""
        with self._lock:
            opened = self._find_scan(job, scan)
            if opened.rows is not None and opened.rows.num_rows and opened.source.stamp() is not None:
                opened.rows, opened.is_let_go, opened.order = None, True, None

    def order(self, job: str, scan: int) -> RowNumbers | None:
        """For each row of a scan, its position at the owner; None: the same."""
        with self._lock:
            return self._find_scan(job, scan).find_order()

    def use(self, job: str, scan: int) -> ScanUse:
        """What an open scan reads, for the owner's policy to judge."""
        with self._lock:
            opened = self._find_scan(job, scan)
            columns = tuple(columns_of(expression) for expression in opened.expressions)
            filter = frozenset[str]() if opened.filter is None else columns_of(opened.filter)
            rows = partial(self._count, job, scan)
            if not isinstance(opened.source, DerivedSource):
                compared = frozenset[str]() if opened.filter is None else compared_columns(opened.filter)
                return ScanUse(table=opened.table, columns=columns, filter=filter, rows=rows, compared=compared)
            return _base_use(opened.table, opened.source.query, columns, filter, rows)

    def _count(self, job: str, scan: int) -> int:
        return len(self.scan(job, scan))

    def fingerprints(self, job: str) -> dict[int, int]:
        """For each scan that a job has read, a figure that changes with any value or the order of its rows."""
        with self._lock:
            own = {scan: opened for (of, scan), opened in sorted(self._scans.items(), key=itemgetter(0)) if of == job}
            return {
                scan: self._fingerprint(job, scan)
                for scan, opened in own.items()
                if opened.rows is not None or opened.is_let_go
            }

    def find_changed(self, job: str, fingerprints: Mapping[int, int]) -> list[str]:
        """The tables of which scans, read again where they are not, have other fingerprints now."""
        with self._lock:
            known = [scan for scan in fingerprints if (job, scan) in self._scans]
            changed = {self._scans[job, s].table for s in known if self._fingerprint(job, s) != fingerprints[s]}
            return sorted(changed)

    def _fingerprint(self, job: str, scan: int) -> int:
        opened = self._find_scan(job, scan)
        if opened.fingerprint is None:
            opened.fingerprint = _checksum(self.scan(job, scan))
        return opened.fingerprint

    def name(self, job: str, scan: int) -> str:
        """What an open scan reads: its table and filter."""
        with self._lock:
            return self._find_scan(job, scan).name

    def expressions(self, job: str, scan: int) -> tuple[str, ...]:
        """The expressions of an open scan, as the guard wrote them."""
        with self._lock:
            return self._find_scan(job, scan).expressions

    def reads(self, job: str, scan: int, columns: Sequence[int]) -> tuple[str, ...]:
        """What some columns of a scan are: their expressions and, of a query's rows, the query, as the guard has it."""
        with self._lock:
            opened = self._find_scan(job, scan)
            query = (f"FROM {opened.source.query.text}",) if isinstance(opened.source, DerivedSource) else ()
            return (*(opened.expressions[c] for c in columns), *query)

    def columns(self, job: str, scan: int) -> list[ColumnInfo]:
        """The kinds of an open scan's columns."""
        with self._lock:
            return list(self._find_scan(job, scan).columns)

    def close(self, job: str) -> None:
        """Forgets a job's scans."""
        with self._lock:
            self._scans = {key: scan for key, scan in self._scans.items() if key[0] != job}

    def shutdown(self) -> None:
        """Forgets all jobs and closes the sources."""
        with self._lock:
            self._scans.clear()
            for source in self._sources.values():
                source.close()

    def _source(self, table: str, query: str | None = None) -> Source:
        if table not in self._sources:
            has = ", ".join(self.names) or "no table"
            raise SourceError(f"there is no table {table!r} at this client; it has {has}")
        if query is None:
            return self._sources[table]
        named = {name: [column.name for column in source.describe()] for name, source in self._sources.items()}
        checked = check_query(query, named)
        if table not in checked.reads:
            raise TransportError(f"the query does not read the table {table!r} that it is said to be over")
        return DerivedSource(table, checked, self._sources)

    def _find_scan(self, job: str, scan: int) -> _Scan:
        if (job, scan) not in self._scans:
            raise TransportError(f"job {job} has no open scan {scan} at this client; it must be opened first")
        return self._scans[job, scan]


def _checksum(rows: pa.Table) -> int:
    value = 0
    for column in rows.columns:
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
            names = column.chunk(0).dictionary if column.num_chunks else pa.array([])
            value = zlib.crc32(pa.record_batch([names], ["names"]).serialize(), value)
            column = pa.chunked_array([chunk.indices for chunk in column.chunks], column.type.index_type)
        for start in range(0, len(column), _PIECE):  # copied, so that it does not matter how it is cut, but never whole
            piece = pa.concat_arrays(column.slice(start, _PIECE).chunks)
            value = zlib.crc32(pa.record_batch([piece], ["column"]).serialize(), value)
    return value


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


def _query(source: Source) -> CheckedQuery:
    assert isinstance(source, DerivedSource)
    return source.query


def _base_use(
    table: str,
    query: CheckedQuery,
    columns: Sequence[frozenset[str]],
    filter: frozenset[str],
    rows: Callable[[], int],
) -> ScanUse:
    """What a scan of a query reads of the tables behind it: `table` first, then the others.

    Columns that shape which rows there are, without being part of a value (WHERE, GROUP BY, ON), count as filters.
    """
    behind = {output: query.behind(output) for output in {*filter, *(c for some in columns for c in some)}}

    def of(base: str, outputs: frozenset[str]) -> frozenset[str]:
        return frozenset[str]().union(*(behind[output].get(base, frozenset()) for output in outputs))

    def use(base: str) -> ScanUse:
        values = tuple(of(base, outputs) for outputs in columns)
        selecting = frozenset(query.reads[base]) - frozenset[str]().union(*values)
        chosen = selecting | of(base, filter)
        return ScanUse(table=base, columns=values, filter=chosen, rows=rows, compared=chosen)

    return replace_fields(use(table), others=tuple(use(base) for base in query.reads if base != table))
