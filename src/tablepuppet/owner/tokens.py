"""Key tokens: 16 bytes that stand for a join key, equal where the keys are equal.

In: key columns of a scan, the domain of each (columns that the query compares share one), and the clients' key. Out:
each column as a dictionary of tokens, sorted, and one index per row; NULL stays NULL. Only distinct values are hashed.

    hmac     HMAC-SHA-256(K_job, message)[:16],  message = len(domain) ":" domain len(type) ":" type value
    dh       the hmac token as a point of a curve, blinded by every owner of such keys (blinding.py)
    sha256   SHA-256(value)[:16], the paper's: whoever can list the possible values can undo it
    value    integer, decimal of scale 0: digits · decimal: digits and its scale · string: UTF-8 · uuid: 32 hex digits
             boolean: true | false · date: days since 1970-01-01 · timestamp: nanoseconds since then (UTC)

K_job is derived from the job's name and from a key that the clients share and the server never has. Tokens of
different jobs have nothing in common. HMAC-SHA-256 is a pseudo-random function (RFC 2104; Bellare, CRYPTO 2006), and
RFC 2104 allows 16 bytes of it: two of 2⁶⁴ keys would collide.

Ids: texts that name rows become columns of a model, and neither they nor their counts leave. In: a text column that a
job calls an id. Where the job leaves it to the owner, an id names nearly every row or has more than 10,000 values.
Out: the number of ids, and a column of the model for each, which only the owner knows. Where a block has
several parts, all must use the same column for the same id. Then 64 bits of an HMAC stand for each id, under the
clients' key and a salt of the job. The message holds the table's name: tokens of other tables or queries differ.
"""

import hmac
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from numpy.typing import NDArray

from tablepuppet.errors import ModelError, PolicyError, SourceError, TransportError
from tablepuppet.owner.blinding import to_array, to_points
from tablepuppet.privacy.options import KeyMode
from tablepuppet.protocol import columns as protocol
from tablepuppet.protocol.columns import ColumnInfo, Encoder, IdEncoder, IdStatistics, decimal_scale
from tablepuppet.sources import columns as raw
from tablepuppet.sources.columns import STRING_KINDS, arrow_of, arrow_texts
from tablepuppet.sources.encoding import KnownNames

if TYPE_CHECKING:
    from tablepuppet.exchanges.features import OpenPart
    from tablepuppet.exchanges.prediction import ScoreOwnRows, ScoreRows
    from tablepuppet.owner.state import ClientState

SIZE = 16
TOKEN = pa.binary(SIZE)
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_VALUES_PER_CHUNK = 1 << 16  # values that are in Python's memory at once


def job_key(shared: bytes | None, job: str) -> bytes:
    return hmac.digest(key_of(shared), b"tablepuppet key tokens " + job.encode(), "sha256")


def key_check(key: bytes) -> bytes:
    """Eight bytes that are equal where two clients' keys for a job are, and reveal nothing else about them.

    The number stands for the definition of tokens above: clients that hash otherwise are noticed, too.
    """
    return hmac.digest(key, b"tablepuppet same key 2", "sha256")[:8]


def key_of(shared: bytes | None) -> bytes:
    if shared is None:
        raise PolicyError(
            "this client has no key for tokens; give all clients the same key file (32 random bytes), "
            'or let the job say privacy = {keys = "sha256"}, which is weaker'
        )
    return shared


def tokens(column: pa.ChunkedArray, info: ColumnInfo, mode: KeyMode, key: bytes, domain: str) -> pa.DictionaryArray:
    """The column's tokens: a sorted dictionary, and an index per row."""
    if not len(column):
        return pa.DictionaryArray.from_arrays(pa.nulls(0, pa.int32()), pa.nulls(0, TOKEN))
    column = raw.decode(column)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    encoded = raw.in_one_piece(column.dictionary_encode())
    family = key_family(encoded.dictionary.type, info)
    messages = _messages(encoded.dictionary, family)
    hashed = keyed_hashes(messages, key, prefix(domain, family))
    if mode == "sha256":
        hashed = (sha256(message).digest()[:SIZE] for message in messages)
    packed = np.frombuffer(b"".join(hashed), np.uint8).reshape(-1, SIZE)
    return sorted_tokens(encoded.indices, to_array(packed))


def sorted_tokens(indices: pa.Array, tokens: pa.Array) -> pa.DictionaryArray:
    """Tokens in their own order, which reveals nothing, and the rows' indices into them."""
    order = np.lexsort(to_points(tokens).view(">u8").T[::-1])
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return pa.DictionaryArray.from_arrays(arrow_of(rank).take(indices), tokens.take(arrow_of(order)))


def id_tokens(names: pa.Array, key: bytes, domain: str) -> NDArray[np.int64]:
    """64 bits for each text, the same wherever the key, the domain and the text are."""
    hashed = keyed_hashes(_messages(names, "string"), key, prefix(domain, "id"))
    return np.frombuffer(b"".join(hashed), "<i8").reshape(-1, SIZE // 8)[:, 0].astype(np.int64)


def keyed_hashes(messages: Iterable[bytes], key: bytes, start: bytes) -> Iterator[bytes]:
    """HMAC-SHA-256 of each message behind a common start, the first 16 bytes."""
    keyed = HMAC(key, SHA256())
    keyed.update(start)
    for message in messages:
        digest = keyed.copy()
        digest.update(message)
        yield digest.finalize()[:SIZE]


def prefix(domain: str, family: str) -> bytes:
    """The bytes before a value in the message; no value can imitate them."""
    parts = [text.encode() for text in (domain, family)]
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def key_family(kind: pa.DataType, info: ColumnInfo) -> str:
    """The type that a key is compared as; keys of two types are never equal."""
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_date(kind):
        return "date"
    if info.kind == "decimal":
        scale = int(kind.scale) if pa.types.is_decimal(kind) else decimal_scale(info.detail) or 0
        return "integer" if scale == 0 else f"decimal {scale}"
    if info.kind in ("integer", "string", "boolean", "uuid"):
        return info.kind
    raise SourceError(f"column {info.name} has type {info.detail or info.kind}, which cannot be a key")


def _messages(values: pa.Array, family: str) -> Iterator[bytes]:
    """Each value as bytes that only depend on it."""
    for start in range(0, len(values), _VALUES_PER_CHUNK):
        try:
            yield from _encode(values.slice(start, _VALUES_PER_CHUNK), family)
        except pa.ArrowException as error:  # its words may quote a key
            raise SourceError(f"a key column cannot be hashed ({type(error).__name__}); CAST it to VARCHAR") from None


def _encode(values: pa.Array, family: str) -> list[bytes]:
    kind = values.type
    if pa.types.is_timestamp(kind):
        return [b"%d" % (v * _NANOSECONDS[kind.unit]) for v in values.cast(pa.int64()).to_pylist()]
    if pa.types.is_fixed_size_binary(kind):
        return [v.hex().upper().encode() for v in values.to_pylist()]
    if family.startswith("decimal"):
        wide = values.cast(pa.decimal128(38, int(family.removeprefix("decimal "))))
        return [f"{v:f}".encode() for v in wide.to_pylist()]
    if pa.types.is_date(kind):
        values = values.cast(pa.date32()).cast(pa.int32())
    elif family == "uuid":
        values = pc.utf8_upper(pc.replace_substring(values, pattern="-", replacement=""))
    elif family == "integer" and not pa.types.is_integer(kind):
        values = values.cast(pa.decimal128(38, 0))
    return list(values.cast(pa.large_string()).cast(pa.large_binary()).to_pylist())


_MAX_CATEGORIES_OF_FEW_ROWS = 20  # texts that are taken for categories, however few rows there are
_MAX_CATEGORIES = 10_000  # texts that are taken for ids, however many rows there are
Column = tuple[pa.ChunkedArray, ColumnInfo]


def names_rows(values: pa.ChunkedArray) -> bool:
    distinct = _different(values)
    return bool(distinct > _MAX_CATEGORIES_OF_FEW_ROWS and 2 * distinct > len(values) - values.null_count)


def look_like_ids(column: Column) -> bool:
    """Whether the owner takes a text for an id by itself."""
    values, info = column
    is_text = info.kind in STRING_KINDS
    return is_text and (names_rows(values) or _different(values) > _MAX_CATEGORIES)


def _different(values: pa.ChunkedArray) -> int:
    if pa.types.is_dictionary(values.type):
        return len(raw.strings(values)[0])
    return int(pc.count_distinct(values, mode="only_valid").as_py())


def are_ids(own: "ClientState", request: "OpenPart", place: int, column: Column) -> bool:
    """Whether a feature's values are ids; tokens of them need a key."""
    if column[1].kind not in STRING_KINDS or (request.id_salt and not own.shared_key):
        return False
    return place in request.ids or (request.finds_ids and look_like_ids(column))


def id_statistics(
    own: "ClientState", request: "OpenPart", place: int, found: protocol.CategoryStatistics
) -> IdStatistics:
    """The statistics of a column of ids that may leave."""
    count, has_missing = len(found.categories), found.missing > 0
    if not request.id_salt:
        return IdStatistics(count, has_missing)
    key = job_key(own.shared_key, f"ids {request.id_salt}")
    tokens = np.unique(id_tokens(arrow_texts(found.categories), key, f"{own.scan(request).table} {place}"))
    return IdStatistics(len(tokens), has_missing, tokens, key_check(key))


def known_ids(
    own: "ClientState",
    asked: "OpenPart | ScoreRows | ScoreOwnRows",
    columns: Sequence[Column],
    encoders: Sequence[Encoder | KnownNames],
    names: dict[int, list[str]],
) -> list[Encoder | KnownNames]:
    """The encoders with what this owner knows of ids; `names`: of columns that only it does."""
    found = list(encoders)
    for place, encoder in enumerate(encoders):
        if not isinstance(encoder, IdEncoder):
            continue
        if encoder.tokens is None:
            if len(names.get(place, ())) != encoder.count:
                raise TransportError("ids are encoded by the owner who found them, with all of them")
            codes = np.arange(encoder.count, dtype=np.int32)
            found[place] = KnownNames.of_ids(arrow_texts(names[place]), codes, encoder)
            continue
        key = job_key(own.shared_key, f"ids {encoder.salt}")
        if key_check(key) != encoder.check:
            raise ModelError(
                "this client's key is not the one that the model's ids were made with, and all of them would be "
                "unknown; give the clients the key of then, or train again"
            )
        distinct = raw.strings_and_absent(*columns[place])[0]
        tokens = arrow_of(id_tokens(distinct, key, f"{own.scan(asked).table} {place}"))
        known = pc.index_in(tokens, value_set=arrow_of(encoder.tokens.astype(np.int64)))
        codes = raw.numpy_of(known, missing=-1).astype(np.int32)
        found[place] = KnownNames.of_ids(distinct, codes, encoder)
    return found


def held_encoders(encoders: Sequence[Encoder], names: dict[int, list[str]]) -> tuple[Encoder, ...]:
    """The encoders of a part that its owner holds: with the names that only it knows."""
    return tuple(
        protocol.CategoryEncoder(names[place], encoder.has_missing, has_other=False)
        if isinstance(encoder, IdEncoder) and encoder.tokens is None
        else encoder
        for place, encoder in enumerate(encoders)
    )
