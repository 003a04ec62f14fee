"""Docstrings of public names explain every argument and have an example."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tablepuppet as tp

OPTIONS = (tp.Admm, tp.Als, tp.Boosting, tp.Centralized, tp.Elastic, tp.Newton, tp.Sgd)
DATA = (tp.Curves, tp.Model, tp.Plan, tp.Result, tp.SearchResult)  # which users do not make
# Without an example: processes of their own, an extra, a heavy model, or a call that another example makes.
WITHOUT_EXAMPLE = {
    *("Federation.close", "Federation.connect", "Federation.recommend", "Federation.search", "Model.save_lightgbm"),
    *("Model.to_onnx", "Network.seconds", "Plan.disclosures", "Plan.explain", "Plan.to_json", "SearchResult.by"),
    *("Curves.predicted_actual", "Curves.residuals", "Result.module", "RelationalClassifier.get_params"),
    *("RelationalClassifier.save", "RelationalClassifier.set_params", "RelationalRegressor.get_params"),
    *("RelationalRegressor.save", "RelationalRegressor.set_params", "TablePuppetError"),
}


def _list_public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public names and the methods of public classes."""
    for name in tp.__all__:
        found = getattr(tp, name)
        yield name, found
        if inspect.isclass(found) and found not in OPTIONS:
            for method, function in inspect.getmembers(found, callable):
                is_ours = str(getattr(function, "__module__", "")).startswith("tablepuppet")
                if is_ours and not method.startswith("_") and method != "for_release":
                    yield f"{name}.{method}", function


PUBLIC = dict(_list_public())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_explained(name: str) -> None:
    if PUBLIC[name] in DATA or name in ("TablePuppetError", "RelationalRegressor"):  # which is made as a classifier is
        return
    text = inspect.getdoc(PUBLIC[name]) or ""
    named = [one for one in inspect.signature(PUBLIC[name]).parameters.values() if one.kind is not one.VAR_KEYWORD]
    unexplained = [one.name for one in named if one.name not in ("self", "cls") and f"`{one.name}" not in text]
    assert unexplained == []


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - WITHOUT_EXAMPLE))
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(PUBLIC[name]) or "")
