"""Cutoffs of histories, carried from the owner of the moments to the owner of the history, before keys are gathered.

In: a bound query with scans that are read until moments of other scans. Out: how many cutoffs each history has. Two
rounds, and none where no query asks for a history. The server sees counts and sealed lists.
"""

from __future__ import annotations

from tablepuppet.exchanges.history import Cutoffs, HoldCutoffs, SendCutoffs
from tablepuppet.sql.bound import BoundQuery
from tablepuppet.transport.link import Link


def send_cutoffs(bound: BoundQuery, link: Link, job: str) -> dict[int, int]:
    """By scan of a history: how many moments their owners have of it, counted at each."""
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
