"""A new head is one file, and its name in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "tablepuppet"
TRAIN = """
import numpy as np, pyarrow as pa, tablepuppet as tp
rng = np.random.default_rng(0)
u, a, x = rng.integers(0, 30, 400), rng.normal(size=30), rng.normal(size=400)
tables = {"f": pa.table({"u": u, "x": x, "y": x + a[u]}), "v": pa.table({"u": np.arange(30), "a": a})}
query = "SELECT f.x, v.a, f.y FROM f JOIN v ON f.u = v.u"
with tp.Federation(tables) as federation:
    given = {"label": "y", "head": "mean"}
    assert "sgd" in str(federation.explain(query, algorithm="sgd", **given))
    result = federation.train(query, model="linear", algorithm="sgd", epochs=200, **given)
    assert result.metrics["test"]["r2"] > 0.999, result.metrics
    result.save("model")
    same = federation.predict(tp.load("model"), query)["prediction"].to_numpy()
    assert np.array_equal(same, federation.predict(result, query)["prediction"].to_numpy())
    try:
        federation.train(query, algorithm="newton", **given)
    except tp.TablePuppetError as error:
        assert 'train head="mean" with algorithm="sgd"' in str(error)
    else:
        raise AssertionError("newton trained it")
"""


def test_a_head_in_one_file_is_explained_trained_saved_and_refused_where_it_must_be(
    tmp_path: Path,
) -> None:
    heads = tmp_path / "tablepuppet" / "models" / "heads"
    shutil.copytree(PACKAGE, tmp_path / "tablepuppet", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("mean.py"), heads / "mean.py")
    _replace(heads / "base.py", 'Literal["sum", ', 'Literal["sum", "mean", ')
    process = subprocess.run(
        [sys.executable, "-c", TRAIN],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def test_the_documentation_shows_the_toy_as_it_is() -> None:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    assert Path(__file__).with_name("mean.py").read_text(encoding="utf-8") in page


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")
