"""Negatives: pairs of rows that did not meet, added to the joined rows, for labels that only record meetings.

In: a mapping whose label's table only joins a user's rows with an item's (with further tables on either side). Out: the
same with label 1 in every joined row, and some joined rows with label 0 for each of them. These join the user's rows
with those of an item that the user has not met. They are joined rows like any other: every algorithm, count and cost
knows them, and owners only see that their rows occur more often. Row numbers are all that is drawn from.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import MappingError
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.mapping import LabelInfo, TableMapping, rows_here
from tablepuppet.join.row_index import RowIndex, count_rows
from tablepuppet.sql.bound import BoundQuery

Integers = NDArray[np.int64]
_STREAM = 0x9E6  # of the seed: these draws are no other's
_TRIES = 16  # to draw an item that the user has not met
_HOW = "negatives draw items for users"

_Pairs = tuple[Integers, Integers]  # that did not meet: a joined row of the side that has the user, and one the item


def with_negatives(mapping: TableMapping, count: int, seed: int, limit: int) -> TableMapping:
    """The mapping with `count` negatives for each joined row, less those of users who have met nearly everything.

    Training pairs did not meet in training rows; pairs that are held out met on no side. Items are drawn evenly from
    those that the side has.
    """
    users, items = _sides_of(mapping.bound)
    sides = [rows_here(side) for side in (mapping.train, mapping.validation, mapping.test)]
    rows = (1 + count) * sum(side.rows for side in sides)
    if rows > limit:
        raise MappingError(
            f"{count} negatives for each joined row make {rows:,} rows, more than the limit of {limit:,}; draw fewer, "
            "add a WHERE, or raise max_joined_rows"
        )
    for side in sides:
        if bool((side.labels[side.label_counts() > 0] == 0.0).any()):
            raise MappingError(
                f"label {mapping.bound.label} is 0 in some joined rows, and with negatives every joined row counts as "
                "seen; leave such rows out by WHERE, or select (column IS NOT NULL) AS seen as the label"
            )
    who, what = (_number_rows(mapping, sides, blocks) for blocks in (users, items))
    total = 1 + max(int(own.max(initial=0)) for own in what)
    met = [a * total + b for a, b in zip(who, what, strict=True)]
    made: list[JoinedRows] = []
    for number, side in enumerate(sides):
        known = met[0] if number == 0 else np.concatenate(met)
        drawn = _draw_pairs(
            who[number], what[number], known, total, count, np.random.default_rng((seed, _STREAM, number))
        )
        if number == 0 and not len(drawn[0]):
            raise MappingError(f"{_HOW}, and every user has met every item; train without negatives")
        made.append(_beside(side, drawn, users))
    train, validation, test = made
    return replace(
        mapping,
        label=LabelInfo("class", (0, 1), negatives=sum(side.rows for side in made) - sum(side.rows for side in sides)),
        multiplicity=tuple(count_rows(p.numbers(train.rows), p.rows) for p in train.indices),
        train=train,
        validation=validation,
        test=test,
        folds=None if mapping.folds is None else np.tile(mapping.folds, 2),
    )


def _sides_of(bound: BoundQuery) -> tuple[list[int], list[int]]:
    """The blocks of the user's tables and of the item's, which the label's table joins, in the query's order."""
    if len(bound.branches) != 1:
        raise MappingError(f"{_HOW}, by the tables of one SELECT; write the query without UNION ALL")
    branch = bound.branches[0]
    base = branch.label_relation
    named = {block.members[0].relation: number for number, block in enumerate(bound.blocks)}
    if base in named:
        block = bound.blocks[named[base]]
        raise MappingError(
            f"{_HOW}, and a pair that never met has no features of {block.table}, which holds the label: "
            f"{', '.join(block.features)}; leave them out of the SELECT"
        )
    # Tables that meet the label's by one column of it, and tables that meet those, are one side.
    side: dict[tuple[str, int], int] = {("table", r): r for r in range(len(branch.relations)) if r != base}
    for pair in branch.pairs:
        ends = ((pair.left, pair.left_column), (pair.right, pair.right_column))
        nodes = [("column", column) if relation == base else ("table", relation) for relation, column in ends]
        first, second = (side.setdefault(node, -1 - node[1]) for node in nodes)
        side = {node: first if own == second else own for node, own in side.items()}
    groups: dict[int, list[int]] = {}
    for relation in range(len(branch.relations)):
        if relation != base:
            groups.setdefault(side["table", relation], []).extend([named[relation]] if relation in named else [])
    found = list(groups.values())
    if len(found) != 2 or not all(found):
        able = sum(bool(blocks) for blocks in found)
        raise MappingError(
            f"{_HOW}: the label's table must join a user's table with an item's, each by a column of its own and with "
            f"features in the SELECT (an id as text is one), and here {able} of {len(found)} such tables have features"
        )
    return found[0], found[1]


def _number_rows(mapping: TableMapping, sides: Sequence[JoinedRows], blocks: Sequence[int]) -> list[Integers]:
    """For each side, a number for the rows that every joined row has in these blocks: the same for the same rows."""
    columns = []
    for block in blocks:
        train, held = _owners_rows(mapping, block)
        ids = (train, held, held)
        columns.append(
            np.concatenate([own[side.indices[block].numbers(side.rows)] for own, side in zip(ids, sides, strict=True)])
        )
    found = columns[0]
    for more in columns[1:]:
        found = np.unique(found, return_inverse=True)[1] * (int(more.max(initial=-1)) + 2) + more + 1
    numbers = np.unique(found, return_inverse=True)[1].astype(np.int64)
    return np.split(numbers, np.cumsum([side.rows for side in sides])[:-1])


def _owners_rows(mapping: TableMapping, block: int) -> tuple[Integers, Integers]:
    """The owners' row numbers of a block's rows, for training and held out; −1, at the end: none."""
    parts, start = mapping.parts_of(block), 0
    ends = [
        max((own.stop for own in slices), default=0) for slices in ([p.train for p in parts], [p.test for p in parts])
    ]
    train, held = (np.full(1 + end, -1, np.int64) for end in ends)
    for part in parts:
        train[part.train] = start + part.train_rows
        held[part.test] = start + part.test_rows
        start += 1 + max(int(own.max(initial=0)) for own in (part.train_rows, part.test_rows))
    return train, held


def _draw_pairs(
    users: Integers, items: Integers, met: Integers, total: int, count: int, random: np.random.Generator
) -> _Pairs:
    """Pairs for the joined rows of a side; a user's that met is drawn again, and left out in the end."""
    if not len(users):
        return users, users
    known, first = np.unique(items, return_index=True)
    whose = np.repeat(np.arange(len(users)), count)
    pick, again, met = np.empty(len(whose), np.int64), np.arange(len(whose)), np.sort(met)
    for _ in range(_TRIES):
        pick[again] = random.integers(0, len(known), len(again))
        pairs = users[whose[again]] * total + known[pick[again]]
        again = again[met.take(np.searchsorted(met, pairs), mode="clip") == pairs]
        if not len(again):
            break
    return np.delete(whose, again), first[np.delete(pick, again)]


def _beside(side: JoinedRows, drawn: _Pairs, users: Sequence[int]) -> JoinedRows:
    """Joined rows of label 1, and after them the pairs, of label 0; a pair's label row stands for its joined row's."""

    with_user, with_item = drawn

    def longer(own: RowIndex, rows: Integers, size: int, shift: int = 0) -> RowIndex:
        numbers: RowNumbers = own.numbers(side.rows)
        return RowIndex.of(np.concatenate([numbers, numbers[rows] + shift]), size)

    indices = [longer(p, with_user if number in users else with_item, p.rows) for number, p in enumerate(side.indices)]
    label_rows = len(side.labels)
    return replace(
        side,
        rows=side.rows + len(with_user),
        indices=tuple(indices),
        label_index=longer(side.label_index, with_user, 2 * label_rows, label_rows),
        labels=np.repeat([1.0, 0.0], label_rows),
        weights=None if side.weights is None else np.tile(side.weights, 2),
        counts=None,
        state={},
    )
