"""Which blocks of a join take a second step in Newton's first epoch.

In: rows and columns of each block. Out: the numbers of the light ones. In the first round no block knows of the others,
and what two of them can both explain is counted twice. A block that is asked again mends that for its own part; if it
holds next to none of the rows, this costs a latency and no bytes to speak of, and a full round is saved
(docs/decisions/0022).
"""

from __future__ import annotations

from collections.abc import Sequence

HEAVY = 1_000_000  # values of a full round: what US-UK (0.9 million) and US-US (1.2 million) carry within a latency
SHARE = 1 / 32  # of all rows: what light blocks hold together


def small_blocks(
    rows: Sequence[int], widths: Sequence[int], epochs: int, outputs: int, *, has_curvature: bool
) -> frozenset[int]:
    """The smallest blocks, while they hold few of the rows; none where a full round is quick anyway.

    >>> sorted(small_blocks([850_000, 6_200, 6_000], [6, 19, 30], 10, 1, has_curvature=False))
    [1, 2]
    """
    total = sum(rows)
    if total * (2 * outputs + has_curvature) < HEAVY:
        return frozenset()
    found, held = set(), 0
    for block in sorted(range(len(rows)), key=rows.__getitem__):
        held += rows[block]
        if held > SHARE * total:
            break
        if rows[block] and _discloses_no_more(widths[block], epochs, outputs):
            found.add(block)
    return frozenset(found)


def _discloses_no_more(width: int, epochs: int, outputs: int) -> bool:
    """Whether one more prediction of a row leaves it as well hidden, or as little, as the planned ones do.

    Counted without the predictions that evaluate each epoch and the end, as plans do, and with them, as owners do.
    """
    planned = (outputs * epochs, outputs * (2 * epochs + 1))
    return all((shown >= width) == (shown + outputs >= width) for shown in planned)
