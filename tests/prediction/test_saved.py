"""Saved models: open formats, whole or not there, and the same predictions in another process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.prediction.shop import NEW, QUERY, federation, tables

import tablepuppet as tp
from tablepuppet.errors import ModelError
from tablepuppet.sources.encoding import encoded_width


@pytest.fixture(scope="module")
def result() -> tp.Result:
    with federation(tables()) as shop:
        return shop.train(QUERY.format(label="returned"), label="returned")


def test_a_loaded_model_is_the_same_to_the_last_bit(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model")
    assert loaded.classes == (False, True)
    assert loaded.query == result.model.query
    assert loaded.encoded_intercept.tolist() == result.encoded_intercept.tolist()
    for old, new in zip(result.blocks, loaded.blocks, strict=True):
        assert np.array_equal(old.theta, new.theta)
        assert np.array_equal(old.mean, new.mean)
        assert old.features == new.features
    with federation(tables(1)) as shop:
        assert shop.predict(loaded, NEW).equals(shop.predict(result, NEW))
    assert loaded.metadata["metrics"] == result.metrics


def test_a_loaded_model_says_what_the_trained_one_said(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model")
    assert loaded.coefficients().equals(result.coefficients())
    assert loaded.importance().equals(result.importance())
    assert loaded.intercept == result.intercept


def test_importance_is_how_far_a_feature_moves_the_score(result: tp.Result) -> None:
    found = result.importance()
    assert list(found.columns) == ["table", "feature", "importance"]
    assert set(found["feature"]) == {f for block in result.blocks for f in block.features}
    assert found["importance"].is_monotonic_decreasing
    [block] = [block for block in result.blocks if "i.price" in block.features]
    ends = np.cumsum([0, *(encoded_width(encoder) for encoder in block.encoders)])
    for name, kind in (("i.price", "number"), ("i.category", "category")):
        row = block.features.index(name)
        own = block.theta[ends[row] : ends[row + 1], 0]
        spread = own.std() if kind == "category" else np.linalg.norm(own)
        assert found.loc[found["feature"] == name, "importance"].item() == pytest.approx(float(spread))


@pytest.mark.parametrize("values", [[0, 1], [3, 5, 9]])
def test_classes_that_are_whole_numbers_stay_integers(values: list[int], tmp_path: Path) -> None:
    given = tables()
    drawn = np.random.default_rng(1).choice(values, given["orders"].num_rows)
    given["orders"] = given["orders"].append_column("kind", pa.array(drawn, pa.int64()))
    with federation(given) as shop:
        result = shop.train(QUERY.format(label="kind"), label="kind", model="linear", loss="cross_entropy")
        result.save(tmp_path / "model")
        loaded = tp.load(tmp_path / "model")
        for model in (result, loaded):
            assert [(c, type(c)) for c in model.classes] == [(v, int) for v in values]
            assert shop.predict(model)["prediction"].type == pa.int64()
            assert set(model.coefficients()["class_"].map(type)) == {int}
        assert shop.evaluate(loaded, rows="all") == shop.evaluate(result, rows="all")
    written = [json.loads((tmp_path / "model" / "model.json").read_text()), json.loads(result.to_json())]
    assert [type(c) for c in written[0]["classes"]] == [int] * len(values)
    assert {type(c) for c in written[1]["coefficients"]["class_"]} == {int}


def test_a_model_of_an_older_version_has_integers_too(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"classes": [0.0, 1.0]}))
    assert [type(c) for c in tp.load(tmp_path / "model").classes] == [int, int]


def test_a_new_process_predicts_the_same(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model")
    with federation(tables(1)) as shop:
        expected = shop.predict(result, NEW)
    code = (
        "import tablepuppet as tp; from tests.prediction.shop import *\n"
        f"federation(tables(1)).predict(tp.load({str(tmp_path / 'model')!r}), NEW, to='answer.parquet')"
    )
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root)])
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, timeout=120
    )
    assert pa.parquet.read_table(tmp_path / "answer.parquet").equals(expected)


def test_its_files_are_json_and_arrow_and_a_block_is_a_folder_of_its_own(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model")
    files = sorted(str(f.relative_to(tmp_path / "model")) for f in (tmp_path / "model").rglob("*") if f.is_file())
    blocks = [f"blocks/{k}/{name}" for k in range(3) for name in ("block.json", "theta.arrow")]
    assert files == [*blocks, "model.json"]
    with pa.ipc.open_file(str(tmp_path / "model" / "blocks" / "1" / "theta.arrow")) as reader:
        assert reader.read_all()["theta"].to_numpy().tolist() == result.blocks[1].theta.ravel().tolist()
    content = json.loads((tmp_path / "model" / "model.json").read_text())
    assert content["version"] == 4
    assert [t["table"] for t in content["tables"]] == ["orders", "items", "cards"]


def test_saving_again_replaces_the_model_and_leaves_nothing_beside_it(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model")
    (tmp_path / "model" / "stale.txt").write_text("old")
    result.save(tmp_path / "model")
    assert not (tmp_path / "model" / "stale.txt").exists()
    assert [f.name for f in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_is_no_model_is_not_replaced(result: tp.Result, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(ModelError, match="thesis exists and is not a saved model"):
        result.save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_a_save_that_fails_half_way_leaves_nothing(
    result: tp.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(ModelError, match="No space left on device"):
        result.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_model_can_be_saved_again(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "one")
    tp.load(tmp_path / "one").save(tmp_path / "two")
    for file in ("model.json", "blocks/0/block.json", "blocks/0/theta.arrow"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    with pytest.raises(ModelError, match="the model needs a path, for example 'model/'; nothing was given"):
        result.save(None)  # type: ignore[arg-type]


def test_a_newer_version_says_so(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "version": 5, "unheard_of": 1}))
    with pytest.raises(ModelError, match="version 5, and this tablepuppet reads up to 4; install a newer"):
        tp.load(tmp_path / "model")


def test_what_is_missing_or_damaged_is_named(result: tp.Result, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no model\.json in"):
        tp.load(tmp_path)
    result.save(tmp_path / "model")
    theta = tmp_path / "model" / "blocks" / "0" / "theta.arrow"
    theta.write_bytes(theta.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"theta\.arrow is missing or damaged"):
        tp.load(tmp_path / "model")
    (tmp_path / "model" / "model.json").write_text('{"format": "something else"}')
    with pytest.raises(ModelError, match="not a saved model or is damaged"):
        tp.load(tmp_path / "model")


def test_parts_of_two_models_are_not_mixed(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "one")
    with federation(tables(1)) as shop:
        shop.train(QUERY.format(label="returned"), label="returned").save(tmp_path / "two")
    shutil.rmtree(tmp_path / "one" / "blocks" / "1")
    shutil.copytree(tmp_path / "two" / "blocks" / "1", tmp_path / "one" / "blocks" / "1")
    with pytest.raises(ModelError, match="belongs to another model"):
        tp.load(tmp_path / "one")
