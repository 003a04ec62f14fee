"""Pairwise masks: a client adds them to its integers so that only the sum over all clients can be read.

    public_i           X25519, made anew for every part of every job
    tag_i              HMAC(clients' key; job, client, part, public_i): the server, which carries them, has no such key
    s_ij               HKDF(X25519(private_i, public_j), salt = job, info = both parts)
    mask_i(t)          Σ_{j>i} ChaCha20(s_ij, t) − Σ_{j<i} ChaCha20(s_ij, t)   mod 2^64

The masks of all clients add up to zero. t counts a client's masked answers and never returns, so that no mask serves
twice (X25519: RFC 7748; HKDF: RFC 5869; ChaCha20: RFC 8439). The scheme is that of Bonawitz et al., "Practical secure
aggregation" (2017), without recovery of lost clients: the server waits for an absent client and repeats its round.

Fixed point: arrays of floats as 64-bit integers that add up exactly, at a scale that all parties share.

    r = round(v · 2^(F − E)),   |v| < 2^E,   F = 62 − ⌈log₂ Q⌉

Q parties' integers add up to less than 2^62: sums never wrap, and wrap-around is left to the masks. A party
discloses only the exponent E of its array's size. The resolution is 2^(E − F), finer than a float's own.
"""

import hmac
import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Integers
from tablepuppet.errors import PrivacyError


class MaskKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part's public key, and the proof that a client of the federation made it for this job."""

    client: Annotated[str, Meta(max_length=256)]
    part: int
    public: Annotated[bytes, Meta(min_length=32, max_length=32)]
    tag: Annotated[bytes, Meta(max_length=64)]


def new_private() -> bytes:
    return X25519PrivateKey.generate().private_bytes_raw()


def mask_key(private: bytes, shared: bytes, job: str, client: str, part: int) -> MaskKey:
    """The public half of a private key, vouched for by the clients' key."""
    public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return MaskKey(client, part, public, _tag(shared, job, client, part, public))


def check_key(key: MaskKey, shared: bytes, job: str) -> None:
    if not hmac.compare_digest(key.tag, _tag(shared, job, key.client, key.part, key.public)):
        raise PrivacyError(
            f"the key for masks in the name of {key.client} was not made by a client of this federation; "
            "somebody between the clients changed it, or they do not share one secret file"
        )


class Masks(msgspec.Struct, frozen=True):
    """The secrets that one part shares with each other part of its block: a sign and a stream's key."""

    parties: int
    pairs: tuple[tuple[int, bytes, int], ...]  # with the other part

    @classmethod
    def of(cls, peers: Sequence[MaskKey], private: bytes, salt: bytes, part: int) -> "Masks":
        """Masks of `part` among its block's parts, whose keys were checked; another salt makes other masks."""
        own = X25519PrivateKey.from_private_bytes(private)
        parts = [peer.part for peer in peers]
        mine = [peer for peer in peers if peer.part == part]
        if len(set(parts)) < len(parts) or [p.public for p in mine] != [own.public_key().public_bytes_raw()]:
            raise PrivacyError("the keys for masks are not those of this block's parts, each once")
        pairs = []
        for peer in peers:
            if peer.part == part:
                continue
            secret = own.exchange(X25519PublicKey.from_public_bytes(peer.public))
            info = b"tablepuppet masks %d %d" % (min(part, peer.part), max(part, peer.part))
            key = HKDF(SHA256(), 32, salt=salt, info=info).derive(secret)
            pairs.append((1 if part < peer.part else -1, key, peer.part))
        return cls(len(peers), tuple(pairs))

    def masked(self, integers: NDArray[np.int64], counter: int) -> NDArray[np.int64]:
        """The integers under this part's mask number `counter`; sums and differences wrap around."""
        total = integers.astype(np.int64).view(np.uint64).ravel().copy()
        for sign, key, _ in self.pairs:
            stream = _stream(key, counter, total.size)
            np.add(total, stream, out=total) if sign > 0 else np.subtract(total, stream, out=total)
        return total.view(np.int64).reshape(integers.shape)

    def pads(self, shape: tuple[int, ...], counter: int) -> list[tuple[int, NDArray[np.uint64]]]:
        """The pad that this part shares with each other one, for words that one of them alone may read."""
        size = int(np.prod(shape))
        return [(other, _stream(key, counter, size).reshape(shape)) for _, key, other in self.pairs]


def _stream(key: bytes, counter: int, size: int) -> NDArray[np.uint64]:
    nonce = bytes(4) + counter.to_bytes(12, "little")
    return np.frombuffer(Cipher(ChaCha20(key, nonce), mode=None).encryptor().update(bytes(8 * size)), "<u8")


def honest_parts(clients: Sequence[str]) -> int:
    """The number of parts of a sum that are honest where less than half of the clients collude.

    >>> honest_parts("abc"), honest_parts("abcde"), honest_parts("aabc"), honest_parts("ab")
    (2, 3, 2, 1)
    """
    parts = sorted(Counter(clients).values())
    return sum(parts[: len(parts) - (len(parts) - 1) // 2]) if len(parts) > 2 else 1


def _tag(shared: bytes, job: str, client: str, part: int, public: bytes) -> bytes:
    message = msgspec.msgpack.encode(("tablepuppet mask key", job, client, part, public))
    return hmac.digest(shared, message, "sha256")


SMALLEST = -960  # an array of zeros, or of numbers that are as good as zero
LARGEST = 1024  # of a finite float


def exponent_of(values: Array) -> int:
    """The least E with |v| < 2^E for all v; the values must be finite.

    >>> exponent_of(np.array([0.5, -3.0])), exponent_of(np.zeros(2))
    (2, -960)
    """
    largest = float(np.abs(values).max(initial=0.0))
    return max(SMALLEST, math.frexp(largest)[1]) if largest > 0 else SMALLEST


def fraction_bits(parties: int) -> int:
    """F."""
    return 62 - (parties - 1).bit_length()


def to_integers(values: Array, exponent: int, parties: int) -> Integers:
    """r of every value; none of them may reach 2^E.

    >>> to_integers(np.array([0.5, -0.25]), 0, 4)
    array([ 576460752303423488, -288230376151711744])
    """
    if exponent_of(values) > exponent:
        raise OverflowError("a value does not fit its scale")
    # in two steps, for 2^(F − E) itself may overflow a float
    scaled = np.ldexp(np.ldexp(np.asarray(values, np.float64), -exponent), fraction_bits(parties))
    return np.rint(scaled).astype(np.int64)


def from_integers(total: Integers, exponent: int, parties: int) -> Array:
    """The values of a sum."""
    return np.asarray(np.ldexp(np.ldexp(total.astype(np.float64), -fraction_bits(parties)), exponent))
