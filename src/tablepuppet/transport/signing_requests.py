"""Keys that never leave their party: signing requests, and a secret that passes between clients sealed.

In: a party's name and folder. Out: `NAME.key`, which stays, and `NAME.csr`, which the authority signs. The clients'
shared secret is made by one of them and sealed for each of the others, by their certificates: whoever carries the
sealed files, the administrator included, reads nothing in them.

    shared   ECDH(one-time key, recipient's key) → HKDF-SHA256 → ChaCha20-Poly1305
    proof    the sender's signature over recipient, one-time key and ciphertext
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from tablepuppet.errors import TransportError
from tablepuppet.transport import certs

_INFO = b"tablepuppet clients' secret"
_SIGNATURE = ec.ECDSA(hashes.SHA256())


class Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret for one party, by another."""

    sender: str
    recipient: str
    public: bytes  # of the one-time key
    content: bytes
    signature: bytes


def request(folder: Path, name: str) -> Path:
    """Writes a new `name.key` and a request to sign it, `name.csr`."""
    certs.check_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / f"{name}.key").exists():
        raise TransportError(f"{folder / name}.key exists already; move it away if a new key is meant")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    certs.write_key(folder / f"{name}.key", key)
    (folder / f"{name}.csr").write_bytes(asked.public_bytes(serialization.Encoding.PEM))
    return folder / f"{name}.csr"


def sign(folder: Path, asked: Path, days: int = 365) -> Path:
    """The certificate for a party's request: `name.pem`, by the folder's authority, which sees no private key."""
    try:
        found = x509.load_pem_x509_csr(asked.read_bytes())
    except OSError as error:
        raise TransportError(f"cannot read {asked}: {error.strerror}") from None
    except ValueError:
        raise TransportError(f"{asked} is not a signing request; `tablepuppet certs request NAME` makes one") from None
    names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    key = found.public_key()
    if not found.is_signature_valid or len(names) != 1 or not isinstance(key, ec.EllipticCurvePublicKey):
        raise TransportError(f"{asked} is not a request of one party for an elliptic-curve key of its own")
    return certs.issue_for(folder, str(names[0].value), key, days)


def seal(secret: bytes, sender: Path, key: Path, recipient: Path, authority: Path) -> bytes:
    """The secret, for one recipient's eyes."""
    theirs = certs.read_certificate(recipient)
    certs.check_own(authority, sender, key)
    try:
        theirs.verify_directly_issued_by(certs.read_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        raise TransportError(f"{recipient} was not issued by the authority of {authority}") from None
    public = theirs.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    once = ec.generate_private_key(ec.SECP256R1())
    point = _point(once.public_key())
    name = certs.party_name(theirs)
    content = _cipher(once.exchange(ec.ECDH(), public), point).encrypt(bytes(12), secret, name.encode())
    signed = certs.sign(key.read_bytes(), name.encode() + point + content)
    own = certs.party_name(certs.read_certificate(sender))
    return msgspec.msgpack.encode(Sealed(own, name, point, content, signed))


def open_sealed(sealed: bytes, own: Path, key: Path, sender: Path, authority: Path) -> bytes:
    """The secret in a sealed file, if it is for this party and by that sender."""
    certs.check_own(authority, own, key)
    name = certs.party_name(certs.read_certificate(own))
    certificate = certs.read_certificate(sender)
    private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    public = certificate.public_key()
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        found = msgspec.msgpack.decode(sealed, type=Sealed)
        certificate.verify_directly_issued_by(certs.read_certificate(authority))
        public.verify(found.signature, name.encode() + found.public + found.content, _SIGNATURE)
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), found.public)
        shared = private.exchange(ec.ECDH(), point)
        return _cipher(shared, found.public).decrypt(bytes(12), found.content, name.encode())
    except (msgspec.MsgspecError, ValueError, TypeError, InvalidSignature, InvalidTag):
        raise TransportError(f"this is not a secret for {name} by the holder of {sender}") from None


def _cipher(shared: bytes, point: bytes) -> ChaCha20Poly1305:
    """Each key serves once, so that its nonce may be zero."""
    return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, salt=point, info=_INFO).derive(shared))


def _point(public: ec.EllipticCurvePublicKey) -> bytes:
    return public.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
