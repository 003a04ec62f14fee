"""Every file in examples/ runs on its own: no arguments, no network, a few seconds, exit code 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


HEAVY = ("own_network",)


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem in HEAVY else []) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example_runs_to_its_end(example: Path, tmp_path: Path) -> None:
    # In an empty folder, so that what an example writes stays out of the repository.
    process = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout, f"{example.name} prints nothing: an example should show its result"
