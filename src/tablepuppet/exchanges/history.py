"""Cutoffs: the moments until which a history is read, from the owner of the moments to the owner of the history.

Two exchanges, between the contract and the keys. The server carries cutoffs that it cannot read. They are sealed under
the clients' key (AES-SIV, RFC 5297) with the terms that both owners agreed to, so that no list can replace
another. Only distinct moments leave, never whose they are. Where both owners grant pairs, each moment comes with the
tokens of the keys that it is about.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.exchanges.base import ALL_PURPOSES, Rules
from tablepuppet.owner import row_rules
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.policy import Policy
from tablepuppet.owner.state import ClientState
from tablepuppet.owner.tokens import job_key, key_of, tokens
from tablepuppet.protocol.base import Count, Discloses, Done, Message, Place, ScanRequest
from tablepuppet.protocol.bounds import require
from tablepuppet.protocol.codec import to_stream
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.protocol.contract import Moments, ScanTerms, canonical
from tablepuppet.sources.history_queries import is_plain_column

MOST_CUTOFFS = 1_000_000
Sealed = Annotated[bytes, Meta(max_length=1 << 25)]


class SendCutoffs(ScanRequest, frozen=True):
    """Which distinct moments does a column have? → Cutoffs"""

    place: Place  # among the moments that the contract has of this scan


class Cutoffs(Message, frozen=True):
    count: Annotated[Count, Discloses("cutoff count")]
    sealed: Sealed


class HoldCutoffs(ScanRequest, frozen=True):
    """Read a history until these moments, of each of their owners. → Done"""

    # By moments, then by their owners
    sealed: Annotated[list[list[Sealed]], Meta(min_length=1, max_length=1000), Discloses("cutoffs")]


def _enforce_sending(job: JobUnderContract, request: SendCutoffs) -> None:
    moments = job.scan(request.scan).moments
    if request.place >= len(moments) or moments[request.place].column < 0:
        raise breach("it has no moments that are told to another owner there")
    job.count_once(f"cutoffs {request.place}", request.scan)


@Rules(
    ALL_PURPOSES,
    enforce=_enforce_sending,
    check_answer=lambda _, answer, known: require(
        answer.count <= MOST_CUTOFFS, "count", f"is more than {MOST_CUTOFFS:,}"
    ),
    is_fixed=True,
)
def _send_cutoffs(own: ClientState, request: SendCutoffs) -> Cutoffs:
    terms = _terms(own, request).moments[request.place]
    scan = own.scan(request)
    keys = _tokens(own, request.job, [scan.column(key) for key in terms.keys])
    moments = _list_distinct([scan.column(terms.column)[0], *keys])
    if len(moments) > MOST_CUTOFFS:
        raise PolicyError(
            f"{terms.expression} has more than {MOST_CUTOFFS:,} distinct moments, and a history is computed for each; "
            f"round them, as in date_trunc('day', {terms.expression})"
        )
    return Cutoffs(count=len(moments), sealed=_cipher(own, request.job).encrypt(to_stream(moments), _bind(terms)))


def _list_distinct(columns: Sequence[pa.ChunkedArray]) -> pa.Table:
    """The distinct rows without NULL, in their own order: whose they are is not to be seen."""
    rows = pa.table(list(columns), [str(number) for number in range(len(columns))]).drop_null()
    names = rows.column_names
    return rows.group_by(names, use_threads=False).aggregate([]).sort_by([(name, "ascending") for name in names])


def _tokens(own: ClientState, job: str, keys: Sequence[tuple[pa.ChunkedArray, ColumnInfo]]) -> list[pa.ChunkedArray]:
    """Keys as tokens, which the server cannot read; a client can test whether a key that it guesses is among them."""
    key = job_key(own.shared_key, f"pairs {job}")
    found = [tokens(*column, "hmac", key, f"pair {number}") for number, column in enumerate(keys)]
    return [pa.chunked_array([own_tokens.dictionary_decode().cast(pa.binary())]) for own_tokens in found]


def _enforce_holding(job: JobUnderContract, request: HoldCutoffs) -> None:
    due = [moments for moments in job.scan(request.scan).moments if moments.column < 0]
    if not due or len(due) != len(request.sealed):
        raise breach("its history is not read until such moments")
    names = {job.scan(request.scan).columns[key].expression for moments in due for key in moments.keys}
    if len({moments.keys for moments in due}) > 1 or not all(is_plain_column(name) for name in names):
        raise breach("its history is read until moments of other keys than it has")
    job.count_once("held cutoffs", request.scan)


@Rules(ALL_PURPOSES, enforce=_enforce_holding, leaves_state=True)
def _hold_cutoffs(own: ClientState, request: HoldCutoffs) -> Done:
    cipher = _cipher(own, request.job)
    due = [moments for moments in _terms(own, request).moments if moments.column < 0]
    found = []
    for terms, given in zip(due, request.sealed, strict=True):
        for sealed in given:
            try:
                found.append(pa.ipc.open_stream(cipher.decrypt(sealed, _bind(terms))).read_all())
            except InvalidTag:
                raise TransportError("the cutoffs are not those that both owners agreed to, and are refused") from None
    moments = _list_distinct(pa.concat_tables(found).columns)
    if len(moments) > MOST_CUTOFFS:
        raise TransportError(f"the history would be read until {len(moments):,} moments; at most {MOST_CUTOFFS:,} are")

    def find_pairs(keys: pa.Table, infos: list[ColumnInfo]) -> pa.Table:
        """The pairs whose keys this owner has, with its own values."""
        hashed = _tokens(own, request.job, list(zip(keys.columns, infos, strict=True)))
        joined = [str(number + 1) for number in range(len(hashed))]
        rows = pa.table([*hashed, pa.array(np.arange(len(keys)))], [*joined, "row"])
        order = [("row", "ascending"), ("0", "ascending")]
        pairs = moments.join(rows, joined, join_type="inner", use_threads=False).sort_by(order)
        return pa.table([pairs["0"], *keys.take(pairs["row"].combine_chunks()).columns], ["0", *joined])

    own.scan(request).hold_cutoffs(moments, due[0].keys, find_pairs)
    _review(own, request)
    return Done()


def _review(own: ClientState, request: HoldCutoffs) -> None:
    """The checks that wait for the rows of a history: rules about few rows, and texts that name them."""
    only = msgspec.structs.replace(own.contracts.jobs[request.job].agreed, scans=(_terms(own, request),))
    if row_rules.is_on(own):
        sets, notes = row_rules.review(own, request.job, only)
        if notes and not own.contracts.jobs[request.job].is_excused:
            raise row_rules.few_rows(notes[0])
        own.row_sets.keep(sets)
    if not own.releases.is_restoring and (not own.may_reveal or own.policy != Policy()):
        row_rules.check_texts(own, request.job, only)


def _terms(own: ClientState, request: ScanRequest) -> ScanTerms:
    return own.contracts.jobs[request.job].scan(request.scan)


def _cipher(own: ClientState, job: str) -> AESSIV:
    """The clients' seal for a job."""
    return AESSIV(HKDF(SHA256(), 64, None, b"tablepuppet cutoffs " + job.encode()).derive(key_of(own.key)))


def _bind(terms: Moments) -> list[bytes]:
    """The terms that both owners agreed to; a sealed list is valid for them only."""
    return [canonical(msgspec.structs.replace(terms, column=-1, keys=tuple(range(len(terms.keys)))))]
