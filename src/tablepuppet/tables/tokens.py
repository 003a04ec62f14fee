"""Key tokens: 16 bytes that stand for a join key, equal where the keys are equal; and how owners blind them.

In: key columns of a scan, the domain of each (columns that the query compares share one), and the clients' key. Out:
each column as a dictionary of tokens, sorted, and one index per row; NULL stays NULL. Only distinct values are hashed,
all at once: whole numbers by AES, all others in DuckDB.

    hmac     HMAC-SHA-256(K_job, message)[:16],  message = len(domain) ":" domain len(type) ":" type value
             whole numbers: AES-256(K, v) XOR v,  v as 16 bytes, K = HMAC-SHA-256(K_job, len(domain) … type)
    dh       the hmac token as a point of a curve, blinded by every owner of such keys (below)
    sha256   SHA-256(value)[:16], the paper's: whoever can list the possible values can undo it
    value    integer, decimal of scale 0: digits · decimal: digits and its scale · string: UTF-8 · uuid: 32 hex digits
             boolean: true | false · date: days since 1970-01-01 · timestamp: nanoseconds since then (UTC)

K_job is derived from the key that the clients share and the server never has, and from the job's name; tokens of
different jobs have nothing in common. Whoever has K can compute AES backwards, but not its sum with v: a token opens by
trying values alone, as an HMAC does (docs/decisions/0094-whole-numbers-are-hashed-by-aes.md).

Blinding (`dh`) needs no common secret: every owner blinds every key, and equality is only seen once all of them did.

    point    u of a point of Curve25519: SHA-256(token, counter) for the first counter that gives one
    blinded  X25519(k, point), k this owner's alone: derived from its secret, the job and the keys' domain

X25519(k₁, X25519(k₂, p)) is X25519(k₂, X25519(k₁, p)): who blinds first does not matter. Whoever has k₁ and the key
that tokens are made with still has to ask the owner of k₂ about every guess. Half of all 32 bytes are no points of the
curve but of its twist; blinding would keep on which of the two a key lies, one bit of it, so those are passed over.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from functools import cache

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import PolicyError, SourceError
from tablepuppet.privacy.options import KeyMode
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.tables.columns import CloseNumbers, arrow, decode, in_one_piece, numpy_of
from tablepuppet.tables.duckdb_source import silence
from tablepuppet.tables.row_ids import in_order

SIZE = 16
TOKEN = pa.binary(SIZE)
_BLOCK = 64  # of SHA-256
_WHOLE = pa.decimal128(38, 0)  # 16 bytes, little-endian, two's complement
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
    if not len(column):
        return pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), pa.array([], TOKEN))
    column = decode(column)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if mode != "sha256" and info.kind == "integer" and (close := CloseNumbers.of(column)) is not None:
        return _close_tokens(close, key, prefix(domain, "integer"))
    encoded = in_one_piece(column.dictionary_encode())
    family, text = canonical(encoded.dictionary.type, info)
    start = prefix(domain, family)
    if family == "integer" and mode != "sha256":
        return sorted_tokens(encoded.indices, _whole_numbers(encoded.dictionary, key, start))
    return sorted_tokens(encoded.indices, _hash(encoded.dictionary, text, mode, key, start))


def sorted_tokens(indices: pa.Array, tokens: pa.Array) -> pa.DictionaryArray:
    """Tokens in their own order, which tells nothing, and the rows' indices into them."""
    order = _order(tokens)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    ranked = arrow(rank).take(indices) if len(rank) else indices
    return pa.DictionaryArray.from_arrays(ranked, tokens.take(arrow(order)))


def _close_tokens(numbers: CloseNumbers, key: bytes, start: bytes) -> pa.DictionaryArray:
    """What `sorted_tokens` gives of the same numbers."""
    different = numbers.different()
    found = _whole_numbers(arrow(different + numbers.lowest), key, start)
    order = _order(found)
    place = np.zeros(numbers.size, np.int32)  # of each number's token
    place[different[order]] = np.arange(len(order), dtype=np.int32)
    return pa.DictionaryArray.from_arrays(arrow(numbers.look_up(place)), found.take(arrow(order)))


def _order(tokens: pa.Array) -> RowNumbers:
    """Tokens as bytes are sorted: mostly, their first eight tell."""
    size = tokens.type.byte_width
    if not len(tokens) or tokens.null_count:
        return numpy_of(pc.sort_indices(tokens))
    words = np.frombuffer(tokens.buffers()[1], ">u8").reshape(-1, size // 8)
    bits = words[tokens.offset : tokens.offset + len(tokens), 0].astype(np.uint64)
    order = in_order(bits)
    ordered = bits[order]
    return numpy_of(pc.sort_indices(tokens)) if (ordered[1:] == ordered[:-1]).any() else order


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


def _whole_numbers(values: pa.Array, key: bytes, start: bytes) -> pa.Array:
    """Tokens of whole numbers of any width: each is one block of a cipher, which processors compute in nanoseconds."""
    blocks = np.empty((len(values), 2), np.int64)  # the low half, the high half
    if pa.types.is_integer(values.type):
        numbers = numpy_of(values)
        blocks[:, 0] = numbers.astype(np.int64, copy=False)
        blocks[:, 1] = 0 if pa.types.is_unsigned_integer(values.type) else blocks[:, 0] >> 63
    elif len(values):
        try:
            whole = values.cast(_WHOLE)
        except pa.ArrowException as error:  # its words may quote a key
            raise SourceError(f"a key column is not whole ({type(error).__name__}); CAST it to VARCHAR") from None
        held = np.frombuffer(whole.buffers()[1], np.int64).reshape(-1, 2)
        blocks[:] = held[whole.offset : whole.offset + len(whole)]
    secret = hmac.digest(key, b"tablepuppet whole numbers " + start, "sha256")
    ciphered = Cipher(AES(secret), ECB()).encryptor().update(blocks.data.cast("B") if blocks.size else b"")
    blocks ^= np.frombuffer(ciphered, np.int64).reshape(-1, 2)
    return pa.FixedSizeBinaryArray.from_buffers(TOKEN, len(blocks), [None, pa.py_buffer(blocks)])


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


POINT_SIZE = 32
Points = NDArray[np.uint8]  # keys × 32
_PRIME = 2**255 - 19
_A = 486662  # the curve is v² = u³ + A u² + u


def blinding_key(secret: bytes, job: str, domain: str) -> X25519PrivateKey:
    """k of one owner for the keys of one job that are compared with each other."""
    message = b"tablepuppet blinding %d:%b%b" % (len(job.encode()), job.encode(), domain.encode())
    return X25519PrivateKey.from_private_bytes(hmac.digest(secret, message, "sha256"))


def points_of(tokens: pa.Array) -> Points:
    """Each token's point; about two hashes a token."""
    return _packed([_point(token) for token in tokens.to_pylist()])


def blind(points: Points, key: X25519PrivateKey) -> Points:
    """Each point, blinded. The library holds Python's lock meanwhile: threads would not help."""
    exchange, point, packed = key.exchange, X25519PublicKey.from_public_bytes, points.tobytes()
    try:
        return _packed([exchange(point(packed[at : at + POINT_SIZE])) for at in range(0, len(packed), POINT_SIZE)])
    except ValueError:  # one of the few points that every secret leads to zero
        raise PolicyError("a key to be blinded is no point that an owner would send") from None


def to_array(points: Points) -> pa.Array:
    """Rows of bytes as Arrow has them."""
    packed = np.ascontiguousarray(points)
    kind = pa.binary(points.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(packed), [None, pa.py_buffer(packed)])


def to_points(array: pa.Array) -> Points:
    """The other way; no entry may be missing."""
    size = array.type.byte_width
    packed = np.frombuffer(array.buffers()[1] or b"", np.uint8)[array.offset * size :]
    return packed[: len(array) * size].reshape(-1, size)


def _packed(points: list[bytes]) -> Points:
    return np.frombuffer(b"".join(points), np.uint8).reshape(-1, POINT_SIZE)


def _point(token: bytes) -> bytes:
    for counter in range(256):
        found = hashlib.sha256(b"tablepuppet point %c%b" % (counter, token)).digest()
        u = int.from_bytes(found, "little") % 2**255
        if _is_square(u * (u * (u + _A) + 1) % _PRIME):
            return found
    raise AssertionError("half of all numbers are points")


def _is_square(number: int) -> bool:
    """Whether a number has a root modulo p, by Jacobi's symbol: a quarter of the time that Euler's power takes.

    >>> [n for n in range(1, 10) if _is_square(n)]
    [1, 3, 4, 5, 9]
    """
    top, bottom, sign = number, _PRIME, 1
    while top:
        twos = (top & -top).bit_length() - 1
        top >>= twos
        if twos & 1 and bottom & 7 in (3, 5):
            sign = -sign
        if top & 3 == 3 and bottom & 3 == 3:
            sign = -sign
        top, bottom = bottom % top, top
    return bottom == 1 and sign == 1
