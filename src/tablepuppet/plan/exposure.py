"""How many exact predictions of a row the server would see, against the features that they could give away.

In: a job, its table mapping and the encoded widths. Out: per block both numbers, or a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tablepuppet.errors import PrivacyError
from tablepuppet.job import Job
from tablepuppet.mapping.mapping import TableMapping
from tablepuppet.plan.noisy_block import outer_rounds
from tablepuppet.privacy.accounting import participation


def exposure(job: Job, mapping: TableMapping, widths: Sequence[int], outputs: int) -> list[tuple[str, int, int]]:
    """Per block: how many numbers the server sees of its most exposed row, and how many features that row has."""
    rounds = outer_rounds(job, mapping)
    is_batched = rounds > job.epochs
    found = []
    for number, (block, width) in enumerate(zip(mapping.bound.blocks, widths, strict=True)):
        shown = rounds
        if is_batched:
            most = int(mapping.multiplicity[number].max(initial=1))
            size = job.batch(mapping.train.rows) or mapping.train.rows
            shown = int(np.ceil(rounds * participation(size / mapping.train.rows, most))) + job.epochs + 1
        found.append((block.name, outputs * shown, width))
    return found


def check_exposure(job: Job, mapping: TableMapping, widths: Sequence[int], outputs: int) -> None:
    """Refuses a private job whose exact predictions would let the server solve for the rows themselves."""
    privacy = job.privacy
    if privacy.features is None or privacy.predictions.mode == "local" or privacy.allow_reconstruction:
        return
    for name, shown, width in exposure(job, mapping, widths, outputs):
        if shown >= width:
            raise PrivacyError(
                f"block {name}: the server would see {shown:,} exact predictions of a row that has {width:,} encoded "
                "features, enough to reconstruct it, whatever noise the model carries. Take fewer rounds, use "
                'predictions = {mode = "local", …}, or trust the server with it: allow_reconstruction = true'
            )
