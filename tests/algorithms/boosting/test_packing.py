"""Integers come back as they were packed, and a packing that lies about itself is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tablepuppet.algorithms.boosting import kernels, packing
from tablepuppet.algorithms.boosting.packing import pack, unpack
from tablepuppet.algorithms.boosting.plain import bits as by_numpy
from tablepuppet.errors import TransportError


@given(arrays(np.int64, st.tuples(st.just(3), st.integers(0, 3000)), elements=st.integers(-(2**62), 2**62)))
def test_packed_integers_come_back(values: np.ndarray) -> None:
    assert np.array_equal(unpack(pack(values.shape[1], list(values))), values)


@given(st.integers(1, 2500), st.integers(0, 16), st.sampled_from([np.int64, np.int32]))
def test_values_take_the_bits_of_their_range(count: int, bits: int, dtype: type) -> None:
    values: np.ndarray = np.random.default_rng(count).integers(0, 2**bits, count).astype(dtype)
    packed = pack(count, [None, values, None])
    assert packed.words.nbytes <= count * bits / 8 + 16
    assert np.array_equal(unpack(packed)[1], values)


@given(st.integers(1, 3000), st.floats(4.0, 40.0), st.integers(-(2**40), 2**40))
def test_few_values_that_lie_far_away_do_not_make_the_others_wide(count: int, width: float, middle: int) -> None:
    rng = np.random.default_rng(count)
    values = middle + np.rint(rng.laplace(0, 2**width, count)).astype(np.int64)
    packed = pack(count, [None, values, None])
    assert np.array_equal(unpack(packed)[1], values)
    full = count // packing.CHUNK * packing.CHUNK
    if full:  # the entropy of what was drawn is 1 + log2(e) + width
        assert 64 * len(pack(full, [None, values[:full], None]).words) <= full * (width + 3) + 256 * full / 1024


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("is_rare", [True, False])
def test_what_follows_from_g_is_not_sent_of_h(bits: int, is_rare: bool) -> None:
    rng = np.random.default_rng(bits)
    p = 1 / (1 + np.exp(rng.normal(4.0 if is_rare else 0.0, 2.0, 5000)))
    y = rng.random(5000) < p
    by_g, by_h = 2.0 ** (bits - 2), 2.0**bits
    g, h = np.floor((p - y) * by_g + 0.5).astype(np.int64), np.floor(p * (1 - p) * by_h + 0.5).astype(np.int64)
    plain, packed = pack(5000, [None, g, h]), pack(5000, [None, g, h], (1 / by_g, 1 / by_h))
    assert np.array_equal(unpack(packed), unpack(plain))
    assert (packed.top, packed.shift) == (2 ** (bits - 2), bits - 4)
    assert 64 * len(packed.words) <= 64 * len(pack(5000, [None, g, None]).words) + 3.2 * 5000
    other = pack(5000, [None, g, rng.permutation(h)], (1 / by_g, 1 / by_h))  # nothing follows: it is sent whole
    assert other.top == 0


@given(arrays(np.int64, st.integers(1, 2500), elements=st.integers(-(2**50), 2**50) | st.integers(-40, 40)))
def test_numpy_packs_the_words_of_the_compiled_loops(values: np.ndarray) -> None:
    chunks = -(-len(values) // packing.CHUNK)
    found = []
    for loops in (kernels, by_numpy):
        how: list[Any] = [np.zeros(chunks, t) for t in (np.int64, np.uint8, np.int32)]
        words = np.zeros(loops.widths_of(values, packing.CHUNK, *how), np.uint64)
        loops.pack(values, packing.CHUNK, *how, words)
        out = np.zeros((1, len(values)), np.int64)
        packed: tuple[Any, ...] = (words, packing.CHUNK, *(array[None] for array in how), np.zeros(1, np.int64), out)
        assert by_numpy.unpack(*packed)
        assert np.array_equal(out[0], values)
        found.append([*how, words])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("loops", [kernels, by_numpy])
@pytest.mark.parametrize("word", [0, -1])
def test_a_packing_with_fewer_or_more_values_than_it_says_is_refused(
    loops: Any, word: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.append(np.arange(1000) % 7, 2**30)
    packed = pack(1001, [None, values, None])
    assert packed.unary[1, 0] > 0
    monkeypatch.setattr(kernels, "unpack", loops.unpack)
    with pytest.raises(TransportError):
        unpack(msgspec.structs.replace(packed, words=np.full_like(packed.words, word)))


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1},
        {"size": 10**12},
        {"size": 2000},
        {"words": np.zeros(3, np.int64)},
        {"words": np.zeros((2, 2), np.int64)},
        {"widths": np.full((3, 1), 255, np.uint8)},
        {"widths": np.zeros(3, np.uint8)},
        {"least": np.zeros((3, 1), np.int32)},
        {"unary": np.full((3, 1), -1, np.int32)},
        {"unary": np.full((3, 1), 2**31 - 1, np.int32)},
        {"unary": np.zeros((3, 1), np.int64)},
        {"unary": np.zeros((3, 2), np.int32)},
        {"widths": np.array([[0], [63], [0]], np.uint8), "unary": np.ones((3, 1), np.int32)},
        {"top": -1},
        {"top": 2**40},
        {"shift": 64},
    ],
)
def test_a_packing_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    packed = pack(100, [None, np.arange(100), None])
    with pytest.raises(TransportError):
        unpack(msgspec.structs.replace(packed, **change))
