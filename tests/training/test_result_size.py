"""A result keeps figures and parameters, and no array over rows: its size does not follow from the join's."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.mapping import TableMapping
from tablepuppet.join.row_index import RowIndex
from tablepuppet.network.control import to_frame

ALGORITHMS: dict[str, dict[str, Any]] = {
    "newton": {},
    "admm": {"epochs": 2},
    "sgd": {"epochs": 2, "batch_size": None},
    "vfl-admm": {"algorithm": "vfl-admm", "epochs": 2},
    "centralized": {},
    "boosting": {"model": "boosted", "trees": 3, "depth": 2},
}


def trained(rows: int, algorithm: str) -> tp.Result:
    """Two tables whose keys meet several times: joined rows are 25 times as many as `rows` / 5."""
    rng = np.random.default_rng(0)
    keys = np.arange(rows) % (rows // 5)
    a = pa.table({"k": keys, "x": rng.normal(size=rows), "y": rng.normal(size=rows)})
    b = pa.table({"k": keys, "z": rng.integers(0, 4, rows).astype(float)})
    query, given = "SELECT a.y, a.x, b.z FROM a JOIN b ON a.k = b.k", {"algorithm": algorithm} | ALGORITHMS[algorithm]
    with tp.Federation({"a": a, "b": b}) as federation:
        return federation.train(query, label="y", validation_fraction=0.1, **given)


def reachable(start: Any) -> list[Any]:
    """Every object of data that one can get to from an object; classes, modules and functions are not data."""
    seen, left, found = {id(start)}, [start], [start]
    while left:
        for value in gc.get_referents(left.pop()):
            is_code = isinstance(value, type) or type(value).__name__ in (
                "module",
                "function",
                "builtin_function_or_method",
            )
            if id(value) not in seen and not is_code:
                seen.add(id(value))
                left.append(value)
                found.append(value)
    return found


@pytest.mark.one_in(5)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_result_does_not_grow_with_the_joined_rows(algorithm: str) -> None:
    sizes, frames = [], []
    for rows in (500, 5_000):
        result = trained(rows, algorithm)
        assert result.plan.mapping.joined_rows == 5 * rows
        assert result.explain()
        held = reachable(result)
        assert not any(isinstance(value, TableMapping | JoinedRows) for value in held)
        sizes.append(sum(value.nbytes for value in held if isinstance(value, np.ndarray)))
        frames.append(sum(len(buffer) for buffer in to_frame(result).buffers))
    assert sizes[0] == pytest.approx(sizes[1], abs=2_000)
    assert frames[0] == pytest.approx(frames[1], abs=2_000)


def test_what_a_result_does_not_declare_cannot_leave_with_it() -> None:
    result, index = trained(500, "newton"), RowIndex(0, None)
    with pytest.raises(tp.TablePuppetError, match="a JoinedRows cannot be part of a result"):
        to_frame(replace(result, notes=(JoinedRows(0, (index,), index, np.zeros(0)),)))
