"""Inputs: encoded rows as a module's input, whole or one first layer at a time.

In: Features of one side of a part. Out: X of some rows as a tensor, or X Wᵀ + b: codes pick columns of W, so that wide
one-hot columns are never written out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.models.features import Features
from tablepuppet.models.modules import need_torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The rows of one side (train or test) of a part."""

    dense: Tensor  # (n, p)
    dense_columns: Tensor
    codes: tuple[Tensor, ...]  # of each string column, the column of X that is 1; that behind the last: none
    width: int
    exists: Tensor | None = None  # (n, 1): whether an outer join found the row; None: all

    @classmethod
    def of(cls, features: Features, dtype: str, missing: NDArray[np.bool_] | None = None) -> Inputs:
        """`missing`: rows that an outer join did not find."""
        torch = need_torch()
        codes = [
            np.where(given < 0, features.width, given.astype(np.int64) + columns.start)
            for given, columns in zip(features.codes, features.code_columns, strict=True)
        ]
        return cls(
            torch.from_numpy(np.ascontiguousarray(features.dense, dtype=dtype)),
            torch.from_numpy(features.dense_columns.astype(np.int64)),
            tuple(torch.from_numpy(found) for found in codes),
            features.width,
            None if missing is None or not missing.any() else torch.from_numpy(~missing)[:, None],
        )

    def __len__(self) -> int:
        return len(self.dense)

    def matrix(self, rows: Any) -> Tensor:
        """X of some rows (an index tensor or a slice)."""
        dense = self.dense[rows]
        if not self.codes:
            return dense
        out = dense.new_zeros(len(dense), self.width + 1)
        out[:, self.dense_columns] = dense
        one = dense.new_ones(()).expand(len(dense), 1)
        for codes in self.codes:
            out.scatter_(1, codes[rows][:, None], one)
        return out[:, : self.width].contiguous()

    def linear(self, rows: Any, weight: Tensor, bias: Tensor | None) -> Tensor:
        """X Wᵀ + b of some rows, to be differentiated by W and b."""
        F = need_torch().nn.functional
        out: Tensor = F.linear(self.dense[rows], weight[:, self.dense_columns], bias)
        picked = F.pad(weight, (0, 1)).t() if self.codes else weight
        for codes in self.codes:
            out = out + F.embedding(codes[rows], picked)
        return out
