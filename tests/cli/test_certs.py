"""tablepuppet certs: what an administrator types, from the authority to a revoked party."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tablepuppet.cli.main import main


def certs(folder: Path, *words: str) -> int:
    return main(["certs", *words, "--folder", str(folder)])


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, bool]:
    """Each certificate, and whether it is revoked."""
    capsys.readouterr()
    assert certs(folder, "list", "--json") == 0
    return {c["name"]: c["revoked"] for c in json.loads(capsys.readouterr().out)["certificates"]}


def test_an_authority_issues_renews_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "certs"
    assert certs(folder, "init") == 0
    assert certs(folder, "server", "coordinator.example.org", "10.0.0.5") == 0
    assert certs(folder, "party", "store-eu", "analyst") == 0
    assert listed(folder, capsys) == {"analyst": False, "ca": False, "server": False, "store-eu": False}
    before = (folder / "store-eu.pem").read_bytes()
    assert certs(folder, "revoke", "store-eu") == 0
    assert listed(folder, capsys)["store-eu"]
    assert certs(folder, "renew", "store-eu") == 0
    assert (folder / "store-eu.pem").read_bytes() != before
    assert not listed(folder, capsys)["store-eu"]
    for name in ("ca", "server", "store-eu", "analyst"):
        assert stat.S_IMODE((folder / f"{name}.key").stat().st_mode) == 0o600


def test_an_authority_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certs(tmp_path, "init") == 0
    assert certs(tmp_path, "init") == 2
    assert "already holds an authority" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("party", "../../etc/passwd"),
        ("party", "ca"),
        ("party", "x" * 300),
        ("renew", "nobody"),
        ("renew", "ca"),
        ("revoke", "nobody"),
        ("revoke", "../x"),
        ("server", "\u00fc.example"),
        ("sign", "none"),
        ("open", "ca.pem", "ca.pem", "--as", "ca"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    certs(tmp_path, "init")
    assert certs(tmp_path, *words) == 2
    assert capsys.readouterr().err


def test_the_clients_secret_is_made_once_and_read_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "clients.secret"
    assert main(["certs", "secret", str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().strip()) == 64
    assert main(["certs", "secret", str(path)]) == 2


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (["share", "no.secret", "certs/b.pem", "--as", "a"], "tablepuppet certs secret"),
        (["open", "no.sealed", "certs/b.pem", "--as", "a"], "tablepuppet certs share"),
        (["sign", "no.csr"], "tablepuppet certs request NAME"),
    ],
)
def test_a_missing_file_comes_with_the_command_that_makes_it(
    command: list[str], advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["certs", *command]) == 2
    assert advice in " ".join(capsys.readouterr().err.split())
