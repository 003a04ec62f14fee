"""An independent histogram booster on the materialised join: one matrix of codes, plain NumPy, node by node.

It shares with the product the derivatives of the loss in fixed point and the bins, and nothing else: it grows trees
depth-first with no speculation, no pairs, no sums per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.fixed_point import Labels, derivatives
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.tree_checks import FEW
from tablepuppet.models.losses import Loss

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """A column of the joined table: codes (0 is missing), how many there are, and of which block it is."""

    block: int
    number: int  # in its block
    codes: NDArray[np.int64]
    size: int
    is_category: bool
    sign: int = 0  # what leaves are monotone in
    is_rare: bool = False  # many categories, with very few rows each
    is_further: bool = False  # categories of a column before it


@dataclass(eq=False)
class _Leaf:
    """Rows of a sample, all rows, and what the leaf's value lies within."""

    path: tuple[int, ...]
    rows: NDArray[np.int64]
    everyone: NDArray[np.int64]
    low: float = -np.inf
    high: float = np.inf
    ridge: float = 0.0  # besides λ, below sorted categories

    @property
    def bound(self) -> tuple[float, float]:
        return self.low, self.high


@dataclass
class Central:
    """Boosted trees on a joined table."""

    columns: Sequence[Column]
    options: Boosting
    loss: Loss
    labels: Array
    weights: Array | None
    scores: Array
    trees: list[list[dict[tuple[int, ...], Any]]] = field(default_factory=list)  # by path: the split of a node

    def fit(self, allowed: Sequence[Sequence[NDArray[np.bool_]]], rows: Sequence[NDArray[np.int64]]) -> None:
        """As many trees as there are samples of columns and rows."""
        labels = Labels(self.labels, None, self.weights)
        start = self.scores.copy(order="F")
        for columns, sample in zip(allowed, rows, strict=True):
            is_forest = self.options.forest
            given = derivatives(self.loss, start if is_forest else self.scores, labels, self.options.bits)
            grown = []
            for output, own in enumerate(given):
                g, h = own.both >> 32, own.both & 0xFFFFFFFF
                splits: dict[tuple[int, ...], Any] = {}
                values = np.zeros(len(self.scores))
                everyone = np.arange(len(self.scores))
                self._grow(_Leaf((), sample, everyone), (g, h, *own.unit), columns, splits, values)
                self.scores[:, output] += values
                grown.append(splits)
            self.trees.append(grown)

    def _grow(
        self,
        root: _Leaf,
        given: tuple[Any, ...],
        allowed: Sequence[NDArray[np.bool_]],
        splits: dict[tuple[int, ...], Any],
        values: Array,
    ) -> None:
        """Splits the leaf of the largest gain, then the next; without a number of leaves the order does not matter."""
        leaves = [root]
        found: dict[tuple[int, ...], Any] = {(): self._best(root, given, allowed)}
        most = self.options.leaf_limit or 2**15
        while len(leaves) < most:
            able = [leaf for leaf in leaves if found[leaf.path] is not None]
            if not able:
                break
            leaf = min(able, key=lambda own: (-found[own.path][0], int("1" + "".join(map(str, own.path)), 2)))
            gain, column, right = found[leaf.path]
            splits[leaf.path] = (column.block, column.number, right.tobytes(), gain)
            leaves.remove(leaf)
            for child in self._children(leaf, column, right, given):
                found[child.path] = self._best(child, given, allowed)
                leaves.append(child)
        for leaf in leaves:
            values[leaf.everyone] = self._value(leaf, given)

    def _children(self, leaf: _Leaf, column: Column, right: NDArray[np.uint8], given: tuple[Any, ...]) -> list[_Leaf]:
        own = []
        for side in (0, 1):
            inside, others = (some[right[column.codes[some]] == side] for some in (leaf.rows, leaf.everyone))
            is_sorted = column.is_category and (column.size > FEW + 1 or column.is_further)
            own.append(_Leaf((*leaf.path, side), inside, others, *leaf.bound, 10.0 if is_sorted else 0.0))
        if column.sign:
            g, h, ug, uh = given
            at = [
                float(
                    np.clip(
                        -(int(g[s.rows].sum()) * ug) / (int(h[s.rows].sum()) * uh + self.options.penalty), *leaf.bound
                    )
                )
                for s in own
            ]
            middle = (at[0] + at[1]) / 2
            lower, upper = own if column.sign > 0 else own[::-1]
            lower.high, upper.low = middle, middle
        return own

    def _value(self, leaf: _Leaf, given: tuple[Any, ...]) -> float:
        g, h, ug, uh = given
        options = self.options
        weight = int(h[leaf.rows].sum()) * uh + (options.penalty + leaf.ridge)
        total = int(g[leaf.rows].sum()) * ug
        rate = 1 / options.trees if options.forest else options.learning_rate
        if weight <= 0:
            return 0.0
        if any(column.sign for column in self.columns):
            return rate * float(np.clip(-total / weight, *leaf.bound))
        return float(-rate * total / weight)

    def _best(self, leaf: _Leaf, given: tuple[Any, ...], allowed: Sequence[NDArray[np.bool_]]) -> Any:
        if len(leaf.path) == self.options.levels:
            return None
        g, h, ug, uh = given
        rows = leaf.rows
        is_bound = any(column.sign for column in self.columns)
        g, h = g[rows], h[rows]
        total_g, total_h = int(g.sum()), int(h.sum())
        options = self.options
        if total_h * uh < 2 * options.least_weight or len(rows) < 2 * options.least_rows:
            return None
        least = max(options.least_weight, options.least_rows * (total_h * uh) / len(rows))
        found: Any = None
        top = options.min_gain

        def worth(G: Any, H: Any) -> Any:
            if not is_bound:
                return G * G / H
            w = np.clip(-G / H, *leaf.bound)
            return -(2 * G * w + H * w * w)

        def gains(left_g: Any, left_h: Any, l2: float, sign: int = 0) -> Array:
            GL, HL = left_g * ug, left_h * uh
            GR, HR = (total_g - left_g) * ug, (total_h - left_h) * uh
            G, H = total_g * ug, total_h * uh
            with np.errstate(all="ignore"):
                gain = worth(GL, HL + l2) + worth(GR, HR + l2) - worth(G, H + options.penalty)
                rises = np.clip(-GR / (HR + l2), *leaf.bound) - np.clip(-GL / (HL + l2), *leaf.bound)
            fits = (np.minimum(HL, HR) >= least) & ~(rises * sign < 0)
            return np.where(fits & (left_h > 0) & (left_h < total_h), gain, -np.inf)

        for column in self.columns:
            if not allowed[column.block][column.number]:
                continue
            codes = column.codes[rows]
            sums = np.zeros((2, column.size), np.int64)
            np.add.at(sums[0], codes, g)
            np.add.at(sums[1], codes, h)
            if column.is_category:
                present = np.flatnonzero(sums[1] > 0)
                if column.size <= FEW + 1 and not column.is_further:
                    tried, l2 = [[c] for c in present.tolist()], options.penalty
                else:
                    fixed = options.min_category_weight
                    caution = 2.0 if column.is_rare and self.loss.task != "number" else 1.0
                    light = 9.5 * caution * (total_h * uh) / len(rows)
                    present = present[sums[1, present] * uh >= (light if fixed is None else fixed)]
                    ratio = sums[0, present] * ug / (sums[1, present] * uh + 10.0)
                    order = present[np.argsort(ratio, kind="stable")].tolist()
                    heights = {c: int(sums[1, c]) for c in order}
                    tried = [s for o in (order, order[::-1]) for s in _sets(o, heights, total_h, uh, least)]
                    l2 = options.penalty + 10.0
                for left in tried:
                    gain = float(gains(sums[0, left].sum(), sums[1, left].sum(), l2))
                    if gain > top:
                        right = np.ones(column.size, np.uint8)
                        right[left] = 0
                        top, found = gain, (gain, column, right)
                continue
            missing = sums[:, 0]
            for to_left in (1, 0) if missing[1] else (1,):
                left_sums = np.cumsum(sums[:, 1 : column.size - to_left], axis=1) + to_left * missing[:, None]
                own = gains(left_sums[0], left_sums[1], options.penalty, column.sign)
                if len(own) and own.max() > top:
                    border = len(own) - int(np.argmax(own[::-1])) if to_left else int(np.argmax(own)) + 1
                    right = (np.arange(column.size) > border).astype(np.uint8)
                    right[0] = 1 - to_left
                    top, found = float(own.max()), (float(own.max()), column, right)
        return found


def _sets(order: list[int], h: dict[int, int], total: int, unit: float, least: float) -> list[list[int]]:
    """The first of some sorted categories: half of them and 32 at most, five times `least` more at a time."""
    found, last = [], 0.0
    for k in range(1, min(32, (len(order) + 1) // 2) + 1):
        left = sum(h[c] for c in order[:k])
        is_large = min(left * unit, (total - left) * unit) >= least
        if is_large and min(left * unit - last, (total - left) * unit) >= 5 * least:
            found.append(order[:k])
            last = left * unit
    return found
