"""A worker of a cluster: holds pieces of a joined table and walks over them.

In: calls that name a piece and say which version of the algorithm's state they start from. Out: what
each lane of the piece gives. Nothing here cannot be made again: a piece is loaded from disk when it is
first asked for, and the state is written there after every walk that changed it, so any worker can
answer any call, and the same call twice is answered the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.joined import JoinedRows, LaneResult, Work
from tablepuppet.mapping.pieces import Storage, load
from tablepuppet.transport.messages import Array, RowNumbers
from tablepuppet.version import __version__


class Kept(msgspec.Struct, frozen=True):
    """One state of an algorithm: its shape, and the walk that wrote it last (0: none, it is all zeros)."""

    outputs: int
    dtype: str
    version: int = 0


class Walk(msgspec.Struct, frozen=True):
    """One walk over a piece; the per-row arrays come beside it."""

    number: int
    work: Work
    blocks: int
    state: dict[str, Kept]


class Worker:
    """Pieces, each with its state at some version."""

    def __init__(self, place: str) -> None:
        self._storage = Storage(place)
        self._pieces: dict[str, JoinedRows] = {}
        self._versions: dict[tuple[str, str], int] = {}
        self._written: dict[tuple[str, str], list[int]] = {}

    def version(self) -> str:
        """What is installed on this worker's node."""
        return __version__

    def walk(self, path: str, walk: Walk, *arrays: Array) -> list[LaneResult]:
        """Walks over a piece; what it wrote is on disk before it answers."""
        piece = self._at(path, walk.state)
        per_row, columns = arrays[: walk.blocks], arrays[walk.blocks :]
        results = list(piece.walk(walk.work, per_row, columns))
        for name in walk.work.writes:
            self._keep(path, name, walk.number)
        return results

    def collect(self, path: str, name: str, state: dict[str, Kept]) -> Array:
        """A state's value for every joined row of a piece, which gives it up."""
        values = self._at(path, state).collect(name)
        del self._versions[path, name]
        return values

    def look_up(self, path: str, joined: NDArray[np.int64]) -> tuple[list[RowNumbers], Array, Array | None]:
        """p_i, labels and weights of some of a piece's joined rows."""
        return self._at(path, {}).look_up(joined)

    def _at(self, path: str, state: Mapping[str, Kept]) -> JoinedRows:
        """A piece, with its state as a call wants it."""
        if path not in self._pieces:
            self._pieces[path] = load(self._storage, path)
        piece = self._pieces[path]
        for name, kept in state.items():
            if self._versions.get((path, name)) == kept.version:
                continue
            piece.allocate(name, kept.outputs, np.dtype(kept.dtype).type)
            if kept.version:
                columns, _ = self._storage.read(_name(path, name, kept.version))
                piece.state[name][...] = columns["values"].reshape(piece.rows, kept.outputs)
            self._versions[path, name] = kept.version
        return piece

    def _keep(self, path: str, name: str, version: int) -> None:
        """Writes a state; the version before stays, for whoever must answer the same call again."""
        values = self._pieces[path].state[name]
        self._storage.write(_name(path, name, version), {"values": values.reshape(-1)})
        self._versions[path, name] = version
        written = self._written.setdefault((path, name), [])
        written.append(version)
        for old in written[:-2]:
            self._storage.remove(_name(path, name, old))
        del written[:-2]


def _name(path: str, state: str, version: int) -> str:
    return f"{path}-{state}-{version}"
