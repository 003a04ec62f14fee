"""A part's encoded rows as torch input, whole or one first layer at a time.

In: Features (numbers and category codes, one row per row of the table). Out: a (rows, width)
tensor, or W x + b of a first linear layer, which picks columns of W by code, so that wide one-hot
columns are never written out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.models.features import Features
from tablepuppet.models.modules import need_torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The rows of one side (train or test) of a part."""

    dense: Tensor  # (n, p)
    dense_columns: Tensor
    codes: tuple[Tensor, ...]  # the zero vector has the code behind the last category
    code_columns: tuple[slice, ...]
    width: int

    @classmethod
    def of(cls, features: Features, dtype: str) -> Inputs:
        torch = need_torch()
        codes = []
        for given, columns in zip(features.codes, features.code_columns, strict=True):
            size = columns.stop - columns.start
            codes.append(torch.from_numpy(np.where(given < 0, size, given).astype(np.int64)))
        return cls(
            torch.from_numpy(np.ascontiguousarray(features.dense, dtype=dtype)),
            torch.from_numpy(features.dense_columns.astype(np.int64)),
            tuple(codes),
            features.code_columns,
            features.width,
        )

    def __len__(self) -> int:
        return len(self.dense)

    def matrix(self, rows: Any) -> Tensor:
        """X of some rows (an index tensor or a slice)."""
        dense = self.dense[rows]
        if not self.codes:
            return dense
        out = dense.new_zeros(len(dense), self.width)
        out[:, self.dense_columns] = dense
        one = dense.new_ones(())
        for codes, columns in zip(self.codes, self.code_columns, strict=True):
            size = columns.stop - columns.start
            wide = dense.new_zeros(len(dense), size + 1)
            wide.scatter_(1, codes[rows][:, None], one.expand(len(dense), 1))
            out[:, columns] = wide[:, :size]
        return out

    def linear(self, rows: Any, weight: Tensor, bias: Tensor | None) -> Tensor:
        """X Wᵀ + b of some rows."""
        F = need_torch().nn.functional
        out: Tensor = F.linear(self.dense[rows], weight[:, self.dense_columns], bias)
        for codes, columns in zip(self.codes, self.code_columns, strict=True):
            picked = F.pad(weight[:, columns], (0, 1)).t()
            out = out + F.embedding(codes[rows], picked)
        return out
