"""Honest messages with one value changed: what passes the first look, and is a lie all the same.

In: a message as an honest party sent it, and a source of chance. Out: the same message with one leaf of it replaced: a
number at an edge of its type, an array of another shape, type or content, a text or a list that is longer or shorter.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tablepuppet.exchanges.labels import Labels, Weights

_INTS = (0, 1, -1, 2, 7, 254, 255, 256, 10**6, 2**31, -(2**31) - 1, 2**53, 2**62, -(2**63))
_FLOATS = (0.0, 1.0, -1.0, 1e-300, 1e300, -1e300, float("inf"), float("-inf"), float("nan"))
_MAY_BE_MISSING = (Labels, Weights)  # NaN is how an honest owner says so
Path = tuple[Any, ...]


def leaves(value: Any, at: Path = ()) -> list[Path]:
    """Where the values of a message are that can be changed: fields, elements, and lists as a whole."""
    if isinstance(value, msgspec.Struct):
        return [p for name in value.__struct_fields__ for p in leaves(getattr(value, name), (*at, name))]
    if isinstance(value, list | tuple):
        return [at, *(p for i in range(min(len(value), 3)) for p in leaves(value[i], (*at, i)))]
    if isinstance(value, dict):
        return [at, *(p for key in list(value)[:3] for p in leaves(value[key], (*at, key)))]
    return [at]


def changed(message: Any, chance: random.Random, *, keep: tuple[str, ...] = ("job",)) -> tuple[Any, str]:
    """The message with one leaf changed, and which it was; fields in `keep` stay."""
    places = [p for p in leaves(message) if p and p[0] not in keep]
    if not places:
        return message, ""
    place = chance.choice(places)
    return _at(message, place, chance), ".".join(map(str, place))


def cannot_be(honest: Any, made: Any, place: str) -> bool:
    """Whether what stands at a place can be no honest answer: an array of another shape, or a number that is none."""
    before, after = _found(honest, place), _found(made, place)
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        if before.shape != after.shape:
            return True
        if before.dtype.kind != "f" or after.dtype.kind != "f":
            return False
        can_be = np.isfinite(after) | np.isnan(after) if isinstance(honest, _MAY_BE_MISSING) else np.isfinite(after)
        return not can_be[np.isfinite(before)].all()
    return isinstance(before, float) and isinstance(after, float) and np.isfinite(before) and not np.isfinite(after)


def _found(value: Any, place: str) -> Any:
    for name in place.split("."):
        if isinstance(value, msgspec.Struct):
            value = getattr(value, name)
        else:
            value = value[name] if isinstance(value, dict) else value[int(name)]
    return value


def _at(value: Any, place: Path, chance: random.Random) -> Any:
    if not place:
        return other(value, chance)
    first, *rest = place
    if isinstance(value, msgspec.Struct):
        return replace(value, **{first: _at(getattr(value, first), tuple(rest), chance)})
    if isinstance(value, dict):
        return {**value, first: _at(value[first], tuple(rest), chance)}
    held = list(value)
    held[first] = _at(held[first], tuple(rest), chance)
    return type(value)(held)


def other(value: Any, chance: random.Random) -> Any:
    """Another value of the same kind, or of one that a peer could send instead."""
    if isinstance(value, np.ndarray):
        return _array(value, chance)
    if isinstance(value, pa.Table):
        return _table(value, chance)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((*_INTS, value + 1, value - 1))
    if isinstance(value, float):
        return chance.choice((*_FLOATS, value * 2, -value))
    if isinstance(value, str):
        return chance.choice(("", "x" * 70_000, "\x1b[2J", value + "x", "\x00"))
    if isinstance(value, bytes):
        return chance.choice((b"", bytes(3000), value[:-1], value[::-1]))
    if isinstance(value, list | tuple):
        longer = [*value, *value] if value else [0]
        return type(value)(chance.choice(([], list(value)[:-1], longer, list(value)[::-1])))
    if isinstance(value, dict):
        return chance.choice(({}, {**value, "x" * 300: 0.0}))
    return chance.choice((0, 1.5, "x", []))


def _array(value: Any, chance: random.Random) -> Any:
    way = chance.randrange(8)
    if way == 0:
        return value[:-1].copy() if value.ndim and len(value) else np.zeros(1, value.dtype)
    if way == 1:
        return np.concatenate([value, value]) if value.ndim else np.zeros((2, 2), value.dtype)
    if way == 2:
        return value.reshape(*value.shape, 1)
    if way == 3:
        return value.astype(chance.choice(("<f8", "<f4", "<i8", "<i4", "|u1", "|b1")))
    if way == 4:
        return np.zeros((0,) * max(value.ndim, 1), value.dtype)
    made = value.copy()
    if not made.size:
        return np.ones(3, value.dtype)
    where = chance.randrange(made.size) if way < 7 else slice(None)
    if made.dtype.kind == "f":
        made.reshape(-1)[where] = chance.choice(_FLOATS)
    elif made.dtype.kind == "b":
        made.reshape(-1)[where] ^= True
    else:
        limits = np.iinfo(made.dtype)
        made.reshape(-1)[where] = chance.choice((limits.min, limits.max, 0, min(255, limits.max), min(1, limits.max)))
    return made


def _table(value: pa.Table, chance: random.Random) -> pa.Table:
    if not value.num_columns:
        return pa.table({"x": [1, 2]})
    way = chance.randrange(5)
    column = value.column(0).combine_chunks()
    if way == 0:
        return value.slice(1)
    if way == 1:
        return pa.concat_tables([value, value])
    if way == 2:
        return value.select([])
    if way == 3 and pa.types.is_dictionary(column.type):
        numbers = pa.array(np.full(len(column), 2**30, np.int32))
        column = pa.DictionaryArray.from_arrays(numbers, column.dictionary, safe=False)
        return value.set_column(0, value.column_names[0], column)
    return value.set_column(0, value.column_names[0], pa.nulls(len(column), pa.int64()))
