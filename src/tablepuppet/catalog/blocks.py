"""Blocks: features that come from the same alias in every branch belong together (docs/notation.md, T_i).

With one SELECT there is a block for each alias that has features. With UNION ALL the blocks are the common refinement
of the branches' aliases, so that no combination of branches has to be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """The feature positions of one block, and the relation that they come from in each branch."""

    relations: tuple[int, ...]
    positions: tuple[int, ...]


def group_features(relations: Sequence[Sequence[int]]) -> list[Group]:
    """Groups positions that share their relation in every branch, in the order of the first FROM clause.

    `relations[b][p]` is the relation of feature position p in branch b.

    >>> [group.positions for group in group_features([[0, 0, 1, 1], [0, 1, 1, 1]])]
    [(0,), (1,), (2, 3)]
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, signature in enumerate(zip(*relations, strict=True)):
        groups.setdefault(signature, []).append(position)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], group[1][0]))
    return [Group(signature, tuple(positions)) for signature, positions in ordered]


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with a number after each that was there before.

    >>> unique_names(["o", "i", "o"])
    ['o', 'i', 'o_2']
    """
    given: list[str] = []
    for name in names:
        number, unique = 2, name
        while unique in given:
            unique, number = f"{name}_{number}", number + 1
        given.append(unique)
    return given
