"""A real Jupyter kernel without ipywidgets: things show themselves, progress is text, a mistake is its message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbclient: Any = pytest.importorskip("nbclient")
nbformat: Any = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

SETUP = """
import sys
sys.modules["ipywidgets"] = None  # as where it is not installed
import pyarrow as pa
import tablepuppet as tp
orders = pa.table({"item": [i % 9 for i in range(200)], "q": [i % 7 for i in range(200)],
                   "y": [float(i % 5 + i % 9) for i in range(200)]})
items = pa.table({"item": list(range(9)), "<b>price": [i * 1.5 for i in range(9)]})
shop = tp.Federation({"orders": [orders[:90], orders[90:]], "items": items})
QUERY = 'SELECT o.q, i."<b>price", o.y FROM orders o JOIN items i ON o.item = i.item'
"""
SHOWN = {
    "Federation": "shop",
    "Plan": "shop.explain(QUERY, label='y')",
    "Profile": "shop.profile(QUERY, label='y')",
    "Result": "result",
    "Traffic": "result.traffic",
    "Model": "result.model",
    "Estimator": "tp.RelationalRegressor().fit(shop, QUERY, label='y')",
}
CELLS = [
    SETUP,
    "result = shop.train(QUERY, label='y')",
    *SHOWN.values(),
    "shop.train('SELECT o.quantity, o.y FROM orders o', label='y')",
    "shop.train(QUERY, label='y', algorithm='admm', epochs=2, progress=True)",
    "import time\nshop.train(QUERY, label='y', algorithm='admm', epochs=4, tolerance=0.0,\n"
    "           on_round=lambda event: time.sleep(1))",
    "shop.train(QUERY, label='y', progress=False)",
]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The cells with what they showed."""
    folder: Path = tmp_path_factory.mktemp("jupyter")
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name))
        client = nbclient.NotebookClient(
            made, timeout=120, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    return made


def outputs(notebook: Any, cell: str) -> list[Any]:
    return list(notebook.cells[CELLS.index(cell)].outputs)


def test_a_federation_opens_and_trains_without_ipywidgets(notebook: Any) -> None:
    assert outputs(notebook, SETUP) == []
    assert outputs(notebook, CELLS[1]) == []


@pytest.mark.parametrize("kind", SHOWN)
def test_what_people_look_at_is_laid_out_and_names_are_escaped(notebook: Any, kind: str) -> None:
    [shown] = outputs(notebook, SHOWN[kind])
    html = shown["data"]["text/html"]
    assert ("<pre" if kind == "Plan" else "<table>") in html
    assert "<b>price" not in html
    assert "<script" not in html
    assert shown["data"]["text/plain"]


def test_a_mistake_in_sql_shows_the_message_and_the_users_line_and_no_frame(notebook: Any) -> None:
    [error] = outputs(notebook, CELLS[-4])
    text = "\n".join(error["traceback"])
    assert error["ename"] == "CatalogError"
    assert "has no column quantity. Known: item, q, y." in text
    assert "at line 1: shop.train('SELECT o.quantity" in text
    assert "tablepuppet/" not in text
    assert len(text.splitlines()) < 10


def test_progress_is_plain_text_on_standard_error(notebook: Any) -> None:
    *streams, result = outputs(notebook, CELLS[-3])
    assert {stream["name"] for stream in streams} == {"stderr"}
    assert "training" in "".join(stream["text"] for stream in streams)
    assert "text/html" in result["data"]


def test_by_default_it_shows_itself_after_two_seconds_and_can_be_switched_off(notebook: Any) -> None:
    *streams, _ = outputs(notebook, CELLS[-2])
    assert " of 4 rounds" in "".join(stream["text"] for stream in streams)
    [result] = outputs(notebook, CELLS[-1])
    assert "text/html" in result["data"]
