"""NumPy's loops do what the compiled ones do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.mapping.walk import compiled, gather_scatter
from tablepuppet.mapping.walk.gather_scatter import NumpyLoops


@given(rows=st.integers(1, 40), joined=st.integers(0, 300), piece=st.sampled_from([7, 64, 1 << 20]), seed=st.integers())
def test_rows_are_numbered_as_they_appear(rows: int, joined: int, piece: int, seed: int) -> None:
    given = np.random.default_rng(abs(seed)).integers(-1, rows, joined).astype(np.int32)
    found = []
    for way in (compiled, NumpyLoops):
        index, number, order = given.copy(), np.full(rows, -1, np.int32), np.zeros(rows, np.int32)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gather_scatter, "_PIECE", piece)
            way.number_by_appearance(index, number, order)
        found.append((index.tolist(), number.tolist(), order.tolist()))
    assert found[0] == found[1]


@given(rows=st.integers(1, 40), columns=st.integers(1, 4), seed=st.integers(0, 99))
def test_values_are_arranged_and_put_back(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, order = rng.normal(size=(rows, columns)), rng.permutation(rows).astype(np.int32)
    for way in (compiled, NumpyLoops):
        arranged, restored = np.empty_like(values), np.empty_like(values)
        way.gather(arranged, values, order)
        np.testing.assert_array_equal(arranged, values[order])
        way.put(restored, arranged, order)
        np.testing.assert_array_equal(restored, values)
