"""Evidence: who asked, and that nothing was taken out of a log. Both can be verified without trust in the coordinator.

An analyst signs a contract with its own key, and owners verify the person, not the coordinator's word:

    signed   "tablepuppet contract" ‖ the contract's hash ‖ the time, by Ed25519 (RFC 8032), or by ECDSA over P-256 with
             SHA-256 (FIPS 186-5) where the key is that of a certificate

The hash names asker, purpose, columns, noise and what leaves; a signature is good for the contract's days.

Tree heads: one hash that stands for every entry of a log, as RFC 6962 (Certificate Transparency) makes it:

    leaf = SHA-256(0x00 ‖ entry)      node = SHA-256(0x01 ‖ left ‖ right)      empty = SHA-256()

The left half of n leaves is the largest power of two below n. A party that keeps a head notices a log that was cut,
restored from an older copy or forked: its first `size` entries have another root, or are not there. A consistency
proof shows the same without the entries: it has some log₂ n hashes (RFC 6962, section 2.1.2).
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
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


Root = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class TreeHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many entries a log has, and their root."""

    size: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    root: Root


class ConsistencyProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That a log with one head continues the one with another."""

    first: TreeHead
    second: TreeHead
    path: Annotated[tuple[Root, ...], msgspec.Meta(max_length=128)]

    def holds(self) -> bool:
        """Whether both heads follow from the path (RFC 9162, section 2.1.4.2)."""
        first, second = self.first.size, self.second.size
        if first == second or not 0 < first < second:
            is_empty = first == 0 and self.first == MerkleTree().head
            return not self.path and (self.first == self.second or is_empty)
        path = [bytes.fromhex(own) for own in self.path]
        path = [bytes.fromhex(self.first.root), *path] if first & (first - 1) == 0 else path
        below, last = first - 1, second - 1
        while below & 1:
            below, last = below >> 1, last >> 1
        old = new = path[0] if path else b""
        for other in path[1:]:
            if not last:
                return False
            if below & 1 or below == last:
                old, new = _node(other, old), _node(other, new)
                while below and not below & 1:
                    below, last = below >> 1, last >> 1
            else:
                new = _node(new, other)
            below, last = below >> 1, last >> 1
        return (old.hex(), new.hex(), last) == (self.first.root, self.second.root, 0)


def prove_consistency(entries: Sequence[bytes], size: int) -> ConsistencyProof:
    """That all entries continue the first `size` of them.

    >>> prove_consistency([b"a", b"b", b"c"], 2).holds()
    True
    """
    path, start, stop, is_whole = list[str](), 0, len(entries), True
    while 0 < size < stop - start:
        half = start + (1 << (stop - start - 1).bit_length() - 1)
        is_left = size <= half - start
        path.append(head_of(entries[half:stop] if is_left else entries[start:half]).root)
        is_whole &= is_left
        start, stop, size = (start, half, size) if is_left else (half, stop, size - (half - start))
    if not is_whole:
        path.append(head_of(entries[start:stop]).root)
    return ConsistencyProof(head_of(entries[: stop if size else 0]), head_of(entries), tuple(reversed(path)))


def head_of(entries: Sequence[bytes]) -> TreeHead:
    tree = MerkleTree()
    for entry in entries:
        tree.append(entry)
    return tree.head


class MerkleTree:
    """A log's tree, one entry after another; it holds the roots of its complete subtrees alone.

    >>> tree = MerkleTree()
    >>> tree.head.root[:8]
    'e3b0c442'
    >>> tree.append(b"")
    >>> tree.head.size, tree.head.root[:8]
    (1, '6e340b9c')
    """

    def __init__(self) -> None:
        self._subtrees: list[tuple[int, bytes]] = []  # how many leaves, and their root; from left to right
        self.size = 0

    def append(self, entry: bytes) -> None:
        self.size += 1
        leaves, root = 1, hashlib.sha256(b"\0" + entry).digest()
        while self._subtrees and self._subtrees[-1][0] == leaves:
            root = _node(self._subtrees.pop()[1], root)
            leaves *= 2
        self._subtrees.append((leaves, root))

    @property
    def head(self) -> TreeHead:
        if not self._subtrees:
            return TreeHead(0, hashlib.sha256().hexdigest())
        *others, (_, root) = self._subtrees
        for _, left in reversed(others):
            root = _node(left, root)
        return TreeHead(self.size, root.hex())


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
