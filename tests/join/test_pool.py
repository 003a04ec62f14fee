"""A pool gives results in order, begins no more than it has threads for, and passes errors on."""

from __future__ import annotations

import threading

import pytest

from tablepuppet.threads import Pool


def test_results_come_in_order_and_no_more_are_kept_than_there_are_threads() -> None:
    begun: list[int] = []
    lock = threading.Lock()

    def work(item: int) -> int:
        with lock:
            begun.append(item)
        return item * item

    taken: list[int] = []
    for result in Pool(3).map(work, range(20)):
        assert len(begun) <= len(taken) + 3
        taken.append(result)
    assert taken == [item * item for item in range(20)]


def test_an_error_ends_the_walk_and_nothing_else_is_begun() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 1:
            raise ZeroDivisionError
        return item

    with pytest.raises(ZeroDivisionError):
        list(Pool(1).map(work, range(10)))
    assert begun == [0, 1]
