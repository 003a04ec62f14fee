"""The public face: a federation trains, and says kindly why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.joined_rows import joined_rows

import tablepuppet as tp
from tablepuppet import errors

RNG = np.random.default_rng(0)
ROWS = 120
ORDERS = pa.table(
    {
        "item": RNG.integers(0, 6, ROWS),
        "text_item": pa.array([str(i % 6) for i in range(ROWS)]),
        "x": RNG.normal(size=ROWS),
        "day": pa.array(np.arange(ROWS).astype("datetime64[D]")),
        "nothing": pa.array([None] * ROWS, pa.float64()),
        "one": ["z"] * ROWS,
        "is_back": RNG.random(ROWS) > 0.5,
        "mood": pa.array(RNG.choice(["bad", "fine", "good"], ROWS)),
        "stars": RNG.integers(1, 6, ROWS),
        "y": RNG.normal(size=ROWS),
        "infinite": [float("inf")] * ROWS,
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(RNG.normal(size=3 * ROWS)), 3),
    }
)
ITEMS = pa.table({"item": np.arange(6), "price": RNG.normal(size=6), "kind": ["a", "b", "a", None, "b", "c"]})
JOIN = "FROM orders o JOIN items i ON o.item = i.item"


@pytest.fixture(scope="module")
def federation() -> tp.Federation:
    return tp.Federation({"orders": [ORDERS.slice(0, 50), ORDERS.slice(50)], "items": ITEMS})


def test_public_names_are_pinned() -> None:
    assert {"Admm", "Federation", "Network", "Newton", "Plan", "Result", "Sgd", "TablePuppetError", "source"} <= set(
        tp.__all__
    )
    assert all(hasattr(tp, name) for name in tp.__all__)


@pytest.mark.parametrize(
    ("label", "model", "metric"),
    [
        ("y", "linear", "rmse"),
        ("is_back", "logistic", "auc"),
        ("mood", "softmax", "accuracy"),
        ("stars", "linear", "r2"),
        ("y", "auto", "mae"),
        ("is_back", "auto", "auc"),
        ("mood", "auto", "log_loss"),
        ("stars", "softmax", "accuracy"),
    ],
)
def test_every_kind_of_label_finds_its_model(federation: tp.Federation, label: str, model: str, metric: str) -> None:
    result = federation.train(f"SELECT o.x, i.price, i.kind, o.{label} {JOIN}", label=label, model=model)
    assert metric in result.metrics["train"]
    assert metric in result.metrics["test"]


def test_a_result_tells_its_whole_story(federation: tp.Federation) -> None:
    seen: list[Any] = []
    result = federation.train(
        f"SELECT o.x, o.day, o.vector, i.price, i.kind, o.is_back {JOIN}",
        label="is_back",
        algorithm="admm",
        epochs=4,
        on_round=seen.append,
    )
    assert [event.round for event in seen] == list(range(1, len(result.history) + 1))
    assert seen[-1].record.epoch == len(result.history)
    last = result.history[-1]
    assert last.objective == result.objective
    assert list(pd.DataFrame(result.history).columns)[:3] == ["epoch", "objective", "metrics"]
    assert last.rounds == result.traffic.rounds
    assert last.bytes == result.traffic.bytes_up + result.traffic.bytes_down
    assert sum(result.traffic.by_message.values()) == result.traffic.bytes
    assert result.traffic.seconds("us-uk") > result.traffic.seconds("us-us") > 0
    frame = result.coefficients()
    assert list(frame.columns) == ["table", "feature", "class_", "weight"]
    assert {"o.x", "o.day", "o.vector[1]", "i.price", "i.kind=a", "i.kind IS NULL"} <= set(frame["feature"])
    assert isinstance(result.intercept, float)
    assert repr(result).startswith("Result(logistic by admm: test accuracy")


def test_data_frames_and_files_give_the_same_model(tmp_path: Path) -> None:
    query = f"SELECT o.x, o.day, i.price, i.kind, o.y {JOIN}"
    columns = ["item", "x", "day", "y"]
    orders = ORDERS.select(columns)
    pq.write_table(orders, tmp_path / "orders.parquet")
    orders.to_pandas().to_csv(tmp_path / "orders.csv", index=False)
    (tmp_path / "federation.toml").write_text('[tables]\norders = "orders.parquet"\nitems = ["items.parquet"]\n')
    pq.write_table(ITEMS, tmp_path / "items.parquet")
    answers = []
    for source in (
        orders,
        orders.to_pandas(),
        pl.from_arrow(orders),
        tmp_path / "orders.parquet",
        tmp_path / "orders.csv",
    ):
        with tp.Federation({"orders": source, "items": ITEMS}) as federation:
            answers.append(federation.train(query, label="y").objective)
    with tp.Federation.from_toml(tmp_path / "federation.toml") as federation:
        answers.append(federation.train(query, label="y").objective)
    np.testing.assert_allclose(answers, answers[0], rtol=1e-12)


def test_an_unknown_key_of_a_federation_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text('[tables]\norders = "orders.parquet"\n[policy]\norders = "rules.toml"\n')
    with pytest.raises(tp.TablePuppetError, match="unknown key 'policy'; did you mean 'policies'"):
        tp.Federation.from_toml(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('models = "m"', r"\[tables\] maps a table to its sources; found none"),
        (
            '[tables]\no = "x.csv"\n[owners]\nshop = "o"',
            r"\[owners\] maps an owner to the list of its tables; found str",
        ),
        ('[tables]\no = "x.csv"\n[policies]\no = 3', r"\[policies\] maps .* to the path of its policy file; found int"),
        ('models = 3\n[tables]\no = "x.csv"', "models is the path of a folder; found int"),
    ],
)
def test_a_section_of_a_federation_file_says_what_it_holds(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(text)
    with pytest.raises(errors.JobError, match=says):
        tp.Federation.from_toml(path)


@pytest.mark.parametrize("owners", [1, 2])
def test_a_client_with_another_secret_is_named_and_its_rows_are_not_just_missing(owners: int) -> None:
    orders = [ORDERS] if owners == 1 else [ORDERS[:60], ORDERS[60:]]
    query = "SELECT o.x, i.price, o.y FROM orders o JOIN items i ON o.item = i.item"
    with tp.Federation({"orders": orders, "items": ITEMS}, key=b"k" * 32) as federation:
        model = federation.train(query, label="y").model
        federation._clients["items"].key = b"another key" * 3
        for ask in (
            lambda: federation.train(query, label="y"),
            lambda: federation.explain(query, label="y"),
            lambda: federation.predict(model, query),
        ):
            with pytest.raises(errors.MappingError, match="do not share one secret: items has another than orders"):
                ask()


def test_a_closed_federation_says_so() -> None:
    with tp.Federation({"orders": ORDERS}) as federation:
        pass
    with pytest.raises(errors.TransportError, match="this federation is closed") as refused:
        federation.train("SELECT o.x, o.y FROM orders o", label="y")
    assert refused.value.__context__ is None


REFUSALS: list[tuple[str, dict[str, Any], type[tp.TablePuppetError], str]] = [
    ("o.x, o.stars", {"label": "stars", "model": "logistic"}, errors.MappingError, "two classes"),
    ("o.x, o.y", {"label": "y", "model": "logistic"}, errors.MappingError, 'use model="linear"'),
    ("o.x, o.y", {"label": "y", "model": "softmax"}, errors.MappingError, 'use model="linear"'),
    ("o.x, o.mood", {"label": "mood", "model": "linear"}, errors.MappingError, "is text"),
    ("o.x, o.one", {"label": "one", "model": "softmax"}, errors.MappingError, "only one class"),
    ("o.x, o.y > 1e9 AS far", {"label": "far", "model": "logistic"}, errors.MappingError, "only one class"),
    ("o.x, o.one", {"label": "one", "model": "logistic"}, errors.MappingError, "only one class"),
    ("o.x, CAST(o.y AS VARCHAR) AS t", {"label": "t"}, errors.MappingError, "classes in 120 rows.*CAST"),
    ("o.x, o.nothing", {"label": "nothing"}, errors.MappingError, "IS NOT NULL"),
    ("o.infinite, o.y", {"label": "y"}, errors.SourceError, "infinity"),
    ("o.y", {"label": "y"}, errors.CatalogError, "at least one feature"),
    ("o.x", {"label": "y"}, errors.CatalogError, "not in the SELECT"),
    ("o.xx, o.y", {"label": "y"}, errors.CatalogError, "id you mean"),
    ("o.x, o.y", {"label": "y", "max_joined_rows": 10}, errors.MappingError, "120 rows, more than the limit of 10"),
    ("o.x, o.y", {"label": "y", "epochs": 0}, errors.JobError, "epochs"),
    ("o.x, o.y", {"label": "y", "epochs": "many"}, errors.JobError, "epochs: expected int"),
    ("o.x, o.y", {"label": "y", "l2": float("nan")}, errors.JobError, "l2"),
    ("o.x, o.y", {"label": "y", "test_fraction": 1.0}, errors.JobError, "test_fraction"),
    ("o.x, o.y", {"label": "y", "algorithm": "newtn"}, errors.JobError, "did you mean 'newton'"),
    ("o.x, o.y", {"label": "y", "algorithm": "admm", "rh": 1}, errors.JobError, "did you mean 'rho'"),
    ("o.x, o.y", {"label": "y", "algorithm": tp.Admm(), "rho": 1}, errors.JobError, "tp.Admm"),
    ("o.x, o.y", {"label": "y", "algorithm": 3}, errors.JobError, "algorithm must be"),
    ("o.x, o.y", {"label": "y", "model": "liner"}, errors.JobError, "did you mean 'linear'"),
    ("o.x, o.y", {"label": "y", "algorithm": "sgd", "learning_rate": -1.0}, errors.JobError, "learning_rate"),
    ("o.x, o.y", {"label": ""}, errors.JobError, "label"),
]


@pytest.mark.parametrize(("columns", "given", "kind", "says"), REFUSALS)
def test_what_cannot_be_done_is_refused_with_a_reason(
    federation: tp.Federation, columns: str, given: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        federation.train(f"SELECT {columns} {JOIN}", **given)


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ("o.text_item = i.item", "CAST"),
        ("o.item = i.item + 100", "no value in common"),
    ],
)
def test_joins_that_cannot_match_are_explained(federation: tp.Federation, on: str, says: str) -> None:
    with pytest.raises(tp.TablePuppetError, match=says):
        federation.train(f"SELECT o.x, i.price, o.y FROM orders o JOIN items i ON {on}", label="y")


def test_a_run_that_diverges_says_so_and_what_to_do(federation: tp.Federation) -> None:
    with pytest.raises(errors.TrainingError, match="learning_rate"):
        federation.train(
            f"SELECT o.x, i.price, o.y {JOIN}",
            label="y",
            algorithm="sgd",
            learning_rate=1e8,
            epochs=60,
            batch_size=None,
        )


@pytest.mark.parametrize("algorithm", ["newton", "admm", "sgd", "vfl-admm", "vfl-sgd", "centralized"])
def test_a_left_join_that_finds_nothing_still_trains(federation: tp.Federation, algorithm: str) -> None:
    query = "SELECT o.x, i.price, o.y FROM orders o LEFT JOIN items i ON o.item = i.item + 100"
    result = federation.train(query, label="y", algorithm=algorithm, epochs=3)
    assert np.isfinite(result.objective)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("algorithm", ["newton", "admm", "sgd"])
def test_an_owner_without_rows_changes_nothing(algorithm: str) -> None:
    query = f"SELECT o.x, i.price, o.y {JOIN}"
    answers = []
    for orders in ([ORDERS], [ORDERS.slice(0, 0), ORDERS, ORDERS.slice(0, 0)]):
        with tp.Federation({"orders": orders, "items": ITEMS}) as federation:
            answers.append(federation.train(query, label="y", algorithm=algorithm, epochs=3).objective)
    assert answers[0] == pytest.approx(answers[1], rel=1e-12)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({}, "a table or more"),
        ([], "tables must be a dict"),
        ({"a": []}, "at least one"),
        ({"a": 3}, "not a source"),
        ({3: ITEMS}, "must be text"),
    ],
)
def test_a_federation_without_sense_is_refused(tables: Any, says: str) -> None:
    with pytest.raises(tp.TablePuppetError, match=says):
        tp.Federation(tables)


def test_test_rows_are_never_copies_of_training_rows() -> None:
    doubled = pa.concat_tables([ITEMS, ITEMS])
    with tp.Federation({"orders": ORDERS, "items": doubled}) as federation:
        plan = federation.explain(f"SELECT o.x, i.price, o.y {JOIN}", label="y", test_fraction=0.3)
        mapping = joined_rows(federation, plan.job).mapping
    train, test = mapping.train, mapping.test
    assert train.rows + test.rows == 2 * ROWS
    assert len(train.labels) + len(test.labels) == ROWS
    assert abs(len(test.labels) / ROWS - 0.3) < 0.15
