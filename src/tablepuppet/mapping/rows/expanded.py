"""The VFL baselines' mapping: every block expanded to joined rows, as if its clients held X_i.

In: a table mapping. Out: the same joined rows, but each block now has one row per joined row, so
that the same algorithms send and compute N values per block instead of n_i.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tablepuppet.arrays import RowNumbers
from tablepuppet.mapping.mapping import Part, TableMapping, rows_here
from tablepuppet.mapping.rows.joined import JoinedRows, RowIndex


def expanded(mapping: TableMapping) -> TableMapping:
    """The mapping whose blocks are X_i instead of T_i; a joined row lies with the client of its base row."""
    parts: list[Part] = []
    sides: dict[str, list[RowIndex]] = {"train": [], "test": []}
    whole, tested, validated = (rows_here(side) for side in (mapping.train, mapping.test, mapping.validation))
    held = _both(tested, validated)
    for number in range(len(mapping.bound.blocks)):
        own = mapping.parts_of(number)
        train_rows, train = _expand(whole, number, own, "train")
        test_rows, test = _expand(held, number, own, "test")
        sides["train"].append(train)
        sides["test"].append(test)
        starts = [0, 0]
        for part, a, b in zip(own, train_rows, test_rows, strict=True):
            stops = [starts[0] + len(a), starts[1] + len(b)]
            inside = [slice(x, y) for x, y in zip(starts, stops, strict=True)]
            parts.append(replace(part, train_rows=a, test_rows=b, train=inside[0], test=inside[1]))
            starts = stops
    return replace(
        mapping,
        parts=tuple(parts),
        multiplicity=tuple(np.ones(index.rows, np.int64) for index in sides["train"]),
        train=replace(whole, indices=tuple(sides["train"]), state={}),
        test=replace(tested, indices=_cut(sides["test"], 0, tested.rows), state={}),
        validation=replace(validated, indices=_cut(sides["test"], tested.rows, held.rows), state={}),
    )


def _both(test: JoinedRows, validation: JoinedRows) -> JoinedRows:
    """All rows that are held out, those of the test first."""
    if not validation.rows:
        return test
    places = [
        np.concatenate([p.numbers(side.rows) for side, p in pair])
        for pair in (((test, a), (validation, b)) for a, b in zip(test.indices, validation.indices, strict=True))
    ]
    indices = tuple(RowIndex.of(place, p.rows) for place, p in zip(places, test.indices, strict=True))
    return replace(test, rows=test.rows + validation.rows, indices=indices, state={})


def _cut(indices: list[RowIndex], start: int, stop: int) -> tuple[RowIndex, ...]:
    """Joined rows start ≤ j < stop."""
    return tuple(
        RowIndex.of(np.arange(start, stop) if p.index is None else p.index[start:stop], p.rows) for p in indices
    )


def _expand(joined: JoinedRows, block: int, parts: tuple[Part, ...], side: str) -> tuple[list[RowNumbers], RowIndex]:
    """Each part's joined rows as its own row numbers, and where each joined row now lies.

    A joined row without a row in this block (−1) goes to the first part, as a row of zeros.
    """
    index = joined.indices[block]
    rows = index.numbers(joined.rows)
    if not parts:
        return [], RowIndex.of(rows, 0)
    starts = [getattr(part, side).start for part in parts]
    holder = np.maximum(np.searchsorted(starts, rows, side="right") - 1, 0)
    order = np.argsort(holder, kind="stable")
    place = np.empty(joined.rows, np.int64)
    place[order] = np.arange(joined.rows)
    numbers = []
    for k, part in enumerate(parts):
        mine = rows[order[holder[order] == k]]
        own = getattr(part, f"{side}_rows")
        numbers.append(np.where(mine < 0, -1, np.append(own, -1)[mine - starts[k]]).astype(own.dtype))
    return numbers, RowIndex.of(place, joined.rows)
