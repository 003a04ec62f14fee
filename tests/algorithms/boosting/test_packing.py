"""Integers come back as they were packed, and a packing that lies about itself is refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tablepuppet.algorithms.boosting.packing import pack, unpack
from tablepuppet.errors import TransportError


@given(arrays(np.int64, st.tuples(st.just(4), st.integers(0, 3000)), elements=st.integers(-(2**62), 2**62)))
def test_packed_integers_come_back(values: np.ndarray) -> None:
    assert np.array_equal(unpack(pack(values.shape[1], list(values))), values)


@given(st.integers(1, 2500), st.integers(0, 16), st.sampled_from([np.int64, np.int32]))
def test_values_take_the_bits_of_their_range(count: int, bits: int, dtype: type) -> None:
    values: np.ndarray = np.random.default_rng(count).integers(0, 2**bits, count).astype(dtype)
    packed = pack(count, [None, values, None, None])
    assert packed.words.nbytes <= count * bits / 8 + 16
    assert np.array_equal(unpack(packed)[1], values)


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1},
        {"size": 10**12},
        {"size": 2000},
        {"words": np.zeros(3, np.int64)},
        {"words": np.zeros((2, 2), np.int64)},
        {"widths": np.full((4, 1), 255, np.uint8)},
        {"widths": np.zeros(4, np.uint8)},
        {"least": np.zeros((4, 1), np.int32)},
    ],
)
def test_a_packing_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    packed = pack(100, [None, np.arange(100), None, None])
    with pytest.raises(TransportError):
        unpack(msgspec.structs.replace(packed, **change))
