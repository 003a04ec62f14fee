"""Keys, gathered: a table of comparable key columns for every scan.

In: which columns of which scans the query compares. Out: `ScanKeys`, the clients of a table one after the other. Keys
come as tokens, which can only be compared. Each is replaced by a small number; equal keys get equal numbers.

There are two rounds: the number of each client's rows, then their keys, in an order that only the clients know. `dh`
adds one round for every further owner of compared keys. Each owner blinds its distinct keys; they then pass through all
other owners of such keys until everyone has blinded them. With Q owners these are Q − 1 rounds; in each, every owner
blinds the keys of another one.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import MappingError, TransportError
from tablepuppet.exchanges.history import Cutoffs, HoldCutoffs, SendCutoffs
from tablepuppet.exchanges.keys import BlindKeys, Keys, SendKeys
from tablepuppet.exchanges.schema import CountRows
from tablepuppet.join.groups import MergedGroups, merge_groups
from tablepuppet.owner.blinding import POINT_SIZE, Points, to_array, to_points
from tablepuppet.owner.tokens import SIZE
from tablepuppet.privacy.options import KeyMode, Privacy
from tablepuppet.protocol.base import Message
from tablepuppet.sources.columns import decode, in_one_piece, numpy_of
from tablepuppet.sources.history_queries import name_for_people
from tablepuppet.sql.bound import CUTOFF_OUTPUTS, BoundQuery, Place, key_domains
from tablepuppet.transport.link import Link


class ScanKeys(msgspec.Struct, frozen=True, eq=False):
    """The keys of one scan, a row per row number: column `k<expression number>` for each key expression.

    Keys are small numbers from 0, equal where the keys that they stand for are.
    """

    rows: int
    table: pa.Table
    place: NDArray[np.int64] | None = None  # of each row, in the order of the whole table; None: rows are in order
    merged: MergedGroups | None = None  # where rows are groups of several clients
    cutoffs: int | None = None  # of a history

    @property
    def numbers(self) -> RowNumbers:
        """0, 1, 2, …, as small as they fit."""
        return np.arange(self.rows, dtype=np.int32 if self.rows < 2**31 else np.int64)

    def column(self, expression: int) -> RowNumbers:
        return numpy_of(self.table.column(f"k{expression}"), missing=-1)


def gather_keys(
    bound: BoundQuery, link: Link, job: str, privacy: Privacy | None = None, *, is_ordered: bool = False
) -> tuple[list[ScanKeys], list[dict[str, int]]]:
    """The keys of every scan, and how many rows each of its clients has."""
    privacy = privacy or Privacy()
    tokens, domains = privacy.keys, key_domains(bound)
    wanted = [sorted(column for scan, column in domains if scan == number) for number in range(len(bound.scans))]
    cutoffs = _send_cutoffs(bound, link, job)
    merged = merge_groups(bound, link, job, tokens)
    offsets: Sequence[Mapping[str, int | None]] = (
        _offsets(bound, link, job) if is_ordered else [dict.fromkeys(scan.clients) for scan in bound.scans]
    )
    received: list[dict[str, Keys]] = link.ask_groups(
        [
            {c: SendKeys(job=job, scan=number, offset=offset) for c, offset in own.items()}
            for number, own in enumerate(offsets)
        ]
    )
    _check_keys(received)
    if tokens == "dh":
        received = blinded_by_all(received, domains, link, job, privacy.max_keys)
    tables = _number_keys(received, wanted, domains, tokens)
    _check_groups(bound, received, tables, tokens)
    _check_moments(bound, tables)
    keys = [
        ScanKeys(
            sum(k.rows for k in given.values()),
            table,
            _merge_orders([k.order for k in given.values()]),
            merged=merged.get(number),
            cutoffs=cutoffs.get(number),
        )
        for number, (given, table) in enumerate(zip(received, tables, strict=True))
    ]
    return keys, [{client: k.rows for client, k in given.items()} for given in received]


def _send_cutoffs(bound: BoundQuery, link: Link, job: str) -> dict[int, int]:
    """Cutoffs of histories go, sealed, from owners of moments to owners of histories: two rounds, where there are any.

    By scan of a history: how many moments their owners have of it, counted at each.
    """
    moments = bound.moments
    if not moments:
        return {}
    uses = [
        (client, giver, place, (history, (giver, column)))
        for giver, used in bound.moment_uses.items()
        for client in bound.scans[giver].clients
        for place, (history, column) in enumerate(used)
    ]
    asked = [(client, SendCutoffs(job=job, scan=giver, place=place)) for client, giver, place, _ in uses]
    sealed: dict[tuple[int, tuple[int, int]], list[Cutoffs]] = {}
    for (*_, use), answer in zip(uses, link.ask_each(asked), strict=True):
        sealed.setdefault(use, []).append(answer)
    held = []
    for history, places in moments.items():
        given = [[answer.sealed for answer in sealed[history, place]] for place in places]
        hold = HoldCutoffs(job=job, scan=history, sealed=given)
        held += [(client, hold) for client in bound.scans[history].clients]
    link.ask_each(held)
    return {h: sum(a.count for place in places for a in sealed[h, place]) for h, places in moments.items()}


def _check_keys(received: Sequence[Mapping[str, Keys]]) -> None:
    """With different secrets clients have no key in common: rows would be missing, and nobody would know."""
    clients: dict[bytes, set[str]] = {}
    for given in received:
        for client, keys in given.items():
            if keys.check:
                clients.setdefault(keys.check, set()).add(client)
    if len(clients) > 1:
        *others, most = sorted((sorted(names) for names in clients.values()), key=lambda names: (len(names), names))
        strangers = sorted(name for names in others for name in names)
        raise MappingError(
            f"the clients do not share one secret: {', '.join(strangers)} has another than {', '.join(most)}, so that "
            "their keys never meet; give all clients the same secret, and start them again"
        )


def _check_groups(
    bound: BoundQuery, received: Sequence[Mapping[str, Keys]], tables: Sequence[pa.Table], mode: KeyMode
) -> None:
    """Groups that clients computed each by itself are whole: one of their columns has no value at two clients."""
    columns: dict[int, list[int]] = {}
    is_whole: set[int] = set()
    for scan, given, table in zip(bound.scans, received, tables, strict=True):
        if not scan.witness_of:
            continue
        holder = np.repeat(np.arange(len(given)), [keys.rows for keys in given.values()])
        pairs = pa.table({"key": table.column(0), "holder": holder})
        holders = pairs.group_by("key").aggregate([("holder", "min"), ("holder", "max")])
        for number, column in scan.witness_of:
            columns.setdefault(number, []).append(column)
            is_whole |= {number} if holders["holder_min"].equals(holders["holder_max"]) else set()
    for number, scan in enumerate(bound.scans):
        if scan.groups is None or number in is_whole or bound.merges(number, mode):
            continue
        by_hand = 'under keys = "dh" they are not merged; use keys = "hmac"' if scan.merges else scan.unmerged
        why = f"{by_hand}; " if by_hand else ""
        names = [name_for_people(scan.expressions[c]).strip('"') for c in columns.get(number, ())] or scan.groups
        joined = " or ".join(dict.fromkeys(names))
        raise MappingError(
            f"some groups of {joined} have rows of {scan.table} with several of its clients "
            f"({', '.join(scan.clients)}), and each computed the subquery over its own rows only; {why}let one of "
            "them offer the summed-up table, or select the column itself"
        )


def _check_moments(bound: BoundQuery, tables: Sequence[pa.Table]) -> None:
    """Rows by whose key and moment a history was grouped have each pair once: a second would be counted again."""
    for branch in bound.branches:
        for join in branch.joins:
            history, giver = branch.relations[join.relation].scan, branch.relations[join.on[0].left].scan
            if not any(bound.scans[history].expressions[pair.right_column] == CUTOFF_OUTPUTS[1] for pair in join.on):
                continue
            names = [f"k{pair.left_column}" for pair in join.on]
            pairs = tables[giver].select(names).drop_null()
            if pairs.group_by(names).aggregate([]).num_rows < pairs.num_rows or bound.scans[giver].filter is not None:
                table = bound.scans[giver].table
                raise MappingError(
                    f"the history of {bound.scans[history].table} is grouped by key and moment of {table}, of which "
                    f"several rows may have the same; group by SELECT DISTINCT of them: FROM (SELECT DISTINCT key, "
                    f"moment FROM {table}) t2 JOIN {bound.scans[history].table} …"
                )


def _offsets(bound: BoundQuery, link: Link, job: str) -> list[dict[str, int]]:
    """Where each client's rows begin in the tables: one round."""
    asked = [dict.fromkeys(scan.clients, CountRows(job=job, scan=number)) for number, scan in enumerate(bound.scans)]
    offsets = []
    for given in link.ask_groups(asked):
        starts = np.cumsum([0, *(answer.rows for answer in given.values())]).tolist()
        offsets.append(dict(zip(given, starts, strict=False)))
    return offsets


def _merge_orders(orders: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    """The place of each row in the order of all clients together; None: the rows are in order."""
    shared = [order for order in orders if order is not None]
    if not shared:
        return None
    if len(shared) < len(orders):
        raise TransportError("some clients of a table keep its rows in order, and others do not")
    place = np.empty(sum(map(len, shared)), np.int64)
    place[np.argsort(np.concatenate(shared), kind="stable")] = np.arange(len(place))
    return place


def _number_keys(
    received: Sequence[Mapping[str, Keys]], wanted: Sequence[Sequence[int]], domains: dict[Place, int], mode: KeyMode
) -> list[pa.Table]:
    """Keys as numbers that are equal where the keys are, over all tables of a domain."""
    places = [(scan, column) for scan, columns in enumerate(wanted) for column in columns]
    numbered: dict[Place, pa.Array] = {}
    for domain in sorted(set(domains.values())):
        members = [place for place in places if domains[place] == domain]
        given = [keys.columns.column(f"c{column}") for scan, column in members for keys in received[scan].values()]
        if mode == "plain":
            tables = [pa.table({"key": decode(column)}) for column in given]
            encoded = pa.concat_tables(tables, promote_options="permissive")["key"].dictionary_encode()
        else:
            tokens = [in_one_piece(column) for column in given]
            pairs = [(own.indices.cast(pa.int32()), own.dictionary) for own in tokens]
            encoded = pa.chunked_array([pa.DictionaryArray.from_arrays(*own) for own in pairs]).unify_dictionaries()
        numbers, start = in_one_piece(pa.chunked_array([own.indices for own in encoded.chunks], pa.int32())), 0
        for scan, column in members:
            numbered[scan, column] = numbers.slice(start, sum(keys.rows for keys in received[scan].values()))
            start += len(numbered[scan, column])
    return [
        pa.table({f"k{column}": numbered[scan, column] for column in columns}) for scan, columns in enumerate(wanted)
    ]


Owned = tuple[str, int]  # client, domain


def blinded_by_all(
    received: Sequence[Mapping[str, Keys]], domains: Mapping[Place, int], link: Link, job: str, most: int
) -> list[dict[str, Keys]]:
    """`received`: of each scan, by client; `most`: keys of others that an owner may be asked to blind."""
    columns: dict[Owned, list[tuple[Place, pa.DictionaryArray]]] = {}
    for (scan, column), domain in sorted(domains.items()):
        for client, keys in received[scan].items():
            given = keys.columns.column(f"c{column}").combine_chunks()
            columns.setdefault((client, domain), []).append(((scan, column), given))
    unified = {owned: pa.chunked_array([c for _, c in own]).unify_dictionaries() for owned, own in columns.items()}
    points = {owned: to_points(own.chunk(0).dictionary) for owned, own in unified.items()}
    points = _round_trip(points, link, job, most)
    found = [dict(by_client) for by_client in received]
    for (client, domain), own in columns.items():
        tokens = to_array(np.ascontiguousarray(points[client, domain][:, :SIZE]))
        for ((scan, column), _), chunk in zip(own, unified[client, domain].chunks, strict=True):
            keys = found[scan][client]
            place = keys.columns.column_names.index(f"c{column}")
            blinded = pa.DictionaryArray.from_arrays(chunk.indices, tokens)
            found[scan][client] = replace(keys, columns=keys.columns.set_column(place, f"c{column}", blinded))
    return found


def _round_trip(points: dict[Owned, Points], link: Link, job: str, most: int) -> dict[Owned, Points]:
    """Every owner's keys, blinded by all owners of their domain, in the order that they had."""
    owners: dict[int, list[str]] = {}
    for client, domain in sorted(owned for owned, p in points.items() if len(p)):  # owners without keys do not help
        owners.setdefault(domain, []).append(client)
    for client in {client for client, _ in points}:
        asked = sum(len(p) for (c, d), p in points.items() if c != client and client in owners.get(d, ()))
        if asked > most:
            raise MappingError(
                f'keys = "dh" asks client {client} to blind {asked:,} keys of others, and privacy.max_keys lets it '
                f'blind {most:,}; set max_keys to at least {asked:,} if its owner agrees, or use keys = "hmac"'
            )
    orders = {owned: pc.sort_indices(to_array(p)) for owned, p in points.items()}  # sorted: the order discloses nothing
    going = {owned: p[orders[owned]] for owned, p in points.items()}
    for step in range(1, max(map(len, owners.values()), default=1)):
        requests: list[tuple[str, Message]] = []
        sent: list[Owned] = []
        for (client, domain), own in going.items():
            others = owners.get(domain, [])
            if step < len(others) and len(own):
                other = others[(others.index(client) + step) % len(others)]
                requests.append((other, BlindKeys(job=job, domain=str(domain), points=own)))
                sent.append((client, domain))
        for place, answer in zip(sent, link.ask_each(requests) if requests else (), strict=True):
            going[place] = answer.points
    found = {}
    for owned, order in orders.items():
        found[owned] = np.empty((len(order), POINT_SIZE), np.uint8)
        found[owned][order] = going[owned]
    return found
