"""Federation and table files: TOML → the sources and rules of a federation.

    [tables]
    orders = ["store_eu.parquet", "store_us.parquet"]             # one table, two owners
    items = { url = "postgresql://supplier/db", table = "items" }

    [owners]                                                      # tables that one owner holds together
    bank = ["accounts", "transactions"]

    [policies]
    items = "supplier.toml"                                       # by client or by table

Relative paths are relative to the folder of the file that names them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tablepuppet.errors import JobError, hint
from tablepuppet.tables.source import source

_KEYS = ("tables", "owners", "policies", "models")


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file's content; a clear error where there is none."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"cannot read {path}: {error.strerror if isinstance(error, OSError) else 'not text'}") from None
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{path} is not valid TOML: {error}") from None


def tables_from_toml(tables: Mapping[str, Any], folder: Path) -> dict[str, list[Any]]:
    """Sources as TOML writes them; relative paths are relative to the file's folder."""

    def one(table: str, given: Any) -> Any:
        if isinstance(given, str):
            return source(_placed(given, folder)) if "://" in given else folder / given
        if isinstance(given, dict) and set(given) <= {"url", "table", "query"} and isinstance(given.get("url"), str):
            return source(_placed(given["url"], folder), given.get("table"), query=given.get("query"))
        raise JobError(f"table {table!r}: a source is a path, {{url = …, table = …}} or {{url = …, query = …}}")

    return {
        t: [one(t, g) for g in (given if isinstance(given, Sequence) and not isinstance(given, str) else [given])]
        for t, given in tables.items()
    }


def _placed(url: str, folder: Path) -> str:
    """A URL whose file, where it names one by a relative path, is seen from the folder."""
    scheme, _, path = url.partition(":///")
    if scheme.lower() not in ("sqlite", "duckdb") or not path or path.startswith(("/", "~")):
        return url
    return f"{scheme}:///{(folder / path).absolute()}"


def federation_from_toml(path: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of Federation, as a file gives them."""
    for name in given:
        if name not in _KEYS:
            raise JobError(f"{path}: unknown key {name!r}; {hint(name, _KEYS, 'a federation file')}")
    tables = given.get("tables")
    if not isinstance(tables, dict):
        raise JobError(f"{path}: a federation file needs a [tables] section")
    policies = given.get("policies", {})
    if not isinstance(policies, dict) or not all(isinstance(p, str) for p in policies.values()):
        raise JobError(f"{path}: [policies] maps a client or a table to the path of its policy file")
    owners = given.get("owners", {})
    if not isinstance(owners, dict) or not all(isinstance(held, list) for held in owners.values()):
        raise JobError(f"{path}: [owners] maps an owner's name to the list of its tables")
    models = given.get("models")
    if models is not None and not isinstance(models, str):
        raise JobError(f"{path}: models is the path of a folder")
    folder = Path(path).parent
    return {
        "tables": tables_from_toml(tables, folder),
        "owners": owners,
        "policies": {name: folder / p for name, p in policies.items()},
        "models": None if models is None else folder / models,
    }
