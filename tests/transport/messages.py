"""Messages by the thousand, made from the types themselves: honest in form, hostile in every value.

In: a message type (msgspec knows its fields) and a source of chance. Out: a frame. A value is drawn from the edges of
its type: numbers at the limits of floats and integers, arrays of every shape and type, texts of control characters,
tables whose indices point outside. Some frames are then damaged: bytes changed, cut, or of another message's buffers.
"""

from __future__ import annotations

import math
import random
import struct
import types
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa

import tablepuppet as tp
from tablepuppet.protocol.codec import Frame, Wire, encode

_INTS = (0, 1, -1, 2, 3, 7, 100, 2**31, -(2**31) - 1, 2**53, 2**63 - 1, -(2**63))
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, -1e300, math.inf, -math.inf, math.nan)
_TEXTS = (
    "",
    "a",
    "orders",
    "x",
    "y",
    "item",
    "0123456789abcdef",
    "\x00",
    "\x1b[2J",
    "é" * 50,
    "z" * 5000,
    "'; DROP",
    "x = 1",
)
_SHAPES = ((0,), (1,), (3,), (40,), (3, 1), (40, 1), (40, 2), (0, 1), (1, 0), (2, 2, 2), ())
_DTYPES = ("<f8", "<f4", "<i8", "<i4", "|b1", "|u1")


def frame(kind: Any, chance: random.Random, **fixed: Any) -> Frame:
    """A frame of a message of this type."""
    made = value(kind, chance)
    if fixed:
        held = {n: getattr(made, n) for n in made.__struct_fields__} | {
            n: v for n, v in fixed.items() if n in made.__struct_fields__
        }
        made = type(made)(**held)
    wires: tuple[Wire, ...] = ("float64", "float64", "float32", "float64+zstd")
    with np.errstate(all="ignore"):
        found = encode(made, chance.choice(wires))
    return damaged(found, chance) if chance.random() < 0.25 else found


def damaged(given: Frame, chance: random.Random) -> Frame:
    """The frame with a few of its bytes changed, or cut, or its buffers in another order."""
    header = bytearray(given.header)
    way = chance.randrange(5)
    if way == 0:
        for _ in range(chance.randrange(1, 6)):
            header[chance.randrange(len(header))] = chance.randrange(256)
    elif way == 1:
        del header[chance.randrange(len(header)) :]
    elif way == 2:
        return Frame(bytes(header), list(reversed(given.buffers))[: chance.randrange(3)])
    elif way == 3 and given.buffers:
        buffers = [bytearray(b) for b in given.buffers]
        chosen = chance.choice(buffers)
        for _ in range(min(len(chosen), 8)):
            chosen[chance.randrange(len(chosen))] = chance.randrange(256)
        return Frame(bytes(header), [bytes(b) for b in buffers])
    else:
        header[0] = chance.randrange(256)
    return Frame(bytes(header) or b"\x00", given.buffers)


def value(kind: Any, chance: random.Random, depth: int = 0) -> Any:
    """A value of a type, as msgspec would accept it."""
    if kind is Any:
        kind = chance.choice((bool, int, float, str, list[str], dict[str, int]))
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return value(args[0], chance, depth)
    if origin in (Union, types.UnionType):
        return value(chance.choice(args), chance, depth)
    if origin is Literal:
        return chance.choice(args)
    if kind is np.ndarray or origin is np.ndarray:
        return _array(chance)
    if kind is pa.Table:
        return _table(chance)
    if origin in (list, tuple, set, frozenset):
        return _several(origin, args, chance, depth)
    if origin is dict:
        return {
            value(args[0], chance, depth + 1): value(args[1], chance, depth + 1) for _ in range(chance.randrange(3))
        }
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*(value(hint, chance, depth + 1) for hint in get_type_hints(kind).values()))
    struct_kind = origin or kind
    if isinstance(struct_kind, type) and issubclass(struct_kind, msgspec.Struct):
        return _struct(struct_kind, args, chance, depth)
    return _plain(kind, chance)


def _several(origin: Any, args: tuple[Any, ...], chance: random.Random, depth: int) -> Any:
    if origin is tuple and args and args[-1] is not Ellipsis:
        return tuple(value(a, chance, depth + 1) for a in args)
    return origin([value(args[0], chance, depth + 1) for _ in range(chance.choice((0, 1, 1, 2, 5)))])


def _struct(kind: type[msgspec.Struct], args: tuple[Any, ...], chance: random.Random, depth: int) -> Any:
    for _ in range(5000):  # options check themselves: what they refuse, or say is old, is not sent
        try:
            return kind(**_fields(kind, args, chance, depth))
        except (tp.TablePuppetError, FutureWarning):
            continue
    raise AssertionError(f"no way to make a {kind.__name__}")


def _fields(kind: type[msgspec.Struct], args: tuple[Any, ...], chance: random.Random, depth: int) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    parameters: dict[Any, Any] = dict(zip(getattr(kind, "__parameters__", ()), args, strict=False))
    given = {}
    for field in msgspec.structs.fields(kind):
        has_default = field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT
        if has_default and chance.random() < (0.95 if depth else 0.4):
            continue
        hint = hints[field.name]
        given[field.name] = value(parameters.get(hint, hint) if isinstance(hint, TypeVar) else hint, chance, depth + 1)
    return given


def _array(chance: random.Random) -> Any:
    shape, dtype = chance.choice(_SHAPES), np.dtype(chance.choice(_DTYPES))
    if dtype.kind == "f":
        return np.full(shape, chance.choice(_FLOATS[:5] if dtype.itemsize == 4 else _FLOATS), dtype)
    with np.errstate(all="ignore"):
        return np.full(shape, chance.choice((0, 1, 1, 2, 39, 100)), np.int64).astype(dtype)


def _table(chance: random.Random) -> pa.Table:
    rows = chance.choice((0, 1, 40))
    tokens = pa.array([struct.pack("<QQ", i, 0) for i in range(3)], pa.binary(16))
    columns = [
        pa.array(np.arange(rows)),
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), tokens),
        pa.DictionaryArray.from_arrays(pa.array(np.full(rows, 10**6, np.int32)), tokens, safe=False),
        pa.nulls(rows),
        pa.array([[1.0]] * rows, pa.list_(pa.float64())),
        pa.array([{"a": 1}] * rows, pa.struct([("a", pa.int64())])),
    ]
    chosen = [chance.choice(columns) for _ in range(chance.choice((0, 1, 1, 2)))]
    return pa.table({f"c{i}": column for i, column in enumerate(chosen)})


def _plain(kind: Any, chance: random.Random) -> Any:
    if kind is bool:
        return chance.random() < 0.5
    if kind is int:
        return chance.choice(_INTS)
    if kind is float:
        return chance.choice(_FLOATS)
    if kind is str:
        return chance.choice(_TEXTS)
    if kind is bytes:
        return chance.randbytes(chance.choice((0, 1, 16, 32, 2000)))
    if kind is type(None):
        return None
    raise AssertionError(f"no way to make a {kind}")
