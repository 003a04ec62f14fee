"""Every notebook runs from top to bottom in a real kernel, and is stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem != "first-model" else []) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_in_a_kernel(notebook: Path, tmp_path: Path) -> None:
    document = nbformat.reads(notebook.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    # In an empty folder, so that what a notebook writes stays out of the repository.
    NotebookClient(document, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    shown = [output for cell in document.cells if cell.cell_type == "code" for output in cell.outputs]
    assert shown, "a notebook should show something"
    said = "".join(output.text for output in shown if output.output_type == "stream" and output.name == "stderr")
    assert "Warning" not in said  # where progress is shown, too


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    text = notebook.read_text(encoding="utf-8")
    document = json.loads(text)
    nbformat.validate(document)
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
