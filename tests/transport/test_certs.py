"""The certificate authority: names, purposes, renewal, revocation."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tablepuppet.errors import JobError, TransportError
from tablepuppet.transport import certs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certs.create_authority(tmp_path / "certs")
    return tmp_path / "certs"


def test_a_party_is_its_first_alternative_name(folder: Path) -> None:
    certificate = certs.read_certificate(certs.issue(folder, "store-eu"))
    assert certs.party_name(certificate) == "store-eu"


def test_servers_and_parties_have_different_purposes(folder: Path) -> None:
    for name, role, purpose in (
        ("server", "server", ExtendedKeyUsageOID.SERVER_AUTH),
        ("party", "party", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        certificate = certs.read_certificate(certs.issue(folder, name, role, ["localhost"]))  # type: ignore[arg-type]
        assert list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]


def test_private_keys_are_for_their_owner_alone(folder: Path) -> None:
    certs.issue(folder, "store-eu")
    for name in ("ca.key", "store-eu.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_a_second_authority_does_not_replace_the_first(folder: Path) -> None:
    with pytest.raises(JobError, match="already holds an authority"):
        certs.create_authority(folder)


@pytest.mark.parametrize("name", ["", "a/b", "../x", "-x", "a b", "ca", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(JobError, match="cannot be a party's name"):
        certs.issue(folder, name)


def test_renewal_keeps_the_names_and_changes_the_key(folder: Path) -> None:
    old = certs.read_certificate(certs.issue(folder, "server", "server", ["host.example", "10.0.0.1"]))
    new = certs.read_certificate(certs.renew(folder, "server"))
    kind = x509.SubjectAlternativeName
    assert new.extensions.get_extension_for_class(kind) == old.extensions.get_extension_for_class(kind)
    assert new.public_key() != old.public_key()
    assert new.serial_number != old.serial_number


def test_revocation_lists_the_certificate_and_not_its_successor(folder: Path) -> None:
    certs.issue(folder, "store-eu")
    serial = certs.revoke(folder, "store-eu")
    assert certs.revoke(folder, "store-eu") == serial
    new = certs.read_certificate(certs.renew(folder, "store-eu"))
    assert certs.read_revoked(folder / "revoked.txt") == {serial}
    assert new.serial_number != serial


def test_a_damaged_list_of_revoked_certificates_is_an_error(folder: Path) -> None:
    (folder / "revoked.txt").write_text("not hex\n")
    with pytest.raises(JobError, match="serial numbers"):
        certs.read_revoked(folder / "revoked.txt")


def test_a_challenge_is_answered_by_the_holder_of_the_key_alone(folder: Path) -> None:
    certs.issue(folder, "store-eu")
    certs.issue(folder, "store-us")
    authority, own = (folder / "ca.pem").read_bytes(), (folder / "store-eu.pem").read_bytes()
    signature = certs.sign((folder / "store-eu.key").read_bytes(), b"challenge")
    assert certs.party_name(certs.verify(authority, own, b"challenge", signature)) == "store-eu"
    other_key = certs.sign((folder / "store-us.key").read_bytes(), b"challenge")
    for challenge, proof in ((b"another", signature), (b"challenge", other_key), (b"challenge", b"garbage")):
        with pytest.raises(TransportError, match="did not sign"):
            certs.verify(authority, own, challenge, proof)


def test_a_certificate_of_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    certs.create_authority(other)
    certs.issue(other, "store-eu")
    signature = certs.sign((other / "store-eu.key").read_bytes(), b"challenge")
    with pytest.raises(TransportError, match="not of this authority"):
        certs.verify((folder / "ca.pem").read_bytes(), (other / "store-eu.pem").read_bytes(), b"challenge", signature)


def test_what_is_wrong_with_ones_own_files_is_said_before_dialling(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    certs.create_authority(other)
    for place in (folder, other):
        certs.issue(place, "store-eu")
    certs.issue(folder, "store-us", days=0)
    own, key = folder / "store-eu.pem", folder / "store-eu.key"
    certs.check_own(folder / "ca.pem", own, key)
    wrong = {
        "was not issued by the authority": (other / "ca.pem", own, key),
        "ended on": (folder / "ca.pem", folder / "store-us.pem", folder / "store-us.key"),
        "is not the key of": (folder / "ca.pem", own, other / "store-eu.key"),
        "is not a private key": (folder / "ca.pem", own, own),
        "cannot read the key": (folder / "ca.pem", own, folder / "nobody.key"),
        "cannot read the certificate .*tablepuppet certs party": (folder / "ca.pem", folder / "nobody.pem", key),
    }
    for message, files in wrong.items():
        with pytest.raises(JobError, match=message):
            certs.check_own(*files)
