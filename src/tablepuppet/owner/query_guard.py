"""The guard of whole queries: a client runs a SELECT over its own tables only if every part of it is on the list.

In: SQL text from the server, and the columns of the client's tables. Out: the same query written anew from its parse
tree, and the columns of each table that it reads; or PolicyError. As for expressions (guard.py) it is an allow-list: no
function that reads files, no table but the client's own, no recursion, nothing that depends on the clock or on chance.

DerivedSource: the result of such a query, as if it were a table. The columns that it reads come from their sources
(databases are asked for those columns alone). The query itself runs in a private DuckDB of the client, so that it means
the same wherever the tables lie. It uses one thread: groups then come in the same order, and sums of floating-point
numbers have the same bits, every time.

MergedSource: the same for a query over groups whose rows lie at several clients. Its partials are merged with
those of others. Its rows are those of the query over the merged groups, with the same names and types.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from sqlglot import exp, parse_one

from tablepuppet.errors import PolicyError, SourceError, did_you_mean
from tablepuppet.owner.group_sums import Partials
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources import duckdb_source, guard, history_queries
from tablepuppet.sources.duckdb_source import quote_name
from tablepuppet.sources.grouped_queries import GROUPS, UnmergeableError, source_of, split_groups
from tablepuppet.sources.history_queries import AT, AT_ONCE, BEHIND, CUTOFF, CUTOFFS, KEY
from tablepuppet.sources.infallible import InfallibleSource, check_unions, make_infallible
from tablepuppet.sources.lineage import Lineage, trace
from tablepuppet.sources.source import Source

_WHAT = "query"


class CheckedQuery(msgspec.Struct, frozen=True):
    text: str  # in DuckDB's dialect
    reads: Mapping[str, tuple[str, ...]]  # of each of its tables: the columns that it reads

    @property
    def lineage(self) -> Lineage:
        return _trace(self.text, tuple(self.reads.items()))

    @property
    def computed(self) -> frozenset[str]:
        """The columns in expressions, in lower case: all that are named, but for those that an item of SELECT is."""
        columns = list(parse_one(self.text, dialect="duckdb").find_all(exp.Column))
        parents = (c.parent.parent if isinstance(c.parent, exp.Alias) else c.parent for c in columns)
        return frozenset(c.name.lower() for c, p in zip(columns, parents, strict=True) if not isinstance(p, exp.Select))


@lru_cache(maxsize=64)
def _trace(text: str, reads: tuple[tuple[str, tuple[str, ...]], ...]) -> Lineage:
    tables = dict(reads)
    return trace(text, tables if CUTOFFS not in text else {**tables, CUTOFFS: (CUTOFF,)})


def check_query(sql: str, tables: Mapping[str, Sequence[str]], *, has_cutoffs: bool = False) -> CheckedQuery:
    """Refuses all but a query over `tables` (their columns by name), and over cutoffs where it has any.

    >>> check_query("SELECT k, avg(x) AS m FROM t GROUP BY k", {"t": ["k", "x", "z"]}).reads
    {'t': ('k', 'x')}
    """
    tree, nodes = guard.check_tree(sql, exp.Query, _WHAT, _check_node)
    local = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    tables = {**tables, CUTOFFS: [CUTOFF]} if has_cutoffs else tables
    names = {name.lower(): name for name in tables}
    used: dict[str, str] = {}
    for node in tree.find_all(exp.Table):
        _check_table(node, names, local, used)
    _check_names(tree, [column for name in used.values() for column in tables[name]])
    reads = {name: _read(tree, tables[name]) for name in used.values() if name != CUTOFFS}
    return CheckedQuery(guard.write_sql(tree, nodes, _WHAT), reads)


def _check_node(node: exp.Expr) -> None:
    kind = type(node)
    if kind not in guard.QUERY_NODES and kind is not exp.Anonymous:
        raise guard.refused(_WHAT, f"it contains {kind.__name__.upper()}, which is not on the list of what is run")
    if kind is exp.With and node.args.get("recursive"):
        raise guard.refused(_WHAT, "WITH RECURSIVE is not run")
    if kind is exp.Column and node.args.get("db") is not None:
        raise guard.refused(_WHAT, f"the column {node.name!r} carries the name of a schema; write alias.column")
    guard.check_call(node, _WHAT)


def _check_table(node: exp.Table, names: Mapping[str, str], local: set[str], used: dict[str, str]) -> None:
    """A name of the client's own tables, or one that WITH gives; no schema, no function, no sample."""
    if not isinstance(node.this, exp.Identifier) or any(
        value for key, value in node.args.items() if key not in ("this", "alias", "joins")
    ):
        raise guard.refused(_WHAT, "FROM takes names of this client's tables, and nothing else")
    name = node.name.lower()
    if name in names:
        used[name] = names[name]
    elif name not in local:
        raise PolicyError(f"there is no table {node.name!r} at this client; it has {', '.join(sorted(names.values()))}")


def _check_names(tree: exp.Expr, columns: Sequence[str]) -> None:
    """Every column is one of the tables', or a name that the query gives."""
    given = {i.name.lower() for i in tree.find_all(exp.Identifier) if not isinstance(i.parent, exp.Column)}
    known = given | {column.lower() for column in columns}
    for column in tree.find_all(exp.Column):
        if isinstance(column.this, exp.Identifier) and column.name.lower() not in known:
            hint = did_you_mean(column.name, list(columns))
            raise guard.refused(_WHAT, f"none of its tables has a column {column.name}. {hint}")


def _read(tree: exp.Expr, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table that a query may read: those it names, or all where a * may stand for them."""
    stars = [s for s in tree.find_all(exp.Star) if not isinstance(s.parent, exp.Count)]
    if stars or any(join.method == "NATURAL" for join in tree.find_all(exp.Join)):
        return tuple(columns)
    named = {c.name.lower() for c in tree.find_all(exp.Column)}
    named |= {i.name.lower() for join in tree.find_all(exp.Join) for i in join.args.get("using") or ()}
    return tuple(c for c in columns if c.lower() in named)


NO_ROW = "(1 = 0)"
MOST_HISTORY_ROWS = 50_000_000
_MERGED = "tablepuppet merged"


class DerivedSource(Source):
    """The rows of a query over sources that the caller opened, and will close; nothing is held between two readings."""

    def __init__(self, name: str, query: CheckedQuery, sources: Mapping[str, Source], cutoffs: str = "") -> None:
        self.name = name
        self.query = query
        self.text = query.text  # or the same for some pairs of key and cutoff only
        self.sources = {table: sources[table] for table in query.reads}
        self.cutoffs = cutoffs  # their type, where the query is over a history
        self.moments: pa.Table | None = None  # the cutoffs themselves, once they are known; with keys, if in pairs
        self.closed: Mapping[str, frozenset[str]] = {}  # by table: columns that are not read, and all NULL in the query
        self._key_types: list[str] = []

    def describe(self) -> list[ColumnInfo]:
        with closing(self.open_rows(NO_ROW)) as twin:
            return _without_lists(twin.describe())

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        with closing(self.open_rows(NO_ROW)) as twin:
            return _without_lists(twin.describe_scan(expressions, filter))

    @property
    def is_infallible(self) -> bool:
        """Whether some table is protected: then no row's value may be an error."""
        return any(isinstance(source, InfallibleSource) for source in self.sources.values())

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        with closing(self.open_rows(None)) as whole:
            return (InfallibleSource(whole) if self.is_infallible else whole).read(expressions, filter)

    def read_keys(self, outputs: Sequence[str]) -> tuple[pa.Table, list[ColumnInfo]]:
        """The different values of a history's keys."""
        self.moments = pa.table({CUTOFF: pa.array([], pa.date32())})
        with closing(self.open_rows(None, history_queries.list_keys(self.text, outputs))) as keys:
            infos = keys.describe()
            names = [quote_name(info.name) for info in infos]
            self._key_types = keys.types(names, None)
            return keys.read(names, None), infos

    def hold_pairs(self, outputs: Sequence[str], pairs: pa.Table) -> None:
        """From now on the rows are those of some pairs: cutoffs, and the keys that were read."""
        self.text = history_queries.pair_keys(self.text, outputs)
        self.moments = pairs.rename_columns([CUTOFF, *(f"{KEY} {k}" for k in range(len(outputs)))])

    def open_moments(self) -> duckdb_source.DuckSource:
        assert self.moments is not None
        named = {CUTOFFS: self.moments.select([CUTOFF])}
        query = f"SELECT * FROM {quote_name(CUTOFFS)}"
        return duckdb_source.from_query(self.name, named, query, {CUTOFFS: {CUTOFF: self.cutoffs}})

    def find_base(self) -> tuple[str, ...]:
        """From now on each row of a history says how many base rows its values are made of, where more than one. Found:
        the outputs by which base rows are told apart."""
        counted = history_queries.add_rows_behind(self.text)
        self.text = counted or self.text
        names = [info.name for info in self.describe() if info.name not in (AT, AT_ONCE)]
        kept = [name for name in names if counted is None or name.startswith(f"{KEY} ")]
        return tuple(quote_name(name) for name in (*kept, *([BEHIND] if counted else [])))

    def stamp(self) -> str | None:
        stamps = [source.stamp() for source in self.sources.values()]
        return None if None in stamps else " ".join(map(str, stamps))

    def open_rows(self, filter: str | None, text: str | None = None) -> duckdb_source.DuckSource:
        """The rows of the query, or of another one over the same columns."""
        tables, casts = {}, {}
        for table, source in self.sources.items():
            columns = list(self.query.reads[table])
            texts = [quote_name(column) for column in columns] or ["1"]
            for place in (p for p, column in enumerate(columns) if column in self.closed.get(table, ())):
                texts[place] = f"CASE WHEN {NO_ROW} THEN {texts[place]} END"
            read = source.read(texts, filter)
            tables[table] = read.rename_columns(columns or ["a row"])  # count(*) names no column
            if any(pa.types.is_string(kind) for kind in read.schema.types):
                uuids = {info.name.lower() for info in source.describe() if info.kind == "uuid"}
                casts[table] = {column: "UUID" for column in columns if column.lower() in uuids}
        is_whole, text = text is None and filter is None, self.text if text is None else text
        if self.cutoffs:
            if self.moments is None and filter is None:
                raise SourceError(f"the history {self.name} is read until cutoffs, and they were not sent")
            known = pa.table({CUTOFF: pa.array([], pa.date32())}) if self.moments is None else self.moments
            tables[CUTOFFS] = known if filter is None else known.slice(0, 0)
            casts[CUTOFFS] = {CUTOFF: self.cutoffs, **dict(zip(known.column_names[1:], self._key_types, strict=False))}
            if is_whole:
                self._check_size(tables, casts)
        return duckdb_source.from_query(self.name, tables, self._without_failures(text, tables, casts), casts)

    def _without_failures(
        self, text: str, tables: Mapping[str, pa.Table], casts: Mapping[str, Mapping[str, str]]
    ) -> str:
        """The query over these tables, in which no row fails where some table is protected."""
        if not self.is_infallible:
            return text
        empty = {table: rows.slice(0, 0) for table, rows in tables.items()}

        def types(query: str) -> list[tuple[str, str]]:
            with closing(duckdb_source.from_query(self.name, empty, query, casts)) as twin:
                return [(info.name.lower(), info.detail) for info in twin.describe()]

        return check_unions(make_infallible(text, types), types)

    def _check_size(self, tables: Mapping[str, pa.Table], casts: Mapping[str, Mapping[str, str]]) -> None:
        """Refuses a history with too many rows before any is made."""
        cutoffs, most, by_key = tables[CUTOFFS].num_rows, MOST_HISTORY_ROWS, history_queries.count_keys(self.text)
        is_one_table = len(tables) == 2 and max(table.num_rows for table in tables.values()) * cutoffs <= most
        if is_one_table or (self._key_types and by_key is not None):  # a group for each row, or for each pair, at most
            return
        for query, times in ((by_key, cutoffs), (history_queries.count_rows(self.text, most + 1), 1)):
            if query is not None:
                text = self._without_failures(query, tables, casts)
                with closing(duckdb_source.from_query(self.name, tables, text, casts)) as counted:
                    if counted.read(["n"], None).column(0)[0].as_py() * times <= most:
                        return
        raise SourceError(
            f"the history {self.name} would have more than {most:,} rows, one for each key and cutoff; round the "
            "moments, as in date_trunc('week', t.ts), make the window shorter, or let both owners' policies grant the "
            "key as pairs"
        )


def _without_lists(infos: Sequence[ColumnInfo]) -> list[ColumnInfo]:
    """Columns of a query without rows: the length of a list would be up to these."""
    return [replace(info, kind="other") if (info.kind, info.size) == ("vector", 0) else info for info in infos]


def partials_of(source: DerivedSource, key: bytes) -> Partials:
    """The groups that one client computes from its own rows; `key`: for the groups' tokens."""

    def columns() -> set[str]:
        with closing(source.open_rows(NO_ROW, source_of(source.text))) as below:
            return {info.name.lower() for info in below.describe()}

    try:
        query = split_groups(source.text, columns)
    except UnmergeableError as error:
        raise SourceError(f"groups of this query cannot be merged over clients: it has {error}") from None
    with closing(source.open_rows(None, query.partial)) as rows:
        infos = rows.describe()
        names = [quote_name(info.name) for info in infos]
        return Partials.of(rows.read(names, None), infos, rows.types(names, None), query, key)


class MergedSource(DerivedSource):
    """The rows of a grouped query over merged groups."""

    def __init__(self, source: DerivedSource, partials: Partials, groups: pa.Table) -> None:
        super().__init__(source.name, source.query, source.sources)
        with closing(source.open_rows(NO_ROW, source.text)) as empty:
            names = [info.name for info in empty.describe()]
            types = empty.types([quote_name(name) for name in names], None)
        columns = zip(groups.column_names, partials.casts, strict=True)
        states = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in columns)
        shown = ", ".join(
            f"CAST(c{i} AS {t}) AS {quote_name(n)}" for i, (n, t) in enumerate(zip(names, types, strict=True))
        )
        listed = ", ".join(f"c{i}" for i in range(len(names)))
        self._text = (
            f"WITH {quote_name(GROUPS)} AS (SELECT {states} FROM {quote_name(_MERGED)}), "
            f"rows_of({listed}) AS ({partials.query.final}) SELECT {shown} FROM rows_of"
        )
        self._groups = groups

    def open_rows(self, filter: str | None, text: str | None = None) -> duckdb_source.DuckSource:
        if filter is not None or text is not None:
            return super().open_rows(filter, text)
        return duckdb_source.from_query(self.name, {_MERGED: self._groups}, self._text)
