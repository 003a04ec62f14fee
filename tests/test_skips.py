"""In continuous integration a test that is skipped for want of a service fails; at a desk it says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _run(folder: Path, reason: str, **environment: str) -> subprocess.CompletedProcess[str]:
    file = folder / "test_skipped.py"
    file.write_text(f"import pytest\n\n\ndef test_service():\n    pytest.skip({reason!r})\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "tests.conftest", str(file)]
    ours = ("CI", "TABLEPUPPET_TEST_TIMES")
    given = {name: value for name, value in os.environ.items() if name not in ours} | environment
    return subprocess.run(command, cwd=ROOT, env=given, check=False, capture_output=True, text=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("reason", "environment", "code"),
    [
        ("no mariadbd here", {"CI": "true"}, 1),
        ("no mariadbd here", {}, 0),
        ("this kernel has no netem", {"CI": "true"}, 0),
    ],
)
def test_a_skip_is_a_failure_in_continuous_integration(
    reason: str, environment: dict[str, str], code: int, tmp_path: Path
) -> None:
    done = _run(tmp_path, reason, **environment)
    assert done.returncode == code, done.stdout
    assert reason in done.stdout
