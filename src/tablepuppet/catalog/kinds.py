"""Which types go together: a column at several clients, two keys, a position of UNION ALL, a feature, a label."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tablepuppet.transport.messages import ColumnInfo, Kind

_NUMBERS: frozenset[Kind] = frozenset({"integer", "float", "decimal"})
_FAMILIES: dict[Kind, str] = {
    "integer": "number",
    "float": "number",
    "decimal": "number",
    "boolean": "number",
    "date": "time",
    "timestamp": "time",
    "string": "text",
    "uuid": "text",
}


def type_name(column: ColumnInfo) -> str:
    """The owner's name for a type, or ours."""
    return column.detail or column.kind


def merged_column(name: str, by_client: Mapping[str, ColumnInfo]) -> ColumnInfo | None:
    """The type of one expression over all clients of its table; None if they do not agree.

    Numbers of different kinds make a float: as features they are encoded alike, and as keys floats are refused.
    """
    infos = list(by_client.values())
    first = infos[0]
    if len({(i.kind, i.size) for i in infos}) == 1 and len({key_type(i) for i in infos}) == 1:
        return ColumnInfo(name, first.kind, first.detail, first.size)
    if all(i.kind in _NUMBERS for i in infos):
        different = dict.fromkeys(type_name(i) for i in infos)
        return ColumnInfo(name, "float", " or ".join(different))
    return None


def key_type(column: ColumnInfo) -> str | None:
    """What a key is compared as; two keys can be equal if this is the same. None: it cannot be a key."""
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
    """What two keys that differ can both be cast to: the key type and its SQL name; None if nothing is sensible."""
    kinds = {left.kind, right.kind}
    if kinds & {"vector", "other"}:
        return None
    if kinds <= {"date", "timestamp"}:
        return ("date", "DATE") if "date" in kinds else ("timestamp", "TIMESTAMP")
    if kinds <= {"integer", "float", "decimal", "boolean"}:
        return "integer", "BIGINT"
    return "string", "VARCHAR"


def union_column(name: str, columns: list[ColumnInfo]) -> ColumnInfo | None:
    """The type of one position of UNION ALL over all branches; None if they do not go together."""
    first = columns[0]
    if len({(c.kind, c.size) for c in columns}) == 1:
        return ColumnInfo(name, first.kind, first.detail, first.size)
    families = {_FAMILIES.get(c.kind) for c in columns}
    if len(families) != 1 or None in families:
        return None
    kind: Kind = {"number": "float", "time": "timestamp", "text": "string"}[str(families.pop())]  # type: ignore[assignment]
    return ColumnInfo(name, kind, " or ".join(dict.fromkeys(type_name(c) for c in columns)))


def is_feature(column: ColumnInfo) -> bool:
    """Such a column can be encoded."""
    return column.kind != "other"


def is_label(column: ColumnInfo) -> bool:
    """Such a column can be predicted."""
    return column.kind not in ("other", "vector")
