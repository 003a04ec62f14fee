"""Encoding: raw columns to Features, the same at every client of a block.

In: merged statistics. Out: an encoder per feature, and the encoded rows (docs/algorithms.md):

- Numbers are centred and divided by their population standard deviation over the joined training rows.
- A missing number is the mean of those present and sets a 0/1 column.
- Strings are one-hot.
- A row that an outer join did not find is all zeros. A feature that has a value there, as COALESCE(x, 0) has, is
  encoded like any other.
"""

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Codes, RowNumbers
from tablepuppet.errors import JobError, SourceError, TransportError
from tablepuppet.models.linear import Features
from tablepuppet.protocol import columns as protocol
from tablepuppet.protocol.columns import CategoryEncoder, ColumnInfo, Encoder, IdEncoder, NumberEncoder
from tablepuppet.sources import columns as raw
from tablepuppet.sources.statistics import RowWeights
from tablepuppet.threads import parallel_for

# A column is constant if its deviation is this small relative to its mean. Two-pass moments of a
# constant leave about 1e-16; there is no absolute bound, for a column may be in tiny units.
_CONSTANT = 1e-12
_CHUNK, _LEAST = 1 << 17, 1 << 12  # numbers that are encoded at a time, and rows at the least


class KnownNames(msgspec.Struct, frozen=True, eq=False):
    """The column of each name, of NULL and of other names at one owner (−1: none)."""

    names: pa.Array
    codes: Codes
    null: int
    unseen: int
    width: int

    @classmethod
    def of_ids(cls, names: pa.Array, codes: Codes, encoder: IdEncoder) -> Self:
        return cls(names, codes, encoder.count if encoder.has_missing else -1, -1, encoded_width(encoder))


def encoder(
    statistics: protocol.Statistics, standardize: bool = True, max_categories: int | None = None, salt: str = ""
) -> Encoder:
    """How to encode a feature with these statistics over the joined training rows.

    Without `standardize`, numbers stay as they are. With `max_categories`, only the heaviest
    categories of a string get a column of their own (of equal ones the first by name).
    """
    if max_categories is not None and max_categories < 1:
        raise JobError(f"max_categories is {max_categories}; it must be at least 1, or None to keep all")
    if isinstance(statistics, protocol.NumberStatistics):
        return _number_encoder(statistics, standardize)
    if isinstance(statistics, protocol.IdStatistics):
        known = (statistics.count, statistics.has_missing, statistics.tokens)
        return IdEncoder(*known, salt if statistics.tokens is not None else "", statistics.check)
    return _category_encoder(statistics, max_categories)


def encode(
    columns: Sequence[pa.ChunkedArray],
    infos: Sequence[ColumnInfo],
    rows: RowNumbers | None,
    encoders: Sequence[Encoder | KnownNames],
) -> Features:
    """The encoded features of `rows` (None: all, in order; −1: one that was not found)."""
    size = len(columns[0]) if columns else 0
    given = size if rows is None else len(rows)
    for info, feature in zip(infos, encoders, strict=True):
        _check_kind(info, feature)
    widths = np.array([encoded_width(feature) for feature in encoders], np.int64)
    starts = np.append(0, np.cumsum(widths))
    dense_columns = np.flatnonzero(np.repeat([isinstance(feature, NumberEncoder) for feature in encoders], widths))
    dense = np.zeros((given, len(dense_columns)))
    codes: list[Codes] = []
    code_columns: list[slice] = []
    start = 0
    for i, (column, info, feature) in enumerate(zip(columns, infos, encoders, strict=True)):
        if isinstance(feature, NumberEncoder):
            stop = start + encoded_width(feature)
            _encode_numbers(column, info, rows, feature, dense[:, start:stop])
            start = stop
        else:
            codes.append(_encode_strings(column, info, rows, _categories(feature)))
            code_columns.append(slice(int(starts[i]), int(starts[i + 1])))
    return Features(dense, tuple(codes), dense_columns, tuple(code_columns), int(starts[-1]))


def _number_encoder(statistics: protocol.NumberStatistics, standardize: bool) -> NumberEncoder:
    has_missing = statistics.missing > 0
    fill = statistics.mean
    if not standardize:
        return NumberEncoder(mean=np.zeros_like(fill), scale=np.ones_like(fill), fill=fill, has_missing=has_missing)
    # Rows without a value are filled with the mean: they add to the count, not to the spread.
    count = statistics.weight + statistics.missing
    scale = np.sqrt(statistics.spread / count) if count > 0 else np.zeros_like(fill)
    scale = np.where(scale <= _CONSTANT * np.abs(fill), 0.0, scale)
    return NumberEncoder(mean=fill, scale=scale, fill=fill, has_missing=has_missing)


def _category_encoder(statistics: protocol.CategoryStatistics, max_categories: int | None) -> CategoryEncoder:
    categories = statistics.categories
    is_long = max_categories is not None and len(categories) > max_categories
    if is_long:
        # A stable sort of the sorted names: equal weights go by name.
        heaviest = np.argsort(-statistics.weights, kind="stable")[:max_categories]
        categories = [categories[i] for i in np.sort(heaviest)]
    return CategoryEncoder(
        categories=categories, has_missing=statistics.missing > 0, has_other=is_long or statistics.is_cut
    )


def _encode_numbers(
    column: pa.ChunkedArray, info: ColumnInfo, rows: RowNumbers | None, feature: NumberEncoder, out: Array
) -> None:
    """Writes the encoded numbers into `out`, which is zero."""
    size = feature.mean.size
    if info.kind == "vector":  # an owner without a single vector does not know their size
        info = msgspec.structs.replace(info, size=size)
    if not len(out):
        return
    given = None if rows is None else raw.numbers_and_absent(column, info)

    def write(some: slice) -> None:
        if rows is None or given is None:  # read where they are encoded, so that intermediate arrays stay in the cache
            _write(raw.numbers(column[some], info), info, feature, out[some])
            return
        numbered = rows[some]
        exists = _have_values(numbered, info)
        found = np.empty((np.count_nonzero(exists), out.shape[1]))
        _write(given[numbered[exists]], info, feature, found)
        out[some][exists] = found

    parallel_for(write, len(out), max(_LEAST, _CHUNK // max(1, size)))


def _have_values(rows: RowNumbers, info: ColumnInfo) -> NDArray[np.bool_]:
    """Which rows are not zeros: those that were found, and others where the feature has a value."""
    return np.asarray((rows >= 0) | (info.absent is not None))


def _write(given: Array, info: ColumnInfo, feature: NumberEncoder, out: Array) -> None:
    if np.isinf(given).any():
        raise SourceError(f"column {info.name} contains infinity; filter such rows out, or use NULL")
    is_missing, varies = raw.missing_rows(given), feature.scale > 0
    values = given - feature.mean  # in the cache: rows of `out` are apart
    values[np.flatnonzero(is_missing)] = feature.fill - feature.mean
    values /= np.where(varies, feature.scale, 1.0)
    if not varies.all():
        values[:, ~varies] = 0.0
    out[:, : given.shape[1]] = values
    if feature.has_missing:
        out[:, -1] = is_missing.astype(np.float64)


def _categories(feature: Encoder | KnownNames) -> KnownNames:
    if isinstance(feature, KnownNames):
        return feature
    if not isinstance(feature, CategoryEncoder):
        raise TransportError("a column of ids is encoded by the owner who knows them")
    size = len(feature.categories)
    unseen = size + feature.has_missing if feature.has_other else -1
    codes = np.arange(size, dtype=np.int32)
    null = size if feature.has_missing else -1
    return KnownNames(raw.arrow_texts(feature.categories), codes, null, unseen, encoded_width(feature))


def _encode_strings(column: pa.ChunkedArray, info: ColumnInfo, rows: RowNumbers | None, feature: KnownNames) -> Codes:
    distinct, codes = raw.strings(column) if rows is None else raw.strings_and_absent(column, info)
    place = raw.numpy_of(pc.index_in(distinct, value_set=feature.names), missing=-1)
    # What each distinct string becomes, and behind them, where position −1 finds it, NULL.
    found = np.append(feature.codes, np.int32(feature.unseen))[place]
    becomes = np.append(found, feature.null).astype(np.int32)
    if rows is None:
        return becomes[codes]
    out = np.full(len(rows), -1, np.int32)
    exists = _have_values(rows, info)
    out[exists] = becomes[codes[rows[exists]]]
    return out


def without_rare(
    feature: Encoder, column: pa.ChunkedArray, info: ColumnInfo, rows: RowWeights, least: int
) -> Encoder | KnownNames:
    """The encoder, in which names that fewer than `least` of these rows hold mean no row, whoever named them: they are
    other names. Where all of these, or rows without a name, are fewer, they count as the most frequent one."""
    if least <= 1 or not isinstance(feature, CategoryEncoder) or info.kind not in raw.STRING_KINDS:
        return feature
    distinct, codes = raw.strings(column)
    held = rows.effective(codes, len(distinct))
    places = raw.numpy_of(pc.index_in(raw.arrow_texts(feature.categories), value_set=distinct), missing=-1)
    counts = np.append(held, 0.0)[places]
    is_rare = (places >= 0) & (counts < least)
    is_rare &= np.array([name != info.absent for name in feature.categories], np.bool_)  # the query's own
    known = _categories(feature)
    kept = np.flatnonzero(~is_rare)
    usual = int(np.argmax(np.where(is_rare, -1, counts))) if len(kept) and counts[kept].max() > 0 else -1
    is_kept = np.isin(np.arange(len(distinct)), places[kept])
    nameless, others = (
        rows.effective(np.where(few, 0, -1), 1)[0] for few in (codes < 0, ~np.append(is_kept, True)[codes])
    )
    null = usual if nameless < least else known.null
    unseen = usual if others < least and usual >= 0 else known.unseen
    return KnownNames(known.names.take(raw.arrow_of(kept)), known.codes[kept], null, unseen, encoded_width(feature))


def _check_kind(info: ColumnInfo, feature: Encoder | KnownNames) -> None:
    if isinstance(feature, NumberEncoder):
        fits = info.kind in raw.NUMBER_KINDS and (info.kind == "vector" or feature.mean.size == 1)
    else:
        fits = info.kind in raw.STRING_KINDS
    if not fits:
        raise TransportError(
            f"column {info.name} is of kind {info.kind}, which the federation's encoder ({type(feature).__name__}) "
            "does not fit; give the column the same type at all its owners"
        )


def encoded_width(encoder: Encoder | KnownNames) -> int:
    if isinstance(encoder, KnownNames):
        return encoder.width
    if isinstance(encoder, NumberEncoder):
        return int(encoder.mean.size) + encoder.has_missing
    if isinstance(encoder, IdEncoder):
        return encoder.count + encoder.has_missing
    return len(encoder.categories) + encoder.has_missing + encoder.has_other


def entries_of(encoder: Encoder) -> int:
    """How many entries of a feature are not 0 in a row: a category has one."""
    return encoded_width(encoder) if isinstance(encoder, NumberEncoder) else 1


def start_weights(encoders: Sequence[Encoder], theta: Array) -> list[dict[str, list[float]]]:
    """θ by feature and unit of it, on the original scale, for whoever encodes the feature otherwise.

    Which id a column is of, nobody knows but its owner: ids are left out.
    """
    found: list[dict[str, list[float]]] = []
    ends = np.cumsum([encoded_width(encoder) for encoder in encoders])[:-1]
    for encoder, own in zip(encoders, np.split(theta, ends), strict=True):
        if isinstance(encoder, IdEncoder):
            found.append({})
            continue
        inverse = np.divide(1.0, _scales(encoder), out=np.zeros(len(own)), where=_scales(encoder) > 0)
        found.append(dict(zip(encoded_names([""], [encoder]), (own * inverse[:, None]).tolist(), strict=True)))
    return found


def start_theta(weights: Sequence[dict[str, list[float]]], encoders: Sequence[Encoder], outputs: int) -> Array:
    """The same weights as θ under these encoders; an unknown weight begins at zero."""
    nothing = [0.0] * outputs
    rows = []
    for known, encoder in zip(weights, encoders, strict=True):
        units = (known.get(name, nothing) for name in encoded_names([""], [encoder]))
        own = np.array([given if len(given) == outputs else nothing for given in units]).reshape(-1, outputs)
        rows.append(own * _scales(encoder)[:, None])
    return np.concatenate([np.zeros((0, outputs)), *rows])


def _scales(encoder: Encoder) -> Array:
    """The divisor of each unit."""
    if isinstance(encoder, NumberEncoder):
        return np.concatenate([encoder.scale, np.ones(int(encoder.has_missing))])
    return np.ones(encoded_width(encoder))


def encoded_names(feature_names: Sequence[str], encoders: Sequence[Encoder]) -> list[str]:
    """The name of each row of θ, in SQL's terms (entries of a vector count from 1).

    >>> from tablepuppet.protocol.columns import CategoryEncoder
    >>> encoded_names(["i.category"], [CategoryEncoder(categories=["toys"], has_missing=True, has_other=True)])
    ['i.category=toys', 'i.category IS NULL', 'i.category IS OTHER']
    """
    out: list[str] = []
    for name, encoder in zip(feature_names, encoders, strict=True):
        if isinstance(encoder, NumberEncoder):
            size = encoder.mean.size
            out += [name] if size == 1 else [f"{name}[{i + 1}]" for i in range(size)]
        elif isinstance(encoder, IdEncoder):
            out += [f"{name} IS ID {i + 1}" for i in range(encoder.count)]
        else:
            out += [f"{name}={category}" for category in encoder.categories]
        if encoder.has_missing:
            out.append(f"{name} IS NULL")
        if isinstance(encoder, CategoryEncoder) and encoder.has_other:
            out.append(f"{name} IS OTHER")  # no "=": a category may be called "other"
    return out
