"""Permutation importance: how much worse a model gets where a feature, or a whole table, is shuffled among its rows.

In: what a model says of joined rows. Out: a row for every feature (or table): the rise of the mean loss, and its spread
over repetitions. A table is shuffled here, by moving what it says from row to row, which asks its owner for nothing
more; so is a feature of boosted trees whose splits are known, by its bits. Any other feature is shuffled at its owners,
in an order that they draw and do not tell, and scored once more: each time one more number of every row leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.engine.evaluate import Scored
from tablepuppet.errors import ModelError
from tablepuppet.prediction.predict import score_request
from tablepuppet.protocol import Message, Scores

Importance = list[dict[str, Any]]


def permutation_importance(scored: Scored, *, by: str, repeats: int, seed: int) -> Importance:
    """Columns table, feature (by="feature"), importance, std; the most important first."""
    base = scored.measured().loss
    rng = np.random.default_rng(seed)
    found: Importance = []
    for block, feature, name in _units(scored, by):
        losses = []
        for _ in range(repeats):
            changed = list(scored.blocks)
            changed[block] = _shuffled(scored, block, feature, rng)
            losses.append(scored.measured(changed).loss - base)
        own = {"table": scored.model.blocks[block].table, **({} if name is None else {"feature": name})}
        found.append(own | {"importance": float(np.mean(losses)), "std": float(np.std(losses))})
    return sorted(found, key=lambda row: -row["importance"])


def _units(scored: Scored, by: str) -> Iterator[tuple[int, int | None, str | None]]:
    for number, block in enumerate(scored.model.blocks):
        if by == "table":
            yield number, None, None
        else:
            yield from ((number, place, name) for place, name in enumerate(block.features))


def _shuffled(scored: Scored, block: int, feature: int | None, rng: np.random.Generator) -> Array:
    """What a block says once a feature of it, or all of them, are shuffled."""
    own = scored.blocks[block]
    if scored.model.spec.is_boosted:
        order = np.append(rng.permutation(own.shape[1] - 1), own.shape[1] - 1)  # the last: no row at all
        held = scored.model.blocks[block]
        if feature is not None and held.is_held:
            raise ModelError(f'the splits of {held.name} stay with their owners; ask for importance by="table"')
        moved = own.copy()
        rules = slice(None) if feature is None else [k for k, rule in enumerate(held.splits) if rule.feature == feature]
        moved[rules] = own[rules][:, order]
        return moved
    if feature is None:
        return own[rng.permutation(len(own))]
    union, number = scored.union, feature

    def ask(block_number: int) -> list[tuple[Any, Message]]:
        parts = union.blocks[block_number]
        return [(p, score_request(scored.model, p, p.train_rows, union.job, shuffled=[number])) for p in parts]

    answers = union.exchange(ask(block), "evaluation")
    moved = own.copy()
    for part in union.blocks[block]:
        moved[part.train] = cast(Scores, answers[part.number][0]).values
    return moved
