"""Keys and secrets that the administrator never sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tablepuppet.errors import JobError
from tablepuppet.transport import certs
from tablepuppet.transport.flight import Identity


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """An authority, and two parties with keys that only they have."""
    certs.create_authority(tmp_path / "authority")
    made = {}
    for name in ("store-eu", "supplier"):
        folder = made[name] = tmp_path / name
        signed = certs.sign_request(tmp_path / "authority", certs.request_certificate(folder, name))
        assert not (tmp_path / "authority" / f"{name}.key").exists()
        for file in (signed, tmp_path / "authority" / "ca.pem"):
            (folder / file.name).write_bytes(file.read_bytes())
    for name, other in (("store-eu", "supplier"), ("supplier", "store-eu")):
        (made[name] / f"{other}.pem").write_bytes((made[other] / f"{other}.pem").read_bytes())
    return made


def test_a_party_makes_its_own_key_and_the_authority_signs_it(folders: dict[str, Path]) -> None:
    folder = folders["store-eu"]
    Identity(folder / "ca.pem", folder / "store-eu.pem", folder / "store-eu.key").check()
    assert (folder / "store-eu.key").stat().st_mode & 0o077 == 0
    with pytest.raises(JobError, match="exists already"):
        certs.request_certificate(folder, "store-eu")


def test_a_secret_passes_between_clients_sealed(folders: dict[str, Path]) -> None:
    eu, supplier = folders["store-eu"], folders["supplier"]
    sealed = certs.seal(
        b"the clients' secret", eu / "store-eu.pem", eu / "store-eu.key", eu / "supplier.pem", eu / "ca.pem"
    )
    assert b"secret" not in sealed
    own = (supplier / "supplier.pem", supplier / "supplier.key")
    found = certs.open_sealed(sealed, *own, supplier / "store-eu.pem", supplier / "ca.pem")
    assert found == b"the clients' secret"
    with pytest.raises(JobError, match="not a secret for supplier"):  # by somebody else
        certs.open_sealed(sealed, *own, supplier / "supplier.pem", supplier / "ca.pem")
    damaged = sealed[:-1] + bytes([sealed[-1] ^ 1])
    with pytest.raises(JobError, match="not a secret for supplier"):
        certs.open_sealed(damaged, *own, supplier / "store-eu.pem", supplier / "ca.pem")


def test_a_secret_passes_among_parties_of_one_authority_and_to_nobody_else(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    eu, supplier, other = folders["store-eu"], folders["supplier"], tmp_path / "other"
    certs.create_authority(other)
    stranger = certs.issue(other, "stranger")
    with pytest.raises(JobError, match="was not issued by the authority"):
        certs.seal(b"secret", eu / "store-eu.pem", eu / "store-eu.key", stranger, eu / "ca.pem")
    public: Any = certs.read_certificate(supplier / "supplier.pem").public_key()
    content = certs._SUITE.encrypt(b"another secret", public, info=certs._INFO + b"supplier")
    signature = certs.sign((other / "stranger.key").read_bytes(), b"supplier" + content)
    own = (supplier / "supplier.pem", supplier / "supplier.key")
    with pytest.raises(JobError, match="not a secret for supplier"):
        certs.open_sealed(msgspec.msgpack.encode((content, signature)), *own, stranger, supplier / "ca.pem")


def test_keys_that_others_can_read_are_warned_about(folders: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    key = folders["store-eu"] / "store-eu.key"
    key.chmod(0o644)
    certs.warn_of_loose(key)
    assert "chmod 600" in caplog.text


def test_a_missing_list_of_revoked_certificates_refuses(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no list"):
        certs.read_revoked(tmp_path / "revoked.txt")
