"""Joins of more than 8,388,608 rows, by shape and algorithm, at the size at which users meet them.

The oracle is DuckDB: sums over the pooled join, made by itself. They give the linear optimum by its normal equations,
and the slope and value of the logistic objective at the weights that were found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp

ROWS = 1 << 23  # joined rows that every shape passes
L2 = 1e-3
RNG = np.random.default_rng


def table(seed: int, rows: int, **fan_out: int) -> pa.Table:
    """Keys that so many rows share, in no order; two features and a label that depends on them."""
    rng = RNG(seed)
    x, z = rng.normal(size=rows), rng.normal(size=rows)
    keys = {name: rng.permutation(np.arange(rows) // share) for name, share in fan_out.items()}
    y = 0.7 * x + np.abs(z) + rng.normal(size=rows)
    return pa.table(keys | {"x": x, "z": z, "y": y, "c": y > 1.0})


@dataclass(frozen=True)
class Shape:
    """Tables, and what is joined of them."""

    tables: Callable[[], dict[str, pa.Table]]
    features: tuple[str, ...]
    joins: tuple[str, ...]  # FROM …, for each branch

    def query(self, label: str) -> str:
        return " UNION ALL ".join(f"SELECT {', '.join(self.features)}, a.{label} AS label {j}" for j in self.joins)

    def sums(self, label: str, *expressions: str) -> list[float]:
        """Sums of expressions in f0, f1, … and y over the join; a row without a partner has features 0."""
        named = ", ".join(f"coalesce({f}, 0) AS f{i}" for i, f in enumerate(self.features))
        pooled = " UNION ALL ".join(f"SELECT {named}, a.{label}::DOUBLE AS y {j}" for j in self.joins)
        with duckdb.connect() as connection:
            for name, held in self.tables().items():
                connection.register(name, held)
            wanted = ", ".join(f"sum({e})" for e in expressions)
            found = connection.execute(f"SELECT {wanted} FROM ({pooled})").fetchall()
        return [float(value) for value in found[0]]


def once(make: Callable[[], dict[str, pa.Table]]) -> Callable[[], dict[str, pa.Table]]:
    return cache(make)


CHAIN = "FROM a JOIN b ON a.k = b.k JOIN c ON b.j = c.j"
SHAPES = {
    "chain": Shape(
        once(
            lambda: {"a": table(1, 140_000, k=8), "b": table(2, 140_000, k=8, j=8), "c": table(3, 140_000, j=8)},
        ),
        ("a.x", "a.z", "b.x", "c.z"),
        (CHAIN,),
    ),
    "star": Shape(
        once(lambda: {"a": table(1, 8_500_000, k=85, j=8500), "b": table(2, 100_000, k=1), "c": table(3, 1000, j=1)}),
        ("a.x", "a.z", "b.x", "c.z"),
        (CHAIN.replace("b.j", "a.j"),),
    ),
    "facts": Shape(
        once(lambda: {"a": table(1, 200_000, k=1), "b": table(2, 8_600_000, k=43)}),
        ("a.x", "a.z", "b.x", "b.z"),
        ("FROM a JOIN b ON a.k = b.k",),
    ),
    "self-join": Shape(
        once(lambda: {"a": table(1, 300_000, k=30)}),
        ("a.x", "a.z", "b.x"),
        ("FROM a JOIN a AS b ON a.k = b.k",),
    ),
    "left join": Shape(  # a third of the rows of `a` find no partner
        once(lambda: {"a": table(1, 450_000, k=10), "b": table(2, 900_000, k=30)}),
        ("a.x", "a.z", "b.x"),
        ("FROM a LEFT JOIN b ON a.k = b.k",),
    ),
    "union all": Shape(
        once(lambda: {"a": table(1, 140_000, k=8, j=8), "b": table(2, 560_000, k=32), "c": table(3, 560_000, j=32)}),
        ("a.x", "a.z", "b.x"),
        ("FROM a JOIN b ON a.k = b.k", "FROM a JOIN c AS b ON a.j = b.j"),
    ),
}
SLOW = pytest.mark.slow
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
QUICK_SHAPES = pytest.mark.parametrize(  # a star has facts, too
    "shape", [pytest.param(shape, marks=SLOW if name == "facts" else ()) for name, shape in SHAPES.items()], ids=SHAPES
)


def train(shape: Shape, label: str, **given: Any) -> tp.Result:
    options = {"test_fraction": 0.0} | ({} if given.get("model") == "boosted" else {"standardize": False, "l2": L2})
    with tp.Federation(shape.tables()) as federation:
        return federation.train(shape.query(label), label="label", **(options | given))


def weights(result: tp.Result) -> Any:
    """The model in units of the tables, the intercept last."""
    return np.append(np.concatenate([block.theta[:, 0] for block in result.blocks]), result.encoded_intercept)


@cache
def linear_optimum(shape: Shape) -> tuple[Any, float]:
    """From the normal equations: the weights, and the objective."""
    terms = [*(f"f{i}" for i in range(len(shape.features))), "1"]
    upper = np.triu_indices(len(terms))
    pairs = [f"{terms[p]} * {terms[q]}" for p, q in zip(*upper, strict=True)]
    *found, squares = shape.sums("y", *pairs, *(f"{p} * y" for p in terms), "y * y")
    size, gram = len(terms), np.zeros((len(terms), len(terms)))
    gram[upper] = gram.T[upper] = found[: len(pairs)]
    moments = np.array(found[len(pairs) :])
    rows = gram[-1, -1]
    assert rows > ROWS
    penalty = rows * L2 * np.diag([*[1.0] * (size - 1), 0.0])
    theta = np.linalg.solve(gram + penalty, moments)
    return theta, 0.5 * (squares - theta @ moments) / rows


@QUICK_SHAPES
def test_newton_finds_the_linear_optimum(shape: Shape) -> None:
    theta, objective = linear_optimum(shape)
    result = train(shape, "y", model="linear")
    np.testing.assert_allclose(weights(result), theta, atol=1e-6)
    assert result.objective == pytest.approx(objective, rel=1e-9)


@SLOW
@EVERY_SHAPE
def test_admm_finds_the_linear_optimum(shape: Shape) -> None:
    theta, objective = linear_optimum(shape)
    result = train(shape, "y", model="linear", algorithm=tp.Admm(tolerance=1e-8))
    np.testing.assert_allclose(weights(result), theta, atol=1e-4)
    assert result.objective == pytest.approx(objective, rel=1e-6)


@SLOW
@EVERY_SHAPE
@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_sgd_comes_near_and_knows_how_near(shape: Shape, model: str) -> None:
    label = "y" if model == "linear" else "c"
    result = train(shape, label, model=model, algorithm="sgd", epochs=3)
    score, count = scores(result)
    loss = f"0.5 * ({score} - y) ** 2" if model == "linear" else f"ln(1 + exp({score})) - y * ({score})"
    total, rows, constant = shape.sums(label, loss, "1", "0.5 * (y - 1) ** 2" if model == "linear" else f"{np.log(2)}")
    penalty = 0.5 * L2 * float(weights(result)[:count] @ weights(result)[:count])
    assert rows > ROWS
    assert result.objective == pytest.approx(total / rows + penalty, rel=1e-6)
    assert result.objective < 0.95 * constant / rows
    if model == "linear":
        assert result.objective < 1.01 * linear_optimum(shape)[1]


@SLOW
@EVERY_SHAPE
@pytest.mark.parametrize("algorithm", ["newton", "admm"])
def test_the_logistic_slope_vanishes_where_training_ends(shape: Shape, algorithm: str) -> None:
    options = {"newton": tp.Newton(tolerance=1e-10), "admm": tp.Admm(tolerance=1e-8)}[algorithm]
    result = train(shape, "c", model="logistic", algorithm=options)
    score, count = scores(result)
    slope = f"(1 / (1 + exp(-({score}))) - y)"
    *found, rows = shape.sums("c", *(f"{slope} * f{i}" for i in range(count)), slope, "1")
    assert rows > ROWS
    expected = -rows * L2 * np.append(weights(result)[:-1], 0.0)
    np.testing.assert_allclose(np.array(found) / rows, expected / rows, atol=1e-5)


@SLOW
@EVERY_SHAPE
@pytest.mark.parametrize("label", ["y", "c"])
def test_boosted_trees_see_what_a_line_does_not(shape: Shape, label: str) -> None:
    line = train(shape, label, model="linear" if label == "y" else "logistic", l2=0.0)
    trees = train(shape, label, model="boosted", algorithm=tp.Boosting(trees=20))
    assert trees.objective < 0.95 * line.objective


def scores(result: tp.Result) -> tuple[str, int]:
    """The score as SQL, and how many features it has."""
    *theta, intercept = weights(result).tolist()
    return " + ".join([*(f"{w!r} * f{i}" for i, w in enumerate(theta)), repr(intercept)]), len(theta)
