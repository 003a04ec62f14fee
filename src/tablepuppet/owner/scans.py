"""A scan: one client's reading of one table, or of a query over its tables, under one filter, for one job.

In: a source, and expressions that passed the guard. Out: rows as Arrow, read once a job, in the order that the server
sees; the columns behind them as a policy judges them (`ScanUse`); the conditions that choose rows.
"""

import threading
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import PolicyError, SourceError, TransportError
from tablepuppet.owner import row_sets, singling_out
from tablepuppet.owner.group_sums import Partials
from tablepuppet.owner.query_guard import CheckedQuery, DerivedSource, MergedSource, partials_of
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.columns import STRING_KINDS, holds_of, in_another_order, numpy_of
from tablepuppet.sources.duckdb_source import quote_name
from tablepuppet.sources.guard import columns_of, compared_columns
from tablepuppet.sources.history_queries import BEHIND, CUTOFF
from tablepuppet.sources.lineage import BaseColumns
from tablepuppet.sources.source import Source

if TYPE_CHECKING:
    from tablepuppet.exchanges.groups import SumGroups

_ROWS = 1 << 18  # rows that are hashed at a time


class ScanUse(msgspec.Struct, frozen=True):
    """An open scan as a policy sees it: its table, the columns behind each expression and behind the filter."""

    table: str
    columns: tuple[frozenset[str], ...]
    filter: frozenset[str]
    others: "tuple[ScanUse, ...]" = ()  # of a query over several tables: the use of the others
    compared: frozenset[str] = frozenset()  # of the filter: columns whose values it reads
    grouping: frozenset[str] = frozenset()  # columns that decide otherwise which rows there are (sources/lineage.py)
    idle: frozenset[str] = frozenset()  # columns that a query reads, for outputs that the job does not ask for
    computed: frozenset[str] = frozenset()  # columns in a query's expressions, in lower case
    stability: int | None = 1  # rows that differ, at most, where one row of the table is there or not; None: no bound

    @property
    def bases(self) -> "tuple[ScanUse, ...]":
        return (self, *self.others)

    @property
    def reach(self) -> dict[str, int | None]:
        return {base.table: base.stability for base in self.bases}


class TableConditions(msgspec.Struct, frozen=True, eq=False):
    """The comparisons of a job in one table, or in the result of a query over it."""

    table: str
    source: Source
    conditions: tuple[singling_out.Condition, ...]
    row_key: str | None = None  # the column that identifies rows
    subject: str | None = None  # the column of their subjects
    history: DerivedSource | None = None
    cuts: tuple[singling_out.Cut, ...] = ()  # of times by its cutoffs

    def read_periods(self) -> list[NDArray[np.int64]]:
        """The period between cutoffs that each row lies in, by each of its times that is compared with them."""
        if self.history is None or not self.cuts:
            return []
        with closing(self.history.open_moments()) as moments:
            return singling_out.periods(self.source, moments, self.cuts)

    def read(self) -> tuple[NDArray[np.uint64], list[NDArray[np.bool_]]]:
        """The keys of all rows, and where each condition holds."""
        whole = row_sets.whole_rows(self.source, self.subject or self.row_key)
        rows = self.source.read((*whole, *(condition.text for condition in self.conditions)), None)
        keys = row_sets.row_keys(rows.select(range(len(whole))), is_key=self.subject is not None)
        return keys, [holds_of(column) for column in rows.columns[len(whole) :]]


@dataclass(slots=True, eq=False)
class Scan:
    """One table under one filter, open for a job. The first request reads its rows, and puts them in the order that
    the server sees."""

    source: Source
    base: Mapping[str, Source]  # this client's tables, which the rows of a query come from
    table: str
    expressions: tuple[str, ...]  # as the guard wrote them
    filter: str | None
    columns: list[ColumnInfo]
    lock: threading.RLock = field(repr=False)  # of all scans: sources serve one reader at a time
    is_identified: bool = False  # whether each row is known again in other jobs, whatever filter or order it comes in
    is_keyed: bool = False  # whether its rows are compared with those of other jobs
    row_keys_of: Mapping[str, str] = field(default_factory=dict)  # by table: the column that identifies its rows
    subjects_of: Mapping[str, str] = field(default_factory=dict)  # by table: the column of their subjects
    subject_rows: int = 1  # of one subject, that train under noise on features, at all clients
    most_of_subject: int | None = None  # rows of one subject that are read at all; None: every one
    agreed: "SumGroups | None" = None  # which groups are shared with whom, until they are merged
    _rows: pa.Table | None = None
    _order: RowNumbers | None = None  # for each row, its position at the owner; None: the same, or freed with the rows
    _bits: Callable[[], NDArray[np.uint64]] | None = None  # that the order follows; None: there is no other order
    _ids: NDArray[np.uint64] | None = None
    _keys: NDArray[np.uint64] | None = None
    _base: tuple[str, ...] = ()  # of a history: outputs by which base rows are told apart, and counted
    _bases: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None  # of each row: which base rows, and how many
    _kept: RowNumbers | None = None  # of the rows that the source gives, where subjects have too many
    _is_released: bool = False  # whether the rows were read, and would have to be read again
    _content: int | None = None  # of all rows of the table, in any order
    _fingerprint: int | None = None  # of the rows in the order that the server sees
    _partials: Partials | None = None  # where groups are merged with those of other clients

    @property
    def query(self) -> CheckedQuery | None:
        return self.source.query if isinstance(self.source, DerivedSource) else None

    @property
    def was_read(self) -> bool:
        return self._rows is not None or self._is_released

    def rows(self) -> pa.Table:
        """Columns c0, c1, …: read at the first call, kept until they are freed."""
        with self.lock:
            if self._rows is None:
                self._read_again() if self._is_released else self._read()
            assert self._rows is not None
            return self._rows

    def column(self, number: int) -> tuple[pa.ChunkedArray, ColumnInfo]:
        return self.rows().column(f"c{number}"), self.columns[number]

    def row_keys(self) -> NDArray[np.uint64]:
        """64 bits of each row, in the order in which the rows are shown."""
        self.rows()
        if self._keys is None:
            raise TransportError(f"a scan of {self.table} was read before its contract")
        return self._keys

    @property
    def is_history(self) -> bool:
        return bool(self._base)

    def base_rows(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Which base rows each row is made of, and how many they are at least: many rows of a history have the same."""
        rows = self.rows().num_rows
        return self._bases or (np.arange(rows, dtype=np.uint64), np.ones(rows, np.int64))

    def row_ids(self) -> NDArray[np.uint64]:
        """The identity of each row at its owner, in the order in which the rows are shown."""
        self.rows()
        if self._ids is None:
            raise TransportError(f"a scan of {self.table} was read before its contract asked for noise")
        return self._ids

    def order(self) -> RowNumbers | None:
        """For each row, its position at the owner; None: the same. It is computed again after it was freed."""
        with self.lock:
            if self._order is None and self._bits is not None:
                self._order = row_sets.in_order(self._bits())
            return self._order

    def shuffle(self, key: bytes, seed: int, offset: int, *, wants_bits: bool) -> NDArray[np.int64] | None:
        """Puts the rows in a secret order, for the whole job; if wanted, the bits that it follows."""
        with self.lock:
            if self._bits is not None:
                raise TransportError(f"a scan of {self.table} is in an order already; open it again")
            name = f"{self.table if self.query is None else self.query.text} {self.filter}"
            self._bits = partial(row_sets.order_bits, key, name, seed, offset, self.rows().num_rows)
            order = self._order = row_sets.in_order(self._bits())
            shown = (self._bits()[order] ^ np.uint64(1 << 63)).view(np.int64) if wants_bits else None
            self._put_in_order()
            self._ids = None if self._ids is None else self._ids[order]
            self._keys = None if self._keys is None else self._keys[order]
            self._bases = None if self._bases is None else (self._bases[0][order], self._bases[1][order])
            return shown

    def release(self) -> None:
        """Frees the rows, which are probably not needed again; they are read again on demand. They stay if the source
        cannot detect a changed table."""
        with self.lock:
            if self._rows is not None and self._rows.num_rows and self.source.stamp() is not None:
                self._rows, self._is_released, self._order = None, True, None

    def partials(self, key: bytes = b"") -> Partials:
        """The groups that a query makes of this client's rows; `key`: for their tokens, the first time."""
        with self.lock:
            if self._partials is None:
                if not key or not isinstance(self.source, DerivedSource):
                    raise TransportError(f"a scan of {self.table} has no groups to be merged")
                self._partials = partials_of(self.source, key)
            return self._partials

    def agreed_groups(self) -> "SumGroups":
        if self.agreed is None:
            raise TransportError(f"it was not said which groups of {self.table} are shared")
        return self.agreed

    def hold_cutoffs(
        self, moments: pa.Table, keys: Sequence[int], find_pairs: Callable[[pa.Table, list[ColumnInfo]], pa.Table]
    ) -> None:
        """From now on the rows of a history are those until these moments; with keys, those of the pairs that it has:
        the moments, then the keys."""
        assert isinstance(self.source, DerivedSource)
        outputs = [self.expressions[key].strip('"') for key in keys]
        if outputs:
            self.source.hold_pairs(outputs, find_pairs(*self.source.read_keys(outputs)))
        else:
            self.source.moments = moments.rename_columns([CUTOFF])
        self._base = self.source.find_base() if self.is_keyed else ()

    def merge(self, groups: pa.Table) -> None:
        with self.lock:
            assert isinstance(self.source, DerivedSource)
            self.source = MergedSource(self.source, self.partials(), groups)
            self._rows = self._ids = self._keys = self._partials = self.agreed = self._fingerprint = None
            self._is_released = False

    def fingerprint(self) -> int:
        """A checksum that changes with any value or the order of the rows."""
        with self.lock:
            if self._fingerprint is None:
                self._fingerprint = _checksum(self.rows())
            return self._fingerprint

    def conditions(self, predicates: Collection[int], noisy: Collection[int] = ()) -> list[TableConditions]:
        """The comparisons, table by table. `predicates`: expressions that are conditions as a whole. `noisy`: those
        that leave under noise, and may compare anything."""
        texts = [(text, number in predicates) for number, text in enumerate(self.expressions) if number not in noisy]
        texts += [] if self.filter is None else [(self.filter, True)]
        own = [c for text, whole in texts for c in singling_out.conditions_of(text, is_predicate=whole)]
        found = [TableConditions(self.table, self.source, tuple(dict.fromkeys(own)), self.row_key, self.subject)]
        if self.query is not None and not noisy:
            history = self.source if isinstance(self.source, DerivedSource) and self.source.cutoffs else None
            cuts = singling_out.cuts_of_query(self.query.text, self.query.reads)
            for table, inner in singling_out.conditions_of_query(self.query.text, self.query.reads).items():
                whole = (tuple(inner), self.row_keys_of.get(table), None, history, tuple(cuts[table]))
                found.append(TableConditions(table, self.base[table], *whole))
        return found

    def everywhere(self, columns: Sequence[int]) -> pa.Table:
        with self.lock:
            return self.source.read([self.expressions[c] for c in columns], None)

    def names(self, number: int, *, is_noisy: bool) -> tuple[pa.ChunkedArray, ColumnInfo]:
        """A column whose texts leave as names. Under noise they are those of all rows, which no condition chose."""
        column, info = self.column(number)
        return (self.everywhere([number]).column(0) if is_noisy and info.kind in STRING_KINDS else column), info

    def singles_out(self, numbers: Sequence[int], least: int) -> list[str]:
        """The tables of which some expressions, or the query, reveal fewer than `least` rows."""
        with self.lock:
            asked = [self.expressions[number] for number in numbers]
            found = [self.table] if singling_out.singles_out(self.source, asked, self.filter, least) else []
            if self.query is not None:
                for table, inner in singling_out.expressions_of_query(self.query.text, self.query.reads).items():
                    found += [table] if singling_out.singles_out(self.base[table], inner, None, least) else []
                for (left, ours), (right, theirs) in singling_out.joins_of_query(self.query.text, self.query.reads):
                    pair = [self.base[t].read([quote_name(c)], None) for t, c in ((left, ours), (right, theirs))]
                    found += [left] if singling_out.few_match(pair[0].column(0), pair[1].column(0), least) else []
            return found

    def use(self) -> ScanUse:
        """The columns that are read, for the owner's policy to judge."""
        columns = tuple(columns_of(expression) for expression in self.expressions)
        filter = frozenset[str]() if self.filter is None else columns_of(self.filter)
        if self.query is not None:
            return _base_use(self.table, self.query, columns, filter)
        compared = frozenset[str]() if self.filter is None else compared_columns(self.filter)
        return ScanUse(self.table, columns, filter, compared=compared, stability=self.subject_rows)

    def reads(self, columns: Sequence[int]) -> tuple[str, ...]:
        """The expressions of some columns and, for a query's rows, the query, as the guard wrote them."""
        query = () if self.query is None else (f"FROM {self.query.text}",)
        return (*(self.expressions[c] for c in columns), *query)

    def identity(self) -> str:
        """The identity of rows: the owner's key, or else a hash of the whole table, for a row that changes is another
        one."""
        with self.lock:
            if self.row_key is not None:
                return f"key {self.row_key}"
            if self._content is None:
                texts = row_sets.whole_rows(self.source, form=row_sets.AS_TEXT)
                rows = self.source.read(texts, None).select(range(len(texts)))
                self._content = int(row_sets.row_ids(rows).sum(dtype=np.uint64))
            return f"rows {self._content:016x}"

    @property
    def row_key(self) -> str | None:
        """The column that rows are known by; a query makes rows of its own."""
        return self.row_keys_of.get(self.table) if self.query is None else None

    @property
    def subject(self) -> str | None:
        return self.subjects_of.get(self.table) if self.query is None else None

    def rows_of_a_subject(self) -> int:
        if self.subject is None:
            return 1
        return int(np.unique(self.row_keys(), return_counts=True)[1].max(initial=1))

    def _read(self) -> None:
        whole = row_sets.whole_rows(self.source, self.row_key, row_sets.AS_TEXT) if self.is_identified else ()
        if whole and self.row_key is not None:
            keys = self.source.read(whole, None).column(0)  # of all rows: another filter would show the other row
            if len(pc.unique(keys)) < len(keys):
                raise PolicyError(
                    f"its policy refuses the request: several rows of {self.table} have one {self.row_key}, and their "
                    f"noisy labels would tell which labels are equal (rule tables.{self.table}.row_key)"
                )
        raw = row_sets.whole_rows(self.source, self.subject or self.row_key) if self.is_keyed else ()
        asked = (*self.expressions, *whole)
        asked += tuple(text for text in (*raw, *self._base) if text not in asked)
        rows = self.source.read(asked, self.filter)
        kept = len(self.expressions)
        if self.is_identified:
            self._ids = row_sets.row_ids(rows.select(range(kept, kept + len(whole))), is_key=self.row_key is not None)
        if self.is_keyed:
            self._keys = row_sets.row_keys(
                rows.select([asked.index(text) for text in raw]), is_key=self.subject is not None
            )
        if self._base:
            base = rows.select([asked.index(text) for text in self._base])
            is_counted = self._base[-1] == quote_name(BEHIND)
            behind = numpy_of(base.column(base.num_columns - 1)) if is_counted else np.ones(len(base))
            names = base.select(range(base.num_columns - is_counted))
            which = row_sets.row_keys(names, is_key=True) if names.num_columns else np.zeros(len(base), np.uint64)
            self._bases = which, behind.astype(np.int64)
        self._rows = rows.select(range(kept))
        if self.most_of_subject is not None:  # the first of each: rows of others have no say in which
            assert self._keys is not None
            self._kept = np.flatnonzero(row_sets.count_equal_before(self._keys[:, None]) < self.most_of_subject)
            self._keys, self._rows = self._keys[self._kept], self._rows.take(self._kept)
            self._ids = None if self._ids is None else self._ids[self._kept]

    def _read_again(self) -> None:
        """Sources over files refuse to read what has changed since the job began."""
        rows, order = self.source.read(self.expressions, self.filter).select(range(len(self.expressions))), self.order()
        rows = rows if self._kept is None else rows.take(self._kept)
        if order is not None and len(order) != rows.num_rows:
            raise SourceError(f"table {self.table} has changed since the job began; run the job again")
        self._rows = rows
        del rows
        self._put_in_order()

    def _put_in_order(self) -> None:
        """The rows as the server sees them; one column at a time is there twice."""
        order = self.order()
        if self._rows is None or order is None or not self._rows.num_columns:
            return
        self._fingerprint = None
        columns, names, self._rows = self._rows.columns, self._rows.column_names, None
        self._rows = pa.table(list(in_another_order(columns, order)), names)


def _checksum(rows: pa.Table) -> int:
    value = 0
    for column in rows.columns:
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
            names = column.chunk(0).dictionary if column.num_chunks else pa.array([])
            value = zlib.crc32(pa.record_batch([names], ["names"]).serialize(), value)
            column = pa.chunked_array([chunk.indices for chunk in column.chunks], column.type.index_type)
        for start in range(0, len(column), _ROWS):  # copied, so that it does not matter how it is cut, but never whole
            piece = pa.concat_arrays(column.slice(start, _ROWS).chunks)
            value = zlib.crc32(pa.record_batch([piece], ["column"]).serialize(), value)
    return value


def _base_use(table: str, query: CheckedQuery, columns: Sequence[frozenset[str]], filter: frozenset[str]) -> ScanUse:
    """The columns that a scan of a query reads of the tables behind it: `table` first, then the others.

    Columns that shape which rows there are, without being part of a value (WHERE, GROUP BY, ON), count as filters.
    """
    lineage = query.lineage
    looked_at = lineage.conditions.union(*(lineage.behind(output) for output in filter))

    def use(base: str) -> ScanUse:
        def of(found: BaseColumns) -> frozenset[str]:
            return frozenset(column for name, column in found if name == base)

        values = tuple(of(frozenset().union(*map(lineage.behind, outputs))) for outputs in columns)
        chosen = frozenset(query.reads[base]) - frozenset[str]().union(*values) | of(looked_at)
        grouping, stability = of(lineage.grouping), lineage.stability[base]
        idle = chosen - of(looked_at) - grouping
        return ScanUse(base, values, chosen, (), chosen, grouping, idle, query.computed, stability)

    return replace_fields(use(table), others=tuple(use(base) for base in query.reads if base != table))
