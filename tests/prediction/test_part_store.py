"""Owners hold their own parts of a model: it predicts as the whole does, and no θ passes the server."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.prediction.shop import NEW, QUERY, tables

import tablepuppet as tp
from tablepuppet.algorithms.boosting.messages import SplitRule
from tablepuppet.errors import ModelError, PolicyError
from tablepuppet.exchanges.prediction import ScoreOwnRows
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.owner.part_store import BlockPart, PartStore
from tablepuppet.owner.policy import Policy
from tablepuppet.protocol.columns import ColumnInfo, NumberEncoder

TEXT = QUERY.format(label="returned")


def shop(seed: int = 0, **options: Any) -> tp.Federation:
    """One owner for each table."""
    return tp.Federation(tables(seed), key=b"k" * 32, **options)


@pytest.fixture(scope="module")
def whole() -> tp.Result:
    with shop() as owners:
        return owners.train(TEXT, label="returned")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("algorithm", ["newton", "admm", "sgd", "vfl-admm"])
def test_a_model_that_nobody_released_predicts_as_the_released_one_does(algorithm: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"label": "returned", "algorithm": algorithm, "epochs": 5}
    with shop(models=tmp_path) as owners:
        released = owners.train(TEXT, **given)
        kept = owners.train(TEXT, release=False, **given)
        assert kept.withheld == ("o", "i", "c")
        assert kept.metrics == released.metrics
        assert kept.objective == released.objective
        for query in (None, f"{NEW} WHERE o.quantity > 3"):
            expected = owners.predict(released, query, key="order_id")
            assert owners.predict(kept, query, key="order_id").equals(expected)
        assert owners.evaluate(kept, rows="all") == owners.evaluate(released, rows="all")


def test_no_parameter_passes_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    with shop() as owners:
        exchange = owners._transport.exchange

        def watched(frames: Any, **options: Any) -> Any:
            answers = exchange(frames, **options)
            seen.extend((frames, answers))
            return answers

        monkeypatch.setattr(owners._transport, "exchange", watched)
        kept = owners.train(TEXT, label="returned", release=False)
        owners.predict(kept)
        thetas = [part.theta for client in owners._clients.values() for part in client.part_store._parts.values()]
    kinds = {
        msgspec.msgpack.decode(bytes(frame.header)[1:])["type"]
        for frames in seen
        for sent in frames.values()
        for frame in sent
    }
    assert {"HoldPart", "ScoreOwnRows", "Scores"} <= kinds
    assert not kinds & {"Release", "Parameters", "ScoreRows"}
    sent = b"".join(
        bytes(b) for frames in seen for each in frames.values() for f in each for b in (f.header, *f.buffers)
    )
    assert len(thetas) == 3
    for theta in thetas:
        assert all(value.tobytes() not in sent for value in theta.ravel() if value != 0)


def test_an_owner_whose_policy_keeps_parameters_trains_all_the_same(whole: tp.Result) -> None:
    with shop(policies={"items": Policy(release_parameters=False)}) as owners:
        plan = str(owners.explain(TEXT, label="returned"))
        result = owners.train(TEXT, label="returned")
        assert owners.predict(result, key="order_id").equals(owners.predict(whole, key="order_id"))
    assert "the weights of i, which stay there" in plan
    assert "the model, if it is released, without the weights of i" in plan
    assert result.withheld == ("i",)
    assert "weights of i withheld" in repr(result)
    found, expected = result.coefficients(), whole.coefficients()
    is_withheld = found["table"] == "items"
    assert found["feature"].tolist() == expected["feature"].tolist()
    assert found["weight"][is_withheld].isna().all()
    assert found["weight"][~is_withheld].tolist() == expected["weight"][~is_withheld].tolist()
    assert np.isfinite(result.intercept)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"algorithm": "centralized"}, r'and algorithm="centralized" fits them at the server; use another algorithm'),
        ({"split": True}, "and table items has several owners, who agree on them through the server"),
    ],
    ids=["pooled", "split"],
)
def test_what_would_show_them_to_the_server_is_refused_before_anything_is_trained(
    options: dict[str, Any], why: str
) -> None:
    given = tables()
    items = given["items"]
    owners = {**given, "items": [items[:15], items[15:]]} if options.get("split") else given
    with tp.Federation(owners, policies={"items": Policy(release_parameters=False)}) as federation:
        acts: list[Callable[..., Any]] = [federation.train, federation.explain]
        for act in acts:
            with pytest.raises(PolicyError, match=why) as refused:
                act(TEXT, label="returned", algorithm=options.get("algorithm", "newton"))
            assert str(refused.value).endswith("(rule release_parameters)")


def test_a_report_of_a_model_with_withheld_weights_can_be_written(tmp_path: Path) -> None:
    with shop(policies={"items": Policy(release_parameters=False)}) as owners:
        result = owners.train(TEXT, label="returned")
    assert result.report(tmp_path / "report.html").stat().st_size > 10_000
    assert "which stay there" in result.explain()


def test_a_loaded_model_says_which_parts_are_here_and_owners_keep_theirs_over_a_restart(tmp_path: Path) -> None:
    with shop(models=tmp_path / "models", policies={"items": Policy(release_parameters=False)}) as owners:
        result = owners.train(TEXT, label="returned")
        expected = owners.predict(result, key="order_id")
    result.save(tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model" / "blocks").iterdir()) == ["0", "2"]
    loaded = tp.load(tmp_path / "model")
    assert loaded.parts == {"o": "here", "i": "with the owners of items", "c": "here"}
    assert "with their owners: i" in repr(loaded)
    with shop(models=tmp_path / "models") as owners:
        assert owners.predict(loaded, key="order_id").equals(expected)
    with shop() as owners, pytest.raises(ModelError, match="client items: this client holds no part i of model"):
        owners.predict(loaded)
    with pytest.raises(ModelError, match=r"holds an owner's part of a model, and no model\.json"):
        tp.load(tmp_path / "models" / "items" / loaded.id)


def test_the_folder_of_a_block_may_be_given_to_its_owner(whole: tp.Result, tmp_path: Path) -> None:
    whole.save(tmp_path / "model")
    for number, owner in enumerate(("orders", "items", "cards")):
        (tmp_path / "models" / owner).mkdir(parents=True)
        shutil.move(tmp_path / "model" / "blocks" / str(number), tmp_path / "models" / owner / "from the analyst")
    loaded = tp.load(tmp_path / "model")
    assert set(loaded.parts.values()) == {f"with the owners of {t}" for t in ("orders", "items", "cards")}
    with shop(1, models=tmp_path / "models") as owners:
        held, released = (owners.predict(model, NEW, key="order_id") for model in (loaded, whole))
        assert held.equals(released)
        expected = owners.predict(whole, NEW, key="order_id", missing="zero")
        assert owners.predict(loaded, NEW, key="order_id", missing="zero").equals(expected)
    with tp.Federation({n: t for n, t in tables(1).items() if n != "cards"}, models=tmp_path / "models") as owners:
        away = owners.predict(loaded, NEW, missing="zero")
        assert away.equals(owners.predict(whole, NEW, missing="zero"))


def test_a_part_is_applied_to_its_own_expressions_only() -> None:
    """With "1, 0, 0, …" for features a server would read the weights off the predictions."""
    with shop(policies={"cards": Policy(release_parameters=False)}) as owners:
        result = owners.train(TEXT, label="returned")
        probing = NEW.replace("c.credit", "0 * c.card_id + 1 AS credit")
        with pytest.raises(PolicyError, match="client cards: its part c of the model is applied to the expressions"):
            owners.predict(result, probing)
        client = owners._clients["cards"]
        client.answer(OpenScan(job="probe", scan=0, table="cards", columns=["1.0"]))
        request = ScoreOwnRows(
            job="probe", scan=0, columns=[0], rows=np.array([0]), model=result.id, name=result.blocks[2].name
        )
        with pytest.raises(PolicyError):
            client.answer(request)


def test_an_owner_may_apply_held_parts_and_no_others(whole: tp.Result) -> None:
    with shop(policies={"items": Policy(predictions="held")}) as owners:
        kept = owners.train(TEXT, label="returned", release=False)
        assert owners.predict(kept).num_rows > 0
        with pytest.raises(PolicyError, match=r"only models whose part this owner holds .*\(rule predictions\)"):
            owners.predict(whole)
    with shop(policies={"items": Policy(predictions=False)}) as owners:
        kept = owners.train(TEXT, label="returned", release=False)
        with pytest.raises(PolicyError, match="models are not applied to this owner's rows"):
            owners.predict(kept)


def test_a_column_that_changed_its_type_is_noticed_by_the_part_that_needs_it(tmp_path: Path) -> None:
    with shop(models=tmp_path) as owners:
        kept = owners.train(TEXT, label="returned", release=False)
    given = tables()
    cards = given["cards"].set_column(1, "credit", given["cards"]["credit"].cast("string"))
    with (
        tp.Federation({**given, "cards": cards}, models=tmp_path) as owners,
        pytest.raises(ModelError, match=r"client cards: .* c\.credit was a number in training and is VARCHAR now"),
    ):
        owners.predict(kept)


def test_two_uses_of_one_table_are_two_blocks_or_two_uses_of_one() -> None:
    """A self-join has two blocks; a UNION ALL one block, whose parts lie in two scans."""
    union = " UNION ALL ".join(f"{TEXT} WHERE o.quantity {condition}" for condition in ("> 4", "<= 4"))
    twice = """
        SELECT o.quantity, i.price, j.price, o.returned FROM orders o
        JOIN items i ON o.item_id = i.item_id JOIN items j ON o.card_id = j.item_id
    """
    for query, algorithm in ((union, "newton"), (twice, "newton"), (union, "admm"), (union, "sgd")):
        with shop() as owners:
            given: dict[str, Any] = {"label": "returned", "epochs": 4, "algorithm": algorithm}
            released, kept = owners.train(query, **given), owners.train(query, **given, release=False)
            assert owners.predict(kept).equals(owners.predict(released))


def test_neural_parts_are_held_too() -> None:
    pytest.importorskip("torch")
    with shop() as owners:
        given: dict[str, Any] = {"label": "returned", "model": "mlp", "algorithm": "sgd", "epochs": 2}
        released, kept = owners.train(TEXT, **given), owners.train(TEXT, **given, release=False)
        assert owners.predict(kept).equals(owners.predict(released))
        with pytest.raises(ModelError, match="the parameters of block i stay with the owners of table items"):
            kept.module("i")


def test_a_damaged_part_is_passed_over_and_its_place_is_not_shown(whole: tp.Result, tmp_path: Path) -> None:
    whole.save(tmp_path / "model")
    shutil.copytree(tmp_path / "model" / "blocks" / "1", tmp_path / "models" / "items" / "good")
    shutil.copytree(tmp_path / "model" / "blocks" / "1", tmp_path / "models" / "items" / "another")
    (tmp_path / "models" / "items" / "another" / "theta.arrow").write_bytes(b"damaged")
    shutil.rmtree(tmp_path / "model" / "blocks" / "1")
    with shop(models=tmp_path / "models") as owners:
        assert owners.predict(tp.load(tmp_path / "model")).equals(owners.predict(whole))
    (tmp_path / "models" / "items" / "good" / "theta.arrow").unlink()
    with shop(models=tmp_path / "models") as owners, pytest.raises(ModelError, match="holds no part i") as refused:
        owners.predict(tp.load(tmp_path / "model"))
    assert str(tmp_path) not in str(refused.value)


def test_no_server_can_put_another_part_in_the_place_of_one_that_is_held(tmp_path: Path) -> None:
    with shop(models=tmp_path) as owners:
        kept = owners.train(TEXT, label="returned", release=False)
    part_store = PartStore(tmp_path / "items")
    part = part_store.find(kept.id, "i")
    part_store.hold(part, 1)  # asked again after an interruption: nothing changes
    with pytest.raises(ModelError, match="this client holds another part i of model"):
        PartStore(tmp_path / "items").hold(msgspec.structs.replace(part, theta=part.theta + 1), 1)
    np.testing.assert_array_equal(PartStore(tmp_path / "items").find(kept.id, "i").theta, part.theta)


def test_trees_that_are_held_are_replaced_by_no_others(tmp_path: Path) -> None:
    splits = (SplitRule(feature=0, border=0.5), SplitRule(feature=0, border=1.5))
    trees = BlockPart(model="0" * 16, name="t", features=("x",), encoders=(), theta=np.zeros((0, 1)), splits=splits)
    for store in (PartStore(), PartStore(tmp_path)):
        store.hold(trees, 0)
        store.hold(trees, 0)
        for others in (splits[:1], (), (splits[0], SplitRule(feature=0, border=2.5))):
            with pytest.raises(ModelError, match="this client holds another part t of model"):
                store.hold(msgspec.structs.replace(trees, splits=others), 0)
        assert store.find("0" * 16, "t").splits == splits


@pytest.mark.parametrize(
    "name", ["../../etc", "a/b", "", "G" * 16, "0" * 15, "0" * 17, "0" * 16 + "/..", "/" + "0" * 16]
)
def test_a_server_cannot_choose_where_an_owner_writes(name: str, tmp_path: Path) -> None:
    with shop() as owners:
        owners.train(TEXT, label="returned", release=False)
        [part] = owners._clients["items"].part_store._parts.values()
    with pytest.raises(ModelError, match="sixteen hexadecimal digits"):
        PartStore(tmp_path).hold(msgspec.structs.replace(part, model=name), 0)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "items").write_text("in the way")
    with shop(models=tmp_path) as owners, pytest.raises(ModelError, match="client items: its part of the model cannot"):
        owners.train(TEXT, label="returned", release=False)
    assert not list(tmp_path.rglob(".*"))


def test_a_part_is_applied_in_the_name_of_those_who_trained_it_alone(tmp_path: Path) -> None:
    store = PartStore(tmp_path)
    given: dict[str, Any] = {"name": "o", "features": ("x",), "encoders": (), "theta": np.zeros((1, 1))}
    store.hold(BlockPart(model="0" * 16, askers=("ann", "bob"), **given), 0)
    store.hold(BlockPart(model="1" * 16, **given), 0)  # nobody's in particular: all may apply it
    for held in (store, PartStore(tmp_path)):
        for askers in (("ann",), ("bob", "ann")):
            assert held.find("0" * 16, "o", askers).askers == ("ann", "bob")
        for askers in (("eve",), ("ann", "eve")):
            with pytest.raises(ModelError, match="holds no part o of model 0"):
                held.find("0" * 16, "o", askers)
            held.find("1" * 16, "o", askers)


@pytest.mark.parametrize(
    "reads", [['"x"', '"y"'], ['"x"'], ['"z"', '"x"'], ['"x"', '"z"', 'FROM (SELECT "x" FROM "t")']]
)
def test_a_part_is_applied_to_all_of_its_own_expressions(reads: list[str]) -> None:
    """With others of its choice, a server would read the parameters off the predictions."""
    encoders = tuple(NumberEncoder(np.zeros(1), np.ones(1), np.zeros(1), has_missing=False) for _ in "xz")
    part = BlockPart(
        model="0" * 16, name="t", features=("x", "z"), encoders=encoders, theta=np.zeros((2, 1)), uses=(('"x"', '"z"'),)
    )
    part.check(['"x"', '"z"'], [ColumnInfo("x", "float"), ColumnInfo("z", "float")])
    with pytest.raises(PolicyError, match="applied to the expressions that it was trained on only"):
        part.check(reads, [ColumnInfo(read.strip('"'), "float") for read in reads[:2]])
