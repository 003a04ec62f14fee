"""A new loss is one file, and its name in one line: the one that docs/extending.md shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAIN = """
import numpy as np, pyarrow as pa, tablepuppet as tp
x = np.linspace(-1.0, 1.0, 200)
with tp.Federation({"t": pa.table({"x": x, "y": 2.0 * x})}) as federation:
    query = "SELECT t.x, t.y FROM t"
    assert "model log-cosh" in str(federation.explain(query, label="y", model="log-cosh"))
    result = federation.train(query, label="y", model="log-cosh", l2=0.0)
    assert result.metrics["test"]["r2"] > 0.999, result.metrics
    result.save("model")
    assert tp.load("model").loss.name == "log_cosh"
"""


def test_the_loss_of_the_documentation_is_explained_trained_and_saved(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "src" / "tablepuppet", tmp_path / "tablepuppet", ignore=shutil.ignore_patterns("__pycache__")
    )
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    losses = tmp_path / "tablepuppet" / "models" / "losses"
    (losses / "log_cosh.py").write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    listed = (losses / "__init__.py").read_text(encoding="utf-8")
    assert listed.count('_FILES = ("numbers", ') == 1
    (losses / "__init__.py").write_text(listed.replace('("numbers", ', '("numbers", "log_cosh", '), encoding="utf-8")
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
