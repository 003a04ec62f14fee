"""Databases by URL: what is unknown, missing or unsaid is refused, and no password is shown."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tablepuppet.errors import SourceError
from tablepuppet.tables.source import open_source, source


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
        open_source(f"duckdb://{tmp_path}/shop.duckdb", "items")


def test_a_missing_duckdb_file_or_table_is_named(tmp_path: Path) -> None:
    file = tmp_path / "shop.duckdb"
    with pytest.raises(SourceError, match=f"there is no DuckDB file {file}"):
        open_source(source(f"duckdb://{file}", table="items"), "items")
    duckdb.connect(str(file)).close()
    with pytest.raises(SourceError, match=r"shop\.duckdb cannot be read: Catalog Error.*items"):
        open_source(source(f"duckdb://{file}", table="items"), "items")
    file.write_bytes(b"not a database" * 1000)
    with pytest.raises(SourceError, match=r"shop\.duckdb cannot be read"):
        open_source(source(f"duckdb://{file}", table="items"), "items")


def test_a_duckdb_view_is_read_too_and_the_file_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "shop.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            "CREATE TABLE items AS SELECT i FROM range(10) t(i); CREATE VIEW even AS FROM items WHERE i % 2 = 0"
        )
    before = file.read_bytes()
    opened = open_source(source(f"duckdb://{file}", table="even"), "items")
    assert opened.read(["i"], "i > 2").to_pydict() == {"c0": [4, 6, 8]}
    opened.close()
    assert file.read_bytes() == before
