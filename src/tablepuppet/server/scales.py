"""Scales of masked sums: the server's half of client/masked_sums.py.

In: the `Masked` answers of one block's parts. Out: their sum, or the scale at which they must be asked for again: one
that fits the largest and still tells the smallest float apart. All that the server learns of a single part is the
power of two above its largest entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import TransportError
from tablepuppet.privacy.masks import LARGEST, from_integers
from tablepuppet.protocol import Masked, Partial

_MARGIN = 4  # doublings that a scale leaves for the next sum
_SLACK = 12  # bits of 59 or so that a sum may leave unused


def wanted_scales(answers: Sequence[Masked]) -> list[int]:
    """E of each array, for the sum to fit this time and most likely the next; none where nothing is masked."""
    found = [a.exponents for a in answers]
    if len({len(e) for e in found}) > 1:
        raise TransportError("the clients of one table do not answer alike")
    return [min(max(column) + _MARGIN, LARGEST) for column in zip(*found, strict=True)]


def is_settled(answers: Sequence[Any]) -> bool:
    """Whether the answers of a block can be summed: all at one scale, which is neither too small nor too coarse."""
    masked = [a for a in answers if isinstance(a, Masked)]
    if not masked or len(masked) < len(answers):
        return True  # predictions, plain summands, or a run that diverges
    wanted = wanted_scales(masked)
    scales = masked[0].scales
    if any(a.scales != scales for a in masked) or len(scales) != len(wanted):
        return False
    return all(scale - want + _MARGIN <= _SLACK for scale, want in zip(scales, wanted, strict=True))


def summed(answers: Sequence[Any]) -> list[Array]:
    """Σ over the parts of a block, in their order."""
    if all(isinstance(a, Masked) for a in answers):
        return _unmasked(answers)
    if any(isinstance(a, Masked) for a in answers):  # the others have no finite number to mask, nor has the sum
        return next([np.full_like(v, np.nan) for v in a.values] for a in answers if isinstance(a, Partial))
    if not all(isinstance(a, Partial) and len(a.values) == len(answers[0].values) for a in answers):
        raise TransportError("the clients of one table do not answer alike")
    if any([v.shape for v in a.values] != [v.shape for v in answers[0].values] for a in answers):
        raise TransportError("the clients of one table do not answer alike")
    total = [v.copy() for v in answers[0].values]
    for other in answers[1:]:
        for t, v in zip(total, other.values, strict=True):
            t += v
    return total


def _unmasked(answers: Sequence[Masked]) -> list[Array]:
    """The masks cancel; what is left is the sum of the integers."""
    first = answers[0]
    shapes = [v.shape for v in first.values]
    if len(shapes) != len(first.kinds) or any(
        [v.shape for v in a.values] != shapes or a.scales != first.scales for a in answers
    ):
        raise TransportError("the clients of one table do not answer alike")
    totals = []
    for place, (scale, kind) in enumerate(zip(first.scales, first.kinds, strict=True)):
        total = first.values[place].view(np.uint64).copy()
        for other in answers[1:]:
            total += other.values[place].view(np.uint64)
        totals.append(from_integers(total.view(np.int64), scale, len(answers)).astype(kind))
    return totals
