"""Key tokens: 16 bytes that stand for a join key, equal where the keys are equal.

In: key columns of a scan, the domain of each (columns that the query compares share one), and the clients' key. Out:
each column as a dictionary of tokens, sorted, and one index per row; NULL stays NULL. Only distinct values are hashed,
all at once, in DuckDB.

    hmac     HMAC-SHA-256(K_job, message)[:16],  message = len(domain) ":" domain len(type) ":" type value
    dh       the hmac token as a point of a curve, blinded by every owner of such keys (tables/blinding.py)
    sha256   SHA-256(value)[:16], the paper's: whoever can list the possible values can undo it
    value    integer, decimal of scale 0: digits · decimal: digits and its scale · string: UTF-8 · uuid: 32 hex digits
             boolean: true | false · date: days since 1970-01-01 · timestamp: nanoseconds since then (UTC)

K_job is derived from the key that the clients share and the server never has, and from the job's name; tokens of
different jobs have nothing in common.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from functools import cache

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.errors import PolicyError, SourceError
from tablepuppet.privacy.options import KeyMode
from tablepuppet.protocol import ColumnInfo
from tablepuppet.tables.columns import arrow, numpy_of
from tablepuppet.tables.duck import silence

SIZE = 16
TOKEN = pa.binary(SIZE)
_BLOCK = 64  # of SHA-256
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def job_key(shared: bytes | None, job: str) -> bytes:
    """K_job."""
    return hmac.digest(key_of(shared), b"tablepuppet key tokens " + job.encode(), "sha256")


def key_check(key: bytes) -> bytes:
    """Eight bytes that are equal where two clients' keys for a job are, and say nothing else about them."""
    return hmac.digest(key, b"tablepuppet same key", "sha256")[:8]


def key_of(shared: bytes | None) -> bytes:
    """The clients' key, where there is one."""
    if shared is None:
        raise PolicyError(
            "this client has no key for tokens; give all clients the same key file (32 random bytes), "
            'or let the job say privacy = {keys = "sha256"}, which is weaker'
        )
    return shared


def tokens(column: pa.ChunkedArray, info: ColumnInfo, mode: KeyMode, key: bytes, domain: str) -> pa.DictionaryArray:
    """The column's tokens: a sorted dictionary, and an index per row."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = pc.cast(column, kind.value_type)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    encoded = column.dictionary_encode().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # no chunk at all
        return pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), pa.array([], TOKEN))
    family, text = canonical(encoded.dictionary.type, info)
    return sorted_tokens(encoded.indices, _hash(encoded.dictionary, text, mode, key, prefix(domain, family)))


def sorted_tokens(indices: pa.Array, tokens: pa.Array) -> pa.DictionaryArray:
    """Tokens in their own order, which tells nothing, and the rows' indices into them."""
    order = pc.sort_indices(tokens)
    rank = np.empty(len(order), np.int32)
    rank[numpy_of(order)] = np.arange(len(order), dtype=np.int32)
    ranked = arrow(rank).take(indices) if len(rank) else indices
    return pa.DictionaryArray.from_arrays(ranked, tokens.take(order))


def id_tokens(names: pa.Array, key: bytes, domain: str) -> NDArray[np.int64]:
    """64 bits for each text, the same wherever the key, the domain and the text are."""
    hashed = _hash(names, "v::VARCHAR", "hmac", key, prefix(domain, "id"))
    return np.frombuffer(b"".join(hashed.to_pylist()), "<i8").reshape(-1, SIZE // 8)[:, 0].astype(np.int64)


def prefix(domain: str, family: str) -> bytes:
    """What stands before a value in the message; no value can imitate it.

    >>> prefix("0", "integer")
    b'1:07:integer'
    """
    parts = [text.encode() for text in (domain, family)]
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def canonical(kind: pa.DataType, info: ColumnInfo) -> tuple[str, str]:
    """What a key is compared as, and the SQL that writes its value `v` as a text or blob that only depends on it."""
    if pa.types.is_timestamp(kind):
        return "timestamp", f"(v::HUGEINT * {_NANOSECONDS[kind.unit]})::VARCHAR"
    if pa.types.is_date32(kind):
        return "date", "v::VARCHAR"
    if pa.types.is_date64(kind):
        return "date", "(v // 86400000)::VARCHAR"
    if info.kind == "uuid":
        return "uuid", "hex(v)" if pa.types.is_fixed_size_binary(kind) else "upper(replace(v, '-', ''))"
    if info.kind == "decimal":
        scale = _scale(kind, info)
        return ("integer" if scale == 0 else f"decimal {scale}"), "v::VARCHAR"
    if info.kind in ("integer", "string", "boolean"):
        return info.kind, "v::VARCHAR"
    raise SourceError(f"column {info.name} has type {info.detail or info.kind}, which cannot be a key")


def _scale(kind: pa.DataType, info: ColumnInfo) -> int:
    if pa.types.is_decimal(kind):
        return int(kind.scale)
    found = re.search(r"\(\s*\d+\s*(?:,\s*(-?\d+)\s*)?\)", info.detail)
    return int(found.group(1) or 0) if found else 0


@cache
def _hasher() -> duckdb.DuckDBPyConnection:
    """A database without a table, for all key columns of this process: to start one takes longer than to hash a few
    thousand keys. A cursor sees nothing of the others."""
    connection = duckdb.connect(":memory:", config={"threads": 2, "preserve_insertion_order": True})
    silence(connection)
    return connection


def _hash(values: pa.Array, text: str, mode: KeyMode, key: bytes, start: bytes) -> pa.Array:
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    if mode == "sha256":
        digest = f"sha256(encode({text}))"
        given: Sequence[bytes] = ()
    else:
        digest = f"sha256($2::BLOB || unhex(sha256($1::BLOB || encode({text}))))"
        padded = key.ljust(_BLOCK, b"\0")
        given = (bytes(b ^ 0x36 for b in padded) + start, bytes(b ^ 0x5C for b in padded))
    with _hasher().cursor() as connection:
        connection.register("keys", pa.table({"v": values}))
        try:
            query = f"SELECT unhex(left({digest}, {2 * SIZE})) FROM keys"
            found = connection.sql(query, params=list(given)).to_arrow_table().column(0)
        except duckdb.Error as error:  # its words may quote a key
            raise SourceError(f"a key column cannot be hashed ({type(error).__name__}); CAST it to VARCHAR") from None
    return pc.cast(found.combine_chunks(), TOKEN)
