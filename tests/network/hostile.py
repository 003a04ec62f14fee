"""A client of a real federation that lies: its own process runs the real command, with answers changed on their way.

`lie` names a function of this module; it gets every answer (decoded) and gives the one that is sent.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tablepuppet.cli.main import main
from tablepuppet.exchanges.keys import Keys
from tablepuppet.exchanges.labels import Labels
from tablepuppet.exchanges.parts import Encoded
from tablepuppet.exchanges.registry import RESPONSES
from tablepuppet.exchanges.start import Started
from tablepuppet.network.member import IdempotentClient
from tablepuppet.protocol.base import Failure, Predictions
from tablepuppet.protocol.codec import Frame, decode, encode

_FORKS = multiprocessing.get_context("forkserver")
Lie = Callable[[Any, Frame], Frame]


def outside_the_dictionary(answer: Any, frame: Frame) -> Frame:
    """Key tokens whose numbers point a million entries beyond their dictionary."""
    if not isinstance(answer, Keys):
        return frame
    column = answer.columns.column(0).combine_chunks()
    numbers = pa.array(np.full(len(column), 2**30, np.int32))
    bad = pa.DictionaryArray.from_arrays(numbers, column.dictionary, safe=False)
    return encode(replace(answer, columns=pa.table({answer.columns.column_names[0]: bad})), frame.wire)


def a_billion_parameters(answer: Any, frame: Frame) -> Frame:
    return encode(replace(answer, width=10**9), frame.wire) if isinstance(answer, Started) else frame


def eight_gibibytes_of_zeros(answer: Any, frame: Frame) -> Frame:
    """Predictions that are a quarter of a megabyte on the wire."""
    if not isinstance(answer, Predictions):
        return frame
    size = 1 << 33
    block = pa.compress(bytes(1 << 26), "zstd", asbytes=True)
    header = {
        "type": "Predictions",
        "values": [0, "<f8", [size // 8, 1], "<f8"],
        "products": [1, "<f8", [1], "<f8"],
    }
    return Frame(
        bytes([4]) + msgspec.msgpack.encode(header), [block * 128, pa.compress(bytes(8), "zstd", asbytes=True)]
    )


def a_gibibyte(answer: Any, frame: Frame) -> Frame:
    """Predictions that take a gibibyte on the wire, too."""
    if not isinstance(answer, Predictions):
        return frame
    header = {"type": "Predictions", "values": [0, "<f8", [1 << 27, 1], "<f8"], "products": [1, "<f8", [1], "<f8"]}
    return Frame(bytes([0]) + msgspec.msgpack.encode(header), [bytes(1 << 30), bytes(8)])


def another_table_each_time(answer: Any, frame: Frame) -> Frame:
    """Keys in another order, and rows that are not there, in whatever says how many."""
    if isinstance(answer, Keys):
        turned = np.random.default_rng(time.time_ns()).permutation(answer.columns.num_rows)
        return encode(replace(answer, columns=answer.columns.take(pa.array(turned)).slice(1)), frame.wire)
    return frame


def twice_and_backwards(answer: Any, frame: Frame) -> Frame:
    """An answer of the round before instead of this one."""
    before = _LAST.get("frame", frame)
    _LAST["frame"] = frame
    return before


_LAST: dict[str, Frame] = {}


def no_numbers(answer: Any, frame: Frame) -> Frame:
    """NaN in every array of floats of every answer, whatever its type."""
    return _arrays(answer, frame, lambda a: np.full_like(a, np.nan) if a.dtype.kind == "f" else a)


def one_less(answer: Any, frame: Frame) -> Frame:
    """Every array of every answer is an entry short."""
    return _arrays(answer, frame, lambda a: a[:-1].copy() if a.ndim and len(a) else a)


def _arrays(answer: Any, frame: Frame, change: Callable[[Any], Any]) -> Frame:
    found = {
        name: change(value) if isinstance(value, np.ndarray) else [change(v) for v in value]
        for name in answer.__struct_fields__
        if isinstance(value := getattr(answer, name), np.ndarray)
        or (isinstance(value, list) and value and all(isinstance(v, np.ndarray) for v in value))
    }
    return encode(replace(answer, **found), frame.wire) if found else frame


def too_few_labels(answer: Any, frame: Frame) -> Frame:
    if not isinstance(answer, Labels):
        return frame
    return encode(replace(answer, values=answer.values[:-1].copy(), is_test=answer.is_test[:-1].copy()), frame.wire)


def garbage(answer: Any, frame: Frame) -> Frame:
    return Frame(b"\x00\xff\x00garbage", [bytes(99)]) if isinstance(answer, Encoded) else frame


def escapes(answer: Any, frame: Frame) -> Frame:
    """A refusal that would clear the reader's terminal, and then fill it."""
    return (
        encode(Failure(error="SourceError", message="\x1b[2J\x1b]0;owned\x07 no" + 60_000 * "\x1b"))
        if isinstance(answer, Encoded)
        else frame
    )


def gone(answer: Any, frame: Frame) -> Frame:
    """A refusal in the name of an error that is the server's own: that a connection ended."""
    gone = Failure(error="DisconnectedError", message="the other process is gone")
    return encode(gone) if isinstance(answer, Encoded) else frame


def mute(answer: Any, frame: Frame) -> Frame:
    """No answer at all, while signs of life go on."""
    if isinstance(answer, Encoded):
        time.sleep(3600)
    return frame


def start(command: Sequence[str], log: Path, lie: str) -> BaseProcess:
    process = _FORKS.Process(target=_run, args=(list(command), log, lie))
    process.start()
    return process


def _run(command: list[str], log: Path, lie: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    honest, change = IdempotentClient.answer, globals()[lie]

    def answer(self: IdempotentClient, request: Any, frames: Any) -> Sequence[Frame]:
        return [change(decode(frame, RESPONSES), frame) for frame in honest(self, request, frames)]

    IdempotentClient.answer = answer  # type: ignore[method-assign]
    sys.exit(main(command))


def run_plainly(command: list[str], log: Path) -> None:
    """A command, its output in a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.exit(main(command))
