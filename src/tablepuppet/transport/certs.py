"""A small certificate authority: the identity of each party of a federation.

In: a folder and names. Out: PEM files. `ca.pem` is given to everybody, `ca.key` to nobody; each
party gets `NAME.pem` and `NAME.key`. A certificate's first subject alternative name is the party's
name, and the server sees no other. Server certificates cannot be used by clients, nor the
other way round. `revoked.txt` lists the serial numbers that the server refuses.

A party can make its key itself: `NAME.key` stays with it, and the authority signs `NAME.csr`. One client makes the
clients' shared secret and seals it for each of the others, by their certificates (HPKE, RFC 9180), with a signature
over recipient and ciphertext. Nobody who carries the sealed files, the administrator included, can read them.
"""

import ipaddress
import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, hpke, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tablepuppet.errors import JobError, TransportError
from tablepuppet.output_files import reason, replace_file
from tablepuppet.protocol.evidence import to_pem

log = logging.getLogger(__name__)
Role = Literal["server", "party"]
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9._*-]{0,252})")
_PUBLIC = 0o644
_INFO = b"tablepuppet clients' secret for "
_SIGNATURE = ec.ECDSA(hashes.SHA256())
_SUITE = hpke.Suite(hpke.KEM.P256, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)

_MAKERS = {"the request": "request NAME", "the secret": "secret", "the sealed secret": "share, by another client"}


def create_authority(folder: Path, days: int = 3650) -> None:
    """Writes a new authority, `ca.pem` and `ca.key`, where there is none yet."""
    if (folder / "ca.key").exists():
        raise JobError(f"{folder} already holds an authority; its certificates would stop working")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "TablePuppet federation")])
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = _builder(name, name, key.public_key(), days).add_extension(x509.BasicConstraints(True, 0), critical=True)
    builder = builder.add_extension(_usage(is_authority=True), critical=True).add_extension(own, critical=False)
    write_file(folder / "ca.key", to_pem(key))
    write_file(folder / "ca.pem", builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), _PUBLIC)
    write_file(folder / "revoked.txt", b"", _PUBLIC)


def write_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """A file in a folder that is made where there is none; by default only its owner can read it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content, mode)
    except OSError as error:
        raise JobError(f"cannot write {path}: {reason(error)}; choose another folder") from None


def issue(folder: Path, name: str, role: Role = "party", hosts: Sequence[str] = (), days: int = 365) -> Path:
    """Writes `name.pem` and `name.key`, signed by the folder's authority; an older pair is replaced.

    A server is given the host names and addresses under which clients reach it.
    """
    _check_name(name)
    if role == "server" and not hosts:
        raise JobError("a server's certificate needs the host names or addresses under which it is reached")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(folder, name, key.public_key(), hosts if role == "server" else (), days)
    write_file(folder / f"{name}.key", to_pem(key))
    write_file(folder / f"{name}.pem", certificate, _PUBLIC)
    return folder / f"{name}.pem"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name == "ca":
        raise JobError(f"{name!r} cannot be a party's name; use letters, digits, '.', '_' and '-'")


def _certificate(folder: Path, name: str, key: ec.EllipticCurvePublicKey, hosts: Sequence[str], days: int) -> bytes:
    """A certificate by the folder's authority: for a server that is reached under `hosts`, or for another party."""
    authority, authority_key = read_certificate(folder / "ca.pem"), _read_key(folder / "ca.key")
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [_host(host) for host in hosts] if hosts else [x509.DNSName(name)]
    certificate = (
        _builder(subject, authority.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(False, None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def renew(folder: Path, name: str, days: int = 365) -> Path:
    """A new key and certificate with the names of the old one, which is not revoked by this."""
    _check_name(name)
    old = read_certificate(folder / f"{name}.pem")
    purposes = old.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if ExtendedKeyUsageOID.SERVER_AUTH not in purposes:
        return issue(folder, name, "party", days=days)
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return issue(folder, name, "server", [str(n.value) for n in names], days)


def revoke(folder: Path, name: str) -> int:
    """Adds the certificate of a name to `revoked.txt`; returns its serial number."""
    _check_name(name)
    serial = read_certificate(folder / f"{name}.pem").serial_number
    listed = read_revoked(folder / "revoked.txt") if (folder / "revoked.txt").exists() else frozenset()
    if serial not in listed:
        lines = "".join(f"{s:x}\n" for s in sorted(listed | {serial}))
        write_file(folder / "revoked.txt", lines.encode(), _PUBLIC)
    return serial


def read_revoked(path: Path) -> frozenset[int]:
    """The serial numbers in a list of revoked certificates; a list that is missing or unreadable refuses everybody."""
    try:
        return frozenset(int(line, 16) for line in path.read_text(encoding="ascii").split())
    except FileNotFoundError:
        raise JobError(f"there is no list of revoked certificates {path}; make an empty one if none is") from None
    except (OSError, ValueError):
        raise JobError(f"{path} is not a list of serial numbers, one hexadecimal number a line") from None


def read_file(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        maker = _MAKERS.get(what, "party NAME, by whoever keeps the federation's authority")
        raise JobError(
            f"cannot read {what} {path}: {error.strerror}; check the path, or have it made (tablepuppet certs {maker})"
        ) from None


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_file(path, "the certificate"))
    except ValueError:
        raise JobError(f"{path} is not a certificate in PEM form") from None


def sign(key: bytes, challenge: bytes) -> bytes:
    """Proof that the sender of an answer to a challenge holds this private key."""
    return _load_key(key).sign(challenge, _SIGNATURE)


def _load_key(content: bytes, name: object = "the key") -> ec.EllipticCurvePrivateKey:
    try:
        private = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError):
        raise JobError(f"{name} is not a private key in PEM form without a password") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise JobError("a party's key must be an elliptic-curve key, as `tablepuppet certs` makes them")
    return private


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    return _load_key(read_file(path, "the key"), path)


def verify(authority: bytes, certificate: bytes, challenge: bytes, signature: bytes) -> x509.Certificate:
    """The certificate, if the authority issued it and its holder signed the challenge."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        public = found.public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("not an elliptic-curve key")
        public.verify(signature, challenge, _SIGNATURE)
    except (ValueError, TypeError, InvalidSignature):
        raise TransportError("the certificate is not of this authority, or its key did not sign") from None
    now = datetime.now(UTC)
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        raise TransportError("the certificate is not valid now; renew it")
    return found


def warn_of_loose(*paths: Path) -> None:
    """Warns of keys and secrets that others on this machine can read."""
    for path in paths:
        try:
            mode = path.stat().st_mode & 0o077
        except OSError:
            continue  # its reader reports the error
        if mode:
            log.warning("%s can be read or changed by others on this machine; chmod 600 it", path)


def check_own(authority: Path, certificate: Path, key: Path) -> None:
    """Refuses files that do not match each other; a server would only hang up."""
    own = read_certificate(certificate)
    ask = f"ask whoever keeps the authority for another (tablepuppet certs renew {certificate.stem})"
    if not _is_issued_by(own, authority):
        raise JobError(f"{certificate} was not issued by the authority of {authority}; {ask}")
    if datetime.now(UTC) > own.not_valid_after_utc:
        raise JobError(f"{certificate} ended on {own.not_valid_after_utc:%Y-%m-%d}; {ask}")
    if _read_key(key).public_key() != own.public_key():
        raise JobError(f"{key} is not the key of {certificate}; copy both of one pair")


def _is_issued_by(certificate: x509.Certificate, authority: Path) -> bool:
    try:
        certificate.verify_directly_issued_by(read_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def party_name(certificate: x509.Certificate) -> str:
    """The name of a party: its certificate's first subject alternative name."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise JobError("the certificate names no party; give a party's own") from None
    return str(next(iter(names)).value)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(minutes=5),
        not_valid_after=now + timedelta(days=days),
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    other = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*other, "encipher_only", "decipher_only"), False)
    signs = {"digital_signature": not is_authority, "key_cert_sign": is_authority, "crl_sign": is_authority}
    return x509.KeyUsage(**signs, **unused)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise JobError(
                f"{host!r} is no host name and no address; write names with other letters as xn--…"
            ) from None
        return x509.DNSName(host)


def request_certificate(folder: Path, name: str) -> Path:
    """Writes a new `name.key` and a request to sign it, `name.csr`."""
    _check_name(name)
    if (folder / f"{name}.key").exists():
        raise JobError(f"{folder / name}.key exists already; move it away if a new key is meant")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    write_file(folder / f"{name}.key", to_pem(key))
    write_file(folder / f"{name}.csr", asked.public_bytes(serialization.Encoding.PEM), _PUBLIC)
    return folder / f"{name}.csr"


def sign_request(folder: Path, asked: Path, days: int = 365) -> Path:
    """The certificate for a party's request: `name.pem`, by the folder's authority, which sees no private key."""
    try:
        found = x509.load_pem_x509_csr(read_file(asked, "the request"))
    except ValueError:
        raise JobError(f"{asked} is not a signing request; `tablepuppet certs request NAME` makes one") from None
    names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    key = found.public_key()
    if not found.is_signature_valid or len(names) != 1 or not isinstance(key, ec.EllipticCurvePublicKey):
        raise JobError(f"{asked} is not a request of one party for an elliptic-curve key of its own")
    name = str(names[0].value)
    _check_name(name)
    write_file(folder / f"{name}.pem", _certificate(folder, name, key, (), days), _PUBLIC)
    return folder / f"{name}.pem"


def seal(secret: bytes, sender: Path, key: Path, recipient: Path, authority: Path) -> bytes:
    """The secret, for one recipient's eyes."""
    theirs = read_certificate(recipient)
    check_own(authority, sender, key)
    if not _is_issued_by(theirs, authority):
        raise JobError(f"{recipient} was not issued by the authority of {authority}")
    public = theirs.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    name = party_name(theirs).encode()
    content = _SUITE.encrypt(secret, public, info=_INFO + name)
    return msgspec.msgpack.encode((content, sign(key.read_bytes(), name + content)))


def open_sealed(sealed: bytes, own: Path, key: Path, sender: Path, authority: Path) -> bytes:
    check_own(authority, own, key)
    name = party_name(read_certificate(own))
    certificate = read_certificate(sender)
    private, public = _read_key(key), certificate.public_key()
    try:
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("not an elliptic-curve key")
        content, signature = msgspec.msgpack.decode(sealed, type=tuple[bytes, bytes])
        certificate.verify_directly_issued_by(read_certificate(authority))
        public.verify(signature, name.encode() + content, _SIGNATURE)
        return _SUITE.decrypt(content, private, info=_INFO + name.encode())
    except (msgspec.MsgspecError, ValueError, TypeError, InvalidSignature, InvalidTag):
        raise JobError(
            f"this is not a secret for {name} by the holder of {sender}, or an earlier release sealed it; have it "
            "sealed again (tablepuppet certs share)"
        ) from None
