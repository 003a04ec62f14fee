"""A fused pass over lanes is the walk over shards: whatever the order of blocks, with any threads, in partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tablepuppet.algorithms.admm.server import fused_step, join_step
from tablepuppet.mapping.rows import joined as module
from tablepuppet.mapping.rows.joined import JoinedRows, Pass, RowIndex, Work
from tablepuppet.models.losses import Loss
from tablepuppet.models.losses.logistic_compiled import CompiledLogistic
from tablepuppet.models.losses.squared_compiled import CompiledSquared

ROWS = 20_000
GIVEN: dict[str, Any] = {"intercept": np.array([0.3]), "before": np.array([0.2]), "rho": 0.1, "relax": 1.6}
LOSSES: list[Loss] = [CompiledSquared(), CompiledLogistic()]


@pytest.fixture(params=[np.float32, np.float64])
def joined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> JoinedRows:
    """Blocks in order, with a row that several lanes share, out of order, and with rows that are not there."""
    monkeypatch.setattr(module, "SHARD", 700)
    rng = np.random.default_rng(0)
    few = np.sort(rng.integers(0, 5, ROWS))
    many = np.sort(np.concatenate([np.arange(3000), rng.integers(0, 3000, ROWS - 3000)]))
    indices = (
        RowIndex.of(np.arange(ROWS), ROWS),
        RowIndex.of(few, 5),
        RowIndex.of(many, 3000),
        RowIndex.of(rng.integers(-1, 700, ROWS), 700),
        RowIndex.of(rng.permutation(ROWS), ROWS),
    )
    found = JoinedRows(ROWS, indices, indices[2], rng.integers(0, 2, 3000).astype(float))
    found.allocate("u", 1, request.param)
    return found


def run(joined: JoinedRows, loss: Loss, *, is_fused: bool) -> tuple[Pass, Any]:
    rng = np.random.default_rng(1)
    joined.state["u"].flags.writeable = True
    joined.state["u"][...] = rng.normal(size=(ROWS, 1))
    values = [rng.normal(size=(p.rows, 1)) for p in joined.indices]
    fused = fused_step if is_fused else None
    done = joined.run(join_step, values, signals=1, writes=("u",), own=1.7, fused=fused, loss=loss, **GIVEN)
    return done, joined.state["u"].copy()


@pytest.mark.parametrize("loss", LOSSES, ids=["squared", "logistic"])
def test_a_fused_pass_gives_what_the_walk_over_shards_gives(joined: JoinedRows, loss: Loss) -> None:
    (walked, u), (fused, fused_u) = (run(joined, loss, is_fused=is_fused) for is_fused in (False, True))
    np.testing.assert_allclose(fused_u, u, atol=1e-7 if u.dtype == np.float32 else 1e-11)
    for a, b in zip(fused.signals[0], walked.signals[0], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    assert fused.sums == pytest.approx(walked.sums, rel=1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=["squared", "logistic"])
def test_threads_do_not_show_in_a_fused_pass(joined: JoinedRows, loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    threaded, u = run(joined, loss, is_fused=True)
    monkeypatch.setattr(module, "pool", lambda: _Sequential())
    alone, same_u = run(joined, loss, is_fused=True)
    assert u.tobytes() == same_u.tobytes()
    assert threaded.sums == alone.sums
    for a, b in zip(threaded.signals[0], alone.signals[0], strict=True):
        assert a.tobytes() == b.tobytes()


def test_lanes_that_keep_their_sums_to_themselves_give_the_same_bits(joined: JoinedRows) -> None:
    """A worker of a cluster has no whole to write into: it returns what each lane gave."""
    whole, _ = run(joined, LOSSES[1], is_fused=True)
    rng = np.random.default_rng(1)
    joined.state["u"][...] = rng.normal(size=(ROWS, 1))
    values = [rng.normal(size=(p.rows, 1)) for p in joined.indices]
    work = Work(join_step, 1, ("u",), {"loss": LOSSES[1], **GIVEN}, 1.7, fused_step)
    apart = joined._merge(joined.walk(work, values, ()), 1, 1)
    assert apart.sums == whole.sums
    for a, b in zip(apart.signals[0], whole.signals[0], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("start", [-1e300, -1e20, -50.0, 0.0, 50.0, 1e20, 1e300])
def test_a_fused_pass_meets_extreme_scores_without_losing_its_way(start: float) -> None:
    rows = 600
    index = RowIndex.of(np.arange(rows), rows)
    joined = JoinedRows(rows, (index,), index, np.repeat([0.0, 1.0], rows // 2))
    joined.allocate("u", 1)
    values = [np.full((rows, 1), start)]
    given = GIVEN | {"intercept": np.zeros(1), "before": np.zeros(1), "relax": 1.0}
    joined.run(join_step, values, signals=1, writes=("u",), fused=fused_step, loss=CompiledLogistic(), **given)
    u, labels = joined.state["u"][:, 0], joined.labels
    centre = (0.5 - labels) / given["rho"] + start  # λ = σ(0) − y at first
    slope = 1.0 / (1.0 + np.exp(-np.clip(u, -700, 700))) - labels + given["rho"] * (u - centre)
    np.testing.assert_allclose(slope / max(1.0, abs(start)), 0.0, atol=1e-9)


class _Sequential:
    """A pool with no threads."""

    map = staticmethod(map)
