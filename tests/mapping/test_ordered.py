"""Values in ascending order are those that NumPy sorts, whatever they are, and take no second array."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tablepuppet.arrays import Array
from tablepuppet.mapping.rows import ordered
from tablepuppet.mapping.rows.ordered import ascending
from tablepuppet.threads import Pool

ROWS = 700_001
KINDS: dict[str, Callable[[np.random.Generator], Array]] = {
    "a bell": lambda rng: rng.normal(size=ROWS),
    "few different ones": lambda rng: rng.integers(0, 5, ROWS) / 7,
    "one far away": lambda rng: np.append(rng.normal(size=ROWS), 1e300),
    "too far apart to tell": lambda rng: np.append(rng.normal(size=ROWS), [-1.7e308, 1.7e308]),
    "too near to tell": lambda rng: rng.choice([0.0, 5e-324, 1e-323], ROWS),
    "all the same": lambda rng: np.full(ROWS, -0.5),
    "some that are no numbers": lambda rng: np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(size=ROWS)),
    "some without end": lambda rng: np.where(rng.random(ROWS) < 0.1, np.inf, rng.normal(size=ROWS)),
    "in order": lambda rng: np.arange(ROWS) / 3,
    "few rows": lambda rng: rng.normal(size=1_000),
    "none": lambda rng: np.empty(0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_come_as_numpy_sorts_them(kind: str) -> None:
    values = KINDS[kind](np.random.default_rng(0))
    expected = np.sort(values)
    found = np.concatenate(list(ascending(values)))
    assert np.array_equal(found, expected, equal_nan=True)


def test_many_values_come_some_at_a_time() -> None:
    parts = [len(part) for part in ascending(np.random.default_rng(0).random(ROWS))]
    assert max(parts) < ROWS / 4


def test_no_second_array_is_made_of_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "pool", partial(Pool, 2))  # each thread has some values at hand
    values = np.random.default_rng(0).random(1 << 22)
    tracemalloc.start()
    try:
        for _ in ascending(values):
            pass
        assert tracemalloc.get_traced_memory()[1] < values.nbytes / 2
    finally:
        tracemalloc.stop()
