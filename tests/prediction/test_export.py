"""What leaves the house computes the same: a block as SQL and as ONNX, a whole model as an estimator."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import onnxruntime
import pandas as pd
import pytest
import sqlglot
from sklearn.base import is_classifier
from sklearn.inspection import permutation_importance
from tests.postgres import Database

import tablepuppet as tp
from tablepuppet.cli.main import main
from tablepuppet.prediction.export.sql import DIALECTS

ROWS = 400


def _tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(3)
    orders = pd.DataFrame(
        {
            "id": np.arange(ROWS),
            "item": rng.integers(0, 40, ROWS),
            "quantity": np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(50, 9, ROWS)),
            "day": pd.Timestamp("2024-03-01 06:00") + pd.to_timedelta(rng.integers(0, 9_000, ROWS), unit="h"),
            "gift": rng.random(ROWS) < 0.3,
        }
    )
    items = pd.DataFrame(
        {
            "item": np.arange(36),  # four items have no row
            "price": rng.gamma(2, 8, 36),
            "name": [None if k % 9 == 0 else f"o'neil {k % 5}" for k in range(36)],
            "size": [list(rng.normal(size=3)) for _ in range(36)],
        }
    )
    orders["y"] = orders["quantity"].fillna(40) * 100 + rng.normal(size=ROWS) + 7 * orders["item"]
    orders["late"] = np.where(orders["y"] > orders["y"].median(), "yes", "no")
    return {"orders": orders, "items": items}


TABLES = _tables()
QUERY = """SELECT o.quantity / 2 AS half, o.day, o.gift, ln(i.price) AS price, i.name, i.size, o.{label}
           FROM orders o LEFT JOIN items i ON o.item = i.item"""
MODELS: dict[str, dict[str, Any]] = {
    "linear": {"label": "y", "model": "linear"},
    "logistic": {"label": "late", "model": "logistic"},
    "network": {
        "label": "y",
        "model": "mlp",
        "algorithm": "sgd",
        "hidden": [5, 3],
        "activation": "tanh",
        "dtype": "float64",
        "epochs": 3,
    },
    "factors": {"label": "y", "model": "linear", "head": "factor", "rank": 2, "algorithm": "sgd", "epochs": 2},
}


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[tp.Model, np.ndarray]]:
    """Each model, and its predictions in the order of the orders."""
    made = {}
    with tp.Federation(TABLES) as federation:
        for name, given in MODELS.items():
            query = QUERY.format(label=given["label"])
            result = federation.train(query, **{"test_fraction": 0.0, "max_categories": 3, "progress": False} | given)
            answers = federation.predict(result, query, key=["id"]).to_pandas().sort_values("id")
            column = "probability" if name == "logistic" else "prediction"
            made[name] = result.model, answers[column].to_numpy()
    return made


@pytest.mark.parametrize("name", ["linear", "logistic", "network"])
def test_the_contributions_that_sql_computes_add_up_to_the_score(name: str, models: dict[str, Any]) -> None:
    model, predicted = models[name]
    with duckdb.connect() as connection:
        for table, frame in TABLES.items():
            connection.register(f"own_{table}", frame)
        connection.execute(f"CREATE VIEW c_o AS {model.to_sql('o', table='own_orders', columns=['id'])}")
        connection.execute(f"CREATE VIEW c_i AS {model.to_sql('i', table='own_items')}")
        both = """SELECT o.contribution + coalesce(i.contribution, 0) AS total
                  FROM c_o o LEFT JOIN c_i i ON i.item = o.item ORDER BY id"""
        found = connection.sql(both).fetchnumpy()["total"] + model.encoded_intercept[0]
    if name == "logistic":
        found = 1 / (1 + np.exp(-found))
    np.testing.assert_allclose(found, predicted, rtol=1e-6, atol=1e-6)


def test_postgresql_runs_the_export_in_its_own_dialect(models: dict[str, Any], postgres: Any) -> None:
    import adbc_driver_postgresql.dbapi as pg
    import pyarrow as pa

    model, _ = models["linear"]
    database: Database = postgres()
    frame = TABLES["orders"].drop(columns="late")
    database.ingest("orders", pa.Table.from_pandas(frame, preserve_index=False))
    with pg.connect(database.url) as connection, connection.cursor() as cursor:
        cursor.execute(model.to_sql("o", dialect="postgres"))
        theirs = cursor.fetch_arrow_table()["contribution"].to_numpy()
    with duckdb.connect() as connection:
        connection.register("orders", frame)
        ours = connection.sql(model.to_sql("o")).fetchnumpy()["contribution"]
    np.testing.assert_allclose(np.sort(theirs), np.sort(ours), rtol=1e-9)


def test_sqlite_and_onnx_tell_odd_texts_apart_and_take_moments_apart(tmp_path: Path) -> None:
    odd = ["a'b", 'c"d', "back\\slash", "new\nline", "", " sp ", "ünïcode", None]
    rng = np.random.default_rng(1)
    moments = pd.Timestamp("2023-11-05 01:02:03.5") + pd.to_timedelta(rng.integers(0, 5_000, 64), unit="h")
    frame = pd.DataFrame(
        {"id": range(64), "name": odd * 8, "day": moments.astype("datetime64[us]"), "y": rng.normal(size=64)}
    )
    parts = "extract(hour FROM day) AS h, quarter(day) AS q, year(day) AS y4, dayofweek(day) AS w"
    query = f"SELECT name, day, {parts}, y FROM t"
    with tp.Federation({"t": frame}) as federation:
        model = federation.train(query, label="y", model="linear", l2=1e-3, test_fraction=0.0).model
        expected = federation.predict(model, key="id")["prediction"].to_numpy() - float(model.encoded_intercept[0])
    with sqlite3.connect(tmp_path / "t.sqlite") as database:
        frame.assign(day=frame["day"].astype(str)).to_sql("t", database, index=False)
        found = pd.read_sql(model.to_sql(columns=["id"], dialect="sqlite"), database).sort_values("id")
    np.testing.assert_allclose(found.iloc[:, -1], expected, atol=1e-6)
    model.to_onnx(tmp_path / "t.onnx")
    at = frame["day"].dt
    given = {
        "name": [["<missing>" if name is None else name] for name in odd * 8],
        **{"day": at.as_unit("ns").astype("int64") / 86_400e9, "h": at.hour, "q": at.quarter},
        **{"y4": at.year, "w": frame["day"].dt.strftime("%w").astype(float)},
    }
    inputs = {
        f"t.{name}": np.array(values, object if name == "name" else float).reshape(-1, 1)
        for name, values in given.items()
    }
    (scored,) = onnxruntime.InferenceSession(tmp_path / "t.onnx").run(None, inputs)
    np.testing.assert_allclose(scored[:, 0], expected, atol=1e-6)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_reads_what_is_written_for_it(dialect: str, models: dict[str, Any]) -> None:
    for name in ("linear", "network"):
        sqlglot.parse_one(models[name][0].to_sql("o", dialect=dialect), read=dialect)


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("block", ["o", "i"])
def test_onnx_computes_what_the_estimator_computes_of_each_block(
    name: str, block: str, models: dict[str, Any], tmp_path: Path
) -> None:
    model, _ = models[name]
    model.to_onnx(tmp_path / "block.onnx", block)
    session = onnxruntime.InferenceSession(tmp_path / "block.onnx")
    orders, items = TABLES["orders"], TABLES["items"]
    given: dict[str, np.ndarray] = {
        "o.half": orders[["quantity"]].to_numpy() / 2,
        "o.day": (orders[["day"]] - pd.Timestamp("1970-01-01")).to_numpy() / np.timedelta64(1, "D"),
        "o.gift": orders[["gift"]].to_numpy(float),
        "i.price": np.log(items[["price"]].to_numpy()),
        "i.name": items[["name"]].fillna("").to_numpy(str).astype(object),
        "i.size": np.stack(items["size"]),
    }
    wanted = {i.name: given[i.name] for i in session.get_inputs()}
    (found,) = session.run(None, wanted)
    frame = pd.DataFrame({n: v[:, 0] if n != "i.size" else list(v) for n, v in given.items() if n[0] == block})
    if block == "i":
        frame["i.name"] = items["name"]
    else:
        frame["o.gift"], frame["o.day"] = orders["gift"], orders["day"]
    import pyarrow as pa

    number = [b.name for b in model.blocks].index(block)
    expected = model.to_sklearn()._contribution(pa.Table.from_pandas(frame), number)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", list(MODELS))
def test_the_estimator_predicts_pooled_rows_as_the_federation_does(name: str, models: dict[str, Any]) -> None:
    model, predicted = models[name]
    with duckdb.connect() as connection:
        for table, frame in TABLES.items():
            connection.register(table, frame)
        joined = connection.sql(QUERY.format(label="id") + " ORDER BY o.id").to_arrow_table()
    frame = joined.drop_columns(["id"]).rename_columns(["o.half", "o.day", "o.gift", "i.price", "i.name", "i.size"])
    estimator = model.to_sklearn()
    assert is_classifier(estimator) == (name == "logistic")
    found = estimator.predict_proba(frame)[:, 1] if name == "logistic" else estimator.predict(frame)
    np.testing.assert_allclose(found, predicted, rtol=1e-5, atol=1e-6)
    if name == "linear":
        pooled = frame.to_pandas()
        ranks = permutation_importance(estimator, pooled, predicted, n_repeats=2, random_state=0)
        assert list(estimator.feature_names_in_)[int(np.argmax(ranks.importances_mean))] == "o.half"
        with pytest.raises(tp.TablePuppetError, match="has no column"):
            estimator.predict(pooled.drop(columns="i.name"))


def test_what_cannot_be_exported_is_said(models: dict[str, Any], tmp_path: Path) -> None:
    model, _ = models["linear"]
    with pytest.raises(tp.TablePuppetError, match="one of o, i; 'x' is none"):
        model.to_sql("x")
    with pytest.raises(tp.TablePuppetError, match="dialect 'oracle' is not known"):
        model.to_sql("o", dialect="oracle")
    with tp.Federation(TABLES) as federation:
        held = federation.train(QUERY.format(label="y"), label="y", release=False).model
        trees = federation.train(QUERY.format(label="y"), label="y", model="boosted", trees=2).model
    with pytest.raises(tp.TablePuppetError, match="stay with the owners of table orders"):
        held.to_onnx(tmp_path / "x.onnx", "o")
    with pytest.raises(tp.TablePuppetError, match="boosted trees ask the tables in turn"):
        trees.to_sql("o")


def test_the_command_exports_a_saved_model(
    models: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = models["linear"]
    model.save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "sql", "--block", "o"]) == 0
    assert "contribution" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "model"), "onnx", "--block", "i", "--to", str(tmp_path / "i.onnx")]) == 0
    assert (tmp_path / "i.onnx").stat().st_size > 100
    assert main(["export", str(tmp_path / "model"), "onnx", "--block", "i"]) != 0


def test_a_model_card_tells_data_metrics_and_privacy(tmp_path: Path) -> None:
    query = QUERY.format(label="y")
    with tp.Federation(TABLES) as federation:
        result = federation.train(query, label="y", model="linear")
    (tmp_path / "run.json").write_text(result.to_json(), encoding="utf-8")
    assert main(["report", str(tmp_path / "run.json"), "--out", str(tmp_path / "card.md")]) == 0
    card = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert card == result.card()
    for part in ("## Intended use", "| i | items |", query.strip(), "No differential privacy", "| rmse |"):
        assert part in card
