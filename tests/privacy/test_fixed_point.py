"""Fixed point: sums of integers are sums of floats, to the last bits of the largest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.privacy.masks import exponent_of, from_integers, to_integers

numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=9))
def test_a_sum_of_integers_is_the_sum_of_the_floats(parties: list[list[float]]) -> None:
    arrays = [np.array(p) / 16 for p in parties]
    exponent = max(exponent_of(a) for a in arrays)
    total = np.sum([to_integers(a, exponent, len(arrays)) for a in arrays], axis=0)
    found = from_integers(total, exponent, len(arrays))
    exact = [math.fsum(column) for column in zip(*arrays, strict=True)]
    largest = max(float(np.abs(a).max()) for a in arrays)
    assert np.allclose(found, exact, rtol=2.0**-52, atol=len(arrays) * 2.0**-55 * largest + 1e-300)


def test_a_value_beyond_its_scale_is_refused_not_wrapped() -> None:
    with pytest.raises(OverflowError):
        to_integers(np.array([2.0]), 1, 3)
    assert to_integers(np.array([np.nextafter(2.0, 0)]), 1, 3)[0] <= 2**60
