"""What travels as float32, or compressed, changes bytes and hardly anything else; compression changes nothing else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.training.result import Result

QUERY = "SELECT f.x, u.a, f.y FROM facts f JOIN users u ON f.u = u.u"


def _trained(algorithm: str, wire: str) -> Result:
    rng = np.random.default_rng(0)
    user, x = rng.integers(0, 300, 4000), rng.normal(size=4000)
    a = rng.normal(size=300)
    y = (x + a[user] + rng.logistic(size=4000) > 0).astype(np.int8)
    tables = {"facts": pa.table({"u": user, "x": x, "y": y}), "users": pa.table({"u": np.arange(300), "a": a})}
    with tp.Federation(tables) as federation:
        size = 500 if algorithm == "sgd" else None
        return federation.train(
            QUERY, label="y", model="logistic", algorithm=algorithm, wire=wire, epochs=6, batch_size=size
        )


@pytest.mark.parametrize("algorithm", ["newton", "admm", "sgd"])
def test_float32_saves_bytes_and_keeps_seven_digits_of_the_objective(algorithm: str) -> None:
    whole, half = _trained(algorithm, "float64"), _trained(algorithm, "float32")
    assert half.traffic.bytes < 0.8 * whole.traffic.bytes
    assert half.objective == pytest.approx(whole.objective, rel=3e-7)


@pytest.mark.parametrize("algorithm", ["newton", "admm"])
def test_compression_changes_no_bit_of_the_model(algorithm: str) -> None:
    plain, packed = _trained(algorithm, "float64"), _trained(algorithm, "float64+zstd")
    assert packed.traffic.total_bytes < plain.traffic.total_bytes
    assert packed.objective == plain.objective
    for one, other in zip(plain.blocks, packed.blocks, strict=True):
        np.testing.assert_array_equal(one.theta, other.theta)
