"""The identity of a row at its owner, the order in which rows are shown, and the sets of rows of earlier jobs.

Identity: 128 bits (`row_ids`, for label noise) or 64 (`row_keys`, for row sets), the same under any filter, order and
job. They come from the column that the owner's policy names (`row_key`), or from all columns of a row. A number
distinguishes rows that are equal in every column: a filter keeps all of them or none. Neither leaves the owner.

The order is a secret of the clients. In: their key, the job's seed, and where a client's rows lie in the whole table.
Out: 64 pseudo-random bits for each row, and the rows sorted by them. Row numbers are positions in this order. They do
not reveal where a row lies in its owner's table, which is often sorted by an id or by time. A row's bits depend on its
place in the whole table, not on its holder. The server can therefore put the rows of several clients in one order, and
joined rows, and with them the batches of sgd, are the same however the table is split.

Row sets: two that differ by few rows reveal those rows. In: the keys of a set. Out: by how many rows it differs from
an earlier one, where that is fewer than a limit. A set is kept as a sketch: an invertible Bloom lookup table (Eppstein
et al., "What's the difference?", SIGCOMM 2011). Its size follows from the limit, not from the number of rows. Every row
is added to three cells. The cells of two sets are subtracted, and the remainder is decoded row by row.
"""

import hashlib
import hmac
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import PolicyError
from tablepuppet.sources.columns import numpy_of
from tablepuppet.sources.duckdb_source import quote_name
from tablepuppet.sources.guard import check_expression
from tablepuppet.sources.source import Source

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNCLEAR = ("other", "vector")  # whose text differs between databases, or does not exist


AS_TEXT = "CAST({} AS VARCHAR)"


def whole_rows(source: Source, key: str | None = None, form: str = "{}") -> tuple[str, ...]:
    """The expressions that identify a row, as they are or in another form: one column, or (None) all of them."""
    columns = source.describe()
    names = [column.name for column in columns]
    is_shown = (lambda c: c.kind not in _UNCLEAR) if key is None else (lambda c: c.name.lower() == key.lower())
    shown = [quote_name(column.name) for column in columns if is_shown(column)]
    if not shown and key is not None:
        raise PolicyError(f"the policy names {key} as the key of rows, and the table has no such column (rule row_key)")
    return tuple(check_expression(form.format(name), names) for name in shown)


def row_ids(texts: pa.Table, *, is_key: bool = False) -> NDArray[np.uint64]:
    """(rows, 2): two halves of a hash over a row's columns, with a number for each of several equal rows; rows of one
    declared key are one row.
    """
    rows = texts.num_rows
    if not rows or not texts.num_columns:
        return np.stack([np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint64)], axis=1)
    named = texts.rename_columns([f"c{i}" for i in range(texts.num_columns)])
    parts = ", ".join(f"coalesce(length(c{i})::VARCHAR || ':' || c{i}, '-')" for i in range(texts.num_columns))
    with duckdb.connect() as connection:
        connection.register("whole_rows", named)
        hashed: pa.Table = connection.sql(
            f"SELECT md5_number_lower(t) AS l, md5_number_upper(t) AS u FROM (SELECT concat_ws('|', {parts}) AS t "
            "FROM whole_rows)"
        ).to_arrow_table()
    ids = np.stack([hashed.column("l").to_numpy(), hashed.column("u").to_numpy()], axis=1).astype(np.uint64)
    if not is_key:
        ids[:, 1] ^= count_equal_before(ids)
    return ids


def count_equal_before(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """How many equal rows come before each; `ids`: (rows, k)."""
    order = np.lexsort(ids.T[::-1])
    ordered = ids[order]
    is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    starts = np.flatnonzero(is_new)
    number = np.arange(len(ids)) - starts[np.cumsum(is_new) - 1]
    found = np.empty(len(ids), np.uint64)
    found[order] = number
    return found


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64, a bijection of 64 bits; products wrap around."""
    mixed = x ^ (x >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)  # in place: memory is what this takes
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


_BLOCK = 8  # numbers in a block of ChaCha20, which its nonce begins to count at


def order_bits(key: bytes, scan: str, seed: int, offset: int, rows: int) -> NDArray[np.uint64]:
    """The bits of rows offset, offset + 1, … of a table."""
    secret = hmac.digest(key, f"tablepuppet row order {seed} {scan}".encode(), "sha256")
    block, skipped = divmod(offset, _BLOCK)
    stream = Cipher(ChaCha20(secret, block.to_bytes(8, "little") + bytes(8)), mode=None).encryptor()
    drawn = np.empty(skipped + rows, np.uint64)
    stream.update_into(bytes(drawn.nbytes), drawn.data.cast("B"))
    return drawn[skipped:]


def in_order(bits: NDArray[np.uint64]) -> RowNumbers:
    """The rows sorted by their bits, and by their place where those are equal."""
    places = np.uint64((1 << len(bits).bit_length()) - 1)
    packed = (bits & ~places) | np.arange(len(bits), dtype=np.uint64)  # sorted as numbers, far faster than by argsort
    packed.sort()
    is_tied = (packed[1:] ^ packed[:-1]) <= places  # by the bits that are left
    order: RowNumbers = (packed & places).astype(np.int32 if len(bits) < 2**31 else np.int64)
    again = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
    order[again] = order[again][np.argsort(bits[order[again]], kind="stable")]
    return order


Kind = Literal["rows", "held out", "part"]  # of a scan or condition; of a split; of training, with multiplicities
Keys = NDArray[np.uint64]
_HASHES = 3
_MIN_ROWS = 64  # rows of difference that every sketch can count
_STEPS = np.arange(1, _HASHES + 1, dtype=np.uint64) * GOLDEN
_CHECK = np.uint64(0xC2B2AE3D27D4EB4F)
_MOST_BITS = 60  # of a group's number before groups are numbered anew
MOST_SETS = 10_000  # of one table: then a person must decide


class Sketch(msgspec.Struct, frozen=True, eq=False):
    """A set of rows: in each cell how many rows, and the sums of their keys and of hashes of these, modulo 2⁶⁴."""

    rows: int
    cells: NDArray[np.uint64]  # (3, lines, cells)

    @classmethod
    def of(cls, keys: Keys, size: int) -> Self:
        cells = np.zeros((3, _HASHES, size), np.uint64)
        _add_rows(cells, np.stack([np.ones_like(keys), keys, mix(keys ^ _CHECK)]))
        return cls(len(keys), cells)

    @property
    def size(self) -> int:
        return int(self.cells.shape[2])

    @property
    def name(self) -> str:
        """The same for the same set."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        return self.cells.astype("<u8").tobytes()

    @classmethod
    def from_bytes(cls, rows: int, size: int, content: bytes) -> Self:
        return cls(rows, np.frombuffer(content, "<u8").reshape(3, _HASHES, size).astype(np.uint64))

    def difference(self, other: Self, limit: int) -> int | None:
        """By how many rows two sets differ, where it is fewer than `limit`; None: by more."""
        cells = self.cells - other.cells
        if int(cells.any(axis=0).sum(axis=1).max()) >= limit:  # each row that differs is in one cell of each line
            return None
        found, one, nothing = 0, np.uint64(1), np.uint64(0)
        while True:
            signed = np.where(cells[0] == one, cells, nothing - cells)  # a row of the other set alone counts as −1
            is_pure = (signed[0] == one) & (mix(signed[1] ^ _CHECK) == signed[2])
            if not is_pure.any():
                break
            _, first = np.unique(signed[1][is_pure], return_index=True)
            found += len(first)
            _add_rows(cells, nothing - cells[:, is_pure][:, first], signed[1][is_pure][first])
        if cells.any():  # few cells are in use, and some rows share all of theirs
            return min(found + 2, limit - 1)
        return found if found < limit else None


def _add_rows(cells: NDArray[np.uint64], rows: NDArray[np.uint64], keys: Keys | None = None) -> None:
    """Adds (3, rows) of counts, keys and hashes to one cell of each line; sums wrap around."""
    size = np.uint64(cells.shape[2])
    for line, step in enumerate(_STEPS):
        places = (mix((rows[1] if keys is None else keys) + step) % size).astype(np.intp)
        for sums, values in zip(cells[:, line], rows, strict=True):
            np.add.at(sums, places, values)


def row_keys(rows: pa.Table, *, is_key: bool = False) -> Keys:
    """64 bits for each row, from all its columns, the same in every version. A number distinguishes equal rows, unless
    they are one subject's.
    """
    keys = np.zeros(rows.num_rows, np.uint64)
    for column in rows.columns:
        keys = mix(keys + GOLDEN + _bits(column))
    return mix(keys) if is_key else mix(keys + count_equal_before(keys[:, None]) * GOLDEN)


def joined_keys(keys: Keys, times: NDArray[np.int64]) -> Keys:
    """Keys of rows that also depend on how often each is joined, relative to the median. Without the median, doubling
    the joins of all rows but one would change every key.
    """
    usual = float(np.partition(times, len(times) // 2)[len(times) // 2]) if len(times) else 1.0
    return mix(keys ^ mix((times / max(1.0, usual)).view(np.uint64) * GOLDEN))


def _bits(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """64 bits of each value: of a number or a time its own, of a text a hash."""
    kind = column.type
    if pa.types.is_floating(kind):
        bits = numpy_of(pc.cast(column, pa.float64())).view(np.uint64)
    elif pa.types.is_boolean(kind):
        bits = numpy_of(pc.cast(column, pa.int64())).view(np.uint64)
    elif pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        whole = pc.cast(pc.cast(column, pa.int32()), pa.int64()) if kind.bit_width == 32 else column
        bits = numpy_of(pc.cast(whole, pa.int64(), safe=False)).view(np.uint64)
    else:
        with duckdb.connect() as connection:
            connection.register("texts", pa.table({"t": column}))
            hashed = connection.sql("SELECT md5_number_lower(CAST(t AS VARCHAR)) AS h FROM texts").to_arrow_table()
        bits = numpy_of(pc.cast(pc.fill_null(hashed.column("h"), 0), pa.uint64()))
    is_null = np.asarray(column.is_null().to_numpy(), np.bool_) if column.null_count else None
    return bits if is_null is None else np.where(is_null, _CHECK, bits)


def smallest_group(holds: Sequence[NDArray[Any]], subjects: NDArray[np.uint64] | None = None) -> int:
    """The number of rows, or subjects, in the smallest group that conditions and periods separate; no rows: 0."""
    if not holds:
        return 0
    numbers = np.zeros(len(holds[0]), np.int64)
    bits = 0
    for held in holds:
        width = max(1, int(held.max(initial=0)).bit_length())
        if bits + width > _MOST_BITS:
            numbers = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
            bits = int(numbers.max(initial=0)).bit_length()
        bits, numbers = bits + width, (numbers << width) + held
    if subjects is not None:  # each once in each group
        pairs = np.stack([numbers, np.unique(subjects, return_inverse=True)[1]], axis=1)
        numbers = np.unique(pairs, axis=0)[:, 0]
    return int(np.unique(numbers, return_counts=True)[1].min(initial=len(numbers)))


class RowSet(NamedTuple):
    table: str
    kind: Kind
    sketch: Sketch


class RowSets:
    """One owner's row sets; without a path they last as long as the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def sketch(self, keys: Keys, limit: int) -> Sketch:
        """The sketch of a set that can count differences of fewer than `limit` rows."""
        cells = (
            4 * (1 << (max(_MIN_ROWS, limit) - 1).bit_length()) // 3 + 1
        )  # a third more than rows, to a power of two
        return Sketch.of(keys, cells)

    def prefixes(self, keys: Keys, period: NDArray[np.int64], limit: int) -> Iterator[tuple[Keys, Sketch]]:
        """The rows before the end of each period but the last, with their sketches."""
        order = np.argsort(period, kind="stable")
        ordered, ends = keys[order], np.flatnonzero(np.diff(period[order])) + 1
        cells, start = self.sketch(ordered[:0], limit).cells, 0
        for end in ends.tolist():
            cells = cells + self.sketch(ordered[start:end], limit).cells
            start = end
            yield ordered[:end], Sketch(end, cells)

    def nearest(self, table: str, kind: Kind, keys: Keys, limit: int, sketch: Sketch | None = None) -> int | None:
        """The fewest rows by which an earlier set differs from this one: at least 1, and fewer than `limit`."""
        found: int | None = None
        sketches = {} if sketch is None else {sketch.size: sketch}
        for earlier in self._like(table, kind, len(keys), limit):
            if earlier.size not in sketches:
                sketches[earlier.size] = Sketch.of(keys, earlier.size)
            by = sketches[earlier.size].difference(earlier, limit)
            if by and (found is None or by < found):
                found = by
        return found

    def keep(self, sets: Sequence[RowSet]) -> None:
        """Keeps the sets of a job; they are on the disk when this returns."""
        if not sets:  # no file where no rule needs one
            return
        with self._lock, self._open_database() as database:
            for one in sets:
                self._add(database, *one)

    def names(self) -> list[str]:
        with self._lock, self._open_database() as database:
            return [name for (name,) in database.execute("SELECT name FROM sets").fetchall()]

    def _add(self, database: sqlite3.Connection, table: str, kind: Kind, sketch: Sketch) -> None:
        known = database.execute("SELECT count(*) FROM sets WHERE of = ?", (table,)).fetchone()[0]
        if known >= MOST_SETS:
            raise PolicyError(
                f"its policy refuses the request: {known:,} different sets of rows of {table} were agreed to, and "
                "no further one is compared with them all; the owner may begin anew (rule minimum_difference)"
            )
        database.execute(
            "INSERT OR IGNORE INTO sets VALUES (?, ?, ?, ?, ?, ?)",
            (table, kind, sketch.rows, sketch.size, sketch.name, sketch.to_bytes()),
        )

    def _like(self, table: str, kind: Kind, rows: int, limit: int) -> list[Sketch]:
        """Earlier sets of about as many rows."""
        with self._lock, self._open_database() as database:
            found = database.execute(
                "SELECT rows, cells, sketch FROM sets WHERE of = ? AND kind = ? AND abs(rows - ?) < ?",
                (table, kind, rows, limit),
            ).fetchall()
        return [Sketch.from_bytes(*one) for one in found]

    def _open_database(self) -> sqlite3.Connection:
        if self._database is None:
            try:
                if self._path is not None:
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
                self._database = sqlite3.connect(self._path or ":memory:", check_same_thread=False)
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS sets (of TEXT, kind TEXT, rows INTEGER, cells INTEGER, name TEXT, "
                    "sketch BLOB, PRIMARY KEY (of, kind, cells, name))"
                )
            except (OSError, sqlite3.Error) as error:
                raise PolicyError(
                    f"the row sets in {self._path} cannot be read ({error}); nothing is agreed to without them"
                ) from None
        return self._database
