"""Newton for several classes: the curvature over all pairs of them, and what it saves."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tablepuppet as tp
from tablepuppet.algorithms.newton.full_curvature import (
    beside_intercept,
    curvature_matrix,
    curvature_triangles,
    intercept_share,
    is_full,
    sampled_matrix,
    solve,
    solve_by_products,
    summands,
    summed_matrix,
    without_intercept,
)
from tablepuppet.models.linear import Features, LinearModel

CLASSES = 4
QUERY = "SELECT f.a, f.b, f.c, f.kind, u.d, u.e, f.y FROM f JOIN u ON f.k = u.k"


def _features(rng: np.random.Generator, rows: int) -> Features:
    codes = rng.integers(0, 3, rows).astype(np.int32)
    return Features(
        dense=rng.normal(size=(rows, 2)),
        codes=(codes,),
        dense_columns=np.array([0, 1]),
        code_columns=(slice(2, 5),),
        width=5,
    )


def _curvature(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    p = rng.dirichlet(np.ones(CLASSES), rows)
    whole = np.einsum("na,ab->nab", p, np.eye(CLASSES)) - np.einsum("na,nb->nab", p, p)
    first, second = np.triu_indices(CLASSES)
    return whole, whole[:, first, second]


def test_the_matrix_is_the_hessian_of_the_block() -> None:
    rng = np.random.default_rng(1)
    features = _features(rng, 40)
    whole, packed = _curvature(rng, 40)
    dense = features.to_dense()
    expected = np.einsum("nj,nab,nl->jalb", dense, whole, dense).reshape(5 * CLASSES, -1)
    model = LinearModel(features, features, CLASSES)
    np.testing.assert_allclose(curvature_matrix(model, packed, CLASSES), expected, atol=1e-12)


def test_the_triangles_of_several_clients_sum_to_the_matrix_of_all() -> None:
    rng = np.random.default_rng(6)
    features = _features(rng, 40)
    _, packed = _curvature(rng, 40)
    halves = [(features.take(rows), packed[rows]) for rows in (np.arange(15), np.arange(15, 40))]
    total = sum(curvature_triangles(LinearModel(f, f, CLASSES), w) for f, w in halves)
    assert isinstance(total, np.ndarray)
    assert total.size == summands(CLASSES, 5)
    whole = curvature_matrix(LinearModel(features, features, CLASSES), packed, CLASSES)
    np.testing.assert_allclose(summed_matrix(total, 5, CLASSES), whole, atol=1e-12)


@pytest.mark.parametrize(("rows", "heavy"), [(60, 1.0), (12_000, 1.0), (12_000, 0.004)])
def test_a_matrix_of_some_rows_gives_nearly_the_direction_of_all(rows: int, heavy: float) -> None:
    rng = np.random.default_rng(3)
    features = _features(rng, rows)
    features.codes[0][:] = np.where(np.arange(rows) % 3_001 == 7, 2, rng.integers(0, 2, rows))  # a name of few rows
    features.dense[rows // 2] = 500.0  # and a row like no other
    _, packed = _curvature(rng, rows)
    packed[rng.random(rows) >= heavy] *= 1e-6  # few rows have nearly all the weight
    model = LinearModel(features, features, CLASSES)
    taken = intercept_share(beside_intercept(model, packed), packed.sum(axis=0), CLASSES)
    whole = curvature_matrix(model, packed, CLASSES) - taken @ taken.T
    right = features.to_dense().T @ (rng.dirichlet(np.ones(CLASSES), rows) - 1.0 / CLASSES)
    expected = solve(whole, 0.01, right).ravel()
    error = solve(sampled_matrix(model, packed, CLASSES), 0.01, right).ravel() - expected
    assert error @ whole @ error <= (1e-20 if rows == 60 else 0.02) * (expected @ whole @ expected)


@pytest.mark.parametrize("l2", [0.0, 1e-9])
def test_a_column_that_few_rows_have_is_learnt(l2: float) -> None:
    rng = np.random.default_rng(1)
    x, few = rng.choice([-1.0, 1.0], 4_000), (np.arange(4_000) % 1_000 == 7).astype(float)
    y = np.array(["u", "v", "w"])[(np.cumsum(rng.dirichlet(np.ones(3), 4_000), axis=1) > 0.5).argmax(axis=1)]
    y[few > 0] = ["u", "u", "v", "w"]
    given: dict[str, Any] = {"label": "y", "model": "softmax", "standardize": False, "test_fraction": 0.0, "l2": l2}
    with tp.Federation({"f": pd.DataFrame({"x": x, "few": few, "y": y})}) as federation:
        best = federation.train("SELECT x, few, y FROM f", algorithm="centralized", **given)
        found = federation.train("SELECT x, few, y FROM f", algorithm="newton", epochs=5, **given)
    assert found.objective == pytest.approx(best.objective, abs=1e-8)


def test_products_solve_what_the_matrix_solves() -> None:
    rng = np.random.default_rng(2)
    features = _features(rng, 60)
    _, packed = _curvature(rng, 60)
    model = LinearModel(features, features, CLASSES)
    right = rng.normal(size=(5, CLASSES))
    taken = intercept_share(beside_intercept(model, packed), packed.sum(axis=0), CLASSES)
    by_matrix = solve(curvature_matrix(model, packed, CLASSES) - taken @ taken.T, 0.5, right)
    np.testing.assert_allclose(solve_by_products(model, packed, 0.5, right), by_matrix, rtol=1e-2, atol=1e-3)


def test_a_direction_is_the_blocks_part_of_a_step_with_the_intercept() -> None:
    rng = np.random.default_rng(4)
    features = _features(rng, 50)
    whole, packed = _curvature(rng, 50)
    model = LinearModel(features, features, CLASSES)
    dense = np.column_stack([features.to_dense(), np.ones(50)])
    hessian = np.einsum("nj,nab,nl->jalb", dense, whole, dense).reshape(6 * CLASSES, -1)
    hessian += 0.5 * np.diag(np.repeat([1.0] * 5 + [0.0], CLASSES))
    right = rng.normal(size=(5, CLASSES))
    both = np.linalg.lstsq(hessian, np.append(right.ravel(), np.zeros(CLASSES)), rcond=1e-10)[0]
    taken = intercept_share(beside_intercept(model, packed), packed.sum(axis=0), CLASSES)
    found = solve(curvature_matrix(model, packed, CLASSES) - taken @ taken.T, 0.5, right)
    np.testing.assert_allclose(found.ravel(), both[: 5 * CLASSES], atol=1e-8)


def _ordered(rows: int, width: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Five stars by the place on a line that noisy columns show: nearly separable, each threshold far from the mean."""
    rng = np.random.default_rng(5)
    k, own = rng.integers(0, 40, rows), rng.normal(size=40)
    place = own[k] + rng.normal(size=rows)
    shown = np.outer(place, rng.normal(size=width)) + rng.normal(size=(rows, width))
    f = pd.DataFrame(shown, columns=[f"x{i}" for i in range(width)]).assign(k=k)
    f["y"] = [f"{star} stars" for star in np.digitize(place, [-1.5, -0.5, 0.5, 1.5])]
    f["above"] = (place + 0.3 * rng.logistic(size=rows) > 0).astype(int)
    f["place"] = place
    return f, pd.DataFrame({"k": np.arange(40), "d": own + 0.3 * rng.normal(size=40)})


def _objectives(parts: int, label: str, width: int, epochs: int) -> np.ndarray:
    """The objective after each round, with the same rows in the same order cut into so many clients' shares."""
    f, u = _ordered(1_500, width)
    cuts = np.linspace(0, len(f), parts + 1).astype(int)
    columns = ", ".join(f"f.x{i}" for i in range(width))
    query = f"SELECT {columns}, u.d, f.{label} FROM f JOIN u ON f.k = u.k"
    with tp.Federation({"f": [f[a:b] for a, b in pairwise(cuts)], "u": u}) as federation:
        found = federation.train(query, label=label, algorithm="newton", epochs=epochs, l2=1e-5)
    return np.array([record.objective for record in found.history])


def test_only_columns_far_from_zero_are_centred() -> None:
    """A year is centred, also against the others; names and standardised numbers keep the intercept's share."""
    random = np.random.default_rng(3)
    names = np.eye(3)[random.integers(0, 3, 300)]
    year = random.integers(1990, 2030, (300, 1)).astype(np.float64)
    X, weights = np.concatenate([random.normal(size=(300, 2)), names, year], axis=1), random.uniform(0.1, 1.0, 300)
    moved = X - np.array([0, 0, 0, 0, 0, np.average(year[:, 0], weights=weights)])
    gram, beside = X.T @ (weights[:, None] * X), X.T @ weights[:, None]
    found = without_intercept(gram, beside, weights.sum())
    np.testing.assert_allclose(found, moved.T @ (weights[:, None] * moved), rtol=1e-6, atol=1e-6)
    assert np.array_equal(found[:5, :5], gram[:5, :5])
    assert not without_intercept(np.full((1, 1), 4.0 * 300), np.full((1, 1), 2.0 * 300), 300.0).any()  # a constant


def test_classes_in_order_on_a_line_take_few_rounds() -> None:
    objectives = _objectives(1, "y", 30, epochs=30)
    assert (objectives[min(11, len(objectives) - 1)] - objectives[-1]) / objectives[-1] < 1e-6


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("label", "width"), [pytest.param("y", 120, marks=pytest.mark.slow), ("above", 30), ("place", 30)]
)
def test_clients_that_share_a_table_take_the_path_of_one(label: str, width: int) -> None:
    alone = _objectives(1, label, width, epochs=7)
    for parts in (2, 3):
        shared = _objectives(parts, label, width, epochs=7)
        same = min(len(alone), len(shared))
        assert same >= 3
        np.testing.assert_allclose(shared[:same], alone[:same], rtol=1e-6)


def _tables(parts: int) -> dict[str, object]:
    rng = np.random.default_rng(3)
    rows = 1_500
    f = pd.DataFrame({"k": rng.integers(0, 100, rows), "kind": rng.choice(["p", "q", "r"], rows)})
    f[["a", "b", "c"]] = rng.normal(size=(rows, 3))
    u = pd.DataFrame({"k": np.arange(100), "d": rng.normal(size=100), "e": rng.normal(size=100)})
    pull = rng.normal(size=(5, CLASSES)) * 4  # nearly separable
    scores = np.column_stack([f[["a", "b", "c"]], u.loc[f.k, ["d", "e"]]]) @ pull + rng.gumbel(size=(rows, CLASSES))
    f["y"] = [f"class {c}" for c in scores.argmax(axis=1)]
    return {"f": [f[i::parts] for i in range(parts)], "u": u}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_nearly_separable_classes_take_few_rounds(parts: int) -> None:
    with tp.Federation(_tables(parts)) as federation:
        best = federation.train(QUERY, label="y", algorithm="centralized").objective
        found = federation.train(QUERY, label="y", algorithm="newton", epochs=12).objective
    assert (found - best) / best < 1e-6


def test_many_classes_and_wide_shared_blocks_keep_the_bound() -> None:
    assert is_full(5, 400, 1)
    assert is_full(5, 384, 3)
    assert is_full(8, 393, 2)
    assert not is_full(5, 633, 3)
    assert not is_full(17, 10, 1)
    assert not is_full(1, 10, 1)


def test_very_many_classes_end_where_pooling_does() -> None:
    rng = np.random.default_rng(3)
    users = pd.DataFrame({"user": np.arange(40), "a": rng.normal(size=40)})
    orders = pd.DataFrame({"user": rng.integers(0, 40, 900), "x": rng.normal(size=900)})
    score = np.outer(orders["x"], rng.normal(size=80)) + np.outer(users["a"].to_numpy()[orders["user"]], np.ones(80))
    orders["y"] = [f"c{c}" for c in (score + rng.gumbel(size=score.shape)).argmax(axis=1)]
    query = "SELECT o.x, u.a, o.y FROM orders o JOIN users u ON o.user = u.user"
    with tp.Federation({"orders": orders, "users": users}) as owner:
        given: dict[str, Any] = {"label": "y", "model": "softmax", "test_fraction": 0.0}
        found, pooled = owner.train(query, **given), owner.train(query, algorithm="centralized", **given)
    assert found.objective == pytest.approx(pooled.objective, rel=1e-5)
