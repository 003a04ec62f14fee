"""How the clients of one table differ in their columns: what an error lists, all at once.

In: each client's columns under common names. Out: one clause per difference (a column that some lack, a type or
nullability that differs), so that owners can mend their tables in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tablepuppet.catalog.kinds import merged_column, type_name
from tablepuppet.protocol import ColumnInfo

_SHOWN = 12

Columns = Mapping[str, ColumnInfo]  # common name → what one client has


def differences(columns: Sequence[str], by_client: Mapping[str, Columns]) -> list[str]:
    """One clause for each way in which the clients differ."""
    found = []
    for column in columns:
        having = {client: own[column] for client, own in by_client.items() if column in own}
        lacking = [client for client in by_client if client not in having]
        if lacking:
            found.append(f"{column} is missing at {_named(lacking)}")
        if len(having) > 1 and merged_column(column, having) is None:
            found.append(f"{column} is {_grouped(having, type_name)}")
        if len({info.nullable for info in having.values()}) > 1:
            found.append(f"{column} is {_grouped(having, lambda i: 'nullable' if i.nullable else 'NOT NULL')}")
    return found


def all_differences(table: str, columns: Sequence[str], by_client: Mapping[str, Columns]) -> str:
    """A sentence that lists every difference, or nothing where an error has already named the only one."""
    found = differences(columns, by_client)
    if len(found) < 2:
        return ""
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f" All differences between the clients of {table}: {'; '.join(found[:_SHOWN])}{more}."


def _grouped(having: Columns, what: Callable[[ColumnInfo], str]) -> str:
    groups: dict[str, list[str]] = {}
    for client, info in having.items():
        groups.setdefault(what(info), []).append(client)
    return " and ".join(f"{kind} at {_named(clients)}" for kind, clients in groups.items())


def _named(clients: Sequence[str]) -> str:
    return ", ".join(clients) if len(clients) <= 4 else f"{', '.join(clients[:3])} and {len(clients) - 3} others"
