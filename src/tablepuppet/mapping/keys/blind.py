"""Keys under `dh`: each owner's distinct keys go round to all other owners of such keys, until everyone blinded them.

In: what owners sent, each key blinded by its own owner. Out: the same columns with tokens that are equal where the keys
are. With Q owners of keys that are compared, Q − 1 rounds; in each of them every owner blinds the keys of another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from tablepuppet.errors import MappingError
from tablepuppet.protocol import BlindedKeys, BlindKeys, Keys
from tablepuppet.tables.blinding import SIZE, Points, to_array, to_points
from tablepuppet.tables.tokens import SIZE as TOKEN_SIZE
from tablepuppet.transport.link import Link

Place = tuple[int, int]  # scan, column
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
        tokens = to_array(np.ascontiguousarray(points[client, domain][:, :TOKEN_SIZE]))
        for ((scan, column), _), chunk in zip(own, unified[client, domain].chunks, strict=True):
            keys = found[scan][client]
            place = keys.columns.column_names.index(f"c{column}")
            blinded = pa.DictionaryArray.from_arrays(chunk.indices, tokens)
            found[scan][client] = replace(keys, columns=keys.columns.set_column(place, f"c{column}", blinded))
    return found


def _round_trip(points: dict[Owned, Points], link: Link, job: str, most: int) -> dict[Owned, Points]:
    """Every owner's keys, blinded by all owners of their domain, in the order that they had."""
    owners: dict[int, list[str]] = {}
    for client, domain in sorted(owned for owned, p in points.items() if len(p)):  # who has none need not help
        owners.setdefault(domain, []).append(client)
    for client in {client for client, _ in points}:
        asked = sum(len(p) for (c, d), p in points.items() if c != client and client in owners.get(d, ()))
        if asked > most:
            raise MappingError(
                f'keys = "dh" asks client {client} to blind {asked:,} keys of others, and privacy.max_keys lets it '
                f'blind {most:,}; set max_keys to at least {asked:,} if its owner agrees, or use keys = "hmac"'
            )
    orders = {owned: pc.sort_indices(to_array(p)) for owned, p in points.items()}  # which tells a blinder nothing
    going = {owned: p[orders[owned]] for owned, p in points.items()}
    for step in range(1, max(map(len, owners.values()), default=1)):
        requests: dict[str, list[BlindKeys]] = {}
        sent: dict[str, list[Owned]] = {}
        for (client, domain), own in going.items():
            others = owners.get(domain, [])
            if step < len(others) and len(own):
                other = others[(others.index(client) + step) % len(others)]
                requests.setdefault(other, []).append(BlindKeys(job=job, domain=str(domain), points=own))
                sent.setdefault(other, []).append((client, domain))
        answers = link.ask(requests) if requests else {}
        for other, places in sent.items():
            for place, answer in zip(places, answers[other], strict=True):
                going[place] = cast(BlindedKeys, answer).points
    found = {}
    for owned, order in orders.items():
        found[owned] = np.empty((len(order), SIZE), np.uint8)
        found[owned][order] = going[owned]
    return found
