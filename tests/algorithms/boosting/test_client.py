"""A client answers a check that is not one with a refusal, never with an error of its own."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from msgspec.structs import replace
from tests.algorithms.boosting.joins import Table, open_block

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.client import ClientHalf
from tablepuppet.algorithms.boosting.compiled import pairs as compiled
from tablepuppet.algorithms.boosting.exchange import Check, NewColumn, NewKey, Outline, Pairs, Union
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.packing import pack
from tablepuppet.algorithms.boosting.plain import pairs as plain
from tablepuppet.errors import TransportError


def _half(tells: Literal["columns", "splits"] = "splits") -> ClientHalf:
    values = np.arange(10.0)
    table = Table(np.arange(10, dtype=np.int32), np.zeros(2, np.int32), 10, [(np.append(values, [1.0, 2.0]), False)])
    return open_block(0, table, Boosting(min_bin_rows=1, tells=tells)).parts[0]


def _piece(rows: int = 1, bits: int = 0, turns: tuple[int, ...] = ()) -> list[Pairs]:
    """Ten pairs: steps of rows, g from −5 up, h of one, and turns whose bits are all zero."""
    paths = np.zeros((bits + 7) // 8, np.uint8), np.array(turns, np.int64)
    return [pack(10, [np.full(10, rows), np.arange(10) - 5, None], paths=paths)]


def _parted(pieces: list[Pairs], block: int = 1) -> Outline:
    """A root that a block has split, here or elsewhere."""
    return Outline(
        unit=(1.0, 1.0),
        left=np.array([1, -1, -1], np.int32),
        asks=np.array([True, True, True]),
        gain=np.array([100.0, 0.0, 0.0]),
        block=np.array([block, -1, -1], np.int32),
        key=np.array([0 if block == 0 else -1, -1, -1], np.int32),
        to_left=np.zeros(3, np.bool_),
        bounds=np.zeros((0, 2)),
        light=np.zeros(3),
        pieces=pieces,
    )


def _outline(**change: Any) -> Outline:
    given = Outline(
        unit=(1.0, 1.0),
        left=np.array([-1], np.int32),
        asks=np.array([True]),
        gain=np.zeros(1),
        block=np.array([-1], np.int32),
        key=np.array([-1], np.int32),
        to_left=np.array([False]),
        bounds=np.zeros((0, 2)),
        light=np.zeros(1),
        pieces=_piece(),
    )
    return replace(given, **change)


def test_a_client_answers_with_the_best_split_of_its_rows() -> None:
    found = _half().check(Check(np.array([True]), [], [_outline()]))
    assert found.node.tolist() == [0]
    assert isinstance(found.keys[0], NewKey)
    assert np.unpackbits(found.keys[0].right, count=13).tolist() == [0] * 5 + [1] * 6 + [0, 0]


def test_a_client_tells_the_bins_of_the_column_that_its_split_is_of() -> None:
    half = _half("columns")
    found = half.check(Check(np.array([True]), [], [_outline()]))
    (told,) = found.keys
    assert isinstance(told, NewColumn)
    assert half.book.keys[found.key[0]].border == 5
    assert told.codes(13).tolist() == [*range(1, 11), 0, 2, 3]
    assert half.book.told == found.bits_of_a_row == 4


def test_a_client_walks_by_its_own_splits_and_by_bits_where_others_split() -> None:
    half = _half()
    half.check(Check(np.array([True]), [], [_outline()]))  # key 0: the fifth border
    columns, values = np.array([True]), np.arange(10) - 5
    own = half.histograms(Check(columns, [], [_parted(_piece(turns=(0,)), block=0)]))[0]
    paths = np.packbits(np.arange(10) % 2, bitorder="little"), np.array([10])
    others = [pack(10, [np.ones(10, np.int64), values, None], paths=paths)]
    other = half.histograms(Check(columns, [], [_parted(others)]))[0]
    assert own.sum(axis=1).tolist() == [[-15, 5], [10, 5]]
    assert other.sum(axis=1).tolist() == [[values[::2].sum(), 5], [values[1::2].sum(), 5]]


@pytest.mark.parametrize(
    "check",
    [
        Check(np.array([True, True]), [], [_outline()]),
        Check(np.array([True]), [Union(0, 1, np.zeros((1, 1), np.uint8))], [_outline()]),
        Check(np.array([True]), [Union(7, 1, np.zeros((1, 1), np.uint8))], [_outline()]),
        Check(np.array([True]), [], [_outline(left=np.array([0], np.int32))]),
        Check(np.array([True]), [], [_outline(left=np.array([5], np.int32))]),
        Check(np.array([True]), [], [_outline(left=np.array([2**31 - 1], np.int32))]),
        Check(np.array([True]), [], [_outline(left=np.zeros(0, np.int32))]),
        Check(np.array([True]), [], [_outline(gain=np.zeros(3))]),
        Check(np.array([True]), [], [_outline(block=np.array([0], np.int32), key=np.array([4], np.int32))]),
        Check(np.array([True]), [], [_outline(pieces=_piece(rows=2))]),
        Check(np.array([True]), [], [_outline(pieces=_piece(rows=-1))]),
        Check(np.array([True]), [], [_outline(pieces=_piece(bits=10, turns=(10,)))]),
        Check(np.array([True]), [], [_parted(_piece())]),
        Check(np.array([True]), [], [_parted(_piece(bits=9, turns=(9,)))]),
        Check(np.array([True]), [], [_parted(_piece(bits=11, turns=(10, 1)))]),
        Check(np.array([True]), [], [_parted(_piece(bits=8, turns=(10,)))]),
        Check(np.array([True]), [], [_parted(_piece(bits=11, turns=(11,)))]),
        Check(np.array([True]), [], [_parted(_piece(bits=10, turns=(20, -10)))]),
        Check(np.array([True]), [], [_parted(_piece(bits=10, turns=(10, 0, 0, 0)))]),
        Check(np.array([True]), [], [_parted(_piece(turns=(0,)), block=0)]),
        Check(np.array([True]), [], [_outline(pieces=[replace(_piece()[0], size=2000)])]),
    ],
)
@pytest.mark.parametrize("loops", [compiled, plain])
def test_a_check_that_does_not_fit_is_refused(check: Check, loops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "count_pairs", loops.count_pairs)
    with pytest.raises(TransportError):
        _half().check(check)
