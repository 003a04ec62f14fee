"""How much of a row exact predictions tell: which columns are behind them, and how many numbers leave a row unknown.

A prediction is one equation about a row. A column whose values are nearly all different is an unknown of it; one with
few values is none, for whoever knows the model tries them all (age, gender and occupation follow from one number).
How many features a job makes of a column does not matter, nor how many categories a server lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tablepuppet.client.state import ClientState
from tablepuppet.tables.columns import NUMBER_KINDS, numbers


def reads(own: ClientState, job: str, scan: int, columns: Iterable[int]) -> tuple[str, ...]:
    """The columns of tables behind some expressions of a scan."""
    use = own.tables.use(job, scan)
    places = list(columns)
    found = {f"{base.table}.{name}".lower() for base in (use, *use.others) for c in places for name in base.columns[c]}
    return tuple(sorted(found))


def unknowns(own: ClientState, job: str, scan: int, columns: Sequence[int]) -> int:
    """How many exact numbers of a row are enough to know some features of it: at least one."""
    use = own.tables.use(job, scan)
    entries, by_column = 0, dict[str, int]()
    for c in columns:
        values, info = own.column(job, scan, c)
        if info.kind not in NUMBER_KINDS:
            continue
        array = numbers(values, info)
        present = array[~np.isnan(array).any(axis=1)]
        if 2 * len(np.unique(present, axis=0)) <= len(present):
            continue
        entries += array.shape[1]
        for base in (use, *use.others):
            for name in base.columns[c]:
                place = f"{base.table}.{name}".lower()
                by_column[place] = max(by_column.get(place, 0), array.shape[1])
    return max(1, min(entries, sum(by_column.values())))
