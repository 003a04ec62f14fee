"""Which types are compatible: of a column at several clients, of two keys, of a position of UNION ALL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from tablepuppet.protocol.columns import ColumnInfo, Kind

_NUMBERS: frozenset[Kind] = frozenset({"integer", "float", "decimal"})
# Kinds that are encoded alike, and the kind that stands for a mixture of them.
_Family = Literal["number", "time", "text"]
_FAMILIES: dict[Kind, _Family] = {
    **dict.fromkeys(("integer", "float", "decimal", "boolean"), "number"),
    **dict.fromkeys(("date", "timestamp"), "time"),
    **dict.fromkeys(("string", "uuid"), "text"),
}
_WIDEST: dict[_Family, Kind] = {"number": "float", "time": "timestamp", "text": "string"}
_FLOAT_SCALE = 9  # digits after the point that a float keeps as a key
_CASTS: dict[_Family, str] = {"number": "DOUBLE", "time": "TIMESTAMP", "text": "VARCHAR"}


def type_name(column: ColumnInfo) -> str:
    """The owner's name for a type, or ours."""
    return column.detail or column.kind


def merged_column(name: str, by_client: Mapping[str, ColumnInfo]) -> ColumnInfo | None:
    """The type of one expression over all clients of its table; None if they do not agree.

    Numbers of different kinds make a float: as features they are encoded alike, and as keys floats are refused.
    """
    infos = list(by_client.values())
    first = infos[0]
    key_types = {key_type(i) for i in infos}
    if len({(i.kind, i.size) for i in infos}) == 1 and len(key_types) == 1:
        return ColumnInfo(name, first.kind, first.detail, first.size, absent=first.absent)
    if all(i.kind in _NUMBERS for i in infos):
        kind: Kind = "integer" if key_types == {"integer"} else "float"
        detail = " or ".join(dict.fromkeys(map(type_name, infos)))
        return ColumnInfo(name, kind, detail, absent=first.absent)
    return None


def common_cast(by_client: Mapping[str, ColumnInfo]) -> str:
    """A type that an expression can be cast to at all these clients."""
    return _CASTS[_family(by_client.values()) or "text"]


def _family(columns: Iterable[ColumnInfo]) -> _Family | None:
    """The family that all these columns belong to, if there is one."""
    families = {_FAMILIES.get(column.kind) for column in columns}
    return families.pop() if len(families) == 1 else None


def key_type(column: ColumnInfo) -> str | None:
    """The type that a key is compared as; two keys can be equal if it is the same. None: it cannot be a key."""
    match column.kind:
        case "integer":
            return "integer"
        case "decimal":
            scale = _scale(column.detail)
            return None if scale is None else "integer" if scale == 0 else f"decimal of scale {scale}"
        case "timestamp":
            zoned = re.search(r"\btz\b|tz=|timestamptz|with time zone", column.detail.lower())
            return "timestamp with time zone" if zoned else "timestamp"
        case "string" | "uuid" | "date" | "boolean":
            return column.kind
        case _:
            return None


def _scale(detail: str) -> int | None:
    """The scale that a decimal type's name gives: decimal(18, 2), numeric(10), decimal128(38, 0)."""
    found = re.search(r"\(\s*\d+\s*(?:,\s*(-?\d+)\s*)?\)", detail)
    return None if found is None else int(found.group(1) or 0)


def common_key_cast(left: ColumnInfo, right: ColumnInfo) -> tuple[str, str] | None:
    """The common type of two different keys, for a cast: the key type and its SQL name; None if nothing is sensible."""
    kinds = {left.kind, right.kind}
    if kinds & {"vector", "other"}:
        return None
    if kinds <= {"date", "timestamp"}:
        return ("date", "DATE") if "date" in kinds else ("timestamp", "TIMESTAMP")
    if kinds <= {"integer", "boolean"}:
        return "integer", "BIGINT"
    if kinds <= {"integer", "float", "decimal", "boolean"}:
        scale = max(_FLOAT_SCALE if side.kind == "float" else _scale(side.detail) or 0 for side in (left, right))
        return f"decimal of scale {scale}", f"DECIMAL(38, {scale})"
    return "string", "VARCHAR"


def union_column(name: str, columns: list[ColumnInfo]) -> ColumnInfo | None:
    """The type of one position of UNION ALL over all branches; None if they are incompatible."""
    first = columns[0]
    absent = next((c.absent for c in columns if c.absent is not None), None)
    if len({(c.kind, c.size) for c in columns}) == 1:
        return ColumnInfo(name, first.kind, first.detail, first.size, absent=absent)
    family = _family(columns)
    if family is None:
        return None
    detail = " or ".join(dict.fromkeys(map(type_name, columns)))
    return ColumnInfo(name, _WIDEST[family], detail, absent=absent)
