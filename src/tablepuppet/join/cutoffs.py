"""Cutoffs of histories, carried from the owner of the moments to the owner of the history, before keys are gathered.

In: a bound query with scans that are read until moments of other scans. Out: how many cutoffs each history has. Two
rounds, and none where no query asks for a history. The server sees counts and sealed lists.
"""

from __future__ import annotations

from typing import cast

from tablepuppet.exchanges.history import Cutoffs, HoldCutoffs, SendCutoffs
from tablepuppet.sql.bound import BoundQuery
from tablepuppet.transport.link import Link


def send_cutoffs(bound: BoundQuery, link: Link, job: str) -> dict[int, int]:
    """By scan of a history: how many moments their owners have of it, counted at each."""
    moments = bound.moments
    if not moments:
        return {}
    asked: dict[str, list[SendCutoffs]] = {}
    for giver, uses in bound.moment_uses.items():
        for client in bound.scans[giver].clients:
            own = [SendCutoffs(job=job, scan=giver, place=place) for place in range(len(uses))]
            asked.setdefault(client, []).extend(own)
    answers = {client: iter(found) for client, found in link.ask(asked).items()}
    sealed: dict[tuple[int, tuple[int, int]], list[Cutoffs]] = {}
    for giver, uses in bound.moment_uses.items():
        for client in bound.scans[giver].clients:
            for history, column in uses:
                sealed.setdefault((history, (giver, column)), []).append(cast("Cutoffs", next(answers[client])))
    held: dict[str, list[HoldCutoffs]] = {}
    for history, places in moments.items():
        given = [[answer.sealed for answer in sealed[history, place]] for place in places]
        for client in bound.scans[history].clients:
            held.setdefault(client, []).append(HoldCutoffs(job=job, scan=history, sealed=given))
    link.ask(held)
    return {h: sum(a.count for place in places for a in sealed[h, place]) for h, places in moments.items()}
