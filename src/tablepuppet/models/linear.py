"""A block's model on a client's own rows: the linear family, h = T θ, with θ of shape (features, outputs).

θ is always an argument. neural.py has the other family, with the same methods.
"""

from __future__ import annotations

from math import inf

import msgspec
import numpy as np

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.features import Features
from tablepuppet.privacy.gaussian import clip_scale

MOST_CONSTANTS = 64  # outputs; inner products of constants grow by their square, and only save rounds


class LinearModel(msgspec.Struct, frozen=True):
    """h = T θ."""

    train: Features
    test: Features
    outputs: int
    norms: Array | None = None  # ‖x_k‖ of the train rows, where gradients are clipped
    start: tuple[int, int, tuple[float, ...]] | None = None  # seed, block, and each output's spread; None: all zero
    has_absent: bool = False  # whether some row of the block, here or elsewhere, may lack categories of texts

    def initial(self) -> Array:
        """θ before training; the same at every client of the block."""
        if self.start is None:
            return np.zeros((self.train.width, self.outputs))
        seed, block, spread = self.start
        entries = self.train.dense.shape[1] + len(self.train.codes)  # that a row has: one of each category's columns
        drawn = np.random.default_rng((seed, block)).standard_normal((self.train.width, self.outputs))
        return np.asarray(drawn * (np.array(spread) / np.sqrt(max(1, entries))))

    @property
    def width(self) -> int:
        """The length of θ's first axis."""
        return self.train.width

    def predict(self, theta: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        """h of some (or all) train rows; `draw` numbers the random draws of training, None: without any."""
        return self.train.dot(theta, rows)

    def gradient(self, theta: Array, signal: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        """Σ_k (∂h_k/∂θ)ᵀ Y_k over some (or all) train rows."""
        return self.train.transpose_dot(signal, rows)

    def clipped_gradient(
        self,
        theta: Array,
        signal: Array,
        clip: float,
        rows: RowNumbers | None = None,
        draw: int | None = None,
        reach: float = inf,
    ) -> Array:
        """The same sum, each row's summand scaled down to a norm of at most `clip` and `reach`·‖Y_k‖."""
        norms = self.norms if self.norms is not None else self.train.row_norms()
        scale = clip_scale(signal, norms if rows is None else norms[rows], clip, reach)
        return self.train.transpose_dot(signal * scale[:, None], rows)

    def predict_test(self, theta: Array) -> Array:
        """h of the test rows."""
        return self.test.dot(theta)

    def constants(self) -> list[Array]:
        """For each output a θ of small norm that predicts 1 on every row; none without one-hot columns in all rows."""
        groups = [group for group in self.train.code_columns if group.stop > group.start]
        if not groups or self.has_absent or self.outputs > MOST_CONSTANTS:
            return []
        shares = np.array([1.0 / (g.stop - g.start) for g in groups])
        found = []
        for output in range(self.outputs):
            theta = self.initial()
            for group, share in zip(groups, shares / shares.sum(), strict=True):
                theta[group, output] = share
            found.append(theta)
        return found
