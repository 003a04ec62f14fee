"""A client answers a check that is not one with a refusal, never with an error of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.algorithms.boosting.joins import Table, open_block

from tablepuppet.algorithms.boosting.client import ClientHalf
from tablepuppet.algorithms.boosting.exchange import Check, Outline, Pairs, Union
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.packing import pack
from tablepuppet.errors import TransportError


def _half() -> ClientHalf:
    values = np.arange(10.0)
    table = Table(np.arange(10, dtype=np.int32), np.zeros(2, np.int32), 10, [(np.append(values, [1.0, 2.0]), False)])
    return open_block(0, table, Boosting()).parts[0]


def _piece(rows: int = 1, cells: int = 0) -> list[Pairs]:
    """Ten pairs: steps of rows, one cell, g from −5 up, h of one."""
    return [pack(10, [np.full(10, rows), np.full(10, cells), np.arange(10) - 5, None])]


def _outline(**change: Any) -> Outline:
    plain = Outline(
        unit=(1.0, 1.0),
        left=np.array([-1], np.int32),
        asks=np.array([True]),
        gain=np.zeros(1),
        block=np.array([-1], np.int32),
        key=np.array([-1], np.int32),
        to_left=np.array([False]),
        bounds=np.zeros((0, 2)),
        pieces=_piece(),
    )
    return replace(plain, **change)


def test_a_client_answers_with_the_best_split_of_its_rows() -> None:
    found = _half().check(Check(np.array([True]), [], [_outline()]))
    assert found.node.tolist() == [0]
    assert np.unpackbits(found.keys[0].right, count=13).tolist() == [0] * 5 + [1] * 6 + [0, 0]


@pytest.mark.parametrize(
    "check",
    [
        Check(np.array([True, True]), [], [_outline()]),
        Check(np.array([True]), [Union(0, 1, np.zeros((1, 1), np.uint8))], [_outline()]),
        Check(np.array([True]), [Union(7, 1, np.zeros((1, 1), np.uint8))], [_outline()]),
        Check(np.array([True]), [], [_outline(left=np.array([0], np.int32))]),
        Check(np.array([True]), [], [_outline(left=np.array([5], np.int32))]),
        Check(np.array([True]), [], [_outline(left=np.zeros(0, np.int32))]),
        Check(np.array([True]), [], [_outline(gain=np.zeros(3))]),
        Check(np.array([True]), [], [_outline(block=np.array([0], np.int32), key=np.array([4], np.int32))]),
        Check(np.array([True]), [], [_outline(pieces=_piece(rows=2))]),
        Check(np.array([True]), [], [_outline(pieces=_piece(rows=-1))]),
        Check(np.array([True]), [], [_outline(pieces=_piece(cells=1))]),
        Check(np.array([True]), [], [_outline(pieces=[replace(_piece()[0], size=2000)])]),
    ],
)
def test_a_check_that_does_not_fit_is_refused(check: Check) -> None:
    with pytest.raises(TransportError):
        _half().check(check)
