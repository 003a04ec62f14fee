"""Ids at their owner: texts that name rows become columns of a model, and neither they nor their counts leave.

In: a text column that a job calls an id, or, where the job leaves it to the owner, that names nearly every row or has
more than 10,000 values. Out: how many ids there are, and which column of the model is whose: the owner's alone to know.
Where a block has several parts, all must mean the same column by the same id: then 64 bits of an HMAC stand for each,
under the key that the clients share and a salt of the job, of a message that holds the table's name: tokens of another
table, or of another query, do not compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import ModelError, TransportError
from tablepuppet.owner.state import ClientState
from tablepuppet.owner.tokens import id_tokens, job_key, key_check, key_of
from tablepuppet.protocol.columns import (
    CategoryEncoder,
    CategoryStatistics,
    ColumnInfo,
    Encoder,
    IdEncoder,
    IdStatistics,
)
from tablepuppet.sources.columns import STRING_KINDS, strings, strings_and_absent
from tablepuppet.sources.encoding import KnownIds, KnownNames

if TYPE_CHECKING:
    from tablepuppet.exchanges.features import OpenPart
    from tablepuppet.exchanges.prediction import ScoreOwnRows, ScoreRows

_FEW = 20  # texts that are taken for categories, however few rows there are
_MANY = 10_000  # texts that are taken for ids, however many rows there are
Column = tuple[pa.ChunkedArray, ColumnInfo]


def names_rows(values: pa.ChunkedArray) -> bool:
    """Whether nearly every row has a text of its own."""
    distinct = _different(values)
    return bool(distinct > _FEW and 2 * distinct > len(values) - values.null_count)


def look_like_ids(column: Column) -> bool:
    """Whether the owner takes a text for an id by itself."""
    values, info = column
    is_text = info.kind in STRING_KINDS
    return is_text and (names_rows(values) or _different(values) > _MANY)


def _different(values: pa.ChunkedArray) -> int:
    if pa.types.is_dictionary(values.type):
        return len(strings(values)[0])
    return int(pc.count_distinct(values, mode="only_valid").as_py())


def are_ids(own: ClientState, request: OpenPart, place: int, column: Column) -> bool:
    """Whether a feature's values are ids; tokens of them need a key."""
    if column[1].kind not in STRING_KINDS or (request.id_salt and not _shared_key(own)):
        return False
    return place in request.ids or (request.finds_ids and look_like_ids(column))


def id_statistics(own: ClientState, request: OpenPart, place: int, found: CategoryStatistics) -> IdStatistics:
    """What may be told of a column of ids."""
    count, has_missing = len(found.categories), found.missing > 0
    if not request.id_salt:
        return IdStatistics(count, has_missing)
    key = job_key(_shared_key(own), f"ids {request.id_salt}")
    tokens = id_tokens(
        pa.array(found.categories, pa.large_string()), key, _domain(own, request.job, request.scan, place)
    )
    told = np.unique(tokens)
    return IdStatistics(len(told), has_missing, told, key_check(key))


def known_ids(
    own: ClientState,
    asked: OpenPart | ScoreRows | ScoreOwnRows,
    columns: Sequence[Column],
    encoders: Sequence[Encoder | KnownNames],
    names: dict[int, list[str]],
) -> list[Encoder | KnownIds | KnownNames]:
    """The encoders with what this owner knows of ids; `names`: of columns that only it does."""
    return [
        _known(own, asked, place, columns[place], encoder, names) if isinstance(encoder, IdEncoder) else encoder
        for place, encoder in enumerate(encoders)
    ]


def held_encoders(encoders: Sequence[Encoder], names: dict[int, list[str]]) -> tuple[Encoder, ...]:
    """The encoders of a part that its owner holds: with the names that only it knows."""
    return tuple(
        CategoryEncoder(names[place], encoder.has_missing, has_other=False)
        if isinstance(encoder, IdEncoder) and encoder.tokens is None
        else encoder
        for place, encoder in enumerate(encoders)
    )


def _known(
    own: ClientState,
    asked: OpenPart | ScoreRows | ScoreOwnRows,
    place: int,
    column: Column,
    encoder: IdEncoder,
    names: dict[int, list[str]],
) -> KnownIds:
    if encoder.tokens is None:
        if len(names.get(place, ())) != encoder.count:
            raise TransportError("ids are encoded by the owner who found them, with all of them")
        codes = np.arange(encoder.count, dtype=np.int32)
        return KnownIds(pa.array(names[place], pa.large_string()), codes, encoder.count, encoder.has_missing)
    key = job_key(_shared_key(own), f"ids {encoder.salt}")
    if key_check(key) != encoder.check:
        raise ModelError(
            "this client's key is not the one that the model's ids were made with, and all of them would be unknown; "
            "give the clients the key of then, or train again"
        )
    distinct = strings_and_absent(*column)[0]
    tokens = id_tokens(distinct, key, _domain(own, asked.job, asked.scan, place))
    return KnownIds(distinct, _places(tokens, encoder.tokens), encoder.count, encoder.has_missing)


def _places(tokens: NDArray[np.int64], agreed: RowNumbers) -> NDArray[np.int32]:
    """Where each token is among the agreed ones, which ascend; −1: nowhere."""
    if not len(agreed):
        return np.full(len(tokens), -1, np.int32)
    place = np.minimum(np.searchsorted(agreed, tokens), len(agreed) - 1)
    return np.where(agreed[place] == tokens, place, -1).astype(np.int32)


def _domain(own: ClientState, job: str, scan: int, place: int) -> str:
    return f"{own.tables.scan(job, scan).table} {place}"


def _shared_key(own: ClientState) -> bytes:
    """The clients' key; empty within one process that was given none, where there is nothing to hide."""
    return own.order_key if own.order_key is not None else key_of(own.key)
