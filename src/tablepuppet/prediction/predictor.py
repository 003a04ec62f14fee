"""Predictor: single requests by key, answered from memory.

In: a batch of predictions and its key. Out: for one key, its rows, in microseconds. What it answers is what the tables
held when it was made or last refreshed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tablepuppet.errors import ModelError


class Predictor:
    """Predictions of all joined rows, found by the key of the label table."""

    def __init__(self, predict: Callable[[], pa.Table], key: Sequence[str]) -> None:
        self.key = tuple(key)
        self._predict = predict
        self.refresh()

    def refresh(self) -> None:
        """Reads the owners' tables anew."""
        import pandas as pd  # here, not above: most runs never need it, and it takes 40 MB and a third of a second

        table = self._predict().combine_chunks()
        columns = [table.column(_shown(name, table)).to_pandas() for name in self.key]
        index = pd.Index(columns[0]) if len(columns) == 1 else pd.MultiIndex.from_arrays(columns)
        codes, self._keys = pd.factorize(index)
        # Rows with the same key, one after the other: those of key k lie in order[starts[k]:starts[k + 1]].
        self._order = np.argsort(codes, kind="stable")
        self._starts = np.searchsorted(codes[self._order], np.arange(len(self._keys) + 1))
        self._table = table

    def __call__(self, *key: Any) -> pa.Table:
        """The predictions for one key: a row for each joined row of the base row(s) with that key."""
        if len(key) != len(self.key):
            raise ModelError(f"the key is ({', '.join(self.key)}): {len(self.key)} values, and {len(key)} were given")
        import pandas as pd

        try:
            position = int(self._keys.get_loc(key[0] if len(key) == 1 else key))
        except (KeyError, TypeError, pd.errors.InvalidIndexError):
            raise ModelError(
                f"no joined row has this {' and '.join(self.key)}; it may be new (call refresh()), of another type, "
                "or without partners in the join"
            ) from None
        rows = self._order[self._starts[position] : self._starts[position + 1]]
        return self._table.take(pa.array(rows))

    def find(self, keys: Sequence[Sequence[Any]]) -> pa.Table | None:
        """The predictions for some keys, in the order of the rows; None: the keys are not of the columns' own types."""
        kinds = [self._table.schema.field(_shown(name, self._table)).type for name in self.key]
        if not all(len(key) == len(kinds) and all(map(_is_of, key, kinds)) for key in keys):
            return None
        wanted = [key[0] for key in keys] if len(kinds) == 1 else list(map(tuple, keys))
        found = np.unique(self._keys.get_indexer(wanted)) if wanted else np.empty(0, np.intp)
        rows = [self._order[self._starts[k] : self._starts[k + 1]] for k in found if k >= 0]
        return self._table.take(pa.array(np.sort(np.concatenate(rows)) if rows else np.empty(0, np.int64)))

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._keys)

    def __repr__(self) -> str:
        return f"Predictor({len(self):,} keys of {', '.join(self.key)})"


def _is_of(value: Any, kind: pa.DataType) -> bool:
    """Whether a key is of the type that its column has, so that a look-up means what SQL would mean."""
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(value, int):
        return bool(pa.types.is_integer(kind)) and -(2**63) <= value < 2**63
    return isinstance(value, str) and any(is_text(kind) for is_text in _TEXTS)


_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def _shown(name: str, table: pa.Table) -> str:
    """The answer's name for a key column: without its alias, and set apart from a column of predictions."""
    short = name.rpartition(".")[2]
    return f"key_{short}" if f"key_{short}" in table.column_names else short
