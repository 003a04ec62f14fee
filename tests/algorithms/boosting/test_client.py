"""A client answers a check that is not one with a refusal, never with an error of its own."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from msgspec.structs import replace
from tests.algorithms.boosting.joins import Table, open_block

from tablepuppet.algorithms.boosting.client import ClientHalf
from tablepuppet.algorithms.boosting.exchanges import _check_outline
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.tree_checks import Check, NewColumn, NewKey, Outline, Packed, Pairs, Union
from tablepuppet.errors import TransportError
from tablepuppet.protocol.bounds import WrongError


def _half(reveal: Literal["columns", "splits"] = "splits") -> ClientHalf:
    values = np.arange(10.0)
    table = Table(np.arange(10, dtype=np.int32), np.zeros(2, np.int32), 10, [(np.append(values, [1.0, 2.0]), False)])
    return open_block(0, table, Boosting(min_bin_rows=1, reveal=reveal)).parts[0]


_PAIRS = Pairs(
    *map(Packed.of, (np.append(np.ones(10, int), 0), np.zeros(10, int), np.arange(10) - 5, np.ones(10, int)))
)


def _pairs(**change: Any) -> Pairs:
    """A pair of every row: g from −5 up, h of one, in the first cell; some arrays are others."""
    return replace(_PAIRS, **{name: Packed.of(np.array(values, int)) for name, values in change.items()})


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
        least=np.zeros((1, 3)),
        pairs=_PAIRS,
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
    assert half.book.revealed == found.bits_of_a_row == 4


def test_a_client_adds_up_the_rows_of_every_cell() -> None:
    parted = Outline(
        unit=(1.0, 1.0),
        left=np.array([1, -1, -1], np.int32),
        asks=np.array([True, True, True]),
        gain=np.array([100.0, 0.0, 0.0]),
        block=np.array([1, -1, -1], np.int32),
        key=np.array([-1, -1, -1], np.int32),
        to_left=np.zeros(3, np.bool_),
        bounds=np.zeros((0, 2)),
        least=np.zeros((3, 3)),
        pairs=_pairs(cells=np.arange(10) % 2),
    )
    values = np.arange(10) - 5
    found = _half().histograms(Check(np.array([True]), [], [parted]))[0]
    assert found.sum(axis=1).tolist() == [[0, 0], [values[::2].sum(), 5], [values[1::2].sum(), 5]]
    assert found[1, 1].tolist() == [-5, 1]  # the first row's bin


_CUT = replace(_PAIRS.g, data=_PAIRS.g.data[:-3])


@pytest.mark.parametrize(
    "check",
    [
        Check(np.array([True]), [Union(0, 1, np.zeros((1, 1), np.uint8))], [_outline()]),
        Check(np.array([True]), [Union(7, 1, np.zeros((1, 1), np.uint8))], [_outline()]),
        Check(np.array([True]), [], [_outline(left=np.array([0], np.int32))]),
        Check(np.array([True]), [], [_outline(left=np.array([5], np.int32))]),
        Check(np.array([True]), [], [_outline(left=np.array([2**31 - 1], np.int32))]),
        Check(np.array([True]), [], [_outline(block=np.array([0], np.int32), key=np.array([4], np.int32))]),
        Check(np.array([True]), [], [_outline(pairs=_pairs(counts=[1] * 10))]),
        Check(np.array([True]), [], [_outline(pairs=_pairs(counts=[1] * 11))]),
        Check(np.array([True]), [], [_outline(pairs=_pairs(counts=[10] + [0] * 10))]),
        Check(np.array([True]), [], [_outline(pairs=_pairs(counts=[-1, 2] + [1] * 9))]),
        Check(np.array([True]), [], [_outline(pairs=_pairs(cells=[1] * 10))]),
        Check(np.array([True]), [], [_outline(pairs=_pairs(cells=[-1] * 10))]),
        Check(np.array([True]), [], [_outline(pairs=_pairs(cells=[0] * 9))]),
        Check(np.array([True]), [], [_outline(pairs=_pairs(h=[1] * 11))]),
        Check(np.array([True]), [], [_outline(pairs=replace(_PAIRS, g=_CUT))]),
        Check(np.array([True]), [], [_outline(pairs=replace(_PAIRS, g=replace(_PAIRS.g, size=2000)))]),
        Check(np.array([True]), [], [_outline(pairs=replace(_PAIRS, g=replace(_PAIRS.g, width=2)))]),
        Check(np.array([True]), [], [_outline(pairs=replace(_PAIRS, g=replace(_PAIRS.g, width=3)))]),
    ],
)
def test_a_check_that_does_not_fit_is_refused(check: Check) -> None:
    with pytest.raises(TransportError):
        _half().check(check)


@pytest.mark.parametrize(
    "outline",
    [
        _outline(left=np.zeros(0, np.int32)),
        _outline(left=np.array([[-1]], np.int32)),
        _outline(gain=np.zeros(3)),
        _outline(gain=np.array([np.nan])),
        _outline(least=np.zeros((2, 3))),
        _outline(pairs=None),
        _outline(pairs=_pairs(counts=[1] * 10)),
    ],
)
def test_an_outline_of_other_sizes_is_refused_before_a_client_sees_it(outline: Outline) -> None:
    _check_outline(_outline(), most=2, rows=11)
    with pytest.raises(WrongError):
        _check_outline(outline, most=2, rows=11)
