"""Groups' states over several clients: as integers that add up under masks, and merged again.

In: the result of a grouped query's partial query at one client (grouped_queries.py). Out: 64-bit words for groups that
other clients have too. Sums add up exactly modulo 2^64; the words of minima and maxima do not add up. The client that
holds a group makes its merged states from the words of all.

    integer, decimal    the number itself, in units of its scale
    float               two words, v ≈ (w₁ + w₂ 2^−F) 2^(E−F), F = 62 − ⌈log₂ Q⌉: over 110 bits below a common 2^E
    spread              Σ (x − x̄)² of a client's own rows, and s² / n of its own sum s, two words each. Over all
                        clients it is Σ spread + Σ s²/n − (Σ s)²/Σ n, of which the last two cancel: in 106 bits
    least, greatest     whether there is a value, and its bits
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Integers, RowNumbers
from tablepuppet.errors import SourceError
from tablepuppet.owner.tokens import SIZE, key_family, keyed_hashes, prefix, tokens
from tablepuppet.privacy.masks import exponent_of, fraction_bits, to_integers
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.columns import numpy_of
from tablepuppet.sources.grouped_queries import GroupedQuery, State

STEP = 16  # powers of two: clients disclose their sums' sizes in such steps
SMALLEST = -512  # smaller numbers are as good as zero
_WHOLE = pa.decimal128(38, 0)
_LARGEST_INTEGER = 2**60  # of one client's integer


class Partials(msgspec.Struct, frozen=True, eq=False):
    """One client's groups, in the order of their tokens, and their states."""

    tokens: NDArray[np.uint8]  # groups × 16
    names: pa.Table  # g0, g1, …
    query: GroupedQuery
    kinds: tuple[str, ...]  # of each state: how it is merged, and the type of its numbers
    values: tuple[NDArray[Any], ...]  # int64 or float64; 0 where there is none
    present: tuple[NDArray[np.bool_], ...]  # whether there is one
    types: tuple[pa.DataType, ...]
    casts: tuple[str, ...]  # of names and states: DuckDB's types
    order: Integers  # where each group lies in the query's own order, the same in every job

    @classmethod
    def of(
        cls, rows: pa.Table, infos: Sequence[ColumnInfo], casts: Sequence[str], query: GroupedQuery, key: bytes
    ) -> Self:
        """From the rows of a partial query; `infos`, `casts`: the kinds of its columns."""
        groups, states = query.groups, query.states
        if any(info.kind == "float" for info in infos[:groups]):
            raise SourceError(
                "groups by a float cannot be compared between clients; CAST it to DECIMAL with the places that matter"
            )
        given = group_tokens(rows.select(range(groups)), infos[:groups], key)
        order = np.lexsort(given.view(">u8").T[::-1])
        rows = rows.take(pa.array(order))
        read = [_numbers(rows.column(groups + i), state.kind) for i, state in enumerate(states)]
        families = " ".join(key_family(rows.column(i).type, infos[i]) for i in range(groups))
        return cls(
            np.ascontiguousarray(given[order]),
            rows.select(range(groups)),
            query,
            (f"groups {families}", *(f"{state.kind} {what}" for state, (what, _, _) in zip(states, read, strict=True))),
            tuple(values for _, values, _ in read),
            tuple(present for _, _, present in read),
            tuple(rows.column(groups + i).type for i in range(len(states))),
            tuple(casts),
            order,
        )

    @property
    def states(self) -> tuple[State, ...]:
        return self.query.states

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def rows(self) -> Integers:
        return self.values[0]

    def digest(self) -> bytes:
        """A hash that changes with any of them."""
        digest = hashlib.sha256(repr((self.kinds, self.count)).encode())
        for array in (self.tokens, *self.values, *self.present):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()

    def sizes(self) -> list[int]:
        """The power of two that the largest number of each scale lies below, roughly."""
        found = []
        for number, state in enumerate(self.states):
            if scales_of(self.kinds[number + 1]):
                found.append(exponent_of(self.values[number]))
            if state.kind == "spread":
                found.append(exponent_of(self._square(state)[0]))
        return [max(SMALLEST, -(-size // STEP) * STEP) for size in found]

    def words(self, rows: RowNumbers, scales: Sequence[int], parties: int) -> tuple[Integers, Integers]:
        """The sums of some groups, and their extremes; of −1, a group that this client has not, nothing."""
        has = rows >= 0
        taken = np.where(has, rows, 0) if self.count else np.zeros(len(rows), np.int64)
        left, sums, extremes = iter(scales), list[Integers](), list[Integers]()

        def pick(values: NDArray[Any]) -> NDArray[Any]:
            return (
                np.where(has, values[taken], values.dtype.type(0)) if self.count else np.zeros(len(rows), values.dtype)
            )

        for number, state in enumerate(self.states):
            values = pick(self.values[number])
            if state.kind in ("least", "greatest"):
                extremes += [pick(self.present[number]).astype(np.int64), values.view(np.int64)]
            elif values.dtype == np.int64:
                if (np.abs(values) >= _LARGEST_INTEGER // parties).any():
                    raise SourceError("a sum of some group is too large to be merged exactly; CAST it to DOUBLE")
                sums.append(values)
            else:
                sums += _two_words(values, np.zeros_like(values), next(left), parties)
                if state.kind == "spread":
                    square, rest = (pick(part) for part in self._square(state))
                    sums += _two_words(square, rest, next(left), parties)
        nothing = [np.empty((len(rows), 0), np.int64)]
        both = (np.concatenate([*nothing, *(w[:, None] for w in words)], axis=1) for words in (sums, extremes))
        return next(both), next(both)

    def merge_words(
        self,
        kept: RowNumbers,
        held: RowNumbers,
        sums: Integers,
        extremes: Sequence[Integers],
        scales: Sequence[int],
        parties: int,
    ) -> pa.Table:
        """The groups that stay here, `held` among them with the states that all clients' words make."""
        left, at, place = iter(scales), 0, 0
        values = [array.copy() for array in self.values]
        present = [array.copy() for array in self.present]
        totals: dict[int, tuple[Array, Array]] = {}
        for number, state in enumerate(self.states):
            if state.kind in ("least", "greatest"):
                for other in extremes:
                    _extend(values[number], present[number], held, other[:, place : place + 2], state.kind)
                place += 2
            elif values[number].dtype == np.int64:
                values[number][held] = sums[:, at]
                totals[number] = sums[:, at].astype(np.float64), np.zeros(len(held))
                at += 1
            else:
                totals[number] = _from_words(sums[:, at : at + 2], next(left), parties)
                at += 2
                values[number][held] = totals[number][0] + totals[number][1]
                if state.kind == "spread":
                    squares = _from_words(sums[:, at : at + 2], next(left), parties)
                    at += 2
                    count, total = (totals[i] for i in state.of)
                    mean = _squared_over(*total, np.maximum(count[0], 1.0))
                    # Σ s²/n − (Σ s)²/Σ n: how far the clients' means lie apart
                    apart = (squares[0] - mean[0]) + (squares[1] - mean[1])
                    values[number][held] += np.maximum(apart, 0.0)
        kept = kept[np.argsort(self.order[kept])]
        columns = {f"g{i}": self.names.column(i).take(pa.array(kept)) for i in range(self.names.num_columns)}
        for number, kind in enumerate(self.types):
            columns[f"s{number}"] = _column(values[number][kept], present[number][kept], kind, self.states[number].kind)
        return pa.table(columns)

    def _square(self, state: State) -> tuple[Array, Array]:
        """s² / n of each group, in two floats."""
        count, total = (self.values[i] for i in state.of)
        found = _squared_over(total, np.zeros(len(total)), np.maximum(count, 1).astype(np.float64))
        if not np.isfinite(found[0]).all():
            raise SourceError("a sum of some group is too large to be squared; leave such rows out by WHERE")
        return found


def group_tokens(groups: pa.Table, infos: Sequence[ColumnInfo], key: bytes) -> NDArray[np.uint8]:
    """16 bytes for each group, equal where all its columns are, NULL with NULL: a keyed hash of their tokens."""
    columns = [
        tokens(groups.column(number), info, "hmac", key, f"group {number}").to_pylist()
        for number, info in enumerate(infos)
    ]
    messages = (
        b"".join(b"-" if token is None else b"+" + token for token in group) for group in zip(*columns, strict=True)
    )
    hashed = b"".join(keyed_hashes(messages, key, prefix("", "group")))
    return np.frombuffer(hashed, np.uint8).reshape(-1, SIZE)


def _numbers(column: pa.ChunkedArray, kind: str) -> tuple[str, NDArray[Any], NDArray[np.bool_]]:
    """The type of a state's numbers, the numbers, and where there are any."""
    present, given = np.asarray(pc.is_valid(column)), column.type
    if pa.types.is_floating(given):
        values = numpy_of(pc.fill_null(column, 0.0)).astype(np.float64)
        if not np.isfinite(values).all():
            raise SourceError("a figure of some group is not finite and cannot be merged; leave such rows out by WHERE")
        return "float", values, present
    if pa.types.is_decimal(given):
        wide = pc.cast(column, pa.decimal128(38, given.scale))
        return ("integer" if given.scale == 0 else f"decimal {given.scale}"), _to_unscaled(wide), present
    if pa.types.is_integer(given):
        return "integer", _to_unscaled(pc.cast(column, _WHOLE)), present
    if kind != "number" and (pa.types.is_date32(given) or pa.types.is_timestamp(given)):
        whole = pc.cast(pc.cast(column, pa.int32()) if pa.types.is_date32(given) else column, pa.int64())
        return str(given), numpy_of(pc.fill_null(whole, 0)).astype(np.int64), present
    raise SourceError(f"figures of type {given} cannot be merged over clients; numbers can, and minima of dates")


def _to_unscaled(column: pa.ChunkedArray) -> Integers:
    """The 64-bit integers that decimals of 128 bits are, in units of their scale."""
    whole = column.combine_chunks()
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    if not len(whole):
        return np.empty(0, np.int64)
    held = np.frombuffer(whole.buffers()[1], np.int64).reshape(-1, 2)[whole.offset : whole.offset + len(whole)]
    held = np.where(np.asarray(pc.is_valid(whole))[:, None], held, 0)
    if (held[:, 1] != held[:, 0] >> 63).any():
        raise SourceError("a sum of some group is too large to be merged exactly; CAST it to DOUBLE")
    return np.ascontiguousarray(held[:, 0])


def _column(values: NDArray[Any], present: NDArray[np.bool_], kind: pa.DataType, state: str) -> pa.Array:
    missing = ~present if state in ("least", "greatest") else None
    if pa.types.is_floating(kind):
        return pa.array(values, pa.float64(), mask=missing)
    if pa.types.is_decimal(kind):
        halves = np.stack([values, values >> 63], axis=1)
        mask = None if missing is None else pa.array(present).buffers()[1]
        wide = pa.decimal128(38, kind.scale)
        return pa.Array.from_buffers(wide, len(values), [mask, pa.py_buffer(np.ascontiguousarray(halves))]).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array(values.astype(np.int32), pa.int32(), mask=missing).cast(kind)
    return pa.array(values, pa.int64(), mask=missing).cast(kind if pa.types.is_temporal(kind) else pa.int64())


def _extend(values: NDArray[Any], present: NDArray[np.bool_], held: RowNumbers, other: Integers, kind: str) -> None:
    """Another client's least or greatest values, taken in."""
    has, theirs = other[:, 0] != 0, np.ascontiguousarray(other[:, 1]).view(values.dtype)
    own = values[held]
    chosen = np.minimum(own, theirs) if kind == "least" else np.maximum(own, theirs)
    values[held] = np.where(has & present[held], chosen, np.where(has, theirs, own))
    present[held] |= has


def _two_words(values: Array, rest: Array, exponent: int, parties: int) -> list[Integers]:
    """Values and a small rest of each in fixed point; both must lie below 2^exponent."""
    bits = fraction_bits(parties)
    high, left = np.zeros(len(values), np.int64), np.zeros(len(values))
    for part in (values, rest):
        whole = to_integers(part, exponent, parties)
        high, left = high + whole, left + (part - np.ldexp(np.ldexp(whole.astype(np.float64), -bits), exponent))
    return [high, to_integers(left, exponent - bits + 1, parties)]


def _from_words(words: Integers, exponent: int, parties: int) -> tuple[Array, Array]:
    """A sum of such words in two floats."""
    bits = fraction_bits(parties)
    high = words[:, 0].astype(np.float64)
    low = (words[:, 0] - high.astype(np.int64)).astype(np.float64) + np.ldexp(words[:, 1].astype(np.float64), 1 - bits)
    first, second = (np.ldexp(np.ldexp(part, -bits), exponent) for part in (high, low))
    return first, second


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a b without an error: Dekker's."""
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(a: Array) -> tuple[Array, Array]:
    scaled = 134217729.0 * a
    high = scaled - (scaled - a)
    return high, a - high


def _squared_over(high: Array, low: Array, count: Array) -> tuple[Array, Array]:
    """(high + low)² / count in two floats."""
    square, error = _product(high, high)
    first = square / count
    back, lost = _product(first, count)
    return first, ((square - back) - lost + error + 2.0 * high * low) / count


def words_of(kind: str) -> tuple[int, int]:
    """How many words a state takes: of sums, and of extremes."""
    name, _, what = kind.partition(" ")
    if name == "spread":
        return 4, 0
    return ((2 if what == "float" else 1), 0) if name == "number" else (0, 2)


def scales_of(kind: str) -> int:
    return {"spread float": 2, "number float": 1}.get(kind, 0)
