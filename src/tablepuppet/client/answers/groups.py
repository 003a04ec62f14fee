"""Answers about groups that several clients have: their tokens, their figures under masks, and the merged ones.

Keys for masks follow from this owner's secret, the contract and the figures, and masks from all that the clients were
told besides: whoever is asked the same again answers the same, and no mask is ever used for two different answers.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec
import numpy as np

from tablepuppet import protocol as m
from tablepuppet.client.policy import refused_by
from tablepuppet.client.state import ClientState
from tablepuppet.errors import TransportError
from tablepuppet.privacy.masks import Masks, check_key, mask_key
from tablepuppet.tables.group_sums import Partials
from tablepuppet.tables.tokens import job_key, key_of


def send_groups(own: ClientState, request: m.SendGroups) -> m.Groups:
    groups = own.tables.partials(request.job, request.scan, job_key(own.key, request.job))
    return m.Groups(
        tokens=groups.tokens,
        kinds=list(groups.kinds),
        sizes=groups.sizes(),
        key=mask_key(_secret(own, request, groups, b"key"), key_of(own.key), _name(request), own.name, -1),
        salt=_secret(own, request, groups, b"salt")[:16],
    )


def sum_groups(own: ClientState, request: m.SumGroups) -> m.GroupSums:
    groups = own.tables.partials(request.job, request.scan)
    salt = _secret(own, request, groups, b"salt")[:16]
    if m.commitment(salt, request.rows) != request.commitments[request.place]:
        raise TransportError("the groups that this client shares are not those that all clients were told of")
    is_held = request.holders == request.place
    few = groups.rows[request.rows[~is_held & (request.rows >= 0)]] < own.policy.minimum_rows
    if few.any():
        raise refused_by(
            "minimum_rows",
            f"groups of fewer than {own.policy.minimum_rows:,} rows would be told to another owner that has rows of "
            "them too; group by something coarser",
        )
    own.tables.agree(request.job, request.scan, request)
    masks, sums, extremes = _masked(own, groups, request)
    if not groups.query.has_extremes:
        return m.GroupSums(sums=sums[~is_held])
    return m.GroupSums(sums=sums[~is_held], extremes=_for_holders(masks, request, extremes)[~is_held])


def hold_groups(own: ClientState, request: m.HoldGroups) -> m.Done:
    groups, agreed = own.tables.partials(request.job, request.scan), own.tables.agreed(request.job, request.scan)
    is_held, has = agreed.holders == agreed.place, agreed.rows >= 0
    masks, sums, own_extremes = _masked(own, groups, agreed)
    held = agreed.rows[is_held]
    total = (sums[is_held].view(np.uint64) + request.sums.view(np.uint64)).view(np.int64)
    others = []
    if request.extremes is not None:
        pads = [pad[is_held] for _, pad in masks.pads(own_extremes.shape, 1)]
        given = np.moveaxis(request.extremes, 1, 0)
        others = [(words - pad.view(np.int64)) for words, pad in zip(given, pads, strict=True)]
    kept = np.setdiff1d(np.arange(groups.count), agreed.rows[~is_held & has])
    parties = len(agreed.peers)
    own.tables.merge(request.job, request.scan, groups.merged(kept, held, total, others, agreed.scales, parties))
    return m.Done()


def _masked(own: ClientState, groups: Partials, request: m.SumGroups) -> tuple[Masks, m.Words, m.Words]:
    """This client's masks, its sums under them, and its extremes as they are."""
    shared, name = key_of(own.key), _name(request)
    for peer in request.peers:
        check_key(peer, shared, name)
    told = (request.holders.tobytes(), request.scales, request.commitments)
    context = hashlib.sha256(msgspec.msgpack.encode(told)).digest()
    private = _secret(own, request, groups, b"key")
    peers = [msgspec.structs.replace(peer, part=place) for place, peer in enumerate(request.peers)]
    masks = Masks.of(peers, private, name.encode() + context, request.place)
    try:
        sums, extremes = groups.words(request.rows, request.scales, len(peers))
    except OverflowError:
        raise TransportError("the scales are smaller than this client's figures") from None
    return masks, masks.masked(sums, 0), extremes


def _for_holders(masks: Masks, request: m.SumGroups, extremes: m.Words) -> m.Words:
    """Extremes of each group under a pad that its holder alone shares."""
    found = extremes.view(np.uint64).copy()
    for place, pad in masks.pads(extremes.shape, 1):
        theirs = request.holders == place
        found[theirs] += pad[theirs]
    return found.view(np.int64)


def _secret(own: ClientState, request: m.SendGroups | m.SumGroups, groups: Partials, use: bytes) -> bytes:
    contract = own.contracts.contract(request.job)
    agreed = b"" if contract is None else contract.hash.encode()
    told = (b"tablepuppet groups", use, request.job, request.scan, agreed, groups.digest())
    return hmac.digest(own.secret, msgspec.msgpack.encode(told), "sha256")


def _name(request: m.SendGroups | m.SumGroups) -> str:
    return f"{request.job} groups {request.scan}"
