"""The owners of a federation in one process: tables as a user gives them, or a file → one client per owner.

Each client has its own tables, rules and secret; all share a key that the server never has.

A federation file is TOML (docs/cli.md). Relative paths are relative to the folder of the file that names them.
"""

import hmac
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from tablepuppet.client import Client
from tablepuppet.errors import JobError, TablePuppetError, did_you_mean, hint, unreadable
from tablepuppet.output_files import as_path
from tablepuppet.owner.part_store import PartStore
from tablepuppet.owner.policy import Policy, read_policy
from tablepuppet.owner.tables import ClientTables
from tablepuppet.sources.source import Source, open_source, source
from tablepuppet.sql.bound import Holders

Owners = dict[str, tuple[str, ...]]  # table name → its clients
_LEAST_KEY = 16  # bytes


def name_owners(
    tables: Mapping[str, Any],
    together: Mapping[str, Sequence[str]] | None = None,
    partitioned_by: Mapping[str, Sequence[str]] | None = None,
) -> Owners:
    """A client for each source of each table, named after the table, or after the owner that holds it with others.

    >>> name_owners({"items": "items.csv", "orders": ["eu.csv", "us.csv"]})
    {'items': ('items',), 'orders': ('orders[0]', 'orders[1]')}
    >>> name_owners({"items": "items.csv", "prices": "prices.csv"}, {"shop": ["items", "prices"]})
    {'items': ('shop',), 'prices': ('shop',)}
    >>> name_owners({"items": ["north.csv", "south.csv"]}, {"north": ["items"], "south": ["items"]})
    {'items': ('north', 'south')}
    """
    if not tables:
        raise JobError('a federation has a table or more: tp.Federation({"orders": orders, "items": "items.parquet"})')
    owners: Owners = {}
    for table, given in tables.items():
        if not isinstance(table, str) or not table:
            found = "empty" if table == "" else type(table).__name__
            raise JobError(f"a table's name must be text, not {found}")
        count = len(_as_list(given))
        if not count:
            raise JobError(f"table {table!r} has no source; give at least one")
        if any(other.lower() == table.lower() for other in owners):
            raise JobError(f"two tables are called {table!r} but for case, which SQL does not tell apart; rename one")
        owners[table] = (table,) if count == 1 else tuple(f"{table}[{i}]" for i in range(count))
    owners, by = owners | _together(owners, together or {}), partitioned_by or {}
    for table, columns in by.items():
        if table not in owners:
            raise JobError(f"partitioned_by names {table!r}, which is not a table; {did_you_mean(table, list(owners))}")
        if isinstance(columns, str) or not columns or not all(isinstance(c, str) for c in columns):
            raise JobError(f'partitioned_by of {table} is a list of its columns, as in {{"{table}": ["account_id"]}}')
    return {table: Holders(clients, by.get(table, ())) for table, clients in owners.items()}


def _together(owners: Owners, together: Mapping[str, Sequence[str]]) -> Owners:
    """Each owner's tables; of a table with several sources, each owner has one, in their order."""
    for owner, held in together.items():
        if isinstance(held, str):
            raise JobError(f'owner {owner!r} holds a list of tables, as in {{"{owner}": ["{held}"]}}')
        for table in held:
            if table not in owners:
                hint = did_you_mean(table, list(owners))
                raise JobError(f"owner {owner!r} holds {table!r}, which is not a table; {hint}")
    found: Owners = {}
    taken = {client for clients in owners.values() for client in clients}
    for table, clients in owners.items():
        holders = tuple(owner for owner, held in together.items() if table in held)
        if holders and len(holders) != len(clients):
            raise JobError(
                f"table {table!r} has {len(clients)} sources, and owners name another number of holders; give each "
                "source one owner, in their order"
            )
        if len(holders) == 1 and holders != clients and holders[0] in taken:
            raise JobError(f"owner {holders[0]!r} has the name of a table; give it another")
        found |= {table: holders} if holders else {}
    return found


def make_clients(
    owners: Owners,
    tables: Mapping[str, Any],
    *,
    key: bytes | None,
    policies: Mapping[str, str | Path | Policy],
    models: str | Path | None,
) -> dict[str, Client]:
    rules = _rules(owners, policies)
    part_stores = None if models is None else as_path(models, "models")
    if key is not None and len(key) < _LEAST_KEY:
        raise JobError(f"key is a secret of {_LEAST_KEY} bytes or more, as secrets.token_bytes(32); it has {len(key)}")
    shared = secrets.token_bytes(32) if key is None else bytes(key)
    return {
        name: Client(
            name,
            ClientTables(held),
            rules[name],
            may_reveal=True,
            key=shared,
            order_key=key or b"",
            secret=hmac.digest(shared, f"tablepuppet owner {name}".encode(), "sha256"),
            part_store=PartStore(None if part_stores is None else part_stores / quote(name, safe=" []")),
        )
        for name, held in _open_sources(owners, tables).items()
    }


def _open_sources(owners: Owners, tables: Mapping[str, Any]) -> dict[str, dict[str, Source]]:
    """Each client's sources; an error leaves none of them open."""
    sources: dict[str, dict[str, Source]] = {}
    try:
        for table, names in owners.items():
            for name, given in zip(names, _as_list(tables[table]), strict=True):
                sources.setdefault(name, {})[table] = open_source(given, table)
            for column in getattr(names, "partitioned_by", ()):
                known = [own.name for own in sources[names[0]][table].describe()]
                if column.lower() not in map(str.lower, known):
                    raise JobError(f"partitioned_by of {table} names {column!r}. {did_you_mean(column, known)}")
    except TablePuppetError:
        for source in (s for held in sources.values() for s in held.values()):
            source.close()
        raise
    return sources


def _rules(owners: Owners, given: Mapping[str, str | Path | Policy]) -> dict[str, Policy]:
    """Each client's policy: its own, or its table's, or none."""
    clients: dict[str, list[str]] = {}
    for table, names in owners.items():
        for client in names:
            clients.setdefault(client, []).append(table)
    for name in given:
        if name not in clients and name not in owners:
            raise JobError(f"policies name {name!r}, which is not a client; there are {', '.join(clients)}")
    read = {name: p if isinstance(p, Policy) else read_policy(as_path(p, "a policy")) for name, p in given.items()}
    return {
        client: next((read[name] for name in (client, *held) if name in read), Policy())
        for client, held in clients.items()
    }


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tables: dict[str, Any]
    owners: dict[str, list[str]] = {}
    partitioned_by: dict[str, list[str]] = {}
    policies: dict[str, str] = {}
    models: str | None = None


_CONTENT = {
    "tables": "[tables] maps a table to its sources",
    "owners": "[owners] maps an owner to the list of its tables",
    "partitioned_by": "[partitioned_by] maps a table to the list of columns that say whose its rows are",
    "policies": "[policies] maps a client or a table to the path of its policy file",
    "models": "models is the path of a folder",
}


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file's content; a clear error where there is none."""
    try:
        return tomllib.loads(as_path(path, "a federation").read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(unreadable(path, error)) from None
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{path} is not valid TOML: {error}") from None


def tables_from_toml(tables: Mapping[str, Any], folder: Path) -> dict[str, list[Any]]:
    """Sources as TOML writes them; relative paths are relative to the file's folder."""

    def one(table: str, given: Any) -> Any:
        if isinstance(given, str):
            return source(_resolve_url(given, folder)) if "://" in given else folder / given
        if isinstance(given, dict) and set(given) <= {"url", "table", "query"} and isinstance(given.get("url"), str):
            return source(_resolve_url(given["url"], folder), given.get("table"), query=given.get("query"))
        raise JobError(f"table {table!r}: a source is a path, {{url = …, table = …}} or {{url = …, query = …}}")

    return {table: [one(table, source) for source in _as_list(given)] for table, given in tables.items()}


def _resolve_url(url: str, folder: Path) -> str:
    """A URL whose file, where it names one by a relative path, is seen from the folder."""
    scheme, _, path = url.partition(":///")
    if scheme.lower() not in ("sqlite", "duckdb") or not path or path.startswith(("/", "~")):
        return url
    return f"{scheme}:///{(folder / path).absolute()}"


def federation_from_toml(path: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of Federation, as a file gives them."""
    for name in given:
        if name not in _File.__struct_fields__:
            raise JobError(f"{path}: unknown key {name!r}; {hint(name, _File.__struct_fields__, 'a federation file')}")
    try:
        file = msgspec.convert(given, _File)
    except msgspec.ValidationError as error:
        what, _, where = str(error).replace("`", "").partition(" - at $.")
        section = where.partition("[")[0] or "tables"  # which is not there at all
        found = what.rpartition(", got ")[2] if where else "none"
        raise JobError(f"{path}: {_CONTENT[section]}; found {found}") from None
    folder = Path(path).parent
    return {
        "tables": tables_from_toml(file.tables, folder),
        "owners": file.owners,
        "partitioned_by": file.partitioned_by,
        "policies": {name: folder / p for name, p in file.policies.items()},
        "models": None if file.models is None else folder / file.models,
    }
