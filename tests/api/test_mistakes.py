"""A mistake in Python gives one clear sentence, and what trains but is likely a mistake gives a note."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from tests.cli.mistakes import JOIN, QUERY, right

import tablepuppet as tp
from tablepuppet.privacy.options import FeaturePrivacy, Privacy

Call = Callable[[Any, Any], Any]  # a federation and a result
tp_any: Any = tp  # whose calls are wrong on purpose


def _train(**given: Any) -> Call:
    return lambda f, r: f.train(**{"query": QUERY, "label": "returned"} | given)


def _read(name: str) -> pd.DataFrame:
    return right()[f"{name}.parquet"].to_pandas()


def _federation(**given: Any) -> tp.Federation:
    return tp.Federation({"orders": [_read("orders"), _read("orders")], "items": _read("items")}, **given)


def _history(**given: Any) -> str:
    return str(tp_any.history("v", **{"key": "c", "time": "s", "at": "o.day"} | given))


@pytest.fixture(scope="module")
def federation() -> Iterator[tp.Federation]:
    with tp.Federation({"orders": _read("orders"), "items": _read("items")}) as made:
        yield made


@pytest.fixture(scope="module")
def result(federation: tp.Federation) -> tp.Result:
    return federation.train(QUERY, label="returned")


# what is wrong → the call, and words of the message
MISTAKES: dict[str, tuple[Call, str]] = {
    "a federation that is a path": (
        lambda f, r: tp_any.Federation("x.parquet"),
        'tables must be a dict, as in {"name": …}',
    ),
    "a federation of nothing": (lambda f, r: tp_any.Federation({}), "a table or more"),
    "a table that is a dict": (lambda f, r: tp_any.Federation({"o": {"a": [1]}}), "not a source"),
    "a table that is a column": (lambda f, r: tp_any.Federation({"o": _read("orders")["quantity"]}), ".to_frame()"),
    "a table that is an array": (lambda f, r: tp_any.Federation({"o": pa.chunked_array([[1]])}), "not a source"),
    "a table without a name": (lambda f, r: tp_any.Federation({"": _read("orders")}), "must be text, not empty"),
    "a query that is None": (_train(query=None), "SQL text"),
    "a label that is not selected": (_train(label="item_id"), "Add o.item_id"),
    "no label": (lambda f, r: f.train(QUERY), 'label="returned"'),
    "a label that is a number": (_train(label=3), "not int"),
    "a label that is a column": (_train(label=_read("orders")["returned"]), "not Series"),
    "no label of a search": (lambda f, r: tp_any.search(f, QUERY, {"l2": [1]}), 'label="returned"'),
    "an unknown model": (_train(model="xgboost"), "did you mean 'boosted'"),
    "an estimator of scikit-learn": (_train(model="RandomForestClassifier"), "did you mean 'boosted'"),
    "a penalty of scikit-learn": (_train(C=1.0), "did you mean 'l2'"),
    "a patience of XGBoost": (_train(model="boosted", early_stopping_rounds=5), "did you mean 'patience'"),
    "a text in double quotes": (_train(query=f'{QUERY} WHERE i.category = "a"'), "single quotes"),
    "a text in curly quotes": (_train(query=f"{QUERY} WHERE i.category = ‘a’"), "single quotes"),
    "a time that is not there": (_train(split="o.quantty"), "Did you mean quantity"),
    "an optimiser of torch": (_train(algorithm="adam"), "did you mean 'sgd'"),
    "a model of scikit-learn": (_train(model="ridge"), "did you mean 'linear'"),
    "a label too large": (_train(query=f"SELECT o.quantity, i.price * 1e200 AS y {JOIN}", label="y"), "power of ten"),
    "a date in another order": (_train(query=f"{QUERY} WHERE DATE '2024-01-31' > '31/01/2024'"), "'2024-01-31'"),
    "a misspelt split": (_train(split="tiem"), 'split is "time" or a column as in "t.ts"'),
    "privacy without an epsilon": (_train(privacy={"label": 2.0}), "write label = {epsilon = 2.0}"),
    "a table without a time": (_train(split="time"), 'split="o.ts"'),
    "many numbers for two classes": (
        _train(query=f"SELECT i.price, o.quantity {JOIN}", label="quantity", model="logistic"),
        'model="linear"',
    ),
    "a misspelt model": (_train(modle="mlp"), "did you mean 'model'"),
    "layers that are text": (_train(model="mlp", hidden="64"), "expected list, got str"),
    "privacy that is a word": (_train(privacy="dp"), "expected dict, got str"),
    "epochs that are text": (_train(epochs="10"), "expected int, got str"),
    "a test fraction in percent": (_train(test_fraction=15), "test_fraction must be below 1, not 15"),
    "a seed that is None": (_train(seed=None), "expected int, got None"),
    "privacy that is a number": (_train(privacy=1.0), "privacy"),
    "noise of no size": (
        _train(privacy={"label": {"epsilon": 0}}),
        "privacy.label.epsilon must be above 0 and at most 100; it is 0",
    ),
    "a cap of nothing": (_train(privacy={"features": {"epsilon": 1, "cap": {"o": 0}}}), "cap must be at least 1"),
    "bounds of privacy, by its struct": (
        lambda f, r: f.train(QUERY, label="returned", privacy=Privacy(features=FeaturePrivacy(noise=-1.0))),
        "privacy.features.noise must be above 0",
    ),
    "an unknown privacy option": (_train(privacy={"epsilon": 1}), "no option 'epsilon'"),
    "a callback that is a number": (_train(on_round=3), "a function of one event"),
    "a class instead of options": (_train(algorithm=tp.Admm), "not the class Admm"),
    "a misspelt option": (lambda f, r: tp_any.Admm(rhoo=1), "did you mean 'rho'"),
    "trees by newton": (_train(model="boosted", algorithm="newton"), "use both, or neither"),
    "an unknown head": (_train(head="sumn"), "did you mean 'sum'"),
    "a rank of nothing": (_train(head="factor", rank=0), "rank must be at least 1"),
    "a model that is a path": (lambda f, r: f.predict("model"), "see tp.load"),
    "a comparison with a path": (lambda f, r: f.compare(r, "model"), "see tp.load"),
    "a comparison with a model of classes": (
        lambda f, r: f.compare(r, f.train(f"SELECT i.price, o.quantity {JOIN}", label="quantity", model="linear")),
        "the models predict returned and quantity",
    ),
    "a comparison of two losses": (
        lambda f, r: f.compare(
            *(f.train(f"SELECT i.price, o.quantity {JOIN}", label="quantity", model=m) for m in ("linear", "huber"))
        ),
        "the models lose by squared and huber",
    ),
    "a text as a date": (_train(query=f"{QUERY} WHERE i.category > DATE '2024-01-31'"), "CAST(column AS DATE)"),
    "a watch over nothing": (_train(monitor="acc"), "not 'acc'"),
    "another query": (lambda f, r: f.predict(r, "SELECT o.quantity FROM orders o"), "needs the feature i.price"),
    "an unknown key": (lambda f, r: f.predict(r, key="nokey"), "the key nokey"),
    "a key twice": (lambda f, r: f.predict(r, key=["item_id", "item_id"]), "each once"),
    "a key that is a number": (lambda f, r: f.predict(r, key=3), "key must be text or a list"),
    "a prediction of a data frame": (lambda f, r: r.predict(_read("orders")), "takes a Federation"),
    "a threshold that is text": (
        lambda f, r: f.predict(r, threshold="0.5"),
        "threshold must be a number or None, not str",
    ),
    "a threshold above one": (lambda f, r: f.predict(r, threshold=5), "from 0 to 1"),
    "a report without a path": (lambda f, r: r.report(None), "needs a path"),
    "a report next to a path": (lambda f, r: r.report("x.html", beside="y.html"), "beside must be a list"),
    "a history without a label": (lambda f, r: f.suggest_history(QUERY), "no label is named"),
    "a history as a spreadsheet": (lambda f, r: r.write_history("x.xls"), ".csv or .json"),
    "a model over a device": (lambda f, r: r.save("/dev/full"), "choose another folder"),
    "a model over a file": (lambda f, r: r.save(__file__), "choose another folder"),
    "a model that is not there": (lambda f, r: tp.load("nope"), "no model.json in nope"),
    "an unknown goal": (lambda f, r: r.threshold("f2"), "f1, accuracy, youden"),
    "an unknown side": (lambda f, r: r.threshold(side="tst"), "there are train, test"),
    "bins that do not divide": (lambda f, r: r.curves["test"].calibration_curve(7), "bins must divide"),
    "rows that are not measured": (lambda f, r: f.evaluate(r, rows="validation"), '"test"'),
    "an unknown feature": (lambda f, r: f.partial_dependence(r, feature="prise"), "Did you mean i.price"),
    "a text for a number": (lambda f, r: f.partial_dependence(r, feature="price", values=["a"]), "is a number"),
    "a query before the federation": (lambda f, r: tp_any.search(QUERY, f, {"l2": [1]}), "must be a Federation"),
    "a grid that is a number": (lambda f, r: tp_any.search(f, QUERY, 3, label="returned"), "grid must be a dict"),
    "an unknown option in a grid": (lambda f, r: tp_any.search(f, QUERY, {"l3": [1]}, label="returned"), "'l3'"),
    "a table instead of a federation": (
        lambda f, r: tp_any.RelationalClassifier().fit(_read("orders"), ""),
        "there is no X",
    ),
    "a prediction before the fit": (lambda f, r: tp_any.RelationalClassifier().predict(f), "not fitted"),
    "a tree of a linear model": (lambda f, r: r.model.tree_text(0), 'see model="boosted"'),
    "a comparison with NULL": (_train(query=f"{QUERY} WHERE i.category != NULL"), "write IS NULL or IS NOT NULL"),
    "a block that is not there": (lambda f, r: r.model.to_sql("zzz"), "one of o, i"),
    "a table and a query": (lambda f, r: tp_any.source("postgresql://h/d", table="a", query="b"), "not both"),
    "an argument of another name": (lambda f, r: f.predict(r, kye="item_id"), "predict has no argument 'kye'; did you"),
    "a metric where none is taken": (lambda f, r: f.evaluate(r, metric="auc"), "it has model, query, rows"),
    "a comparison of one model": (lambda f, r: f.compare(r), "compare: missing a required argument: 'second'"),
    "a model by its place": (lambda f, r: f.train(QUERY, "returned", "mlp"), "too many positional arguments"),
    "training without a query": (lambda f, r: f.train(label="returned"), "missing a required argument: 'query'"),
    "folds called cv": (lambda f, r: tp_any.search(f, QUERY, param_grid={"l2": [1]}), "argument: 'grid'"),
    "half a repetition": (lambda f, r: f.importance(r, repeats=2.5), "repeats must be a whole number, not 2.5"),
    "a seed below zero": (lambda f, r: f.importance(r, seed=-1), "with a seed from 0 up"),
    "half a point": (lambda f, r: f.partial_dependence(r, feature="i.price", points=2.5), "a whole number, not 2.5"),
    "a value instead of values": (lambda f, r: f.partial_dependence(r, feature="i.price", values=3), "must be a list"),
    "letters instead of values": (lambda f, r: f.partial_dependence(r, feature="category", values="ab"), "not str"),
    "a category of nothing": (
        lambda f, r: f.partial_dependence(r, feature="category", values=["zz"]),
        "i.category has no category 'zz' in the model. Known: a, b, c.",
    ),
    "a number for a text": (lambda f, r: f.partial_dependence(r, feature="category", values=[3]), "no category 3.0"),
    "no feature": (lambda f, r: f.partial_dependence(r), "name a feature, as in feature="),
    "a path of one penalty": (lambda f, r: tp_any.path(f, QUERY, label="returned", l1=0.1), "must be a list, not 0.1"),
    "a path of texts": (lambda f, r: tp_any.path(f, QUERY, label="returned", l1=["a"]), "l1 lists one penalty"),
    "a path of nothing": (lambda f, r: tp_any.path(f, QUERY, label="returned", l1=[]), "l1 lists one penalty"),
    "a recall that is text": (lambda f, r: r.threshold(recall="0.5"), "recall must be a number or None, not str"),
    "costs that are texts": (lambda f, r: r.threshold(costs=("a", "b")), "costs are two numbers"),
    "a cost": (lambda f, r: r.threshold(costs=3), "costs must be a tuple or None, not 3"),
    "bins that are half": (lambda f, r: r.curves["test"].calibration_curve(10.5), "bins must be a whole number"),
    "dependence by name": (lambda f, r: r.report("r.html", dependence=["i.price"]), "dependence must be a dict"),
    "dependence on no curve": (lambda f, r: r.report("r.html", dependence={"i.price": 3}), "is no curve"),
    "networks of numbers": (lambda f, r: r.report("r.html", networks={"x": 3}), "tp.Network(latency=0.02"),
    "a history by a number": (lambda f, r: _history(key=3), "key must be text"),
    "a history without a key": (lambda f, r: _history(key=[]), "one key or more"),
    "a history of no table": (lambda f, r: tp_any.history("", key="c", time="s", at="o.day"), "names its table"),
    "a history of numbers": (lambda f, r: _history(columns=[3]), "each as text"),
    "a window of days": (lambda f, r: _history(windows=30), "windows must be text or a list, not 30"),
    "a window called otherwise": (lambda f, r: _history(window="30 days"), "did you mean 'windows'"),
    "trees without a prune": (
        lambda f, r: f.suggest_history(QUERY, label="returned", trees=3),
        "trees is an option of training, which prune=True asks for",
    ),
    "a moment that is none": (
        lambda f, r: f.suggest_history(QUERY, label="returned", at="o.returned"),
        "o.returned is boolean, and no moment",
    ),
    "a split by the label": (_train(split="o.returned"), "o.returned is boolean, and no moment"),
    "owners that are a list": (lambda f, r: _federation(owners=["a"]), "owners must be a dict"),
    "an owner of letters": (lambda f, r: _federation(owners={"a": "orders"}), 'as in {"a": ["orders"]}'),
    "a policy that is a dict": (lambda f, r: _federation(policies={"orders": {"x": 3}}), "a policy needs a path"),
    "a secret that is text": (lambda f, r: _federation(key="secret"), "key must be bytes or None, not str"),
    "a secret of one byte": (lambda f, r: _federation(key=b"s"), "a secret of 16 bytes or more"),
    "a partition by nothing": (lambda f, r: _federation(partitioned_by={"orders": ["itm_id"]}), "Did you mean item_id"),
    "two tables but for case": (
        lambda f, r: tp.Federation({"orders": _read("orders"), "ORDERS": _read("orders")}),
        "which SQL does not tell apart",
    ),
    "a federation file that is a number": (lambda f, r: tp_any.Federation.from_toml(3), "a federation needs a path"),
    "a column of sparse numbers": (
        lambda f, r: tp.Federation({"o": pd.DataFrame({"x": pd.arrays.SparseArray([0, 1])})}),
        "(Sparse[int64, 0]) mixes types",
    ),
    "keys hashed by another name": (_train(privacy={"keys": "sha"}), "must be one of hmac, "),
    "two quantiles": (
        _train(query=f"SELECT i.price, o.quantity {JOIN}", label="quantity", model="quantile", quantile=[0.1, 0.9]),
        "quantile of loss_options: expected float, got list",
    ),
    "a function that takes no number": (
        _train(query=QUERY.replace("i.price", "upper(i.price) AS p")),
        "no function of SQL takes upper(DOUBLE); CAST",
    ),
    "rows compared by a number": (
        _train(query=QUERY.replace("o.item_id = i.item_id", "o.item_id > i.item_id")),
        "until a date or a time",
    ),
    "a test of every row": (_train(test_where="true"), "A constant tells no row from another"),
    "a label that is the same": (_train(query=f"SELECT i.price, 1 AS y {JOIN}", label="y"), "feature, label or"),
    "a regressor of classes": (
        lambda f, r: tp_any.RelationalRegressor(model="logistic").fit(f, QUERY, "returned"),
        "predicts classes, and a regressor does not",
    ),
    "a prediction of a frame": (
        lambda f, r: tp_any.RelationalClassifier().fit(f, QUERY, "returned").predict(_read("orders")),
        "there is no X), not DataFrame",
    ),
    "a score of a frame": (lambda f, r: tp_any.RelationalClassifier().score(_read("orders"), []), "there is no X"),
    "a tree by its name": (lambda f, r: r.model.tree_text("0"), "number must be a whole number, not str"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_sentence(mistake: str, federation: tp.Federation, result: tp.Result) -> None:
    call, words = MISTAKES[mistake]
    with pytest.raises(tp.TablePuppetError) as caught:
        call(federation, result)
    assert words in str(caught.value)


def test_a_block_is_exported_by_the_name_of_its_table(result: tp.Result) -> None:
    assert result.model.to_sql("items") == result.model.to_sql("i")


def test_trees_that_cannot_be_exported_lead_to_lightgbm(federation: tp.Federation) -> None:
    trees = federation.train(QUERY, label="returned", model="boosted", trees=1)
    with pytest.raises(tp.TablePuppetError, match="tablepuppet export MODEL lightgbm"):
        trees.model.to_sql("items")


def test_select_star_notes_that_keys_are_features(federation: tp.Federation, result: tp.Result) -> None:
    notes = federation.train(f"SELECT * {JOIN}", label="returned").notes
    assert any("the keys o.item_id, i.item_id" in note and "EXCLUDE (item_id)" in note for note in notes)
    assert not any("EXCLUDE" in note for note in result.notes)


def test_rows_whose_keys_have_trailing_spaces_are_counted(result: tp.Result) -> None:
    orders, items = _read("orders"), _read("items")
    items["item_id"] = items["item_id"].astype(str)
    orders["item_id"] = [f"{key} " if row % 2 else str(key) for row, key in enumerate(orders["item_id"])]
    with tp.Federation({"orders": orders, "items": items}) as federation:
        notes = federation.train(QUERY, label="returned").notes
    assert any(note.startswith("30 of 60 rows of orders (o) found no partner") for note in notes)
    assert not any("no partner" in note for note in result.notes)


def test_numbers_with_a_comma_are_noted(result: tp.Result) -> None:
    items = _read("items")
    items["price"] = [f"{price:.2f}".replace(".", ",") for price in items["price"]]
    with tp.Federation({"orders": _read("orders"), "items": items}) as federation:
        notes = federation.train(QUERY, label="returned").notes
        cast = QUERY.replace("i.price", "CAST(replace(i.price, ',', '.') AS DOUBLE) AS price")
        assert federation.train(cast, label="returned").objective == pytest.approx(result.objective)
    assert any("replace(i.price, ',', '') AS DOUBLE" in note for note in notes)


def test_classes_that_differ_in_spaces_or_case_are_noted(result: tp.Result) -> None:
    orders = _read("orders")
    orders["returned"] = [
        "yes" if is_back else "No " if row % 2 else "no" for row, is_back in enumerate(orders["returned"])
    ]
    with tp.Federation({"orders": orders, "items": _read("items")}) as federation:
        notes = federation.train(QUERY, label="returned").notes
        trimmed = QUERY.replace("o.returned", "lower(trim(o.returned)) AS returned")
        assert federation.train(trimmed, label="returned").objective == pytest.approx(result.objective)
    assert any("3 classes, of which some differ in spaces or case only" in note for note in notes)
    assert not any("classes" in note for note in result.notes)


def test_one_text_stands_for_a_list_of_one_in_a_history() -> None:
    def write(windows: Any, columns: Any) -> str:
        return tp.history("v", key="c", time="s", at="o.day", windows=windows, columns=columns)

    assert write("90 days", "minutes") == write(["90 days"], ["minutes"])


def test_a_csv_column_that_one_word_turned_to_text_is_noted(tmp_path: Path) -> None:
    orders = _read("orders").astype({"quantity": str})
    orders.loc[3, "quantity"] = "n/a"
    orders.to_csv(tmp_path / "orders.csv", index=False)
    with tp.Federation({"orders": tmp_path / "orders.csv", "items": _read("items")}) as federation:
        notes = federation.train(QUERY, label="returned").notes
    assert any("5 of its 6 values are numbers" in note and "TRY_CAST(o.quantity AS DOUBLE)" in note for note in notes)
