"""Join keys: as tokens or in plain, in an order that only the clients know, or blinded by all owners of a domain."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.exchanges.base import ALL_PURPOSES, Rules
from tablepuppet.exchanges.schema import check_row_count
from tablepuppet.memory import trim_heap
from tablepuppet.owner.blinding import POINT_SIZE, blind, blinding_key, to_array, to_points
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.state import ClientState
from tablepuppet.owner.tokens import job_key, key_check, sorted_tokens, tokens
from tablepuppet.protocol.base import Count, Discloses, Message, ScanRequest
from tablepuppet.protocol.bounds import Known, WrongError, check_array, require
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.columns import as_read
from tablepuppet.threads import pool


class SendKeys(ScanRequest, frozen=True):
    """Send the key columns of a scan, one row per row number. → Keys

    Unless they are plain, keys come as tokens (owner/tokens.py): a dictionary of 16 bytes each; 32 for `dh`. Those
    are compared once all owners of a domain have blinded them.
    """

    # Of the client's first row in the whole table: from now on rows are numbered in an order that only the clients know
    # (owner/row_sets.py)
    offset: Count | None = None


class Keys(Message, frozen=True):
    rows: Count
    columns: Annotated[pa.Table, Discloses("key tokens")]
    # Ascending, where the order is shared
    order: Annotated[NDArray[np.int64] | None, Discloses("row order", is_per_row=True)] = None
    check: Annotated[bytes, Meta(max_length=64)] = b""  # of tokens: the same from all clients that share a key


class BlindKeys(Message, frozen=True):
    """Blind keys of another owner, which that owner has blinded already; keep their order. → BlindedKeys"""

    job: str
    domain: str
    points: Annotated[NDArray[np.uint8], Discloses("blinded keys")]  # distinct keys × 32 (owner/tokens.py)


class BlindedKeys(Message, frozen=True):
    points: Annotated[NDArray[np.uint8], Discloses("key tokens")]


def _enforce_keys(job: JobUnderContract, request: SendKeys) -> None:
    scan = job.scan(request.scan)
    if request.offset and scan.clients == 1:
        raise breach("the table has one owner, and its rows are numbered from 0")
    job.count_once("keys", request.scan)
    job.domains.update(str(scan.columns[column].domain) for column in scan.numbers("key"))


def _check_keys(request: SendKeys, answer: Keys, known: Known) -> None:
    mode, scan = known.contracts[request.job].keys, known.contracts[request.job].scan(request.scan)
    rows, columns = check_row_count(answer.rows, known.scan(request), known), scan.numbers("key")
    check_table(answer.columns, columns, rows)
    is_checked = bool(answer.check) or mode not in ("hmac", "dh")
    require(is_checked, "check", "is missing, without which keys cannot be compared")
    if mode == "plain":
        check_key_values(answer.columns, columns, known.scan(request).columns)
    else:
        for column in answer.columns.columns:
            kind = column.type
            size = 32 if mode == "dh" else 16
            is_token = pa.types.is_dictionary(kind) and kind.value_type == pa.binary(size)
            require(is_token, "columns", f"are {kind}, not tokens of {size} bytes; install the same version everywhere")
    is_due = request.offset is not None and scan.clients > 1
    require(answer.order is not None or not is_due, "order", "is missing, and rows are shared out in it")
    if answer.order is not None:
        check_array(answer.order, "order", (rows,), kinds="i")
        require(bool((answer.order[1:] >= answer.order[:-1]).all()), "order", "is not ascending")


# Databases differ in which of them.
_AS_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
_AS_TIMES = (pa.types.is_date, pa.types.is_timestamp)
_AS_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_ARROW: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {  # kinds that keys and identifiers come as
    **dict.fromkeys(("integer", "float", "decimal", "boolean"), _AS_NUMBERS),
    **dict.fromkeys(("date", "timestamp"), _AS_TIMES),
    **dict.fromkeys(("string", "uuid"), _AS_TEXTS),
}


def check_table(table: pa.Table, numbers: Sequence[int], rows: int) -> None:
    """These columns and no others; every buffer, offset and index of the table lies within it."""
    columns = len(numbers)
    require(table.num_columns == columns, "columns", f"has {table.num_columns:,} columns where {columns:,} are due")
    require(table.num_rows == rows or not columns, "columns", f"has {table.num_rows:,} rows where {rows:,} are due")
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise WrongError("columns", f"is damaged ({str(error)[:200]})") from None
    require(table.column_names == [f"c{n}" for n in numbers], "columns", "are not those that were asked for")


def check_key_values(table: pa.Table, numbers: Sequence[int], infos: Sequence[ColumnInfo]) -> None:
    for number, column in zip(numbers, table.columns, strict=True):
        kind = infos[number].kind if number < len(infos) else "other"
        found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        is_due = any(is_one(found) for is_one in _ARROW.get(kind, (lambda _: True,)))
        require(is_due, "columns", f"are {str(found)[:100]}, and were described as {kind}")


@Rules(ALL_PURPOSES, enforce=_enforce_keys, check_answer=_check_keys, leaves_state=True, is_fixed=True)
def _send_keys(own: ClientState, request: SendKeys) -> Keys:
    contract, scan, order = own.agreed(request.job), own.scan(request), None
    terms, mode = contract.scan(request.scan), contract.keys
    if request.offset is not None:  # by the clients' key; with its bits the server merges several clients' orders
        order = scan.shuffle(own.shared_key, contract.seed, request.offset, wants_bits=terms.clients > 1)
    elif not own.may_reveal:  # nobody need know where a row lies here: an order of this job, and of no other
        scan.shuffle(own.secret + request.job.encode(), 0, 0, wants_bits=False)
    table = scan.rows()
    if mode == "plain":
        return Keys(rows=table.num_rows, columns=as_read(table, terms.numbers("key")), order=order)
    key = b"" if mode == "sha256" else job_key(own.key, request.job)

    def name_keys(column: int) -> pa.DictionaryArray:
        domain = str(terms.columns[column].domain)
        found = tokens(*scan.column(column), "sha256" if mode == "sha256" else "hmac", key, domain)
        if mode != "dh":
            return found
        points = blind(to_points(found.dictionary), blinding_key(own.secret, request.job, domain))
        return sorted_tokens(found.indices, to_array(points))

    wanted = terms.numbers("key")
    columns = {f"c{column}": found for column, found in zip(wanted, pool().map(name_keys, wanted), strict=True)}
    trim_heap()
    check = key_check(key) if key else b""
    return Keys(rows=table.num_rows, columns=pa.table(columns), order=order, check=check)


def _enforce_blinding(job: JobUnderContract, request: BlindKeys) -> None:
    """Limits the keys that are blinded: each one lets the server test a guess about this owner's keys."""
    contract = job.agreed
    if contract.keys != "dh":
        raise breach(f"keys leave as {contract.keys}, and nobody else's are blinded")
    if request.domain not in job.domains:
        raise breach("keys are blinded that this owner's own are compared with, and no others")
    job.blinded += len(request.points)
    if job.blinded > contract.most_keys:
        raise breach(f"{contract.most_keys:,} keys of others are blinded at most, and more were sent")


@Rules(
    ALL_PURPOSES,
    enforce=_enforce_blinding,
    check_request=lambda own, request: check_array(request.points, "points", (None, POINT_SIZE), kinds="u"),
    check_answer=lambda request, answer, known: check_array(answer.points, "points", request.points.shape, kinds="u"),
)
def _blind_keys(own: ClientState, request: BlindKeys) -> BlindedKeys:
    """Other owners' keys under this owner's secret too; the log has their number."""
    disclosed = own.disclosed.setdefault(request.job, Counter())
    disclosed["keys of others, blinded"] += len(request.points)
    return BlindedKeys(points=blind(request.points, blinding_key(own.secret, request.job, request.domain)))
