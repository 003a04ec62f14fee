"""A TCP relay between parties: a long link where there is none, and a link that can be cut, held and released.

In: connections to the relay's port. Out: the same bytes at another port of this machine, `delay` seconds later and
at most `rate` bytes a second, each way. The bytes are TLS: nothing here can read or change them.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable
from typing import Any

_CHUNK = 1 << 16


class Relay:
    """One link to a port, with a port of its own."""

    def __init__(self, target: int, *, host: str = "127.0.0.1", delay: float = 0.0, rate: float = math.inf) -> None:
        self._target, self._host = target, host
        self._delay, self._rate = delay, rate
        self._open = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._lines: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()
        self.accepted = 0  # connections that reached their target, so far
        self.carried = {"up": 0, "down": 0}  # bytes that came in, so far
        self.release()
        self._server = self._wait(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def hold(self, *directions: str) -> None:
        """Nothing passes any more; what was sent waits here."""
        for direction in directions or ("up", "down"):
            self._loop.call_soon_threadsafe(self._open[direction].clear)

    def release(self, *directions: str) -> None:
        """What waits here passes, and all that follows."""
        for direction in directions or ("up", "down"):
            self._loop.call_soon_threadsafe(self._open[direction].set)

    def cut(self) -> None:
        """Every connection breaks; new ones are accepted."""

        async def abort() -> None:
            for line in list(self._lines):
                line.transport.abort()

        self._wait(abort())

    def close(self) -> None:
        self._server.close()
        self.cut()
        self._wait(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wait(self, work: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._target)
        except OSError:
            writer.transport.abort()
            return
        self.accepted += 1
        both = {writer, far_writer}
        self._lines |= both
        lanes = [self._lane("up", reader, far_writer), self._lane("down", far_reader, writer)]
        try:
            await asyncio.gather(*lanes)
        except OSError:
            pass  # one side broke: so does the other, below
        finally:
            for line in both:
                line.transport.abort()
            self._lines -= both

    async def _lane(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction of one connection."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def take_in() -> None:
            is_free = self._loop.time()
            while chunk := await reader.read(_CHUNK):
                self.carried[direction] += len(chunk)
                is_free = max(is_free, self._loop.time()) + len(chunk) / self._rate
                under_way.put_nowait((is_free + self._delay, chunk))
            raise ConnectionResetError

        async def give_out() -> None:
            while True:
                due, chunk = await under_way.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._open[direction].wait()
                writer.write(chunk)
                await writer.drain()

        await asyncio.gather(take_in(), give_out())
