"""Tables with nothing, or nearly nothing, in them: a right answer or one clear sentence, never a raw error."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tablepuppet as tp

JOIN = "SELECT a.x, a.y, b.z FROM a JOIN b ON a.k = b.k"
ROWS = 40
_MOMENT = datetime.datetime(2020, 1, 1)
KEYS = {
    "date": pa.array([_MOMENT.date() + datetime.timedelta(days=i) for i in range(ROWS)]),
    "timestamp": pa.array([_MOMENT + datetime.timedelta(hours=i) for i in range(ROWS)]),
    "timestamptz": pa.array([_MOMENT + datetime.timedelta(hours=i) for i in range(ROWS)], pa.timestamp("us", "UTC")),
    "decimal": pa.array([Decimal(i) / 4 for i in range(ROWS)], pa.decimal128(10, 2)),
}


def tables(key: pa.Array) -> tuple[pa.Table, pa.Table]:
    values = np.random.default_rng(0).normal(size=(3, len(key)))
    return pa.table({"k": key, "x": values[0], "y": values[1]}), pa.table({"k": key, "z": values[2]})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KEYS)
def test_an_owner_without_rows_changes_nothing_whatever_the_keys(kind: str) -> None:
    a, b = tables(KEYS[kind])
    whole = tp.Federation({"a": a, "b": b})
    apart = tp.Federation({"a": [a.slice(0, 0), a], "b": [b, b.slice(0, 0)]})
    expected = whole.train(JOIN, label="y", model="linear")
    found = apart.train(JOIN, label="y", model="linear", test_fraction=0.0)
    assert found.objective == pytest.approx(whole.train(JOIN, label="y", model="linear", test_fraction=0.0).objective)
    assert apart.predict(expected, JOIN).num_rows == ROWS
    assert apart.predict(expected, f"{JOIN} WHERE b.z > 100").num_rows == 0
    with pytest.raises(tp.TablePuppetError, match="the join is empty: table b"):
        apart.train(f"{JOIN} WHERE b.z > 100", label="y", model="linear")


@pytest.mark.parametrize("is_first", [True, False])
def test_branches_of_a_union_with_and_without_a_join_are_predicted(is_first: bool) -> None:
    a, b = tables(pa.array(range(ROWS)))
    federation = tp.Federation({"a": a, "b": b})
    branches = [JOIN, "SELECT a.x, a.y, a.x AS z FROM a"]
    query = " UNION ALL ".join(branches if is_first else branches[::-1])
    result = federation.train(query, label="y", model="linear")
    assert federation.predict(result, query).num_rows == 2 * ROWS


def test_a_model_whose_probabilities_are_all_one_half_is_saved(tmp_path: Path) -> None:
    federation = tp.Federation({"a": pa.table({"x": [0.0] * ROWS, "y": [0, 1] * (ROWS // 2)})})
    result = federation.train("SELECT x, y FROM a", label="y", model="logistic", test_fraction=0.0)
    result.save(tmp_path / "model")
    assert federation.predict(tp.load(tmp_path / "model"), "SELECT x FROM a").num_rows == ROWS


def test_integer_keys_that_pandas_keeps_as_floats_are_keys() -> None:
    a = pd.DataFrame({"k": [1, 2, None, 4] * 10, "x": range(ROWS), "y": range(ROWS)})
    b = pd.DataFrame({"k": [1, 2, 3, 4], "z": [1, 2, 3, 5]})
    federation = tp.Federation({"a": a, "b": b})
    result = federation.train(JOIN, label="y", model="linear")
    assert federation.predict(result, JOIN).num_rows == 30
    with pytest.raises(tp.TablePuppetError, match="cannot be a key"):
        tp.Federation({"a": a.assign(k=a.k + 0.5), "b": b}).train(JOIN, label="y", model="linear")


def test_hundreds_of_classes_beside_texts_are_trained_by_newton() -> None:
    classes, rows = 320, 640
    a = pa.table(
        {"k": np.arange(rows) % 5, "c": ["u", "v"] * (rows // 2), "y": [f"c{i % classes}" for i in range(rows)]}
    )
    b = pa.table({"k": range(5), "d": ["m", "n", "o", "p", "q"]})
    federation = tp.Federation({"a": a, "b": b})
    query = "SELECT a.c, a.y, b.d FROM a JOIN b ON a.k = b.k"
    result = federation.train(query, label="y", model="softmax", algorithm="newton", epochs=2, test_fraction=0.0)
    assert result.objective < np.log(classes)


def test_trees_without_a_split_are_reported(tmp_path: Path) -> None:
    federation = tp.Federation({"a": pa.table({"x": np.arange(ROWS) * 1.0, "y": [1.0] * ROWS})})
    result = federation.train("SELECT x, y FROM a", label="y", model="boosted")
    result.report(tmp_path / "report.html")
    assert "NaN" not in (tmp_path / "report.html").read_text()
