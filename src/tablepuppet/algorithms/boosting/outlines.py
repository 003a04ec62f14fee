"""What clients are asked about a growing tree: the outline of what is below some of its nodes, and the cells of it that
joined rows lie in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.exchange import Outline
from tablepuppet.algorithms.boosting.rows import NO_CELL
from tablepuppet.algorithms.boosting.tree import GrowingTree


def check_off(tree: GrowingTree, numbers: Sequence[int]) -> None:
    """Clients were asked about these nodes."""
    for number in numbers:
        tree.nodes[number].is_checked = True


def unchecked(tree: GrowingTree, again: Sequence[int]) -> list[int]:
    """The topmost nodes that clients were not asked about as they are now."""
    for number in again:
        tree.nodes[number].is_checked = False
    found, below = [], [0]
    while below:
        number = below.pop()
        node = tree.nodes[number]
        if not node.is_checked and tree.is_open(number):
            found.append(number)
        elif node.left >= 0:
            below += [node.left, node.left + 1]
    return sorted(found)


def outline_of(tree: GrowingTree, roots: Sequence[int]) -> tuple[Outline, list[int]]:
    """These nodes and what is below them, as far as it may be split; and their numbers here."""
    numbers = [n for n in roots if tree.is_open(n)]
    left = []
    place = 0
    while place < len(numbers):
        child = tree.nodes[numbers[place]].left
        is_inner = child >= 0 and (tree.is_open(child) or tree.is_open(child + 1))
        left.append(len(numbers) if is_inner else -1)
        if is_inner:
            numbers += [child, child + 1]
        place += 1
    choices = [tree.nodes[n].choice for n in numbers]
    return (
        Outline(
            unit=tree.given.unit,
            left=np.array(left, np.int32),
            asks=np.array([tree.is_open(n) for n in numbers], np.bool_),
            gain=np.array([0.0 if c is None else c.gain for c in choices]),
            block=np.array([-1 if c is None else c.block for c in choices], np.int32),
            key=np.array([-1 if c is None else c.key for c in choices], np.int32),
            to_left=np.array([c is not None and c.to_left for c in choices], np.bool_),
            bounds=tree.bounds(numbers),
            light=tree.light(numbers),
        ),
        numbers,
    )


def mark_cells(tree: GrowingTree, outline: Outline, numbers: Sequence[int], cell: NDArray[np.uint16]) -> None:
    """Writes the cell of every joined row."""
    cells = [tree.nodes[n] for n, left in zip(numbers, outline.left.tolist(), strict=True) if left < 0]
    segments = np.array([(node.start, node.stop) for node in cells], np.int64)
    if int((segments[:, 1] - segments[:, 0]).sum()) < len(cell):
        cell[...] = NO_CELL
    kernels.mark_nodes(tree.order, segments, cell)
