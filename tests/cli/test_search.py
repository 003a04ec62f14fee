"""tablepuppet search."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.cli.mistakes import QUERY, job, right, write

import tablepuppet as tp
from tablepuppet.cli.main import main


def test_settings_are_compared_as_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(right() | {"job.toml": job(more="l2 = 7.0\nseed = 3")}, tmp_path)
    asked = ["search", str(path), "--try", "l2=0.01, 0.1,1", "--folds", "3", "--metric", "auc"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with tp.Federation({name: tmp_path / f"{name}.parquet" for name in ("orders", "items")}) as federation:
        grid = {"l2": [0.01, 0.1, 1]}
        expected = tp.search(federation, QUERY, grid, label="returned", folds=3, metric="auc", seed=3)
    assert found["best"] == expected.best
    pd.testing.assert_frame_equal(pd.DataFrame(found["settings"]), expected.table, check_dtype=False)
    assert len(found["folds"]) == 9
    assert main(asked) == 0
    assert f"Best by auc: l2 = {expected.best['l2']}. Write it into job.toml and train." in capsys.readouterr().out


def test_without_settings_a_job_is_cross_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(right(), tmp_path)
    assert main(["search", str(path), "--folds", "4", "--group", "item_id", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["best"], len(found["folds"]), len(found["settings"])) == ({}, 4, 1)
    assert main(["search", str(path), "--try", "l2"]) == 2
    assert "--try takes a name and its values" in capsys.readouterr().err
    assert main(["search", str(path), "--metric", "nonsense"]) == 2
    assert "metric must be one of" in capsys.readouterr().err
