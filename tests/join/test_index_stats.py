"""What views of row numbers show, put together, is what one look at all of them shows."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tablepuppet.join.cluster.worker import Worker, merge
from tablepuppet.join.duckdb_join import ListedRows
from tablepuppet.join.join import Column, JoinedSide
from tablepuppet.join.row_index import RowIndex


@st.composite
def numbered(draw: st.DrawFn) -> tuple[list[int], int]:
    """Row numbers, all of which occur or some; often sorted, or 0, 1, 2, …"""
    size = draw(st.integers(1, 12))
    numbers = draw(
        st.one_of(
            st.just(list(range(size))),
            st.lists(st.integers(0, 5), min_size=size, max_size=size).map(sorted),
            st.lists(st.integers(-1, 5), min_size=size, max_size=size),
        )
    )
    return numbers, max(numbers) + 1 + draw(st.integers(0, 1))


@example(given=([2, 3, 0, 1], 4), partition_specs=[2])  # each view in order, and not the whole
@given(given=numbered(), partition_specs=st.lists(st.integers(1, 11), max_size=3))
def test_stretches_show_what_the_whole_shows(given: tuple[list[int], int], partition_specs: list[int]) -> None:
    numbers, rows = np.array(given[0]), given[1]
    whole = ListedRows((rows,), 0, [numbers]).side(None)
    side = JoinedSide((whole,), (Column(rows, (0,), (None,)),), 1, 0)
    borders = sorted({0, len(numbers), *(cut for cut in partition_specs if cut < len(numbers))})
    facts = merge([Worker("").collect(side, a, b)[0] for a, b in itertools.pairwise(borders)])
    expected = RowIndex.of(numbers, rows)
    assert facts.rows == expected.rows
    assert facts.is_identity == expected.is_identity
    assert facts.is_sorted == expected.is_sorted
    assert facts.is_partial == expected.is_partial
