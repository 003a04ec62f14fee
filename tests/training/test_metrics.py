"""The area under the curve counts pairs, however the scores come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.join.joined_rows import ascending
from tablepuppet.training import ranking
from tablepuppet.training.ranking import BINS, pack_labels, rank


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
        patch.setattr(ranking, "_SCORES_PER_CHUNK", chunk)
        stretches = np.split(np.sort(pack_labels(scores, labels)), sorted(partition_specs))
        found = rank(stretches, len(labels), int(labels.sum()))
        whole = rank([np.concatenate(stretches)], len(labels), int(labels.sum()))
        area, share = found.area, found.share
    assert found.average_precision == whole.average_precision  # bit for bit: a cluster cuts where it will
    np.testing.assert_array_equal(found.scores, whole.scores)
    assert area == whole.area or np.isnan(expected)
    assert area == pytest.approx(expected, nan_ok=True)
    assert share == labels.mean()


@given(rows=st.integers(1, 40), positives=st.integers(0, 40))
def test_rows_of_one_score_are_ranked_as_a_tie(rows: int, positives: int) -> None:
    positives = min(rows, positives)
    labels = np.arange(rows) < positives
    found = rank([np.sort(pack_labels(np.full(rows, 0.3), labels))], rows, positives)
    assert found.area == pytest.approx(0.5 if 0 < positives < rows else float("nan"), nan_ok=True)
    assert (found.share, found.average_precision) == pytest.approx((positives / rows, positives / rows))


def test_calibration_counts_rows_in_bins_that_have_their_upper_edge() -> None:
    rng = np.random.default_rng(0)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    scores = pack_labels(np.concatenate([edges, rng.uniform(size=10_000), np.full(500, 0.375)]), np.zeros(1))
    labels = (rng.uniform(size=len(scores)) < scores).astype(np.float64)
    ordered, positives = ascending(pack_labels(scores, labels)), int(labels.sum())
    found = rank(ordered, len(scores), positives, lambda s: pack_labels(s, np.zeros(1))).calibration
    assert found is not None
    bins = np.searchsorted(edges[1:-1], scores)
    expected = [np.bincount(bins, values, BINS) for values in (np.ones(len(scores)), scores, labels)]
    np.testing.assert_array_equal(found[[0, 2]], [expected[0], expected[2]])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)
