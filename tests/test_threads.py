"""One thread of linear algebra while anybody asks for it, as many as before afterwards; what several threads share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from tablepuppet.threads import one_blas_thread, parallel_for


def blas_threads() -> set[int]:
    """Of NumPy's BLAS: what other libraries bring may be loaded later than ours looked."""
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    ours = [library["num_threads"] for library in found if Path(np.__file__).parent.name in library["filepath"]]
    return set(ours or [library["num_threads"] for library in found])


def test_blas_has_one_thread_until_the_last_one_leaves() -> None:
    with threadpool_limits(limits=2, user_api="blas"):
        with one_blas_thread:
            with one_blas_thread:
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_every_row_is_seen_once() -> None:
    seen = np.zeros(1003, int)

    def see(rows: slice) -> None:
        seen[rows] += 1

    for step in (1, 10, 1003, 5000):
        parallel_for(see, len(seen), step)
    assert (seen == 4).all()
