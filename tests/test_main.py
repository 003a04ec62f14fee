"""`python -m tablepuppet`."""

from __future__ import annotations

import subprocess
import sys

from tablepuppet import __version__


def test_the_package_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tablepuppet", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"tablepuppet {__version__}\n"


def test_the_package_ends_with_the_code_of_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tablepuppet", "train", "no-such-job.toml"], capture_output=True)
    assert done.returncode == 2
