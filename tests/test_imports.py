"""The core installs and runs without any extra: blocked packages must not be needed to import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tablepuppet

OPTIONAL = (
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "adbc_driver_sqlite",
    "connectorx",
    "mlflow",
    "numba",
    "opacus",
    "polars",
    "ray",
    "sentence_transformers",
    "sklearn",
    "tensorboard",
    "torch",
)
CORE = (
    "tablepuppet",
    "tablepuppet.algorithms",
    "tablepuppet.sql",
    "tablepuppet.client",
    "tablepuppet.cli.main",
    "tablepuppet.training",
    "tablepuppet.join",
    "tablepuppet.models",
    "tablepuppet.network.processes",
    "tablepuppet.exchanges.registry",
    "tablepuppet.owner",
    "tablepuppet.protocol",
    "tablepuppet.training.server",
    "tablepuppet.plan",
    "tablepuppet.privacy",
    "tablepuppet.sql",
    "tablepuppet.report",
    "tablepuppet.sources",
    "tablepuppet.transport",
)
# None in sys.modules makes Python raise ImportError, as if the package were not installed.
BLOCK = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"


def run(code: str, *given: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: in this one, other tests may have imported anything.
    return subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_core_imports_without_any_extra() -> None:
    process = run(f"{BLOCK}; import {', '.join(CORE)}")
    assert process.returncode == 0, process.stderr


LIBRARIES = (
    "cryptography",
    "dp_accounting",
    "duckdb",
    "msgspec",
    "numba",
    "numpy",
    "pandas",
    "pyarrow",
    "rich",
    "scipy",
    "sqlglot",
    "torch",
    "typer",
)


@pytest.mark.parametrize(
    "code",
    ["import tablepuppet as tp; tp.TablePuppetError", "from tablepuppet.cli.main import main; main(['--version'])"],
    ids=["import", "version"],
)
def test_importing_the_package_and_asking_for_its_version_load_no_library(code: str) -> None:
    process = run(f"import sys; {code}; print([name for name in {LIBRARIES!r} if name in sys.modules])")
    assert process.stdout.splitlines()[-1] == "[]", process.stderr


def test_using_a_federation_loads_neither_torch_nor_pandas_nor_scipys_rooms() -> None:
    heavy = ("torch", "pandas", "pyarrow.dataset", "scipy.linalg", "scipy.optimize", "scipy.sparse", "numba")
    code = f"import sys; from tablepuppet import *; print([name for name in {heavy!r} if name in sys.modules])"
    process = run(code)
    assert process.stdout.strip() == "[]", process.stderr


def test_every_public_name_is_there_listed_and_no_other() -> None:
    assert {*tablepuppet.__all__} <= {*dir(tablepuppet)}
    assert all(getattr(tablepuppet, name) for name in tablepuppet.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Federatoin'"):
        tablepuppet.Federatoin  # type: ignore[attr-defined]  # noqa: B018


def test_a_training_run_loads_neither_the_compiler_nor_scipy_nor_pandas_nor_drivers_of_databases(
    tmp_path: Path,
) -> None:
    code = """
import sys
import pyarrow.csv as csv, pyarrow.parquet as pq, io
import tablepuppet as tp
a = csv.read_csv(io.BytesIO(b"k,x,y\\n" + b"".join(b"%d,%d,%d\\n" % (i % 7, i % 5, i % 2) for i in range(80))))
b = csv.read_csv(io.BytesIO(b"k,z\\n" + b"".join(b"%d,%s\\n" % (i, b"p" if i % 2 else b"") for i in range(7))))
pq.write_table(a, sys.argv[1])
with tp.Federation({"a": sys.argv[1], "b": b}) as federation:
    federation.train("SELECT a.x, b.z, a.y FROM a JOIN b ON a.k = b.k", label="y", epochs=2)
unused = ("numba", "pandas", "scipy", "tablepuppet.sources.databases")
print([name for name in unused if name in sys.modules])
"""
    process = run(code, str(tmp_path / "a.parquet"))
    assert process.stdout.strip() == "[]", process.stderr
