"""A client's tables: every scan is guarded, read once a job, and forgotten with it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tablepuppet.errors import PolicyError, SourceError, TransportError
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.owner import scans
from tablepuppet.owner.tables import ClientTables
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.source import Source, open_source

ITEMS = pa.table({"id": [1, 2, 3], "price": [0.5, 1.5, 2.5], "name": ["a", "b", "c"]})


class Counted:
    """A source that counts its readings."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.reads = 0
        self.is_closed = False

    def describe(self) -> list[ColumnInfo]:
        return self.source.describe()

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        return self.source.describe_scan(expressions, filter)

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        self.reads += 1
        return self.source.read(expressions, filter)

    def stamp(self) -> str | None:
        return self.source.stamp()

    def close(self) -> None:
        self.is_closed = True
        self.source.close()


@pytest.fixture
def items() -> Counted:
    return Counted(open_source(ITEMS, "items"))


@pytest.fixture
def tables(items: Counted) -> ClientTables:
    return ClientTables({"items": items, "cards": open_source(ITEMS, "cards")})


def open_items(
    job: str = "j", scan: int = 0, columns: Sequence[str] = ("id", "price * 2"), filter: str | None = None
) -> OpenScan:
    return OpenScan(job=job, scan=scan, table="items", columns=list(columns), filter=filter)


def test_a_table_is_described(tables: ClientTables) -> None:
    assert [(c.name, c.kind) for c in tables.describe("items")[0]] == [
        ("id", "integer"),
        ("price", "float"),
        ("name", "string"),
    ]


def test_an_unknown_table_is_refused_with_those_that_the_client_has(tables: ClientTables) -> None:
    with pytest.raises(SourceError, match="there is no table 'orders' at this client; it has cards, items"):
        tables.describe("orders")
    with pytest.raises(SourceError, match="it has no table"):
        ClientTables({}).describe("orders")


def test_a_scan_is_opened_without_reading_and_read_once_a_job(tables: ClientTables, items: Counted) -> None:
    columns = tables.open_scan(open_items(filter="price > 1"))
    assert [c.kind for c in columns] == ["integer", "float"]
    assert columns == tables.scan("j", 0).columns
    assert items.reads == 0
    assert tables.scan("j", 0).rows().to_pydict() == {"c0": [2, 3], "c1": [3.0, 5.0]}
    assert tables.scan("j", 0).rows() is tables.scan("j", 0).rows()
    assert items.reads == 1


def test_jobs_and_scans_do_not_mix(tables: ClientTables) -> None:
    tables.open_scan(open_items("j", 0))
    tables.open_scan(open_items("j", 1, ["name"]))
    tables.open_scan(open_items("k", 0, ["price"], "id = 1"))
    assert tables.scan("j", 1).rows().to_pydict() == {"c0": ["a", "b", "c"]}
    assert tables.scan("k", 0).rows().to_pydict() == {"c0": [0.5]}


def test_a_scan_that_is_opened_again_is_read_again(tables: ClientTables) -> None:
    tables.open_scan(open_items(columns=["id"]))
    assert tables.scan("j", 0).rows().num_rows == 3
    tables.open_scan(open_items(columns=["id"], filter="id > 1"))
    assert tables.scan("j", 0).rows().num_rows == 2


def test_a_closed_job_is_forgotten_and_others_are_not(tables: ClientTables) -> None:
    tables.open_scan(open_items("j"))
    tables.open_scan(open_items("k"))
    tables.close("j")
    tables.close("never opened")
    with pytest.raises(TransportError, match="job j has no open scan 0"):
        tables.scan("j", 0).rows()
    with pytest.raises(TransportError, match="job j has no open scan 0"):
        tables.scan("j", 0)
    assert tables.scan("k", 0).rows().num_rows == 3


@pytest.mark.parametrize(
    "request_",
    [
        open_items(columns=["id", "getenv('HOME')"]),
        open_items(columns=["(SELECT max(price) FROM source)"]),
        open_items(filter="id IN (SELECT 1)"),
        open_items(columns=["source.id"]),
    ],
)
def test_the_guard_comes_first(request_: OpenScan, tables: ClientTables, items: Counted) -> None:
    with pytest.raises(PolicyError):
        tables.open_scan(request_)
    with pytest.raises(TransportError):
        tables.scan("j", 0).rows()
    assert items.reads == 0


def test_shutdown_closes_the_sources(tables: ClientTables, items: Counted) -> None:
    tables.open_scan(open_items())
    tables.shutdown()
    assert items.is_closed
    with pytest.raises(TransportError):
        tables.scan("j", 0).rows()


def test_threads_may_call_at_once(tables: ClientTables, items: Counted) -> None:
    tables.open_scan(open_items())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: tables.scan("j", 0).rows().num_rows, range(50)))
    assert found == [3] * 50
    assert items.reads == 1


def test_rows_that_were_released_are_read_again_in_their_order(tables: ClientTables, items: Counted) -> None:
    tables.open_scan(open_items())
    tables.scan("j", 0).shuffle(b"k" * 32, 5, 0, wants_bits=False)
    first = tables.scan("j", 0).rows()
    tables.scan("j", 0).release()
    assert tables.scan("j", 0).rows().equals(first)
    assert items.reads == 2


def test_rows_stay_where_there_is_no_telling_whether_a_table_has_changed(
    tables: ClientTables, items: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "stamp", lambda: None)
    tables.open_scan(open_items())
    first = tables.scan("j", 0).rows()
    tables.scan("j", 0).release()
    assert tables.scan("j", 0).rows() is first


def test_a_file_that_has_changed_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "items.parquet"
    pq.write_table(ITEMS, file)
    tables = ClientTables({"items": open_source(file, "items")})
    tables.open_scan(open_items())
    tables.scan("j", 0).rows()
    tables.scan("j", 0).release()
    pq.write_table(ITEMS.slice(1), file)
    with pytest.raises(SourceError, match="changed since the job began"):
        tables.scan("j", 0).rows()
    tables.shutdown()


def test_a_fingerprint_does_not_depend_on_how_columns_are_cut() -> None:
    piece, rows = 1 << 18, 600_000  # rows that are looked at at once, and more than twice as many
    columns = {
        "n": pa.array([None if i % 7 == 0 else i for i in range(rows)], pa.int32()),
        "b": pa.array([None if i % 5 == 0 else i % 3 == 0 for i in range(rows)]),
        "t": pa.array([None if i % 11 == 0 else "x" * (i % 4) for i in range(rows)]),
    }
    whole = pa.table(columns)
    for cuts in ([20, rows], [3, piece + 1, 2 * piece - 1, rows], [piece, 2 * piece, rows]):
        parts = [whole.slice(a, b - a) for a, b in itertools.pairwise([0, *cuts])]
        assert scans._checksum(pa.concat_tables(parts)) == scans._checksum(whole)
    for name in columns:
        backwards = whole.column(name).take(pa.array(range(rows - 1, -1, -1)))
        turned = whole.set_column(whole.column_names.index(name), name, backwards)
        assert scans._checksum(turned) != scans._checksum(whole)
