"""Items over a LEFT JOINed table mean what SQL says, also for rows without a partner: beside DuckDB's own join."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.protocol.columns import NumberEncoder

L2 = 1e-3
FROM = "FROM a LEFT JOIN b ON a.k = b.k"
ITEMS = """b.k IS NULL AS alone, COALESCE(b.z, 0) AS filled, b.z, COALESCE(b.c, 'none') AS kind, b.c,
    CASE WHEN b.k IS NULL THEN 7 ELSE b.z END AS chosen, COALESCE(b.day, DATE '2020-02-01') AS day"""
QUERY = f"SELECT a.x, a.y, {ITEMS} {FROM}"


@pytest.fixture(scope="module")
def frames() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    a = pd.DataFrame({"k": np.arange(300) % 60, "x": rng.normal(size=300)})
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(40), "D")
    b = pd.DataFrame({"k": np.arange(40), "z": rng.normal(size=40) + 3, "c": rng.choice(["u", "v"], 40), "day": days})
    b.loc[3, "z"] = np.nan
    b.loc[4, "c"] = None
    partner = b.set_index("k")
    a["y"] = a.x + 2 * a.k.map(partner.z).fillna(0) - 3 * ~a.k.isin(b.k) + rng.normal(size=300) / 10
    a["late"] = a.y > a.y.median()
    return {"a": a, "b": b}


@pytest.fixture(scope="module")
def federation(frames: dict[str, pd.DataFrame]) -> tp.Federation:
    a, b = frames["a"], frames["b"]
    return tp.Federation({"a": [a[:100], a[100:]], "b": [b[:25], b[25:30], b[30:]]})


def joined(frames: dict[str, pd.DataFrame], items: str) -> pd.DataFrame:
    with duckdb.connect() as connection:
        for name, frame in frames.items():
            connection.register(name, pa.Table.from_pandas(frame, preserve_index=False))
        return connection.execute(f"SELECT {items}, b.k IS NOT NULL AS found, a.x, a.y {FROM}").df()


def encoded(join: pd.DataFrame) -> NDArray[np.float64]:
    """X as math.md has it: zeros where an item is NULL because no row was found, else as any other value."""
    columns = []
    for name, is_lacking in (("x", False), ("alone", False), ("filled", False), ("z", True)):
        columns += number(join[name].astype(float), join.found if is_lacking else None)
    columns += texts(join.kind, None) + texts(join.c, join.found)
    columns += number(join.chosen.astype(float), None)
    days = (pd.to_datetime(join.day) - pd.Timestamp(0)) / pd.Timedelta(days=1)
    return np.stack([*columns, *number(days, None)], axis=1)


def number(values: pd.Series[Any], found: pd.Series[Any] | None) -> list[NDArray[np.float64]]:
    there = np.ones(len(values), bool) if found is None else found.to_numpy()
    own = values[there]
    filled = own.fillna(own.mean())
    out = np.zeros(len(values))
    out[there] = (filled - filled.mean()) / filled.std(ddof=0)
    return [out] + ([(values.isna() & there).to_numpy(float)] if own.isna().any() else [])


def texts(values: pd.Series[Any], found: pd.Series[Any] | None) -> list[NDArray[np.float64]]:
    out = [(values == name).to_numpy(float) for name in sorted(values.dropna().unique())]
    there = values.isna() & (True if found is None else found)
    return out + ([there.to_numpy(float)] if there.any() else [])


def least_squares(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    centred = x - x.mean(axis=0)
    theta = np.linalg.solve(centred.T @ centred / len(y) + L2 * np.eye(x.shape[1]), centred.T @ (y - y.mean()) / len(y))
    predicted = y.mean() + centred @ theta
    return float(0.5 * np.mean((y - predicted) ** 2) + 0.5 * L2 * theta @ theta), predicted


def train(federation: tp.Federation, query: str = QUERY, **options: Any) -> tp.Result:
    given = {"label": "y", "model": "linear", "l2": L2, "test_fraction": 0.0}
    return federation.train(query, **{**given, **options})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("algorithm", ["newton", "admm", "vfl-admm", "centralized"])
def test_every_algorithm_finds_the_optimum_of_duckdbs_join(
    frames: dict[str, pd.DataFrame], federation: tp.Federation, algorithm: str
) -> None:
    join = joined(frames, ITEMS)
    value, predicted = least_squares(encoded(join), join.y.to_numpy())
    options: dict[str, Any] = {"epochs": 300} if "admm" in algorithm else {}
    result = train(federation, algorithm=algorithm, **options)
    assert result.objective == pytest.approx(value, rel=1e-7)
    found = federation.predict(result, QUERY).to_pandas()["prediction"]
    np.testing.assert_allclose(np.sort(found), np.sort(predicted), atol=1e-4)


def test_weights_on_the_original_scale_give_the_predictions(
    frames: dict[str, pd.DataFrame], federation: tp.Federation
) -> None:
    result = train(federation)
    weights = result.coefficients().set_index("feature")["weight"]
    join = joined(frames, ITEMS)
    days = (pd.to_datetime(join.day) - pd.Timestamp(0)) / pd.Timedelta(days=1)
    given = {"a.x": join.x, "b.alone": join.alone, "b.filled": join.filled, "b.day": days}
    given |= {f"b.kind={name}": join.kind == name for name in ("none", "u", "v")}
    given |= {f"b.c={name}": join.c == name for name in ("u", "v")}
    given["b.c IS NULL"] = join.c.isna() & join.found
    z, chosen = (
        cast(NumberEncoder, result.blocks[1].encoders[k]).fill[0] for k in (2, 5)
    )  # means stand where a found row has NULL
    given["b.z"] = join.z.fillna(z).where(join.found, 0.0)
    given["b.z IS NULL"] = join.z.isna() & join.found
    given["b.chosen"], given["b.chosen IS NULL"] = join.chosen.fillna(chosen), join.chosen.isna()
    given["b IS NOT NULL"] = join.found
    assert set(given) == set(weights.index)
    scores = result.intercept + sum(weights[name] * values.astype(float) for name, values in given.items())
    found = federation.predict(result, QUERY).to_pandas()["prediction"]
    np.testing.assert_allclose(np.sort(found), np.sort(scores), atol=1e-9)


def test_features_that_all_have_a_value_are_those_of_one_table(
    frames: dict[str, pd.DataFrame], federation: tp.Federation
) -> None:
    items = "b.k IS NULL AS alone, COALESCE(b.z, 0) AS filled, COALESCE(b.c, 'none') AS kind"
    join = joined(frames, items)
    pooled = tp.Federation({"j": join})
    for options in ({}, {"model": "boosted"}, {"algorithm": "sgd", "epochs": 3, "batch_size": 300}):
        apart = train(federation, f"SELECT a.y, {items} {FROM}", **options)
        whole = train(pooled, "SELECT y, alone, filled, kind FROM j", **options)
        assert apart.objective == pytest.approx(whole.objective, rel=1e-6)
        assert not any("IS NOT NULL" in name for name in apart.importance()["feature"])
        mine = federation.predict(apart, f"SELECT a.y, {items} {FROM}").to_pandas()["prediction"]
        theirs = pooled.predict(whole, "SELECT y, alone, filled, kind FROM j").to_pandas()["prediction"]
        np.testing.assert_allclose(np.sort(mine), np.sort(theirs), atol=1e-4)


def test_a_softmax_of_the_join_is_that_of_one_table(frames: dict[str, pd.DataFrame], federation: tp.Federation) -> None:
    items = "a.late, COALESCE(b.z, 0) AS filled, COALESCE(b.c, 'none') AS kind"
    apart = train(federation, f"SELECT {items} {FROM}", label="late", model="logistic")
    pooled = tp.Federation({"j": joined(frames, items)})
    whole = train(pooled, "SELECT late, filled, kind FROM j", label="late", model="logistic")
    assert apart.objective == pytest.approx(whole.objective, rel=1e-8)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("model", ["linear", "boosted", "mlp"])
def test_a_saved_model_and_every_verb_know_such_rows(federation: tp.Federation, model: str, tmp_path: Path) -> None:
    result = train(federation, model=model, test_fraction=0.15)
    assert result.metrics["train"]["r2"] > 0.9
    result.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model")
    assert federation.predict(loaded, QUERY).equals(federation.predict(result, QUERY))
    importance = federation.importance(result, QUERY).set_index("feature")
    assert len(importance) == 8
    federation.partial_dependence(result, QUERY, feature="b.filled")
    result.report(tmp_path / "report.html")


def test_scikit_learns_form_of_the_model_gives_the_same(
    frames: dict[str, pd.DataFrame], federation: tp.Federation
) -> None:
    result = train(federation)
    join = joined(frames, ITEMS)
    frame = pd.DataFrame(
        {"a.x": join.x, **{f"b.{n}": join[n] for n in ("alone", "filled", "z", "kind", "c", "chosen")}}
    )
    frame["b.day"] = pd.to_datetime(join.day).dt.date
    pooled = result.model.to_sklearn().predict(frame)
    found = federation.predict(result, QUERY).to_pandas()["prediction"]
    np.testing.assert_allclose(np.sort(found), np.sort(pooled), atol=1e-9)


def test_a_value_inside_a_derived_table_is_null_without_a_row(federation: tp.Federation) -> None:
    inside = "SELECT a.x, a.y, g.filled FROM a LEFT JOIN (SELECT k, COALESCE(z, 0) AS filled FROM b) g ON a.k = g.k"
    assert train(federation, inside).blocks[1].absent == (None,)
    outside = "SELECT a.x, a.y, COALESCE(g.z, 0) AS filled FROM a LEFT JOIN (SELECT k, z FROM b) g ON a.k = g.k"
    assert train(federation, outside).blocks[1].absent == (0.0,)


def test_branches_have_values_of_their_own(frames: dict[str, pd.DataFrame], federation: tp.Federation) -> None:
    branch = "SELECT a.x, a.y, COALESCE(b.z, {}) AS filled FROM a LEFT JOIN b ON a.k + {} = b.k"
    query = f"{branch.format(0, 0)} UNION ALL {branch.format(5, 30)}"
    with duckdb.connect() as connection:
        for name, frame in frames.items():
            connection.register(name, pa.Table.from_pandas(frame, preserve_index=False))
        whole = tp.Federation({"j": connection.execute(query).df()})
    expected = train(whole, "SELECT x, y, filled FROM j").objective
    assert train(federation, query).objective == pytest.approx(expected, rel=1e-9)


def test_what_cannot_be_computed_without_a_row_is_refused(federation: tp.Federation) -> None:
    with pytest.raises(tp.TablePuppetError, match="infinite where LEFT JOIN finds no row"):
        train(federation, f"SELECT a.y, COALESCE(b.z, CAST('inf' AS DOUBLE)) AS z {FROM}")
    with pytest.raises(tp.TablePuppetError, match="TRY_CAST"):
        train(federation, f"SELECT a.y, CAST(COALESCE(b.c, 'x') AS INTEGER) AS z {FROM}")
    private = {"features": {"epsilon": 1.0, "clip": 1.0, "bounds": {"filled": [0, 5]}}}
    with pytest.raises(tp.TablePuppetError, match="where a LEFT JOIN finds no row"):
        train(federation, f"SELECT a.y, COALESCE(b.z, 0) AS filled {FROM}", algorithm="sgd", privacy=private)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("items", ["b.z, b.c", "COALESCE(b.z, 0) AS filled, b.z, COALESCE(b.c, 'none') AS kind"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"algorithm": "admm"},
        {"algorithm": "centralized"},
        {"algorithm": "vfl-admm"},
        {"model": "mlp", "epochs": 2},
        {"model": "boosted"},
        {"head": "factor", "rank": 2},
        {"model": "mlp", "algorithm": "centralized", "epochs": 2},
    ],
    ids=str,
)
def test_a_left_join_that_finds_nobody_has_a_model_all_the_same(
    federation: tp.Federation, items: str, options: dict[str, Any], tmp_path: Path
) -> None:
    query = f"SELECT a.x, a.y, {items} FROM a LEFT JOIN b ON a.k + 1000 = b.k"
    result = train(federation, query, **options)
    assert federation.predict(result, query).num_rows == 300
    result.report(tmp_path / "report.html")
    result.save(tmp_path / "model")
    assert federation.predict(tp.load(tmp_path / "model"), query).num_rows == 300
    federation.importance(result, query, rows="all")
    if options.get("model") != "boosted":
        assert "like those" in str(federation.drift(result, query))
    if "model" not in options and "head" not in options:
        frame = result.coefficients()
        assert (frame.loc[frame["table"] == "b", "weight"].abs() < 1e-6).all()
        assert np.isfinite(result.importance()["importance"]).all()


@pytest.mark.parametrize("model", ["linear", "mlp", "boosted"])
def test_a_client_whose_rows_are_all_held_out_takes_part_in_the_test(
    frames: dict[str, pd.DataFrame], federation: tp.Federation, model: str
) -> None:
    halves = [frames["a"][:100].assign(side="seen"), frames["a"][100:].assign(side="held out")]
    apart = tp.Federation({"a": halves, "b": frames["b"]})
    query = f"SELECT a.x, a.y, b.z {FROM}"
    result = train(apart, query, model=model, test_where="side = 'held out'")
    pooled = tp.Federation({"a": pd.concat(halves), "b": frames["b"]})
    whole = train(pooled, query, model=model, test_where="side = 'held out'")
    assert result.metrics["test"]["rmse"] == pytest.approx(whole.metrics["test"]["rmse"], rel=1e-3)
