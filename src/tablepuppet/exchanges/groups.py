"""Groups with rows at several clients: three exchanges, between the contract and the keys, that merge their aggregates.

The server compares tokens of groups, and never sees an aggregate. All clients of the table mask their summands of a
shared group among each other. The first client that has the group holds it, and alone removes the last mask.

Keys for masks follow from this owner's secret, the contract and the aggregates; masks follow from everything else that
the clients received. A client that is asked the same again answers the same. No mask serves two different answers.
"""

import hashlib
import hmac
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.errors import TransportError
from tablepuppet.exchanges.base import ALL_PURPOSES, Rules
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.group_sums import Partials, scales_of, words_of
from tablepuppet.owner.policy import refused_by
from tablepuppet.owner.state import ClientState
from tablepuppet.owner.tokens import job_key, key_of
from tablepuppet.privacy.masks import MaskKey, Masks, check_key, mask_key
from tablepuppet.protocol import bounds
from tablepuppet.protocol.base import MOST_COLUMNS, Discloses, Done, Exponent, Message, Place, ScanRequest, Text
from tablepuppet.protocol.bounds import Known, check_array, require

Words = NDArray[np.int64]
Kinds = Annotated[list[Text], Meta(min_length=1, max_length=MOST_COLUMNS)]
Salt = Annotated[bytes, Meta(min_length=16, max_length=16)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class SendGroups(ScanRequest, frozen=True):
    """Which groups do the rows of a scan come from? → Groups"""


class Groups(Message, frozen=True):
    tokens: Annotated[NDArray[np.uint8], Discloses("group tokens", if_empty=True)]  # groups × 16, ascending
    kinds: Kinds  # of the groups' columns, and of each aggregate
    # Powers of two above the largest aggregates, in steps of 16
    sizes: Annotated[list[Exponent], Discloses("magnitudes")]
    key: MaskKey  # for masks on aggregates
    salt: Salt  # which nobody can guess this client's rows in a commitment without


class SumGroups(ScanRequest, frozen=True):
    """Send counts and sums of the groups that other clients have too, under masks. → GroupSums

    Masks are drawn from the whole request: clients that received different requests share none.
    """

    place: Place  # of this client among the peers
    peers: list[MaskKey]  # of all clients of the table
    holders: NDArray[np.int32]  # of each shared group: the place of the client that will hold it
    # Of each shared group: which of this client's it is; −1: it has none
    rows: Annotated[NDArray[np.int32], Discloses("shared groups")]
    commitments: list[Digest]  # of each client: SHA-256 of its salt and its rows
    scales: list[Exponent]


class GroupSums(Message, frozen=True):
    """Words under masks, for each shared group that others hold, in their order."""

    sums: Annotated[NDArray[np.int64], Discloses("masked group sums")]
    # Each for the holder alone
    extremes: Annotated[NDArray[np.int64] | None, Discloses("masked group extremes")] = None


class HoldGroups(ScanRequest, frozen=True):
    """Hold your groups with the sums of the others; drop the groups that others hold. → Done"""

    sums: Annotated[NDArray[np.int64], Discloses("group sums")]  # over all other clients, still under this one's mask
    extremes: Annotated[NDArray[np.int64] | None, Discloses("group extremes")] = None  # groups × other clients × words


def commitment(salt: bytes, rows: NDArray[np.int32]) -> bytes:
    """A hash that commits one client to its rows towards the others."""
    return hashlib.sha256(salt + rows.tobytes()).digest()


_BEFORE = {SumGroups: SendGroups, HoldGroups: SumGroups}


def _enforce_groups(job: JobUnderContract, request: SendGroups | SumGroups | HoldGroups) -> None:
    """Groups are sent, summed and held, each once and in this order, before any row is shown."""
    scan = job.scan(request.scan)
    if not scan.merges:
        raise breach("groups of this scan are not merged with those of others")
    kind = type(request)
    before = _BEFORE.get(kind)
    if before is not None and not job.asked[before.__name__, request.scan]:
        raise breach(f"{before.__name__} comes before {kind.__name__}")
    if job.asked["count", request.scan] or job.asked["keys", request.scan]:
        raise breach("groups are merged before their rows are shown")
    if isinstance(request, SumGroups) and len(request.peers) != scan.clients:
        raise breach(f"figures of groups are masked among {scan.clients} owners, and these are {len(request.peers)}")
    job.count_once(kind.__name__, request.scan)


def _check_groups(request: SendGroups, answer: Groups, known: Known) -> None:
    check_array(answer.tokens, "tokens", (None, 16), kinds="u")
    bounds.check_count(len(answer.tokens), "tokens", known.most_rows)
    bounds.check_ascending(np.ascontiguousarray(answer.tokens).view("S16").ravel(), "tokens")
    bounds.check_length(answer.sizes, "sizes", sum(map(scales_of, answer.kinds)))
    words = [words_of(kind) for kind in answer.kinds[1:]]
    known.scan(request).words = sum(w[0] for w in words), sum(w[1] for w in words)


@Rules(ALL_PURPOSES, enforce=_enforce_groups, check_answer=_check_groups, leaves_state=True)
def _send_groups(own: ClientState, request: SendGroups) -> Groups:
    groups = own.scan(request).partials(job_key(own.key, request.job))
    return Groups(
        tokens=groups.tokens,
        kinds=list(groups.kinds),
        sizes=groups.sizes(),
        key=mask_key(_secret(own, request, groups, b"key"), key_of(own.key), _name(request), own.name, -1),
        salt=_secret(own, request, groups, b"salt")[:16],
    )


def _check_sum_request(own: ClientState, request: SumGroups) -> None:
    groups, parties = own.scan(request).partials(), len(request.peers)
    bounds.check_range(request.place, "place", 0, parties - 1)
    bounds.check_distinct([peer.client for peer in request.peers], "peers", "client")
    require(request.peers[request.place].client == own.name, "place", "is another client's")
    check_array(request.holders, "holders", (None,), kinds="i")
    shared = len(request.holders)
    is_inside = not shared or (int(request.holders.min()) >= 0 and int(request.holders.max()) < parties)
    require(is_inside, "holders", "name a client that there is not")
    check_array(request.rows, "rows", (shared,), kinds="i")
    bounds.check_row_numbers(request.rows, "rows", groups.count)
    bounds.check_distinct(request.rows[request.rows >= 0].tolist(), "rows", "group")
    require(bool((request.rows[request.holders == request.place] >= 0).all()), "holders", "hold what they do not have")
    bounds.check_length(request.scales, "scales", sum(map(scales_of, groups.kinds)))
    bounds.check_length(request.commitments, "commitments", parties)


def _check_sums(request: SumGroups, answer: GroupSums, known: Known) -> None:
    due = int((request.holders != request.place).sum())
    sums, extremes = known.scan(request).words
    check_array(answer.sums, "sums", (due, sums), kinds="i")
    require((answer.extremes is not None) == (extremes > 0), "extremes", "come where none are due, or not")
    if answer.extremes is not None:
        check_array(answer.extremes, "extremes", (due, extremes), kinds="i")


@Rules(ALL_PURPOSES, _enforce_groups, _check_sum_request, _check_sums, leaves_state=True)
def _sum_groups(own: ClientState, request: SumGroups) -> GroupSums:
    groups = own.scan(request).partials()
    salt = _secret(own, request, groups, b"salt")[:16]
    if commitment(salt, request.rows) != request.commitments[request.place]:
        raise TransportError("the groups that this client shares are not those that all clients were told of")
    is_held = request.holders == request.place
    few = groups.rows[request.rows[~is_held & (request.rows >= 0)]] < own.policy.minimum_rows
    if few.any():
        raise refused_by(
            "minimum_rows",
            f"groups of fewer than {own.policy.minimum_rows:,} rows would be told to another owner that has rows of "
            "them too; group by something coarser",
        )
    own.scan(request).agreed = request
    masks, sums, extremes = _mask(own, groups, request)
    if not groups.query.has_extremes:
        return GroupSums(sums=sums[~is_held])
    return GroupSums(sums=sums[~is_held], extremes=_mask_for_holders(masks, request, extremes)[~is_held])


def _check_hold_request(own: ClientState, request: HoldGroups) -> None:
    agreed = own.scan(request).agreed_groups()
    groups, held = own.scan(request).partials(), int((agreed.holders == agreed.place).sum())
    sums, extremes = (sum(words_of(kind)[i] for kind in groups.kinds[1:]) for i in (0, 1))
    check_array(request.sums, "sums", (held, sums), kinds="i")
    require((request.extremes is not None) == (extremes > 0), "extremes", "come where none are due, or not")
    if request.extremes is not None:
        check_array(request.extremes, "extremes", (held, len(agreed.peers) - 1, extremes), kinds="i")


@Rules(ALL_PURPOSES, enforce=_enforce_groups, check_request=_check_hold_request, leaves_state=True)
def _hold_groups(own: ClientState, request: HoldGroups) -> Done:
    scan = own.scan(request)
    groups, agreed = scan.partials(), scan.agreed_groups()
    is_held, has = agreed.holders == agreed.place, agreed.rows >= 0
    masks, sums, own_extremes = _mask(own, groups, agreed)
    held = agreed.rows[is_held]
    total = (sums[is_held].view(np.uint64) + request.sums.view(np.uint64)).view(np.int64)
    others = []
    if request.extremes is not None:
        pads = [pad[is_held] for _, pad in masks.pads(own_extremes.shape, 1)]
        given = np.moveaxis(request.extremes, 1, 0)
        others = [(words - pad.view(np.int64)) for words, pad in zip(given, pads, strict=True)]
    kept = np.setdiff1d(np.arange(groups.count), agreed.rows[~is_held & has])
    parties = len(agreed.peers)
    own.scan(request).merge(groups.merge_words(kept, held, total, others, agreed.scales, parties))
    return Done()


def _mask(own: ClientState, groups: Partials, request: SumGroups) -> tuple[Masks, Words, Words]:
    """This client's masks, its sums under them, and its extremes as they are."""
    shared, name = key_of(own.key), _name(request)
    for peer in request.peers:
        check_key(peer, shared, name)
    terms = (request.holders.tobytes(), request.scales, request.commitments)
    context = hashlib.sha256(msgspec.msgpack.encode(terms)).digest()
    private = _secret(own, request, groups, b"key")
    peers = [msgspec.structs.replace(peer, part=place) for place, peer in enumerate(request.peers)]
    masks = Masks.of(peers, private, name.encode() + context, request.place)
    try:
        sums, extremes = groups.words(request.rows, request.scales, len(peers))
    except OverflowError:
        raise TransportError("the scales are smaller than this client's figures") from None
    return masks, masks.masked(sums, 0), extremes


def _mask_for_holders(masks: Masks, request: SumGroups, extremes: Words) -> Words:
    """Extremes of each group under a pad that its holder alone shares."""
    found = extremes.view(np.uint64).copy()
    for place, pad in masks.pads(extremes.shape, 1):
        theirs = request.holders == place
        found[theirs] += pad[theirs]
    return found.view(np.int64)


def _secret(own: ClientState, request: SendGroups | SumGroups, groups: Partials, use: bytes) -> bytes:
    agreed = own.agreed(request.job).hash.encode()
    terms = (b"tablepuppet groups", use, request.job, request.scan, agreed, groups.digest())
    return hmac.digest(own.secret, msgspec.msgpack.encode(terms), "sha256")


def _name(request: SendGroups | SumGroups) -> str:
    return f"{request.job} groups {request.scan}"
