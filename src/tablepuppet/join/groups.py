"""Groups that several clients of a table have, merged before keys are gathered (exchanges/groups.py).

In: scans whose rows are groups, and clients that let their figures be merged. Out: nothing that a figure could be read
from: tokens say which groups are shared; the first client that has such a group holds it. The others' words are added
up, under masks among all clients of the table, and sent to it. The others drop their rows of the group. Three rounds,
of which two are saved where no group is shared.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import MappingError
from tablepuppet.exchanges.groups import Groups, GroupSums, HoldGroups, SendGroups, SumGroups, commitment
from tablepuppet.owner.blinding import to_array
from tablepuppet.privacy.options import KeyMode
from tablepuppet.protocol.base import Message
from tablepuppet.sources.columns import numpy_of
from tablepuppet.sql.bound import BoundQuery, Scan
from tablepuppet.transport.link import Link


class MergedGroups(msgspec.Struct, frozen=True):
    """How a scan's groups met: how many are shared, and how many of them each client holds."""

    shared: int
    held: dict[str, int]
    has_floats: bool  # whether clients said how large their figures are


class _Shared(msgspec.Struct, frozen=True, eq=False):
    """The groups of one scan that several clients have."""

    given: Sequence[Groups]  # by client
    holders: NDArray[np.int32]
    rows: Sequence[NDArray[np.int32]]  # by client: which of its groups each is; −1: none

    @classmethod
    def among(cls, given: Sequence[Groups]) -> "_Shared":
        tokens = to_array(np.concatenate([groups.tokens for groups in given]))
        numbers = numpy_of(tokens.dictionary_encode().indices)
        _, first, counts = np.unique(numbers, return_index=True, return_counts=True)
        is_shared = counts > 1
        ends = np.cumsum([len(groups.tokens) for groups in given])
        holders = np.searchsorted(ends, first[is_shared], side="right").astype(np.int32)
        place = np.where(is_shared, np.cumsum(is_shared) - 1, -1)
        rows = []
        for own in np.split(numbers, ends[:-1]):
            found = np.full(len(holders), -1, np.int32)
            at = place[own]
            found[at[at >= 0]] = np.flatnonzero(at >= 0)
            rows.append(found)
        return cls(given, holders, rows)

    def requests(self, job: str, scan: int) -> list[SumGroups]:
        """The request to each client; its commitments bind all of them to the same plan."""
        scales = [max(sizes) for sizes in zip(*(groups.sizes for groups in self.given), strict=True)]
        pairs = zip(self.given, self.rows, strict=True)
        commitments = [commitment(groups.salt, rows) for groups, rows in pairs]
        peers = [groups.key for groups in self.given]
        return [
            SumGroups(
                job=job,
                scan=scan,
                place=place,
                peers=peers,
                holders=self.holders,
                rows=rows,
                commitments=commitments,
                scales=scales,
            )
            for place, rows in enumerate(self.rows)
        ]

    def relay_requests(self, job: str, scan: int, sums: Sequence[GroupSums]) -> list[HoldGroups]:
        found = []
        for place in range(len(sums)):
            others = [other for other in range(len(sums)) if other != place]
            theirs = [self.holders[self.holders != other] == place for other in others]
            words = [sums[other].sums[here].view(np.uint64) for other, here in zip(others, theirs, strict=True)]
            total = np.stack(words).sum(axis=0, dtype=np.uint64).view(np.int64)
            pairs = zip(others, theirs, strict=True)
            given = [e[here] for other, here in pairs if (e := sums[other].extremes) is not None]
            extremes = np.stack(given, axis=1) if given else None
            found.append(HoldGroups(job=job, scan=scan, sums=total, extremes=extremes))
        return found


def merge_groups(bound: BoundQuery, link: Link, job: str, keys: KeyMode) -> dict[int, MergedGroups]:
    """Merges the groups of every scan that has such; how they met, by scan."""
    scans = {number: scan for number, scan in enumerate(bound.scans) if bound.merges(number, keys)}
    if not scans:
        return {}
    asked = {number: [SendGroups(job=job, scan=number)] * len(scan.clients) for number, scan in scans.items()}
    shared = {}
    for number, given in _ask(link, scans, asked).items():
        groups, scan = cast("list[Groups]", given), scans[number]
        for client, theirs in zip(scan.clients, groups, strict=True):
            if theirs.kinds != groups[0].kinds:
                raise MappingError(
                    f"the clients of {scan.table} have different types for the groups that are merged: "
                    f"{', '.join(groups[0].kinds)} at {scan.clients[0]}, {', '.join(theirs.kinds)} at {client}; write "
                    "a cast in the subquery, such as CAST(x AS DOUBLE)"
                )
        shared[number] = _Shared.among(groups)
    merging = {number: found for number, found in shared.items() if len(found.holders)}
    if merging:
        sums = _ask(link, scans, {number: found.requests(job, number) for number, found in merging.items()})
        own = {n: found.relay_requests(job, n, cast("list[GroupSums]", sums[n])) for n, found in merging.items()}
        _ask(link, scans, own)
    return {
        number: MergedGroups(
            len(found.holders),
            {client: int((found.holders == place).sum()) for place, client in enumerate(scans[number].clients)},
            bool(found.given[0].sizes),
        )
        for number, found in shared.items()
    }


def _ask(link: Link, scans: dict[int, Scan], asked: Mapping[int, Sequence[Message]]) -> dict[int, list[Message]]:
    groups = [dict(zip(scans[number].clients, given, strict=True)) for number, given in asked.items()]
    return {number: list(own.values()) for number, own in zip(asked, link.ask_groups(groups), strict=True)}
