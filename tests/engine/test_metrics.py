"""The area under the curve counts pairs, however the scores come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.engine import curves
from tablepuppet.engine.curves import BINS, area_under_curve, labelled, rank
from tablepuppet.engine.metrics import _bins


@given(
    rows=st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=40),
    partition_specs=st.lists(st.integers(0, 40), max_size=5),
    chunk=st.integers(1, 9),
)
def test_the_area_is_the_share_of_pairs_in_order_whatever_the_stretches(
    rows: list[tuple[int, bool]], partition_specs: list[int], chunk: int
) -> None:
    scores, labels = np.array([0.3 * s for s, _ in rows]), np.array([float(y) for _, y in rows])
    high, low = scores[labels > 0.5, None], scores[None, labels < 0.5]
    expected = float(((high > low) + 0.5 * (high == low)).mean()) if high.size and low.size else float("nan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "_CHUNK", chunk)
        stretches = np.split(np.sort(labelled(scores, labels)), sorted(partition_specs))
        found = rank(stretches, len(labels), int(labels.sum()))
        area, share = found.area, found.share
        assert area == area_under_curve(scores, labels) or np.isnan(expected)
    assert area == pytest.approx(expected, nan_ok=True)
    assert share == labels.mean()


def test_bins_are_those_that_a_search_among_their_edges_finds() -> None:
    edges = np.linspace(0.0, 1.0, BINS + 1)
    beside = [edges, np.nextafter(edges, 0.0), np.nextafter(edges, 1.0), [np.nan]]
    drawn = np.concatenate([*beside, np.random.default_rng(0).uniform(size=10_000)])
    assert _bins(drawn).tolist() == np.searchsorted(edges[1:-1], drawn).tolist()
