"""Trees as they are kept: topology, values of leaves, and for each inner node whose key it asks.

The owner knows a key's rule (a column and a border, or a set of categories). The server may hold it too, once it is
released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from tablepuppet.algorithms.boosting.tree import Node


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes in order, children after their parents; of a leaf `left` is −1."""

    left: list[int]  # the right child follows
    block: list[int]
    key: list[int]
    to_left: list[bool]  # where missing numbers go
    gain: list[float]
    value: list[float]  # of leaves; 0 for inner nodes
    cover: list[float]  # Σ h
    missing: list[int] = []  # once training is over: the key that says which values are missing; −1: none is

    def __repr__(self) -> str:
        return f"Tree(splits: {len(self.splits):,})"

    @property
    def splits(self) -> list[int]:
        """Inner nodes."""
        return [n for n, left in enumerate(self.left) if left >= 0]


def as_tree(nodes: Sequence[Node], unit: tuple[float, float], l2: float, rate: float) -> tuple[Tree, list[int]]:
    """The tree of all nodes that are left, and their numbers there: −η ΣG / (ΣH + λ) in the leaves, within bounds."""
    numbers = [0]
    left = []
    place = 0
    while place < len(numbers):
        child = nodes[numbers[place]].left
        left.append(len(numbers) if child >= 0 else -1)
        numbers += [child, child + 1] if child >= 0 else []
        place += 1
    own = [nodes[n] for n in numbers]
    inner = [node.choice if node.left >= 0 else None for node in own]

    def value(node: Node) -> float:
        weight = node.h * unit[1] + l2
        if node.bound is not None:
            return rate * value_of(node.g * unit[0], weight, node.bound) if weight > 0 else 0.0
        return -rate * (node.g * unit[0]) / weight if weight > 0 else 0.0

    return (
        Tree(
            left=left,
            block=[-1 if c is None else c.block for c in inner],
            key=[-1 if c is None else c.key for c in inner],
            to_left=[c is not None and c.to_left for c in inner],
            gain=[0.0 if c is None else float(c.gain) for c in inner],
            value=[0.0 if node.left >= 0 else value(node) for node in own],
            cover=[node.h * unit[1] for node in own],
        ),
        numbers,
    )


def value_of(g: float, h: float, bound: tuple[float, float]) -> float:
    """−g/h within bounds."""
    return min(max(-g / h, bound[0]), bound[1])


def compact(
    trees: Sequence[Sequence[Tree]], missing_key: Callable[[int, int], int], blocks: int
) -> tuple[tuple[tuple[Tree, ...], ...], list[list[int]]]:
    """Trees whose keys are numbered anew, as they occur in them; and by block the keys' old numbers.

    `missing_key`: of a block and a key, the key that says which values of its column are missing, or −1.
    """
    used: list[dict[int, None]] = [{} for _ in range(blocks)]  # in the trees' order, not that of their disclosure
    for tree in (t for group in trees for t in group):
        for node in tree.splits:
            block, key = tree.block[node], tree.key[node]
            used[block] |= {k: None for k in (missing_key(block, key), key) if k >= 0}
    keys = [list(found) for found in used]
    numbers = [{-1: -1} | {key: new for new, key in enumerate(found)} for found in keys]

    def renumber(tree: Tree) -> Tree:
        pairs = [(b, k) if b >= 0 else None for b, k in zip(tree.block, tree.key, strict=True)]
        key = [-1 if p is None else numbers[p[0]][p[1]] for p in pairs]
        missing = [-1 if p is None else numbers[p[0]][missing_key(*p)] for p in pairs]
        return replace(tree, key=key, missing=missing)

    return tuple(tuple(renumber(tree) for tree in group) for group in trees), keys


def shift_keys(tree: Tree, by: Sequence[int]) -> Tree:
    """A tree whose keys come after so many of each block's."""
    pairs = list(zip(tree.block, tree.key, tree.missing, strict=True))
    key = [k + by[b] if b >= 0 else k for b, k, _ in pairs]
    return replace(tree, key=key, missing=[m + by[b] if m >= 0 else m for b, _, m in pairs])
