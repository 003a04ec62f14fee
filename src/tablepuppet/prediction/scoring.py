"""What each client is asked so that its block can be added up: with parameters sent along, or with its own part."""

from __future__ import annotations

from tablepuppet.arrays import RowNumbers
from tablepuppet.mapping.mapping import Part
from tablepuppet.prediction.model import Model
from tablepuppet.protocol import Message, ScoreOwnRows, ScoreRows


def score_request(model: Model, part: Part, rows: RowNumbers, job: str) -> Message:
    """A request for h of some rows of a part."""
    block = model.blocks[part.block]
    if block.is_held:
        return ScoreOwnRows(
            job=job, scan=part.scan, columns=list(part.columns), rows=rows, model=model.id, name=block.name
        )
    return ScoreRows(
        job=job,
        scan=part.scan,
        columns=list(part.columns),
        rows=rows,
        encoders=list(block.encoders),
        theta=block.theta,
        model=model.spec,
        name=block.name,
        outputs=model.widths[part.block],
    )
