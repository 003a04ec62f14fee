"""BoundQuery → TableMapping: gather keys, join them, split, and keep only rows that matter.

Three rounds: keys; label summaries; labels. A client's rows that no joined training (or test) row
comes from take no part in training (or testing): they are neither sent nor computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tablepuppet.allocation import give_back
from tablepuppet.catalog.bound import Block, BoundQuery
from tablepuppet.errors import MappingError
from tablepuppet.mapping.cap import within_cap
from tablepuppet.mapping.free_memory import free_memory
from tablepuppet.mapping.index import RowIndex, count_rows
from tablepuppet.mapping.join import BYTES_PER_JOINED_ROW, join_branch
from tablepuppet.mapping.joined import JoinedRows
from tablepuppet.mapping.keys import gather_keys
from tablepuppet.mapping.labels import LabelSpace, Task, read_labels
from tablepuppet.mapping.mapping import Fit, Part, TableMapping
from tablepuppet.mapping.scan_keys import ScanKeys
from tablepuppet.privacy.options import Privacy
from tablepuppet.transport.link import Link
from tablepuppet.transport.messages import RowNumbers


def map_tables(
    bound: BoundQuery,
    link: Link,
    *,
    job: str,
    task: Task,
    seed: int = 0,
    test_fraction: float = 0.15,
    validation_fraction: float = 0.0,
    max_joined_rows: int | None = None,
    privacy: Privacy | None = None,
) -> TableMapping:
    """The table mapping of a bound query."""
    privacy = privacy or Privacy()
    limit = max_joined_rows if max_joined_rows is not None else default_limit()
    keys, client_rows = gather_keys(bound, link, job, privacy.keys, seed)
    branches = []
    for branch in bound.branches:
        branches.append(join_branch(bound, branch, keys, limit))
        limit -= len(branches[-1][0])
    labels = read_labels(bound, link, job, task, client_rows, seed, test_fraction, validation_fraction, privacy.label)

    fits = _fits(bound, branches, keys)
    label_rows = _label_rows(bound, branches, labels)
    _check_labels(labels, label_rows, bound.label)
    _check_weights(labels, label_rows)
    spreads = [block_rows(bound, block, branches, client_rows) for block in bound.blocks]
    del keys, branches  # as large as what is made of them
    is_test, is_validation = labels.is_test[label_rows], labels.is_validation[label_rows]
    is_held = is_test | is_validation
    if test_fraction < 1 and bool(is_held.all()):
        where = "test side" if bool(is_test.all()) else "test and the validation side"
        raise MappingError(
            f"all {len(is_held)} joined rows fell on the {where}; lower test_fraction, keep fewer rows out by "
            "test_where or validation_where, or bring more rows"
        )
    is_train, dropped = _within_caps(~is_held, bound, [spread for spread, _ in spreads], privacy, seed)
    sides = (is_train, is_held)
    of_labels = [active_rows(label_rows, side, len(labels.values)) for side in sides]
    holds_labels = [spread is label_rows for spread, _ in spreads]
    del label_rows

    parts: list[Part] = []
    blocks: list[list[ActiveRows]] = []
    for number, holds in enumerate(holds_labels):
        spread, places = spreads.pop(0)
        train, test = of_labels if holds else (active_rows(spread, side, places[-1][3]) for side in sides)
        del spread
        blocks.append([train if holds else train.arranged(), test])
        parts += parts_of_block(number, places, train.rows, test.rows, len(parts))
    joined = []
    for k, (side, own) in enumerate(zip(sides, of_labels, strict=True)):
        weights = None if labels.weights is None else labels.weights[own.rows]
        indices = tuple(block[k].index for block in blocks)
        joined.append(JoinedRows(int(side.sum()), indices, own.index, labels.values[own.rows], weights=weights))
    held = is_validation[is_held]
    give_back()
    return TableMapping(
        bound=bound,
        label=labels.info,
        fits=fits,
        parts=tuple(parts),
        multiplicity=tuple(block[0].multiplicity for block in blocks),
        train=joined[0],
        test=joined[1].only(~held),
        validation=joined[1].only(held),
        dropped=dropped,
    )


def _label_rows(bound: BoundQuery, branches: Sequence[Sequence[RowNumbers]], labels: LabelSpace) -> RowNumbers:
    """The row of the label space that each joined row has its label from."""
    found = []
    for branch, rows in zip(bound.branches, branches, strict=True):
        offset = labels.offsets[branch.label_place]
        own = rows[branch.label_relation]
        found.append(own.astype(np.int64) + offset if offset else own)
    return found[0] if len(found) == 1 else np.concatenate(found)


def _within_caps(
    is_train: Side, bound: BoundQuery, spreads: Sequence[RowNumbers], privacy: Privacy, seed: int
) -> tuple[Side, int]:
    """The joined training rows that the caps on multiplicity leave, and how many they do not."""
    caps = [None if privacy.features is None else privacy.features.cap_of(block.table) for block in bound.blocks]
    if not any(caps):
        return is_train, 0
    train = np.flatnonzero(is_train)
    kept = train[within_cap([spread[train] for spread in spreads], caps, seed)]
    is_kept = np.zeros_like(is_train)
    is_kept[kept] = True
    return is_kept, len(train) - len(kept)


Side = NDArray[np.bool_]  # which joined rows
Place = tuple[str, int, tuple[int, ...], int]  # client, scan, columns, end of its rows in the block


def block_rows(
    bound: BoundQuery, block: Block, branches: Sequence[Sequence[RowNumbers]], client_rows: Sequence[dict[str, int]]
) -> tuple[RowNumbers, list[Place]]:
    """p_i over all joined rows, and where each client's rows lie in the block.

    Members of different branches that read the same columns of the same scan share their rows.
    """
    offsets: dict[tuple[int, tuple[int, ...]], int] = {}
    places: list[Place] = []
    total = 0
    spread = []
    for branch, rows, member in zip(bound.branches, branches, block.members, strict=True):
        scan = branch.relations[member.relation].scan
        key = (scan, member.columns)
        if key not in offsets:
            offsets[key] = total
            for client in bound.scans[scan].clients:
                total += client_rows[scan][client]
                places.append((client, scan, member.columns, total))
        numbers = rows[member.relation]
        offset = offsets[key]
        spread.append(np.where(numbers >= 0, numbers.astype(np.int64) + offset, -1) if offset else numbers)
    return (spread[0] if len(spread) == 1 else np.concatenate(spread)), places


@dataclass(frozen=True, slots=True, eq=False)
class ActiveRows:
    """The rows that some joined rows come from, and the mapping onto just these."""

    index: RowIndex
    rows: NDArray[np.int64]  # ascending
    multiplicity: NDArray[np.int64]

    def arranged(self) -> ActiveRows:
        """The same for faster walks."""
        return replace(self, index=self.index.arranged())


def active_rows(spread: RowNumbers, side: Side | None, rows: int) -> ActiveRows:
    """The rows (of `rows`) that one side of the joined rows uses; None: all joined rows."""
    is_whole = side is None or bool(side.all())
    used = spread if is_whole else spread[side]
    counts = count_rows(used, rows)
    active = np.flatnonzero(counts)
    if len(active) < rows:
        renumber: RowNumbers = np.full(rows + 1, -1, dtype=np.int32 if rows < 2**31 else np.int64)
        renumber[active] = np.arange(len(active), dtype=renumber.dtype)
        used = np.asarray(renumber[used])
    return ActiveRows(RowIndex.of(used, len(active)), active, counts[active])


def parts_of_block(
    block: int, places: Sequence[Place], train: NDArray[np.int64], test: NDArray[np.int64], number: int
) -> list[Part]:
    """The clients' shares of a block; a client none of whose rows are used takes no part."""
    parts: list[Part] = []
    start = 0
    for client, scan, columns, stop in places:
        inside = [slice(*np.searchsorted(rows, [start, stop]).tolist()) for rows in (train, test)]
        if any(s.stop > s.start for s in inside):
            dtype = np.int32 if stop - start < 2**31 else np.int64
            rows: list[RowNumbers] = [
                np.asarray(r[s] - start, dtype) for r, s in zip((train, test), inside, strict=True)
            ]
            parts.append(
                Part(number + len(parts), block, client, scan, columns, rows[0], rows[1], inside[0], inside[1])
            )
        start = stop
    return parts


def _check_labels(labels: LabelSpace, label_rows: RowNumbers, name: str) -> None:
    is_missing = np.isnan(labels.values)
    missing = int(is_missing[label_rows].sum()) if is_missing.any() else 0
    if missing:
        raise MappingError(
            f"label {name} is NULL in {missing:,} of {len(label_rows):,} joined rows; "
            f"add WHERE {name} IS NOT NULL (on the table's own column)"
        )


def _check_weights(labels: LabelSpace, label_rows: RowNumbers) -> None:
    if labels.weights is None:
        return
    missing = int(np.isnan(labels.weights)[label_rows].sum())
    if missing:
        raise MappingError(
            f"the weight is NULL in {missing:,} of {len(label_rows):,} joined rows; "
            'leave such rows out by WHERE, or give them one: weight = "coalesce(w, 1)"'
        )


def _fits(bound: BoundQuery, branches: Sequence[Sequence[RowNumbers]], keys: Sequence[ScanKeys]) -> tuple[Fit, ...]:
    fits = []
    for branch, rows in zip(bound.branches, branches, strict=True):
        outer = {join.relation for join in branch.joins if join.kind == "left"}
        for i, relation in enumerate(branch.relations):
            scan = bound.scans[relation.scan]
            counts = count_rows(rows[i], keys[relation.scan].rows)
            matched = int(np.count_nonzero(counts))
            fits.append(
                Fit(
                    alias=relation.alias,
                    table=scan.table,
                    clients=len(scan.clients),
                    rows=keys[relation.scan].rows,
                    matched=matched,
                    max_fan_out=int(counts.max(initial=0)),
                    mean_fan_out=int(counts.sum()) / matched if matched else 0.0,
                    is_outer=i in outer,
                )
            )
    return tuple(fits)


def default_limit() -> int:
    """As many joined rows as three quarters of the free memory hold."""
    return max(1_000_000, int(0.75 * free_memory() / BYTES_PER_JOINED_ROW))
