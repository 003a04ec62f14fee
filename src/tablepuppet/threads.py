"""Threads of linear algebra: one while a model is trained, so that its bits do not depend on the machine.

A sum that BLAS divides among threads is rounded differently for every number of them. Owners have different machines,
and a rehearsal in one process has yet another: with one thread each, all give the same model. Clients in one process
and shards of joined rows keep the cores busy by themselves; BLAS threads on top of them would fight over the cores.

Work row by row is shared out among the same threads: none of it depends on their number.

One pool of threads walks over the lanes of joined rows. It keeps as many results at a time as it has threads: a lane's
result can be as large as the tables, so a lane is begun only when an earlier one's result has been taken.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar, cast

from threadpoolctl import ThreadpoolController


class _OneBlasThread:
    """While anybody is inside, in whatever thread, BLAS works in its callers' threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._limit = _controller().limit(limits=1, user_api="blas")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


one_blas_thread = _OneBlasThread()


@cache
def _controller() -> ThreadpoolController:
    """The BLAS libraries that are loaded: NumPy's. SciPy's serves the centralised baseline alone, which keeps all
    its threads."""
    return ThreadpoolController()


Loop = TypeVar("Loop", bound=Callable[..., Any])


def compile_loop(function: Loop, **options: Any) -> Loop:
    """A loop that numba compiles once per machine, releases the interpreter's lock and rounds as it is written.

    It is kept beside its file, or in the user's cache folder where that is read-only; without both, in memory.
    """
    from numba import njit  # here: most processes never need it, and it takes a second to load

    options |= {"nogil": True, "error_model": "numpy"}
    try:
        return cast(Loop, njit(function, cache=True, **options))
    except RuntimeError:  # no folder can be written
        return cast(Loop, njit(function, **options))


def compile_sums(function: Loop) -> Loop:
    """The same of sums, which keep their order, with fused products."""
    return compile_loop(function, fastmath={"contract", "nsz", "nnan"})


@contextmanager
def call_after(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Calls the action after a while, unless what is inside has ended by then."""
    alarm = threading.Timer(seconds, action)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tablepuppet-joined")

    def map(self, function: Callable[[Item], Result], items: Iterable[Item], ahead: int = 0) -> Iterator[Result]:
        """The function's result for each item, in order; the caller works while other threads do.

        `ahead`: small results that may pile up, so that no thread waits until one of them was taken.
        """
        begun: deque[Future[Result]] = deque()
        try:
            for item in items:
                if len(begun) == self._threads + ahead:
                    yield begun.popleft().result()
                begun.append(self._executor.submit(function, item))
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:  # nobody wants them any more
                future.cancel()


def pool() -> Pool:
    """One pool for all walks of this process."""
    return _pool_of(os.getpid())


@cache
def _pool_of(process: int) -> Pool:
    """A process that was forked has a pool of its own: threads stay behind."""
    return Pool(os.cpu_count() or 1)


def parallel_for(function: Callable[[slice], None], rows: int, step: int) -> None:
    """Calls the function for all rows, `step` at a time, several calls at once.

    The pool's own threads must not use it: they would wait for each other.
    """
    views = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
    for _ in pool().map(function, views, len(views)) if len(views) > 1 else map(function, views):
        pass
