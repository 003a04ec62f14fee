"""With the compiler and without it: the same model, and a hint where it would help."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.mapping.rows import index
from tablepuppet.models import compiler
from tablepuppet.models.compiler import COMPILED_FROM

QUERY = "SELECT a.x, b.z, a.y FROM a JOIN b ON a.k = b.k"


@contextmanager
def machine(*, has_compiler: bool) -> Iterator[None]:
    """A machine where even small joins are worth compiling, with or without the compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "COMPILED_FROM", 64)
        patch.setattr(index, "COMPILED_FROM", 64)
        patch.setattr(index, "FAR", 8)  # rows of blocks are numbered anew, too
        if not has_compiler:
            patch.setitem(sys.modules, "numba", None)
        compiler.is_installed.cache_clear()
        yield
    compiler.is_installed.cache_clear()


def tables(classes: int) -> dict[str, Any]:
    rng = np.random.default_rng(classes)
    k = rng.permutation(np.arange(600) % 20)
    y = rng.integers(0, classes, 600).astype(float) if classes else rng.normal(size=600)
    return {
        "a": pa.table({"k": k, "x": rng.normal(size=600), "y": y}),
        "b": pa.table({"k": rng.permutation(np.arange(40) % 20), "z": rng.normal(size=40)}),
    }


@pytest.mark.parametrize("classes", [0, 2, 3], ids=["linear", "logistic", "softmax"])
@pytest.mark.parametrize("algorithm", ["newton", "admm", "sgd"])
def test_the_model_does_not_depend_on_the_compiler(algorithm: str, classes: int) -> None:
    found = []
    for has_compiler in (True, False):
        with machine(has_compiler=has_compiler), tp.Federation(tables(classes)) as federation:
            result = federation.train(QUERY, label="y", algorithm=algorithm, epochs=4)
            assert ("Compiled" in type(result.plan.loss).__name__) == has_compiler
            found.append(result.objective)
    assert found[1] == pytest.approx(found[0], rel=1e-9)


def test_explain_names_the_extra_where_it_would_help_and_nowhere_else() -> None:
    shown, documents = [], []
    for has_compiler in (True, False):
        with machine(has_compiler=has_compiler), tp.Federation(tables(2)) as federation:
            plan = federation.explain(QUERY, label="y")
            shown.append(str(plan))
            documents.append(json.loads(plan.to_json())["advice"])
    assert "tablepuppet[fast]" not in shown[0]
    assert "pip install 'tablepuppet[fast]'" in shown[1]
    assert [("hint" in found) for found in documents] == [False, True]


def test_small_joins_get_no_hint_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "is_installed", lambda: False)
    assert not compiler.wins(COMPILED_FROM - 1)
    with tp.Federation(tables(2)) as federation:
        assert federation.explain(QUERY, label="y").hint is None
