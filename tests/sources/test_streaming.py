"""A large table passes through in batches: the client holds a few times what it was asked for, at the most."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.mysql import MySQLDatabase
from tests.postgres import Database

from tablepuppet.sources.databases import open_database
from tablepuppet.sources.pushdown import push_down
from tablepuppet.sources.source import source

# Prints how much memory reading took, as a multiple of the result.
MEASURE = """
import sys, threading, time
from tablepuppet.sources.source import open_source, source
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
opened = open_source(source(sys.argv[1], table="big"), "big")
opened.read(['"id"'], '"id" < 10')
before, peak, done = resident(), [0], threading.Event()
def watch():
    while not done.wait(0.005):
        peak[0] = max(peak[0], resident())
watcher = threading.Thread(target=watch)
watcher.start()
table = opened.read(['"id"', '"item"', '"x"', '"cat"'], None)
done.set()
watcher.join()
opened.close()
assert table.num_rows == int(sys.argv[2])
print((peak[0] - before) / table.nbytes)
"""
IN_POSTGRES = """
    CREATE TABLE big AS SELECT i::bigint AS id, (i % 1000)::int AS item, random() AS x, 'category ' || (i % 37) AS cat,
    md5(i::text) AS unused FROM generate_series(1, {rows}) i
"""
IN_MYSQL = """
    CREATE TABLE big AS SELECT CAST(seq AS SIGNED) AS id, CAST(seq % 1000 AS INT) AS item, RAND() AS x,
    CONCAT('category ', seq % 37) AS cat, MD5(seq) AS unused FROM seq_1_to_{rows}
"""


def multiple(url: str, rows: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, url, str(rows)], capture_output=True, text=True, timeout=300, check=True
    )
    return float(done.stdout)  # and nothing else is written: DuckDB would draw a progress bar


def batches(url: str) -> list[int]:
    """How many rows each batch of a driver's answer has."""
    opened: Any = open_database(source(url, table="big"), "big")
    driver = opened._driver
    scan = push_down(driver.relation, ['"x"'], None, driver.columns(), driver.dialect)
    found = [batch.num_rows for batch in driver.stream(scan)]
    opened.close()
    return found


def test_postgresql_answers_in_batches(postgres: Callable[[], Database]) -> None:
    database = postgres()
    database.execute(IN_POSTGRES.format(rows=2_000_000))
    sizes = batches(database.url)
    assert sum(sizes) == 2_000_000
    assert max(sizes) <= 1_200_000


def test_mysql_answers_in_batches(mysql: Callable[[], MySQLDatabase]) -> None:
    database = mysql()
    database.execute(IN_MYSQL.format(rows=300_000))
    sizes = batches(database.url)
    assert sum(sizes) == 300_000
    assert max(sizes) <= 65_536


@pytest.mark.slow
def test_five_million_rows_of_postgresql_take_at_most_three_times_their_size(postgres: Callable[[], Database]) -> None:
    database = postgres()
    database.execute(IN_POSTGRES.format(rows=5_000_000))
    assert multiple(database.url, 5_000_000) < 3


@pytest.mark.slow
def test_five_million_rows_of_mysql_take_at_most_five_times_their_size(mysql: Callable[[], MySQLDatabase]) -> None:
    """The driver reads ahead without a bound: while other processes hold a core, it holds one copy more."""
    database = mysql()
    database.execute(IN_MYSQL.format(rows=5_000_000))
    assert multiple(database.url, 5_000_000) < 5
