"""One party's process, forked from one that has imported everything: there in milliseconds, killed like any other.

It runs the very command that an administrator would type. A party can be told to send its next message twice.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tablepuppet import client
from tablepuppet.cli.main import main, make_app
from tablepuppet.exchanges import steps
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.exchanges.schema import CloseJob, OpenScan
from tablepuppet.owner.enforcement import ContractEnforcer
from tablepuppet.transport.connections import Stream
from tablepuppet.transport.envelopes import Reply, Request

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])
_CLONE_NEWNET = 0x40000000

make_app()  # a command loads its libraries when it runs: here once, before the fork, and not in every process
for _library in ("pandas", "pyarrow.pandas_compat", "asyncio", "pydantic"):  # as pyarrow and typer load them
    importlib.import_module(_library)


def start(
    command: Sequence[str],
    log: Path,
    *,
    namespace: str | None = None,
    twice: Path | None = None,
    limit: int | None = None,
    measured: Path | None = None,
    descriptors: tuple[int, int] | None = None,
) -> BaseProcess:
    """A process that runs `tablepuppet COMMAND`, in a network namespace if one is named.

    `limit`: bytes of address space that it, and each process that it starts, may have. Whenever the file `twice`
    exists, its next request or reply is sent twice, and the file goes. `measured`: where a client writes, at the end of
    a job, its CPU seconds since it was opened, and those that stood between requests and their answers. `descriptors`:
    its soft and hard limit of open files.
    """
    process = _FORKS.Process(target=_run, args=(list(command), log, namespace, twice, limit, measured, descriptors))
    process.start()
    return process


def _run(
    command: list[str],
    log: Path,
    namespace: str | None,
    twice: Path | None,
    limit: int | None,
    measured: Path | None,
    descriptors: tuple[int, int] | None,
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if namespace is not None:
        _enter(namespace)
    if twice is not None:
        _stutter(twice)
    if measured is not None:
        _measure(measured)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)
    sys.exit(main(command))


def _measure(path: Path) -> None:
    """Counts what a client's rules and contract take of its CPU time."""
    spent = {"rules": 0.0, "requests": 0.0}

    def count(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return inner(*given, **named)
            finally:
                spent["rules"] += time.thread_time() - began

        return call

    ContractEnforcer.check = count(ContractEnforcer.check)  # type: ignore[method-assign]
    steps.count_batch = count(steps.count_batch)
    for kind, exchange in EXCHANGES.items():
        handle = count(exchange.handle) if kind is ProposeContract else exchange.handle
        check = count(exchange.check_request)
        EXCHANGES[kind] = replace(exchange, check_request=check, handle=handle)
    answer, began = client.Client.answer, [time.process_time()]

    def counted(self: client.Client, message: Any) -> Any:
        if isinstance(message, OpenScan) and not spent["requests"]:
            began[0] = time.process_time()
        spent["requests"] += 1
        found = answer(self, message)
        if isinstance(message, CloseJob):
            path.write_text(json.dumps(spent | {"cpu": time.process_time() - began[0]}))
        return found

    client.Client.answer = counted  # type: ignore[method-assign]


def _enter(namespace: str) -> None:
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(descriptor)


def _stutter(twice: Path) -> None:
    send = Stream.send

    def again(stream: Stream, envelope: Any, frames: Any) -> None:
        if isinstance(envelope, Request | Reply) and twice.exists():
            twice.unlink()
            send(stream, envelope, frames)

    def stuttering(self: Stream, envelope: Any, frames: Any = ()) -> None:
        send(self, envelope, frames)
        again(self, envelope, frames)

    Stream.send = stuttering  # type: ignore[method-assign]
