"""How a job begins and ends: tables are described, scans opened, rows counted; the job is closed.

A *scan* is one client's reading of one table under one filter; row numbers are positions in it. Once scans are open, a
contract is proposed (proposal.py).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from tablepuppet.exchanges.base import BEFORE_CONTRACT, WITH_LABELS, NoCheck, Rules
from tablepuppet.owner import analyst_budget
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.query_guard import DerivedSource
from tablepuppet.owner.releases import disclosed_values
from tablepuppet.owner.state import ClientState
from tablepuppet.protocol.base import MOST_CHANGED, MOST_COLUMNS, Count, Discloses, Done, Message, ScanRequest, Text
from tablepuppet.protocol.bounds import Known, KnownScan, check_count, check_distinct, check_length, require
from tablepuppet.protocol.columns import ColumnInfo, CutoffType, Merges


class DescribeTable(Message, frozen=True):
    """Which columns does your table have, or a query over your tables give? → TableSchema"""

    table: str
    query: str | None = None  # a SELECT over tables of the client's, whose rows are taken as a table's
    cutoffs: CutoffType = ""  # of a history: the type of the moments until which it is read


class TableSchema(Message, frozen=True):
    columns: Annotated[list[ColumnInfo], Meta(max_length=MOST_COLUMNS)]
    withholds: bool = False  # whether the owner keeps the parameters that are trained on its table
    merges: Merges = ""  # aggregates of groups that the owner lets be merged with those of other owners
    stamp: Annotated[bytes, Meta(max_length=1024)] = b""  # another one whenever the table may have changed
    features: Annotated[list[Text], Meta(max_length=MOST_COLUMNS)] | None = None  # that may be some; None: all


class OpenScan(ScanRequest, frozen=True):
    """Prepare to read these expressions of a table, for the rows that pass the filter. → ScanSchema

    Nothing is read yet: the answer gives the type of each expression.
    """

    table: str
    columns: list[str]
    filter: str | None = None
    query: str | None = None  # a SELECT over the client's tables, `table` among them, read instead of it
    is_outer: bool = False  # whether a LEFT JOIN may find no row: then the answer has each expression's value there
    missing_is_null: bool = False  # whether NULL there is a value that is missing, rather than no row
    cutoffs: CutoffType = ""  # of a history: the type of the moments until which it is read


class ScanSchema(Message, frozen=True):
    columns: Annotated[list[ColumnInfo], Meta(max_length=MOST_COLUMNS)]
    # Of a query: how many of its rows one row of each table may change; None: no bound.
    stability: dict[str, Annotated[int, Meta(ge=0, le=MOST_CHANGED)] | None] = msgspec.field(default_factory=dict)
    subject: Text = ""  # the column of a row's subject; the bound is then on rows of one subject
    budgeted: list[Text] = msgspec.field(default_factory=list)  # tables behind it that have an analyst budget
    pairs: list[Count] = msgspec.field(default_factory=list)  # columns that may go with moments of a history


class CountRows(ScanRequest, frozen=True):
    """How many rows does a scan have? → RowCount"""


class RowCount(Message, frozen=True):
    rows: Annotated[Count, Discloses("row count")]


class CloseJob(Message, frozen=True):
    """Forget everything about a job. → Done"""

    job: str


def check_row_count(rows: int, scan: KnownScan, known: Known) -> int:
    """A scan's number of rows, which never changes in a job."""
    check_count(rows, "rows", known.most_rows)
    require(scan.rows in (None, rows), "rows", f"are {rows:,}, and were {scan.rows} before: a table changes in a run")
    scan.rows = rows
    return rows


@Rules(
    BEFORE_CONTRACT,
    enforce=NoCheck("it belongs to no job: names and types of columns are what a query is written from"),
    check_request=NoCheck("its texts are parsed and looked up before they are used"),
    check_answer=lambda request, answer, known: check_distinct([c.name for c in answer.columns], "columns", "column"),
)
def _describe_table(own: ClientState, request: DescribeTable) -> TableSchema:
    columns, stamp = own.tables.describe(request.table, request.query, request.cutoffs)
    rules = own.policy.tables.get(request.table)
    return TableSchema(
        columns=columns,
        withholds=not own.policy.release_parameters,
        merges=own.policy.merges,
        stamp=stamp,
        features=None if rules is None else list(rules.features),
    )


def _enforce_scan(job: JobUnderContract, request: OpenScan) -> None:
    if job.contract is not None:
        raise breach("a scan is opened before the contract is proposed, and not after")
    job.opened[request.scan] = request


def _check_scan_schema(request: OpenScan, answer: ScanSchema, known: Known) -> None:
    check_length(answer.columns, "columns", len(request.columns))
    known.scans[request.job, request.scan] = KnownScan(answer.columns)


@Rules(
    BEFORE_CONTRACT,
    enforce=_enforce_scan,
    check_request=NoCheck("its texts are parsed and looked up before they are used"),
    check_answer=_check_scan_schema,
    leaves_state=True,
    is_fixed=True,
)
def _open_scan(own: ClientState, request: OpenScan) -> ScanSchema:
    columns = own.tables.open_scan(request)
    read = own.scan(request)
    read.row_keys_of, read.subjects_of = own.policy.row_keys, own.policy.subjects
    if read.subject is not None:
        read.subject_rows = own.policy.rows_per_subject(request.table)
    use = read.use()
    own.policy.check_scan(use)
    if isinstance(read.source, DerivedSource):
        read.source.closed = {base.table: own.policy.find_closed(base) for base in use.bases}
    is_bounded = request.query is not None or read.subject is not None
    reach, budgeted = use.reach if is_bounded else {}, analyst_budget.budgeted_tables(own.policy, use)
    return ScanSchema(
        columns=columns,
        stability=reach,
        subject=read.subject or "",
        budgeted=budgeted,
        pairs=sorted(own.policy.find_pairs(use)),
    )


@Rules(
    WITH_LABELS,
    enforce=lambda job, request: job.count_once("count", request.scan),
    check_answer=lambda request, answer, known: check_row_count(answer.rows, known.scan(request), known),
    is_fixed=True,
)
def _count_rows(own: ClientState, request: CountRows) -> RowCount:
    return RowCount(rows=own.scan(request).rows().num_rows)


@Rules(
    BEFORE_CONTRACT,
    enforce=NoCheck("a job may end at any time, and nothing of a table leaves"),
    check_request=NoCheck("a job that there is not is closed already"),
)
def _close_job(own: ClientState, request: CloseJob) -> Done:
    for (job, _), part in own.parts.items():
        if job == request.job and part.shown:
            own.releases.record_predictions(disclosed_values(own, part, part.shown))
    own.contracts.jobs.pop(request.job, None)
    if own.disclosed.get(request.job):
        own.approvals.finish(request.job)
    own.tables.close(request.job)
    own.releases.close_job(request.job)
    own.parts = {key: part for key, part in own.parts.items() if key[0] != request.job}
    return Done()
