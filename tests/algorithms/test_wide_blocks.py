"""A block with more columns than a matrix should have trains to the same optimum, by products."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.algorithms.admm import client as admm_client
from tablepuppet.algorithms.newton import algorithm as newton_costs
from tablepuppet.algorithms.newton import client as newton
from tablepuppet.algorithms.numerics import linear_systems
from tablepuppet.sources.encoding import encoded_width

MEASURE = """
import sys
import numpy as np, pyarrow as pa, tablepuppet as tp
from benchmarks.figures import peak

rows, names = 5_000_000, 100_000
rng = np.random.default_rng(0)
x = rng.normal(size=rows)
code = pa.array(rng.integers(0, names, rows, np.int32))
facts = pa.table({
    "k": rng.integers(0, 1000, rows, np.int32),
    "x": x,
    "name": pa.DictionaryArray.from_arrays(code, pa.array([f"n{i}" for i in range(names)])),
    "y": (x + rng.logistic(size=rows) > 0).astype(np.int8),
})
parts = pa.table({"k": np.arange(1000, dtype=np.int32), "z": rng.normal(size=1000)})
with tp.Federation({"facts": facts, "parts": parts}) as federation:
    result = federation.train(sys.argv[1], label="y", model="logistic", algorithm=sys.argv[2], epochs=2)
assert len(result.blocks[0].theta) == names + 1
print(result.objective, peak() / 2**30)
"""
QUERY = "SELECT f.x, f.name, d.z, f.y FROM facts f JOIN parts d ON f.k = d.k"


def tables(clients: int) -> dict[str, list[pa.Table]]:
    rng = np.random.default_rng(0)
    rows = 3000
    name = rng.integers(0, 60, rows)
    x = rng.normal(size=rows)
    score = x + rng.normal(size=60)[name]
    facts = pa.table(
        {
            "k": rng.integers(0, 9, rows),
            "x": x,
            "name": [f"n{v}" for v in name],
            "y": (score + rng.logistic(size=rows) > 0).astype(int),
        }
    )
    parts = pa.table({"k": np.arange(9), "z": rng.normal(size=9)})
    size = rows // clients
    return {"facts": [facts.slice(i * size, size) for i in range(clients)], "parts": [parts]}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("algorithm", ["newton", "admm"])
@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_a_wide_block_reaches_the_optimum(
    monkeypatch: pytest.MonkeyPatch, clients: int, algorithm: str, model: str
) -> None:
    with tp.Federation(tables(clients)) as federation:
        best = federation.train(QUERY, label="y", model=model, algorithm="centralized").objective
        for module in (newton, admm_client):
            monkeypatch.setattr(module, "WIDE", 10)
        found = federation.train(QUERY, label="y", model=model, algorithm=algorithm, epochs=40)
    assert found.objective - best < 1e-6


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_a_shared_wide_block_sends_a_diagonal_as_its_plan_says(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    for module in (newton, newton_costs):
        monkeypatch.setattr(module, "WIDE", 10)
    with tp.Federation(tables(2)) as federation:
        found = federation.train(QUERY, label="y", model=model, algorithm="newton", epochs=3)
    widths = tuple(sum(map(encoded_width, block.encoders)) for block in found.blocks)
    estimate = replace(found.plan, widths=widths).cost("newton", len(found.history))
    assert (estimate.rounds, estimate.payload_up) == (found.traffic.rounds, found.traffic.payload_up)


def test_conjugate_gradients_solve_what_they_are_given() -> None:
    rng = np.random.default_rng(1)
    root = rng.normal(size=(40, 30))
    matrix, right = root.T @ root, rng.normal(size=(30, 2))
    products = linear_systems.Products(lambda v: matrix @ v, np.diag(matrix))
    expected = np.linalg.solve(2.0 * matrix + 0.5 * np.eye(30), right)
    np.testing.assert_allclose(products.solve(2.0, 0.5, right, to=1e-12), expected, atol=1e-9)
    start = expected + 0.1 * rng.normal(size=expected.shape)
    np.testing.assert_allclose(products.solve(2.0, 0.5, right, start, to=1e-12), expected, atol=1e-9)


def test_no_right_hand_side_gives_zero() -> None:
    products = linear_systems.Products(lambda v: 0.0 * v, np.zeros(3))
    np.testing.assert_array_equal(products.solve(1.0, 0.0, np.zeros((3, 1)), to=1e-8), np.zeros((3, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["newton", "admm"])
def test_five_million_rows_with_a_hundred_thousand_categories_train_within_four_gigabytes(algorithm: str) -> None:
    command = [sys.executable, "-c", MEASURE, QUERY, algorithm]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    objective, gigabytes = map(float, done.stdout.split())
    assert objective < 0.61  # that of x alone, the only column that tells anything
    assert gigabytes < 4
