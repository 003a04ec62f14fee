"""Lanes of joined rows as views (models/compiler.py): what a compiled pass over a whole lane works on.

In: joined rows, the borders of a lane, and each block's values. Out: a view, and where it leaves what is collapsed
to each block. Where a block's rows come in order, lanes hardly share any of its rows: each then writes straight into
the whole, all but the first of its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, floats
from tablepuppet.mapping.rows.index import RowIndex
from tablepuppet.models.compiler import LaneView

Collapsed = list[tuple[int, Array]]  # for each block: the first row, and what is to be added from there on


class Rows(Protocol):
    """What a view needs of joined rows."""

    @property
    def indices(self) -> tuple[RowIndex, ...]: ...

    @property
    def label_index(self) -> RowIndex: ...

    @property
    def labels(self) -> NDArray[Any]: ...

    @property
    def state(self) -> Mapping[str, NDArray[Any]]: ...


def whole(indices: Sequence[RowIndex]) -> list[Array | None]:
    """For each block whose rows come in order an array that all lanes write into."""
    return [(np.empty if p.index is None else np.zeros)((p.rows, 1)) if p.is_sorted else None for p in indices]


def lane_view(
    rows: Rows,
    start: int,
    stop: int,
    values: Sequence[Array],
    writes: Collection[str],
    own: float,
    targets: Sequence[Array | None],
) -> tuple[LaneView, Collapsed]:
    """Joined rows start ≤ j < stop; `targets` as `whole` made them, or nothing for some blocks."""
    count = len(rows.indices)
    base, shared, edge = np.zeros(count, np.int64), np.full(count, -1, np.int64), np.zeros(count)
    out: list[Array] = []
    collapsed: Collapsed = []
    for i, (p, target) in enumerate(zip(rows.indices, targets, strict=True)):
        low, high = p.span(start, stop)
        base[i] = low
        if p.is_sorted:
            shared[i] = 0
        if target is None:
            out.append((np.empty if p.index is None else np.zeros)(high - low))
            collapsed.append((low, out[i][:, None]))
            continue
        out.append(target[low:high, 0])
        if p.index is not None:
            shared[i] = np.searchsorted(p.index[start:stop], low, side="right") if start else 0
            collapsed.append((low, edge[i : i + 1, None]))
        else:
            collapsed.append((low, edge[:0, None]))
    state = {name: rows.state[name][start:stop, 0] for name in writes}
    for kept in state.values():
        kept.flags.writeable = True
    view = LaneView(
        rows=stop - start,
        values=tuple(_per_row(p, v, start, stop) for p, v in zip(rows.indices, values, strict=True)),
        indices=tuple(_numbers(p, start, stop) for p in rows.indices),
        labels=_per_row(rows.label_index, rows.labels, start, stop),
        label_index=_numbers(rows.label_index, start, stop),
        state=state,
        own=own,
        out=tuple(out),
        base=base,
        shared=shared,
        edge=edge,
    )
    return view, collapsed


def _per_row(p: RowIndex, values: NDArray[Any], start: int, stop: int) -> Array:
    flat = values.reshape(-1)
    return _read_only(floats(flat[start:stop] if p.index is None else flat))


def _numbers(p: RowIndex, start: int, stop: int) -> NDArray[np.unsignedinteger[Any]]:
    """Row numbers without a sign: −1 becomes too large to be one."""
    if p.index is None:
        return _read_only(np.zeros(0, np.uint32))
    return _read_only(p.index[start:stop].view(f"u{p.index.itemsize}"))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view of one type wherever the array comes from: a pass is compiled once for each type."""
    view = array.view()
    view.flags.writeable = False
    return view
