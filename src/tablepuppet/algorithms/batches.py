"""How many joined rows are a batch where the user does not say.

In: N, the joined rows to train on. Out: a batch of N/40 rows, at least 16 and at most 10,240: the ten epochs that are
the default are then some 400 steps on any table up to 400,000 rows, and N/1,024 on larger ones, where every batch
costs a round trip (docs/decisions/0033).
"""

from __future__ import annotations

_STEPS = 40  # an epoch
_SMALLEST, _LARGEST = 16, 10_240


def automatic_batch(rows: int) -> int:
    """
    >>> automatic_batch(500), automatic_batch(20_000), automatic_batch(10**7)
    (16, 500, 10240)
    """
    return min(max(-(-rows // _STEPS), _SMALLEST), _LARGEST)
