"""A new algorithm is one folder and one line; and no algorithm is known by name anywhere else."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tablepuppet
from tablepuppet.algorithms.algorithm import Algorithm
from tablepuppet.algorithms.registry import ALGORITHMS, FOLDERS

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tablepuppet.__file__).parent


def test_a_toy_in_one_folder_with_one_line_can_be_explained_trained_reported_saved_and_run_over_the_network(
    tmp_path: Path,
) -> None:
    package = tmp_path / "tablepuppet"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests/algorithms/averaging", package / "algorithms/averaging")
    registry = package / "algorithms/registry.py"
    text = registry.read_text(encoding="utf-8")
    registry.write_text(
        text.replace('    "centralized",\n', '    "centralized",\n    "averaging",\n'), encoding="utf-8"
    )
    (tmp_path / "run").mkdir()
    process = subprocess.run(
        [sys.executable, "-m", "tests.algorithms.new_algorithm", str(tmp_path / "run")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout.splitlines()[-1])
    assert "averaging" in found["costs"]
    assert "by averaging" in found["plan"]
    assert "the parameters over" in found["plan"]  # who learns what
    assert found["same"]
    assert abs(found["estimated"] - found["counted"]) < 0.1 * found["counted"]
    assert found["rows"] == 600
    assert found["report"] > 0
    assert found["options"] == "Averaging(learning_rate=0.5)"
    released, private, rate, name = found["refused"]
    assert "release_parameters" in released
    assert "averaging has no private form" in private
    assert "learning_rate must be above 0" in rate
    assert "did you mean 'averaging'" in name


def test_the_documentation_shows_the_toy_as_it_is() -> None:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    assert (ROOT / "tests/algorithms/averaging/algorithm.py").read_text(encoding="utf-8") in page


def test_no_algorithm_is_known_by_name_outside_its_folder_and_the_list() -> None:
    names = {a.name for a in ALGORITHMS} | {a.options.__name__ for a in ALGORITHMS}
    found = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.parts[:2] in {("algorithms", folder) for folder in (*FOLDERS, "numerics")} or str(place) in ALLOWED:
            continue
        # An algorithm with a model of its own has files in other rooms, which are called like it and imported as such.
        own = {place.stem, place.stem.capitalize()} & {n for a in ALGORITHMS if a.own_model for n in _names(a)}
        rooms = {a.name for a in ALGORITHMS if a.own_model}
        found += [
            f"{place}:{line}: {name}"
            for name, line, is_module in _mentions(path)
            if name in names - own and not (is_module and name in rooms)
        ]
    assert found == []
    assert FOLDERS[0] in {
        name for name, _, _ in _mentions(PACKAGE / "algorithms/registry.py")
    }  # the search finds names


# The list itself, the names that users import, and what other libraries call them.
ALLOWED = ("algorithms/registry.py", "__init__.py", "errors.py")


def _names(algorithm: Algorithm[Any]) -> tuple[str, str]:
    return algorithm.name, algorithm.options.__name__


def _mentions(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Identifiers and words of strings that the code uses, and whether they may be a module; docstrings and comments
    may give examples."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno, True
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno, True
        elif isinstance(node, ast.alias):
            yield node.name, getattr(node, "lineno", 0), True
        elif isinstance(node, ast.ImportFrom):
            yield from ((word, node.lineno, True) for word in (node.module or "").split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            words = node.value.replace("=", " ").split()
            yield from ((word.strip("\"'(),.;:=…"), node.lineno, False) for word in words)
