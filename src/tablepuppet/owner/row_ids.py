"""What a row is at its owner, the same under any filter, order and job; and the order in which clients show their rows.

Fingerprints: 128 bits a row, of all its columns. Rows that are equal in every column are told apart by a number, as
many as there are: a filter keeps all of them or none. Fingerprints never leave the owner.

The order is a secret of the clients. In: their key, the job's seed, and where a client's rows lie in the whole table.
Out: 64 pseudo-random bits for each row, and the rows sorted by them. Row numbers are positions in this order, so that
they say nothing about where a row lies in its owner's table, which is often sorted by an id or by time.

A row's bits depend on its place in the whole table, not on who holds it. Where a table has several clients they send
the bits along, and the server can put the rows of all in one order: joined rows, and with them the batches of sgd,
are the same however the table is split.
"""

from __future__ import annotations

import hmac

import duckdb
import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers, pieces
from tablepuppet.sources.guard import check_expression
from tablepuppet.sources.source import Source
from tablepuppet.threads import parallel_for

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNCLEAR = ("other", "vector")  # whose text differs between databases, or does not exist


def identity_expressions(source: Source) -> tuple[str, ...]:
    """Every column of a table as text."""
    columns = source.describe()
    names = [column.name for column in columns]
    quoted = ['"' + column.name.replace('"', '""') + '"' for column in columns if column.kind not in _UNCLEAR]
    return tuple(check_expression(f"CAST({name} AS VARCHAR)", names) for name in quoted)


def whole_rows(source: Source) -> tuple[str, ...]:
    """Every column of a table as it is."""
    columns = source.describe()
    names = [column.name for column in columns]
    quoted = ['"' + column.name.replace('"', '""') + '"' for column in columns if column.kind not in _UNCLEAR]
    return tuple(check_expression(name, names) for name in quoted)


def row_ids(texts: pa.Table) -> NDArray[np.uint64]:
    """(rows, 2): two halves of a hash over a row's columns, with a number for each of several equal rows.

    >>> ids = row_ids(pa.table({"a": ["x", "y", "x"]}))
    >>> bool((ids[0] != ids[2]).any()), bool((row_ids(pa.table({"a": ["y"]})) == ids[1]).all())
    (True, True)
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
    ids[:, 1] ^= _count_equal_before(ids)
    return ids


def _count_equal_before(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """How many equal rows come before each."""
    order = np.lexsort((np.arange(len(ids)), ids[:, 1], ids[:, 0]))
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
_CHUNK = 1 << 15  # numbers that are made together: they stay in the cache
_SHARE = 1 << 18  # of a thread


def order_bits(key: bytes, scan: str, seed: int, offset: int, rows: int) -> NDArray[np.uint64]:
    """The bits of rows offset, offset + 1, … of a table.

    >>> bool((order_bits(b"k", "t", 7, 0, 30)[11:] == order_bits(b"k", "t", 7, 11, 19)).all())
    True
    """
    secret = hmac.digest(key, f"tablepuppet row order {seed} {scan}".encode(), "sha256")
    block, skipped = divmod(offset, _BLOCK)
    drawn = np.empty(skipped + rows, np.uint64)
    zeros = memoryview(bytes(8 * min(_CHUNK, len(drawn))))

    def draw(here: slice) -> None:
        nonce = (block + here.start // _BLOCK).to_bytes(8, "little") + bytes(8)
        stream = Cipher(ChaCha20(secret, nonce), mode=None).encryptor()
        for some in pieces(here.stop - here.start, _CHUNK):
            chunk = drawn[here][some].data.cast("B")
            stream.update_into(zeros[: len(chunk)], chunk)

    parallel_for(draw, len(drawn), _SHARE)
    return drawn[skipped:]


def in_order(bits: NDArray[np.uint64]) -> RowNumbers:
    """The rows sorted by their bits, and by their place where those are equal.

    >>> in_order(np.array([5, 1, 5, 0], np.uint64)).tolist()
    [3, 1, 0, 2]
    """
    order: RowNumbers = np.argsort(bits, kind="stable").astype(np.int32 if len(bits) < 2**31 else np.int64)
    return order
