"""Quick and slow tests: one case in n of a family is quick, and what takes long may not be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAMILY = """
import pytest

@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", range(5))
def test_family(case):
    pass
"""


def test_one_case_in_n_is_quick_and_every_case_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, times = tmp_path / "test_family.py", tmp_path / "times.txt"
    file.write_text(FAMILY, encoding="utf-8")
    monkeypatch.setenv("TABLEPUPPET_TEST_TIMES", str(times))
    for tier, cases in (("not slow", [0, 3]), ("slow", [1, 2, 4])):
        times.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", "-m", tier]
        subprocess.run([*command, str(file)], cwd=ROOT, check=True, capture_output=True)
        lines = [line.split(" ", 2) for line in times.read_text(encoding="utf-8").splitlines()]
        assert [test.partition("[")[2] for _, phase, test in lines if phase == "call"] == [f"{c}]" for c in cases]


@pytest.mark.parametrize(
    ("times", "code"),
    [
        ("9.9 call tests/a.py::test_b[1 2]\n9.9 call tests/a.py::test_b[3]\n", 0),
        ("30.0 setup tests/a.py::test_b\n0.1 call tests/a.py::test_b\n", 0),
        ("10.1 call tests/a.py::test_b\n", 1),
        ("", 1),
    ],
    ids=["quick", "a fixture of many", "slow", "nothing"],
)
def test_a_test_of_the_quick_tier_takes_at_most_ten_seconds(times: str, code: int, tmp_path: Path) -> None:
    file = tmp_path / "times.txt"
    file.write_text(times, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "tools/check_tiers.py", str(file)], cwd=ROOT, check=False, capture_output=True
    )
    assert done.returncode == code
