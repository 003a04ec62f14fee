"""Threads of linear algebra: one while a model is trained, so that its bits do not depend on the machine.

A sum that BLAS divides among threads is rounded differently for every number of them. Owners have different machines,
and a rehearsal in one process has yet another: with one thread each, all give the same model. Clients in one process
and shards of joined rows keep the cores busy by themselves; BLAS threads on top of them would fight over the cores.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

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
    """Of the BLAS libraries that are loaded: NumPy's is. SciPy's serves the centralised baseline alone, which keeps all
    its threads."""
    return ThreadpoolController()
