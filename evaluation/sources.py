"""Original data files, as their owners distribute them, as something DuckDB can read.

In: a folder and a file's stem. Out: a table function for a FROM clause. Parquet copies, CSV (also
compressed), JSON lines and MovieLens' `::`-separated files are found by name, whatever its case.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from tablepuppet.errors import SourceError

_ENDINGS = (".parquet", ".csv", ".csv.gz", ".json", ".json.gz", ".dat")


def find(folder: Path, stem: str) -> Path:
    """The file of this name in the folder."""
    files = {file.name.lower(): file for file in sorted(folder.iterdir())} if folder.is_dir() else {}
    for ending in _ENDINGS:
        if f"{stem}{ending}" in files:
            return files[f"{stem}{ending}"]
    known = ", ".join(f"{stem}{ending}" for ending in _ENDINGS)
    raise SourceError(f"{folder} holds none of {known}; give the folder of the original files")


def scan(folder: Path, stem: str, columns: str = "") -> str:
    """A table function over the file; `columns` names those of a file without a header."""
    file = find(folder, stem)
    name = str(file).replace("'", "''")
    if file.name.endswith(".parquet"):
        return f"read_parquet('{name}')"
    if ".json" in file.name:
        return f"read_json('{name}', format = 'newline_delimited')"
    if file.name.endswith(".dat"):
        named = ", ".join(f"'{c}'" for c in columns.split())
        return f"read_csv('{name}', delim = '::', header = false, names = [{named}], encoding = 'latin-1', quote = '')"
    return f"read_csv('{name}', header = true, nullstr = ['', 'NA'])"


def write(connection: duckdb.DuckDBPyConnection, sql: str, path: Path) -> Path:
    """Writes a query's result as Parquet, in an order that does not depend on threads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = str(path).replace("'", "''")
    connection.execute(f"COPY ({sql}) TO '{name}' (FORMAT parquet)")
    return path
