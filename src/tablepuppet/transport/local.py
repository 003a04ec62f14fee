"""In process: clients in threads, each behind the same frames that a network would carry.

Nothing but a frame's bytes passes between server and client: copies, or what nobody can change (arrays.fixed).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tablepuppet.errors import TransportError
from tablepuppet.protocol.codec import Frame

Handler = Callable[[Frame], Frame]


class LocalTransport:
    """Carries frames to clients in this process, one thread a client up to the number of cores."""

    def __init__(self, handlers: Mapping[str, Handler], threads: int | None = None) -> None:
        self._handlers = dict(handlers)
        workers = min(len(self._handlers) or 1, threads or os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tablepuppet-client")
        self._is_closed = False

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        if self._is_closed:
            if not wait:  # a last word to clients that are gone
                return {}
            raise TransportError("this federation is closed; make it again, or ask inside its `with` block")

        def serve(client: str) -> list[Frame]:
            handler = self._handlers[client]
            return [handler(frame) for frame in frames[client]]

        return dict(zip(frames, self._pool.map(serve, frames), strict=True))

    def accept(self) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        self._is_closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
