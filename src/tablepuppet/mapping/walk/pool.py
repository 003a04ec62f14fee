"""The threads that walk over lanes: as many results at a time as there are threads.

A lane's result can be as large as the tables, so a lane is begun only when an earlier one's result has been taken.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool:
    """Some threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tablepuppet-joined")

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """What the function gives for each item, in order; whoever takes a result works beside the other threads."""
        begun: deque[Future[Result]] = deque()
        try:
            for item in items:
                if len(begun) == self._threads:
                    yield begun.popleft().result()
                begun.append(self._executor.submit(function, item))
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:  # nobody wants them any more
                future.cancel()


@cache
def pool() -> Pool:
    """One pool for all walks of this process."""
    return Pool(os.cpu_count() or 1)
