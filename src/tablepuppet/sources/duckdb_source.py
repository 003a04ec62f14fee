"""DuckSource: a table in a private, locked, in-memory DuckDB.

In: an Arrow table or dataset, Parquet files, or CSV files. Out: a Source.

The database belongs to this source alone. Once the table is in place, DuckDB may touch no file but the table's own
and load no extension, and its configuration is locked. An expression that the guard overlooked would still find nothing
else to read. A new database takes ten milliseconds; so one that never held more than temporary views and tables, which
go with their connection, is used again after its source is closed.

Rows keep their order: DuckDB's `preserve_insertion_order` makes a scan with a filter and
a projection give rows in the order of the Arrow table or of the files.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

import duckdb
import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.memory import memory_limit
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.columns import column_info, is_float_list, put_together
from tablepuppet.threads import call_after

if TYPE_CHECKING:
    import pyarrow.dataset as pads


def silence(connection: duckdb.DuckDBPyConnection) -> None:
    [[is_on]] = connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()
    if is_on:
        connection.execute("SET enable_progress_bar = false")


_T = TypeVar("_T")
RELATION = "tablepuppet_source"
MOST_SECONDS = 900.0  # of one reading: nobody keeps an owner's machine busy for ever
MOST_HELD = 300.0  # seconds that a reading keeps a database of the owner's busy
_AHEAD = 1 << 28  # bytes of a database's answer that are taken before anything is computed over them
_ROWS_SHARE = 3  # times less than all memory is for the rows of one reading
_BATCH = 1 << 13  # rows per batch
_THREADS = min(2, os.cpu_count() or 1)  # several clients may share a machine
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "preserve_insertion_order": True,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",  # nothing of the owner's is ever spilled to disk
    "arrow_output_version": "1.5",  # in which a decimal of up to 18 digits takes 8 bytes, not 16
    "allocator_bulk_deallocation_flush_threshold": "1MB",  # of what it read and freed, less stays: half of 512 MB's
}
# Errors about the query's own text and types; all others may quote a row's value.
_SAFE_ERRORS = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)
_REASONS: dict[type[duckdb.Error], str] = {
    duckdb.ConversionException: "some row has a value that cannot be converted, or the query itself has (text where a "
    "number belongs, or a date not written as '2024-01-31'); use TRY_CAST, or filter such rows out",
    duckdb.OutOfMemoryException: "there is not enough memory to read it",
    # A path that leads nowhere is not allowed.
    **dict.fromkeys((duckdb.IOException, duckdb.PermissionException), "the file is missing, changed or damaged"),
    duckdb.ConnectionException: "it is closed; open it again",
    duckdb.InvalidInputException: "a file is not in order (its columns), or an expression got a value that it cannot "
    "take; mend the file, or filter such rows out",
}


class DuckSource:
    """A table behind a private DuckDB connection; `close` closes it."""

    def __init__(self, name: str, connection: duckdb.DuckDBPyConnection, close: Callable[[], None]) -> None:
        self._name = name
        self._connection = connection
        self.close = close
        try:
            self._columns = self._describe(f"SELECT * FROM {RELATION}", is_measured=True)
        except SourceError:
            close()
            raise

    def describe(self) -> list[ColumnInfo]:
        # Nothing is read, but a file that is gone or a connection that is closed is noticed.
        _run_guarded(self._name, lambda: self._connection.sql(f"SELECT 1 FROM {RELATION} LIMIT 0"))
        return list(self._columns)

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        """Types without a look at any row: a computed list, whose length would be up to its rows, is no vector."""
        found = self._describe(_select(expressions, filter), is_measured=False)
        columns = {quote_name(column.name).lower(): column for column in self._columns}
        return [columns.get(text.strip("()").lower(), info) for text, info in zip(expressions, found, strict=False)]

    def read(self, expressions: Sequence[str], filter: str | None, seconds: float | None = None) -> pa.Table:
        with call_after(seconds or MOST_SECONDS, self._connection.interrupt):
            return _run_guarded(self._name, lambda: _rows(self._connection, _select(expressions, filter)))

    def types(self, expressions: Sequence[str], filter: str | None) -> list[str]:
        """DuckDB's names for the types of some expressions."""
        relation = _run_guarded(self._name, lambda: self._connection.sql(_select(expressions, filter)))
        return [str(kind) for kind in relation.types][: len(expressions)]

    def stamp(self) -> str | None:
        return ""  # what lies in memory stays; files.py looks after files

    def _describe(self, query: str, *, is_measured: bool) -> list[ColumnInfo]:
        relation = _run_guarded(self._name, lambda: self._connection.sql(query))
        schema = _run_guarded(self._name, lambda: relation.limit(0).to_arrow_table().schema)
        types = [str(kind) for kind in relation.types]
        details = ["ENUM" if kind.startswith("ENUM(") else kind for kind in types]  # whose values are data
        lists = [field.name for field in schema if is_float_list(field.type)]
        sizes = self._list_sizes(query, lists) if is_measured else {}
        return [
            column_info(field.name, field.type, detail, sizes.get(field.name))
            for field, detail in zip(schema, details, strict=True)
        ]

    def _list_sizes(self, query: str, names: Sequence[str]) -> dict[str, int]:
        """The length of each list column whose rows all have one length (0: no rows at all)."""
        if not names:
            return {}
        bounds = ", ".join(f"min(len({quote_name(name)})), max(len({quote_name(name)}))" for name in names)
        select = f"SELECT {bounds} FROM ({query})"
        with call_after(MOST_SECONDS, self._connection.interrupt):
            [found] = _run_guarded(self._name, lambda: self._connection.execute(select).fetchall())
        pairs = zip(names, found[::2], found[1::2], strict=True)
        return {name: least or 0 for name, least, most in pairs if least == most}


def _rows(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    """The rows of a query. DuckDB's own memory limit does not cover rows already handed out, so they are counted."""
    reader = connection.sql(query).to_arrow_reader(_BATCH)

    def count_bytes() -> Iterator[pa.RecordBatch]:
        left = memory_limit() // _ROWS_SHARE
        for batch in reader:
            left -= batch.nbytes
            if left < 0:
                raise duckdb.OutOfMemoryException("its rows take more memory than they may")
            yield batch

    try:
        return put_together(count_bytes(), reader.schema)
    except OSError as error:  # as Arrow passes on DuckDB's errors
        kind = str(error).partition(" Error: ")[0].title().replace(" ", "")
        found = getattr(duckdb, f"{kind}Exception", duckdb.Error)
        raise found(str(error)) from None


def _run_guarded(name: str, action: Callable[[], _T]) -> _T:
    """Runs an action on DuckDB; its errors become ours, without a row's value in them."""
    try:
        return action()
    except duckdb.InterruptException:
        raise SourceError(
            f"table {name}: reading it took longer than it may and was stopped; ask for less of it"
        ) from None
    except duckdb.Error as error:
        raise SourceError(f"table {name}: {reason(error)}") from None


def from_arrow(name: str, table: "pa.Table | pads.Dataset") -> DuckSource:
    """A source over an Arrow table or dataset, which is not copied."""
    lent = Loan()
    try:
        lent.connection.register(RELATION, table)
    except duckdb.Error:
        lent.close()
        kinds = dict.fromkeys(str(field.type) for field in table.schema)
        raise SourceError(
            f"table {name}: one of its columns has an Arrow type that DuckDB does not read, of {', '.join(kinds)}; "
            "cast it or leave it out"
        ) from None
    return DuckSource(name, lent.connection, lent.close)


def from_query(
    name: str, tables: Mapping[str, pa.Table], query: str, casts: Mapping[str, Mapping[str, str]] | None = None
) -> DuckSource:
    """A source over a query's rows, computed anew at every reading: by one thread, so that they come in one order.

    `casts`: columns of tables that Arrow has in another type than their owner.
    """
    statements = ""
    found = {}
    for table, rows in tables.items():
        cast = ", ".join(
            f"CAST({quote_name(c)} AS {t}) AS {quote_name(c)}" for c, t in (casts or {}).get(table, {}).items()
        )
        found[f"{table} as read" if cast else table] = rows
        if cast:
            source = quote_name(f"{table} as read")
            statements += f"CREATE TEMP VIEW {quote_name(table)} AS SELECT * REPLACE ({cast}) FROM {source};"
    return _compute_source(name, f"{statements} CREATE TEMP VIEW {RELATION} AS {query}", found, threads=1)


def from_files(name: str, reader: str, files: Sequence[str], options: str = "", *, stays: bool = False) -> DuckSource:
    """A source over files, which are read where they lie (`stays`), or now, in full, and never again."""
    kind = "VIEW" if stays else "TABLE"
    select = f"SELECT * FROM {reader}({', '.join([_list(files), *([options] if options else [])])})"
    return create_source(name, f"CREATE {kind} {RELATION} AS {select}", files=files, allowed=files if stays else ())


def csv_header(name: str, file: str) -> list[str]:
    with _connect(_THREADS) as connection:
        query = f"SELECT * FROM read_csv({literal(file)}, header=false, all_varchar=true, skip=0) LIMIT 1"
        rows = _run_guarded(name, lambda: connection.execute(query).fetchall())
    return [cell or "" for row in rows for cell in row]


def from_types(name: str, columns: Sequence[tuple[str, str]]) -> DuckSource:
    """An empty table with these columns and types, to learn the type of an expression over them."""
    listed = ", ".join(f"{quote_name(column)} {kind}" for column, kind in columns)
    return _compute_source(name, f"CREATE TEMP TABLE {RELATION} ({listed})")


def absent_row(name: str, columns: Sequence[ColumnInfo], expressions: Sequence[str]) -> pa.Table:
    """The values of expressions, c0, c1, …, for a row that a LEFT JOIN does not find: all its columns are NULL."""
    types = {"ENUM": "VARCHAR", '"NULL"': "INTEGER"}  # an enum's values stay with the owner, and NULL has no type
    nulls = ", ".join(f"CAST(NULL AS {types.get(c.detail, c.detail)}) AS {quote_name(c.name)}" for c in columns)
    with closing(_compute_source(name, f"CREATE TEMP TABLE {RELATION} AS SELECT {nulls}")) as source:
        return source.read(expressions, None)


def project(
    name: str, batches: Iterator[pa.RecordBatch], inner: Sequence[str], columns: Sequence[str], filter: str | None
) -> pa.Table:
    """Columns c0, c1, … computed over a stream of batches, one after the other; an error of the stream passes as it is.

    `inner` names and types the batches' columns, which `columns` and `filter` are computed over. The first few hundred
    megabytes are read ahead, so that a slow computation does not keep the database waiting.
    """
    ahead = [next(batches)]
    size = 0
    for batch in batches:
        ahead.append(batch)
        size += batch.nbytes
        if size > _AHEAD:
            break
    schema = ahead[0].schema
    failed: list[Exception] = []

    def stream() -> Iterator[pa.RecordBatch]:
        try:
            while ahead:
                yield ahead.pop(0)
            yield from batches
        except Exception as error:
            failed.append(error)
            raise

    query = _select(columns, filter, f"(SELECT {', '.join(inner)} FROM {RELATION})")
    with closing(Loan()) as lent:
        connection = lent.connection
        connection.register(RELATION, pa.RecordBatchReader.from_batches(schema, stream()))
        try:
            with call_after(MOST_HELD, connection.interrupt):
                return _run_guarded(name, lambda: _rows(connection, query))
        except SourceError:
            if failed:
                raise failed[0] from None
            raise


def create_source(name: str, statements: str, files: Sequence[str], allowed: Collection[str] = ()) -> DuckSource:
    """A source that some statements make from files; those `allowed` may be read later."""
    connection = _connect(_THREADS)
    try:
        connection.execute(statements)
    except duckdb.Error as error:
        connection.close()
        raise SourceError(f"table {name}: {files[0]} cannot be read: {reason(error)}") from None
    _lock(connection, allowed)
    return DuckSource(name, connection, connection.close)


def _compute_source(
    name: str, statements: str, tables: Mapping[str, pa.Table] | None = None, threads: int = _THREADS
) -> DuckSource:
    """A source that some statements make, over these tables in memory; what they create is temporary."""
    lent = Loan(threads)
    try:
        for table, rows in (tables or {}).items():
            lent.connection.register(table, rows)
        lent.connection.execute(statements)
    except duckdb.Error as error:
        lent.close()
        raise SourceError(f"table {name}: {reason(error)}") from None
    return DuckSource(name, lent.connection, lent.close)


_idle: dict[tuple[int, int, int], deque[duckdb.DuckDBPyConnection]] = {}  # locked databases that hold nothing


class Loan:
    """A connection to a locked database in memory, which nobody else uses until it is closed.

    >>> with closing(Loan()) as lent:
    ...     lent.connection.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchall()
    [(0,)]
    """

    def __init__(self, threads: int = _THREADS) -> None:
        self._waiting = _idle.setdefault((os.getpid(), threads, memory_limit()), deque(maxlen=8))
        self._database: duckdb.DuckDBPyConnection | None = None
        try:
            self._database = self._waiting.pop()
        except IndexError:
            self._database = _connect(threads)
            _lock(self._database, ())
        self.connection = self._database.cursor()

    def close(self) -> None:
        """Takes the connection's views and tables away."""
        self.connection.close()
        database, self._database = self._database, None
        if database is not None:
            with suppress(duckdb.Error):  # a database that broke down does nothing any more
                database.execute("SELECT 1")
                self._waiting.append(database)


def _connect(threads: int) -> duckdb.DuckDBPyConnection:
    config = {**_CONFIG, "threads": threads, "memory_limit": f"{6 * memory_limit() // 10}B"}
    connection = duckdb.connect(":memory:", config=config)
    silence(connection)
    # What occurs twice in a TRY would be computed once, outside of it, and fail there (sources/infallible.py). And a
    # month is equal to 30 days there: what is later by the one would be taken for what is later by the other.
    connection.execute("SET disabled_optimizers = 'common_subexpressions'")
    return connection


def _lock(connection: duckdb.DuckDBPyConnection, files: Collection[str]) -> None:
    """Takes away everything that an expression does not need."""
    connection.execute("SET GLOBAL TimeZone = 'UTC'")  # of every connection
    connection.execute("SET GLOBAL python_enable_replacements = false")
    connection.execute(f"SET allowed_paths = {_list(files)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _select(expressions: Sequence[str], filter: str | None, relation: str = RELATION) -> str:
    columns = ", ".join(f"({expression}) AS c{i}" for i, expression in enumerate(expressions))
    columns = columns or "true AS present"  # an Arrow table without columns would forget how many rows it has
    return f"SELECT {columns} FROM {relation}" + (f" WHERE ({filter})" if filter is not None else "")


def reason(error: duckdb.Error) -> str:
    """The reason of an error, without DuckDB's own words where they may quote a row's value."""
    if found := re.search(r"No function matches the given name and argument types '(.*?)'", str(error)):
        return f"no function of SQL takes {found[1]}; CAST what it is given to another type"
    if found := re.search(r"Cannot compare values of type (\S+) and type (\S+) -", str(error)):
        return f"{found[1]} is compared with {found[2]}; CAST one of them, as in CAST(column AS {found[2]})"
    if isinstance(error, _SAFE_ERRORS):
        return re.sub(r"^\w+ Error: ", "", str(error).splitlines()[0])
    if isinstance(error, duckdb.OutOfRangeException):
        return _overflow(error)
    if isinstance(error, duckdb.InvalidInputException) and "utf-8 encoded" in str(error):
        return "the file is not in UTF-8; convert it first, for example with iconv -f latin1 -t utf-8"
    known = (why for kind, why in _REASONS.items() if isinstance(error, kind))
    return next(known, f"DuckDB reports {type(error).__name__}; check the expression and the file")


def _overflow(error: duckdb.OutOfRangeException) -> str:
    """Which arithmetic overflows which type: of DuckDB's words, those that are not a row's value."""
    found = re.search(r"Overflow in (\w+) of (\w+)", str(error))
    if found is None:
        return "some row has a value out of range; CAST it to a wider type, or filter such rows out"
    wider = "DOUBLE" if found[2] in ("INT64", "INT128") or found[2].startswith("DEC") else "BIGINT"
    article = "an" if found[1][0] in "aeiou" else "a"
    return (
        f"{article} {found[1]} overflows {found[2]}, the type of its columns, in some row; widen them first, as in "
        f"CAST(column AS {wider})"
    )


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _list(files: Collection[str]) -> str:
    return f"[{', '.join(literal(file) for file in files)}]"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
