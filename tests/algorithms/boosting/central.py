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

from tablepuppet.algorithms.boosting.exchange import FEW
from tablepuppet.algorithms.boosting.fixed_point import Labels, derivatives
from tablepuppet.algorithms.boosting.options import Boosting
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

    def fit(self, allowed: Sequence[Sequence[NDArray[np.bool_]]], rows: Sequence[NDArray[np.int64]], seed: int) -> None:
        """As many trees as there are samples of columns and rows."""
        labels = Labels(self.labels, None, self.weights)
        for number, (columns, sample) in enumerate(zip(allowed, rows, strict=True)):
            given = derivatives(self.loss, self.scores, labels, self.options.bits, (seed, number))
            grown = []
            for output, own in enumerate(given):
                g, h = own.g.astype(np.int64), own.h.astype(np.int64)
                splits: dict[tuple[int, ...], Any] = {}
                values = np.zeros(len(self.scores))
                everyone = np.arange(len(self.scores))
                self._grow((), sample, everyone, (g, h, *own.unit), columns, splits, values)
                self.scores[:, output] += values
                grown.append(splits)
            self.trees.append(grown)

    def _grow(
        self,
        path: tuple[int, ...],
        rows: NDArray[np.int64],
        everyone: NDArray[np.int64],
        given: tuple[Any, ...],
        allowed: Sequence[NDArray[np.bool_]],
        splits: dict[tuple[int, ...], Any],
        values: Array,
    ) -> None:
        g, h, ug, uh = given
        best = self._best(rows, given, allowed) if len(path) < self.options.depth else None
        if best is None:
            weight = int(h[rows].sum()) * uh + self.options.l2
            values[everyone] = -self.options.learning_rate * (int(g[rows].sum()) * ug) / weight if weight > 0 else 0.0
            return
        gain, column, right = best
        splits[path] = (column.block, column.number, right.tobytes(), gain)
        for side in (0, 1):
            inside, others = (some[right[column.codes[some]] == side] for some in (rows, everyone))
            self._grow((*path, side), inside, others, given, allowed, splits, values)

    def _best(self, rows: NDArray[np.int64], given: tuple[Any, ...], allowed: Sequence[NDArray[np.bool_]]) -> Any:
        g, h, ug, uh = given
        g, h = g[rows], h[rows]
        total_g, total_h = int(g.sum()), int(h.sum())
        options = self.options
        if total_h * uh < 2 * options.min_child_weight:
            return None
        found: Any = None
        top = options.min_gain

        def gains(left_g: Any, left_h: Any, l2: float) -> Array:
            GL, HL = left_g * ug, left_h * uh
            GR, HR = (total_g - left_g) * ug, (total_h - left_h) * uh
            G, H = total_g * ug, total_h * uh
            with np.errstate(all="ignore"):
                gain = GL * GL / (HL + l2) + GR * GR / (HR + l2) - G * G / (H + options.l2)
            fits = np.minimum(HL, HR) >= options.min_child_weight
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
                if column.size <= FEW + 1:
                    tried, l2 = [[c] for c in present.tolist()], options.l2
                else:
                    ratio = sums[0, present] * ug / (sums[1, present] * uh + 10.0)
                    order = present[np.argsort(ratio, kind="stable")].tolist()
                    tried, l2 = [order[: k + 1] for k in range(len(order))], options.l2 + 10.0
                for left in tried:
                    gain = float(gains(sums[0, left].sum(), sums[1, left].sum(), l2))
                    if gain > top:
                        right = np.ones(column.size, np.uint8)
                        right[left] = 0
                        top, found = gain, (gain, column, right)
                continue
            missing = sums[:, 0]
            for to_left in (0, 1):
                if to_left and missing[1] == 0:
                    break
                last = column.size - (1 if missing[1] == 0 else to_left)
                left_sums = np.cumsum(sums[:, 1:last], axis=1) + to_left * missing[:, None]
                own = gains(left_sums[0], left_sums[1], options.l2)
                if len(own) and own.max() > top:
                    border = int(np.argmax(own)) + 1
                    right = (np.arange(column.size) > border).astype(np.uint8)
                    right[0] = 1 - to_left
                    top, found = float(own.max()), (float(own.max()), column, right)
        return found
