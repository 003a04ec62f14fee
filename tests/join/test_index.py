"""What row numbers of a batch are found."""

from __future__ import annotations

import numpy as np
import pytest

from tablepuppet.join.row_index import distinct


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("rows", "size"), [(1 << 16, 1 << 15), (1 << 16, 1 << 22), (300, 200), (300, 1 << 20)])
def test_the_different_rows_of_a_batch_are_found_whatever_their_order(rows: int, size: int, is_sorted: bool) -> None:
    drawn = np.random.default_rng(0).integers(-1, size, rows).astype(np.int32)
    drawn = np.sort(drawn) if is_sorted else drawn
    found, where = distinct(drawn, size)
    expected, inverse = np.unique(drawn, return_inverse=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(where, inverse)
