"""What a job's penalties and signs mean for the blocks of its query: which names they speak of, and by which column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tablepuppet.errors import JobError, nearest
from tablepuppet.job import Job
from tablepuppet.protocol.columns import Encoder, NumberEncoder
from tablepuppet.sources.columns import NUMBER_KINDS
from tablepuppet.sources.encoding import encoded_width


def penalty_text(job: Job) -> str:
    """The penalties, in words."""
    by_table = (
        ", ".join(f"{table} {value:g}" for table, value in job.model.l2.items())
        if isinstance(job.model.l2, dict)
        else ""
    )
    words = [f"l2 of {by_table}" if by_table else f"l2 {job.model.l2:g}"]
    if job.model.l2_by_rows:
        words[0] += f" + {job.model.l2_by_rows:g} / joined rows"
    if job.model.l1:
        words.insert(0, f"l1 {job.model.l1:g}")
    if job.model.signs:
        words.append(f"signs of {', '.join(job.model.signs)}")
    return ", ".join(words)


def check_penalties(job: Job, blocks: Sequence[Any]) -> None:
    """Every name that a penalty speaks of is there."""
    known = [name for block in blocks for name in dict.fromkeys((block.name, block.table))]
    for name in job.model.l2 if isinstance(job.model.l2, dict) else ():
        if name not in known:
            raise JobError(f"l2 names {name!r}, and the query has no such table; {_choice(name, known)}")
    features = [feature for block in blocks for feature in block.features]
    for name in job.model.signs:
        if not any(name in _spellings(feature) for feature in features):
            raise JobError(f"signs names {name!r}, which is not a feature of the query; {_choice(name, features)}")


def column_signs(job: Job, blocks: Sequence[Any], encoders: Sequence[Sequence[Encoder]]) -> tuple[tuple[int, ...], ...]:
    """The sign of each encoded column of each block; nothing where a job has none."""
    if not job.model.signs:
        return ()
    found = []
    for block, own in zip(blocks, encoders, strict=True):
        signs: list[int] = []
        for feature, encoder in zip(block.features, own, strict=True):
            sign = next((job.model.signs[name] for name in _spellings(feature) if name in job.model.signs), 0)
            if sign and not isinstance(encoder, NumberEncoder):
                raise JobError(f"signs names {feature!r}, which is text: only a number can be bound to a sign")
            width = encoded_width(encoder)
            free = int(isinstance(encoder, NumberEncoder) and encoder.has_missing)  # the column that says it is missing
            signs += [sign] * (width - free) + [0] * free
        found.append(tuple(signs))
    return tuple(found)


def monotone_signs(given: Mapping[str, int], blocks: Sequence[Any]) -> list[list[int]]:
    """Of each block's columns, a vector's one by one: the sign that a user gave them; nothing where there is none."""
    features = [feature for block in blocks for feature in block.features]
    for name in given:
        if not any(name in _spellings(feature) for feature in features):
            raise JobError(f"monotone names {name!r}, which is no feature of the query; {_choice(name, features)}")
    found = []
    for block in blocks:
        signs: list[int] = []
        for feature, info in zip(block.features, block.columns, strict=True):
            sign = next((given[name] for name in _spellings(feature) if name in given), 0)
            if sign and (info.kind == "vector" or info.kind not in NUMBER_KINDS):
                raise JobError(f"monotone names {feature!r}, which is no number")
            signs += [sign] * (info.size if info.kind == "vector" else 1)
        found.append(signs if any(signs) else [])
    return found


def _spellings(feature: str) -> tuple[str, ...]:
    """How a feature may be called: as results name it, or by its column alone.

    >>> _spellings("o.price")
    ('o.price', 'price')
    """
    return tuple(dict.fromkeys((feature, feature.rpartition(".")[2])))


def _choice(name: str, known: Sequence[str]) -> str:
    near = nearest(name, list(known))
    return f"did you mean {near!r}?" if near is not None else f"there are {', '.join(dict.fromkeys(known))}"
