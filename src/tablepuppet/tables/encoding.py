"""Encoding: raw columns to Features, the same at every client of a block.

In: merged statistics. Out: an encoder per feature, and with it the encoded rows
(docs/algorithms.md, "Encoding"): numbers centred and divided by their population standard
deviation over the joined training rows; a missing number is the mean of those present and
sets a 0/1 column; strings are one-hot. A row that an outer join did not find is all zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.errors import JobError, SourceError, TransportError
from tablepuppet.tables.columns import NUMBER_KINDS, numbers, strings
from tablepuppet.tables.features import Features, Rows, encoded_width
from tablepuppet.tables.statistics import Statistics, merge, statistics
from tablepuppet.transport.messages import (
    CategoryEncoder,
    CategoryStatistics,
    ColumnInfo,
    Encoder,
    NumberEncoder,
    NumberStatistics,
)

__all__ = ["encode", "encoder", "merge", "statistics"]

Array = NDArray[np.float64]

# A column is constant if its deviation is this small beside its mean. Two-pass moments of a
# constant leave about 1e-16; there is no absolute bound, for a column may be in tiny units.
_CONSTANT = 1e-12


def encoder(statistics: Statistics, standardize: bool = True, max_categories: int | None = None) -> Encoder:
    """How to encode a feature with these statistics over the joined training rows."""
    if isinstance(statistics, NumberStatistics):
        return _number_encoder(statistics, standardize)
    if max_categories is not None and max_categories < 1:
        raise JobError(f"max_categories is {max_categories}; it must be at least 1, or None to keep all")
    return _category_encoder(statistics, max_categories)


def encode(
    columns: Sequence[pa.ChunkedArray],
    infos: Sequence[ColumnInfo],
    rows: Rows | None,
    encoders: Sequence[Encoder],
) -> Features:
    """The encoded features of `rows` (None: all, in order; −1: a row of zeros)."""
    if not columns:
        return empty_features(0 if rows is None else len(rows))
    taken = np.arange(len(columns[0])) if rows is None else np.asarray(rows)
    dense: list[Array] = []
    dense_columns: list[NDArray[np.int64]] = []
    codes: list[NDArray[np.int32]] = []
    code_columns: list[slice] = []
    start = 0
    for column, info, feature in zip(columns, infos, encoders, strict=True):
        stop = start + encoded_width(feature)
        _check_kind(info, feature)
        if isinstance(feature, NumberEncoder):
            dense.append(_encode_numbers(column, info, taken, feature))
            dense_columns.append(np.arange(start, stop))
        else:
            codes.append(_encode_strings(column, taken, feature))
            code_columns.append(slice(start, stop))
        start = stop
    return Features(
        dense=np.concatenate([np.empty((len(taken), 0)), *dense], axis=1),
        codes=tuple(codes),
        dense_columns=np.concatenate([np.empty(0, np.int64), *dense_columns]),
        code_columns=tuple(code_columns),
        width=start,
    )


def empty_features(rows: int) -> Features:
    """Features of a block that contributes none."""
    return Features(np.empty((rows, 0)), (), np.empty(0, np.int64), (), 0)


def _number_encoder(statistics: NumberStatistics, standardize: bool) -> NumberEncoder:
    has_missing = statistics.missing > 0
    fill = statistics.mean
    if not standardize:
        return NumberEncoder(mean=np.zeros_like(fill), scale=np.ones_like(fill), fill=fill, has_missing=has_missing)
    # Rows without a value are filled with the mean: they add to the count, not to the spread.
    count = statistics.weight + statistics.missing
    scale = np.sqrt(statistics.spread / count) if count > 0 else np.zeros_like(fill)
    scale = np.where(scale <= _CONSTANT * np.abs(fill), 0.0, scale)
    return NumberEncoder(mean=fill, scale=scale, fill=fill, has_missing=has_missing)


def _category_encoder(statistics: CategoryStatistics, max_categories: int | None) -> CategoryEncoder:
    categories = statistics.categories
    has_other = max_categories is not None and len(categories) > max_categories
    if has_other:
        # A stable sort of the sorted names: equal weights go by name.
        heaviest = np.argsort(-statistics.weights, kind="stable")[:max_categories]
        categories = [categories[i] for i in np.sort(heaviest)]
    return CategoryEncoder(categories=categories, has_missing=statistics.missing > 0, has_other=has_other)


def _encode_numbers(
    column: pa.ChunkedArray, info: ColumnInfo, rows: NDArray[Any], feature: NumberEncoder
) -> Array:
    if info.size != feature.mean.size and info.kind == "vector" and len(column) > column.null_count:
        raise TransportError(
            f"column {info.name} holds vectors of {info.size} entries, the federation agreed on {feature.mean.size}"
        )
    exists = rows >= 0
    out = np.zeros((len(rows), encoded_width(feature)))
    if not exists.any():
        return out
    size = feature.mean.size
    values = np.broadcast_to(numbers(column, info), (len(column), size))[rows[exists]]
    if np.isinf(values).any():
        raise SourceError(f"column {info.name} contains infinity; filter such rows out, or use NULL")
    is_missing = np.isnan(values[:, 0])
    values = np.where(is_missing[:, None], feature.fill, values)
    varies = feature.scale > 0
    encoded = np.zeros_like(values)
    np.divide(values - feature.mean, feature.scale, out=encoded, where=varies)
    out[exists, :size] = encoded
    if feature.has_missing:
        out[exists, size] = is_missing
    return out


def _encode_strings(
    column: pa.ChunkedArray, rows: NDArray[Any], feature: CategoryEncoder
) -> NDArray[np.int32]:
    distinct, codes = strings(column)
    known = pa.array(feature.categories, pa.large_string())
    size = len(known)
    unseen = size + feature.has_missing if feature.has_other else -1
    table = pc.index_in(distinct, value_set=known).fill_null(unseen).to_numpy()
    # Two more entries behind the distinct strings: for NULL, and for a row that does not exist.
    null = size if feature.has_missing else -1
    table = np.concatenate([table, [null, -1]]).astype(np.int32)
    by_row = np.append(np.where(codes < 0, len(distinct), codes), len(distinct) + 1)
    return table[by_row[np.where(rows < 0, len(by_row) - 1, rows)]]


def _check_kind(info: ColumnInfo, feature: Encoder) -> None:
    is_number = info.kind in NUMBER_KINDS
    if is_number != isinstance(feature, NumberEncoder) or not (is_number or info.kind == "string"):
        raise TransportError(
            f"column {info.name} is of kind {info.kind}, the federation's encoder is a {type(feature).__name__}; "
            "the column's type changed or differs between owners"
        )
