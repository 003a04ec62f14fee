"""An owner's database is not kept waiting: it is let go before its rows are computed with, and never held for long."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi
from tests.postgres import Database

import tablepuppet as tp
from tablepuppet.errors import SourceError
from tablepuppet.sources import duckdb_source, postgresql
from tablepuppet.sources.source import open_source, source

WRITER = "import duckdb, sys; duckdb.connect(sys.argv[1]).execute('INSERT INTO t VALUES (1.0, 1.0)')"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT range / 10.0 AS x, (range % 7) + range / 20.0 AS y FROM range(200)"
        )
    return tmp_path / "t.duckdb"


def test_others_write_to_a_duckdb_file_while_a_federation_is_open(file: Path) -> None:
    with tp.Federation({"t": tp.source(f"duckdb:///{file}", table="t")}) as federation:
        before = federation.train("SELECT x, y FROM t", label="y", test_fraction=0.0)
        subprocess.run([sys.executable, "-c", WRITER, str(file)], check=True, capture_output=True)
        after = federation.train("SELECT x, y FROM t", label="y", test_fraction=0.0)
    assert before.plan.mapping.train_rows + 1 == after.plan.mapping.train_rows


def test_a_duckdb_file_that_somebody_writes_to_is_said_and_its_path_is_not(file: Path) -> None:
    opened = open_source(source(f"duckdb:///{file}", table="t"), "t")
    code = f"import duckdb, sys; c = duckdb.connect({str(file)!r}); print('open', flush=True); sys.stdin.read()"
    given: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **given) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(SourceError, match="another process writes to it") as said:
            opened.read(["x"], None)
        assert str(file) not in str(said.value)
        writer.communicate("")
    assert opened.read(["x"], None).num_rows == 200


def test_rows_are_taken_before_anything_is_computed_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"a": np.arange(1000.0)})
    is_released: list[bool] = []
    rows = duckdb_source._rows

    def stream() -> Iterator[pa.RecordBatch]:
        yield from [batch] * 5
        is_released.append(True)

    def computed(*given: Any) -> pa.Table:
        assert is_released == [True]
        return rows(*given)

    monkeypatch.setattr(duckdb_source, "_rows", computed)
    assert duckdb_source.project("t", stream(), ["a"], ["a + 1"], None).num_rows == 5000


def test_an_answer_that_is_large_is_computed_as_it_comes() -> None:
    batch = pa.record_batch({"a": np.arange(1e6)})  # 8 MB; 256 MB are taken before anything is computed
    asked: list[int] = []

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(60):
            asked.append(number)
            yield batch

    found = duckdb_source.project("t", stream(), ["a"], ["a + 1"], "a < 10")
    assert len(asked) == 60
    assert found.column(0).to_pylist() == [float(k + 1) for _ in range(60) for k in range(10)]


def test_what_takes_long_over_a_databases_rows_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_source, "MOST_HELD", 0.2)
    batch = pa.record_batch({"a": np.arange(200_000.0)})
    slow = "list_sum(list_transform(range(20000), lambda k: sin(a * k)))"
    with pytest.raises(SourceError, match="took longer than it may"):
        duckdb_source.project("t", iter([batch] * 5), ["a"], [slow], None)


@pytest.fixture
def database(postgres: Callable[[], Database]) -> Database:
    made = postgres()
    made.execute("CREATE TABLE t AS SELECT n::float8 AS x FROM generate_series(1, 100) n")
    return made


def test_a_table_that_its_owner_changes_is_not_waited_for(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = [s.replace("10s", "200ms") if "lock_timeout" in s else s for s in postgresql._SESSION]
    monkeypatch.setattr(postgresql, "_SESSION", tuple(hasty))
    opened = open_source(source(database.url, table="t"), "t")
    with dbapi.connect(database.url) as owner, owner.cursor() as cursor:
        cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceError, match="locked by somebody who changes it"):
            opened.read(["x"], None)
        owner.rollback()
    assert opened.read(["x"], None).num_rows == 100
    opened.close()


def test_sessions_end_statements_after_minutes(database: Database) -> None:
    driver = postgresql.PostgreSQL(database.url, "t", "t")
    shown = [driver._rows(f"SELECT current_setting('{name}')")[0][0] for name in ("statement_timeout", "lock_timeout")]
    driver.close()
    assert shown == ["5min", "10s"]
