"""Databases by URL: what is unknown, missing or unsaid is refused, and no password is shown."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pytest

import tablepuppet as tp
from tablepuppet.errors import SourceError
from tablepuppet.sources.source import open_source, source


def test_an_address_is_shown_without_user_password_and_parameters() -> None:
    spec = source("postgresql://ann:secret@db.example.org:5432/shop?password=secret", table="items")
    assert str(spec) == repr(spec) == "postgresql://db.example.org:5432/shop (table items)"


def test_an_unknown_scheme_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        SourceError, match=r"table items: gopher://host/x cannot be read; known are .*duckdb"
    ) as refused:
        open_source("gopher://ann:secret@host/x", "items")
    assert "secret" not in str(refused.value)


def test_a_database_needs_the_name_of_a_table(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="say which table of duckdb://"):
        open_source(f"duckdb:///{tmp_path}/shop.duckdb", "items")


def test_a_missing_duckdb_file_or_table_is_named(tmp_path: Path) -> None:
    file = tmp_path / "shop.duckdb"
    with pytest.raises(SourceError, match=f"there is no DuckDB file {file}"):
        open_source(source(f"duckdb:///{file}", table="items"), "items")
    duckdb.connect(str(file)).close()
    with pytest.raises(SourceError, match=r"shop\.duckdb cannot be read: Table with name items"):
        open_source(source(f"duckdb:///{file}", table="items"), "items")
    file.write_bytes(b"not a database" * 1000)
    with pytest.raises(SourceError, match=r"shop\.duckdb cannot be read"):
        open_source(source(f"duckdb:///{file}", table="items"), "items")


def test_a_duckdb_view_is_read_too_and_the_file_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "shop.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            "CREATE TABLE items AS SELECT i FROM range(10) t(i); CREATE VIEW even AS FROM items WHERE i % 2 = 0"
        )
    before = file.read_bytes()
    opened = open_source(source(f"duckdb:///{file}", table="even"), "items")
    assert opened.read(["i"], "i > 2").to_pydict() == {"c0": [4, 6, 8]}
    opened.close()
    assert file.read_bytes() == before


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_file_has_three_slashes_if_relative_and_four_if_absolute_as_in_sqlalchemy(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _database(scheme, tmp_path)
    monkeypatch.chdir(tmp_path)
    for url in (f"{scheme}:///{file.name}", f"{scheme}:////{str(file)[1:]}"):
        opened = open_source(source(url, table="items"), "items")
        assert opened.read(["i"], None).to_pydict() == {"c0": [1, 2]}
        opened.close()


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_what_an_absolute_path_used_to_look_like_is_answered_with_what_to_write(scheme: str, tmp_path: Path) -> None:
    file = _database(scheme, tmp_path)
    with pytest.raises(SourceError, match=f"four slashes: {scheme}:///{file}$"):
        open_source(source(f"{scheme}://{file}", table="items"), "items")
    with pytest.raises(SourceError, match=f"a third slash.*{scheme}:///shop.db "):
        open_source(source(f"{scheme}://shop.db", table="items"), "items")


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_relative_file_in_toml_lies_beside_it(scheme: str, tmp_path: Path) -> None:
    _database(scheme, tmp_path)
    file = tmp_path / "federation.toml"
    file.write_text(f'[tables]\nitems = {{ url = "{scheme}:///shop.db", table = "items" }}\n')
    with tp.Federation.from_toml(file) as owner:
        assert "items: 1 client" in repr(owner)


def _database(scheme: str, folder: Path) -> Path:
    file = folder / "shop.db"
    connect: Any = sqlite3.connect if scheme == "sqlite" else duckdb.connect
    with contextlib.closing(connect(str(file))) as connection:
        connection.execute("CREATE TABLE items (i INTEGER)")
        connection.execute("INSERT INTO items VALUES (1), (2)")
        connection.commit()
    return file
