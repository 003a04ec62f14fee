"""Who keeps a block's trained parameters: the result, or the block's owner alone.

In: a job and a table mapping. Out: which blocks are held, or PolicyError where that cannot be: an owner that keeps its
parameters can only train where the server never sees them.
"""

from __future__ import annotations

from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.errors import PolicyError
from tablepuppet.job import Job
from tablepuppet.mapping.summary import MappingSummary


def held_blocks(job: Job, mapping: MappingSummary) -> tuple[bool, ...]:
    """For each block, whether its parameters stay with its owners."""
    return tuple(not job.release or bool(_withholding(mapping, block)) for block in range(len(mapping.bound.blocks)))


def check_custody(job: Job, mapping: MappingSummary) -> None:
    """Refuses algorithms that would show the server what an owner's policy keeps."""
    for number, block in enumerate(mapping.bound.blocks):
        keepers = _withholding(mapping, number)
        if keepers and algorithm_of(job.options).is_pooled:
            raise _refused(keepers[0], f'algorithm="{job.algorithm}" fits them at the server; use another algorithm')
        if keepers and len(mapping.parts_of(number)) > 1:
            raise _refused(
                keepers[0],
                f"table {block.table} has several owners, who agree on them through the server; "
                "give the table one owner, or ask this one to release them",
            )


def _withholding(mapping: MappingSummary, block: int) -> list[str]:
    """The clients of a block whose policy keeps the parameters."""
    scans = mapping.bound.scans
    return [part.client for part in mapping.parts_of(block) if part.client in scans[part.scan].withholding]


def _refused(client: str, why: str) -> PolicyError:
    return PolicyError(
        f"client {client}: its policy refuses the request: trained parameters do not leave this owner, and {why} "
        "(rule release_parameters)"
    )
