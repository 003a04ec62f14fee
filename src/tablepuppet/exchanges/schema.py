"""What a table looks like, which expressions will be read of it, how many rows there are; and the end of a job.

A *scan* is one client's reading of one table under one filter; row numbers are positions in it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from tablepuppet.exchanges.base import BEFORE_CONTRACT, WITH_LABELS, NoCheck, Rules
from tablepuppet.owner.enforcement import JobUnderContract, count_once, refused, scan_of
from tablepuppet.owner.releases import disclosed_values
from tablepuppet.owner.state import ClientState
from tablepuppet.protocol.base import MOST_COLUMNS, Count, Done, FieldDisclosure, FieldDisclosures, Message, ScanRequest
from tablepuppet.protocol.bounds import Known, KnownScan, check_count, require
from tablepuppet.protocol.columns import ColumnInfo, Merges
from tablepuppet.protocol.contract import Contract


class DescribeTable(Message, frozen=True):
    """Which columns does your table have, or a query over your tables give? → TableSchema"""

    table: str
    query: str | None = None  # a SELECT over tables of the client's, whose rows are taken as a table's


class TableSchema(Message, frozen=True):
    columns: Annotated[list[ColumnInfo], Meta(max_length=MOST_COLUMNS)]
    withholds: bool = False  # whether the owner keeps the parameters that are trained on its table
    merges: Merges = ""  # which figures of groups the owner lets be merged with those of other owners
    stamp: Annotated[bytes, Meta(max_length=1024)] = b""  # another one whenever the table may have changed


class OpenScan(ScanRequest, frozen=True):
    """Prepare to read these expressions of a table, for the rows that pass the filter. → ScanSchema

    Nothing is read yet: the answer gives the type of each expression.
    """

    table: str
    columns: list[str]
    filter: str | None = None
    query: str | None = None  # a SELECT over tables of the client's, of which `table` is one, read instead of it
    is_outer: bool = False  # whether a LEFT JOIN may find no row: then the answer says what each expression is there


class ScanSchema(Message, frozen=True):
    columns: Annotated[list[ColumnInfo], Meta(max_length=MOST_COLUMNS)]


class CountRows(ScanRequest, frozen=True):
    """How many rows does a scan have? → RowCount"""


class RowCount(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("rows", "row count"),)
    rows: Count


class CloseJob(Message, frozen=True):
    """Forget everything about a job. → Done"""

    job: str


def check_row_count(rows: int, scan: KnownScan, known: Known) -> int:
    """A scan's number of rows, which stays what it was the first time."""
    check_count(rows, "rows", known.most_rows)
    require(scan.rows in (None, rows), "rows", f"are {rows:,}, and were {scan.rows} before: a table changes in a run")
    scan.rows = rows
    return rows


def _check_table_schema(request: DescribeTable, answer: TableSchema, known: Known) -> None:
    names = {column.name for column in answer.columns}
    require(len(names) == len(answer.columns), "columns", "name one column twice")


@Rules(
    BEFORE_CONTRACT,
    permit=NoCheck("names and types of columns are what a query is written from; no value is among them"),
    enforce=NoCheck("it belongs to no job"),
    check_request=NoCheck("its texts are parsed and looked up before they are used"),
    check_answer=_check_table_schema,
)
def _describe_table(own: ClientState, request: DescribeTable) -> TableSchema:
    described = own.tables.describe(request.table, request.query)
    return TableSchema(
        columns=described.columns,
        withholds=not own.policy.release_parameters,
        merges=own.policy.merges,
        stamp=described.stamp,
    )


def _enforce_scan(job: JobUnderContract, contract: Contract | None, request: OpenScan) -> None:
    if contract is not None:
        raise refused("a scan is opened before the contract is proposed, and not after")
    job.opened[request.scan] = request


def _check_scan_schema(request: OpenScan, answer: ScanSchema, known: Known) -> None:
    asked = len(request.columns)
    require(len(answer.columns) == asked, "columns", f"are {len(answer.columns)} where {asked} were asked for")
    known.scans[request.job, request.scan] = KnownScan(asked, answer.columns)


@Rules(
    BEFORE_CONTRACT,
    permit=NoCheck("the handler judges the scan once its expressions are read; until then no row is"),
    enforce=_enforce_scan,
    check_request=NoCheck("its texts are parsed and looked up before they are used"),
    check_answer=_check_scan_schema,
    leaves_state=True,
    is_fixed=True,
)
def _open_scan(own: ClientState, request: OpenScan) -> ScanSchema:
    columns = own.tables.open_scan(request)
    own.policy.check_scan(own.tables.use(request.job, request.scan))
    return ScanSchema(columns=columns)


def _enforce_count(job: JobUnderContract, contract: Contract, request: CountRows) -> None:
    scan_of(contract, request.scan)
    count_once(job, "count", request.scan)


def _check_rows(request: CountRows, answer: RowCount, known: Known) -> None:
    check_row_count(answer.rows, known.scan(request), known)


@Rules(
    WITH_LABELS,
    permit=NoCheck("the contract says how often the rows of its scans are counted"),
    enforce=_enforce_count,
    check_answer=_check_rows,
    is_fixed=True,
)
def _count_rows(own: ClientState, request: CountRows) -> RowCount:
    return RowCount(rows=own.tables.scan(request.job, request.scan).rows().num_rows)


@Rules(
    BEFORE_CONTRACT,
    permit=NoCheck("nothing of a table leaves"),
    enforce=NoCheck("a job may end at any time"),
    check_request=NoCheck("a job that there is not is closed already"),
)
def _close_job(own: ClientState, request: CloseJob) -> Done:
    own.contracts.close(request.job)
    for (job, _), part in own.parts.items():
        if job == request.job and part.shown:
            own.releases.record_predictions(disclosed_values(own, part, part.shown))
    if own.told.get(request.job):
        own.approvals.finish(request.job)
    own.tables.close(request.job)
    own.releases.close_job(request.job)
    own.parts = {key: part for key, part in own.parts.items() if key[0] != request.job}
    return Done()


EXCHANGES = (_describe_table, _open_scan, _count_rows, _close_job)
