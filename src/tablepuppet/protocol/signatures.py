"""Who asks: an analyst signs a contract with its own key, and owners verify the person, not the coordinator's word.

    signed   "tablepuppet contract" ‖ the contract's hash ‖ the time, by Ed25519 (RFC 8032), or by ECDSA over P-256 with
             SHA-256 (FIPS 186-5) where the key is that of a certificate

The hash names asker, purpose, columns, noise and what leaves; a signature is good for the contract's days.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tablepuppet.errors import JobError, PolicyError, unreadable
from tablepuppet.protocol.contract import Contract

_ECDSA = ec.ECDSA(hashes.SHA256())
_SKEW = timedelta(minutes=10)  # between two machines' clocks
AskerKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signature of a contract; the verifier knows whose key to check it with."""

    time: Annotated[str, msgspec.Meta(max_length=40)]
    value: Annotated[bytes, msgspec.Meta(max_length=256)]


def read_asker_key(path: str | Path) -> AskerKey:
    """An analyst's private key, in PEM form without a password."""
    try:
        found = serialization.load_pem_private_key(Path(path).expanduser().read_bytes(), password=None)
    except OSError as error:
        raise JobError(f"the asker's key: {unreadable(path, error)}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise JobError(f"{path} is not a private key in PEM form without a password; {_MAKE}") from None
    if not isinstance(found, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
        raise JobError(f"{path} is a key of another kind than Ed25519 or an elliptic curve; {_MAKE}")
    return found


def new_asker_key() -> bytes:
    """A new key, as its file holds it."""
    return to_pem(ed25519.Ed25519PrivateKey.generate())


def to_pem(key: AskerKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_text(key: AskerKey) -> str:
    """The public key, as a policy names it."""
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return base64.b64encode(key.public_key().public_bytes(serialization.Encoding.DER, kind)).decode()


def sign_contract(contract: Contract, key: AskerKey) -> Signature:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    message = _message(contract, time)
    value = key.sign(message) if isinstance(key, ed25519.Ed25519PrivateKey) else key.sign(message, _ECDSA)
    return Signature(time, value)


def check_signature(contract: Contract, signature: Signature | None, public: str) -> str:
    """Why a signature does not do; "": it does."""
    if signature is None:
        return "the contract is not signed; ask with asker_key= (or asker_key under [user] of the federation file)"
    key = read_public(public)
    try:
        age = datetime.now(UTC) - datetime.fromisoformat(signature.time)
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature.value, _message(contract, signature.time))
        else:
            key.verify(signature.value, _message(contract, signature.time), _ECDSA)
    except (InvalidSignature, ValueError, TypeError):
        return "the signature is not that of the asker's key over this contract"
    return "" if -_SKEW <= age <= timedelta(days=contract.days) else "the signature is too old; sign the contract again"


def read_public(text: str) -> ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey:
    """A key of a policy: base64 of its SubjectPublicKeyInfo, or of the 32 bytes of an Ed25519 key."""
    try:
        content = base64.b64decode(text, validate=True)
        if len(content) == 32:
            return ed25519.Ed25519PublicKey.from_public_bytes(content)
        found = serialization.load_der_public_key(content)
    except (ValueError, binascii.Error, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey):
        raise PolicyError(f"askers: {text[:16]!r}… is no public key in base64; `tablepuppet certs asker` prints it")
    return found


def _message(contract: Contract, time: str) -> bytes:
    return b"tablepuppet contract " + f"{contract.hash} {time}".encode()


_MAKE = "make one with `tablepuppet certs asker FILE`"
