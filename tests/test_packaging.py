"""pyproject.toml and constraints.txt agree: every requirement is pinned, and the pin is admitted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tablepuppet

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def requirements() -> Iterator[Requirement]:
    listed = [PROJECT["build-system"]["requires"], PROJECT["project"]["dependencies"], *EXTRAS.values()]
    for texts in listed:
        yield from (r for r in map(Requirement, texts) if r.name != "tablepuppet")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pinned}


@pytest.mark.parametrize("requirement", sorted(set(requirements()), key=str), ids=str)
def test_every_requirement_admits_its_pinned_version(requirement: Requirement) -> None:
    version = pins().get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} has no line in constraints.txt"
    assert version in requirement.specifier


def test_every_line_of_the_constraints_is_an_exact_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", line) for line in lines if not line.startswith("#"))


def test_constraints_bring_no_cuda_package() -> None:
    assert not [name for name in pins() if re.match(r"nvidia|cuda|triton", name)]


def test_the_core_needs_no_extra() -> None:
    core = {Requirement(text).name for text in PROJECT["project"]["dependencies"]}
    optional = {Requirement(text).name for name, texts in EXTRAS.items() if name != "dev" for text in texts}
    assert not core & optional


def test_the_package_its_distribution_and_its_citation_have_one_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert tablepuppet.__version__ == PROJECT["project"]["version"]
    assert f"\nversion: {tablepuppet.__version__}\n" in citation


@pytest.mark.slow
def test_the_wheel_has_all_that_the_package_needs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    # The wheel comes first on the path, so that of tablepuppet nothing is found elsewhere.
    trial = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "small_training.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert trial.returncode == 0, trial.stderr
    assert trial.stdout.startswith(str(tmp_path / "installed"))
    missing = {
        path.relative_to(ROOT / "src")
        for path in (ROOT / "src" / "tablepuppet").rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".nbc", ".nbi"}
    } - {path.relative_to(tmp_path / "installed") for path in (tmp_path / "installed").rglob("*")}
    assert not missing
