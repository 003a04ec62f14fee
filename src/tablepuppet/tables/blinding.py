"""Join keys without a common secret: every owner blinds every key, and equality is only seen once all of them did.

In: HMAC tokens of keys (tables/tokens.py), or points that other owners blinded. Out: points, 32 bytes each.

    point    u of a point of Curve25519: SHA-256(token, counter) for the first counter that gives one
    blinded  X25519(k, point), k this owner's alone: derived from its secret, the job and the keys' domain

X25519(k₁, X25519(k₂, p)) is X25519(k₂, X25519(k₁, p)): who blinds first does not matter. Whoever has k₁ and the key
that tokens are made with still has to ask the owner of k₂ about every guess. Half of all 32 bytes are no points of the
curve but of its twist; blinding would keep on which of the two a key lies, one bit of it, so those are passed over.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from tablepuppet.errors import PolicyError

SIZE = 32
Points = NDArray[np.uint8]  # keys × 32
_PRIME = 2**255 - 19
_A = 486662  # the curve is v² = u³ + A u² + u


def blinding_key(secret: bytes, job: str, domain: str) -> X25519PrivateKey:
    """k of one owner for the keys of one job that are compared with each other."""
    message = b"tablepuppet blinding %d:%b%b" % (len(job.encode()), job.encode(), domain.encode())
    return X25519PrivateKey.from_private_bytes(hmac.digest(secret, message, "sha256"))


def points_of(tokens: pa.Array) -> Points:
    """Each token's point; about two hashes a token."""
    return _packed([_point(token) for token in tokens.to_pylist()])


def blinded(points: Points, key: X25519PrivateKey) -> Points:
    """Each point, blinded. The library holds Python's lock meanwhile: threads would not help."""
    exchange, point, packed = key.exchange, X25519PublicKey.from_public_bytes, points.tobytes()
    try:
        return _packed([exchange(point(packed[at : at + SIZE])) for at in range(0, len(packed), SIZE)])
    except ValueError:  # one of the few points that every secret leads to zero
        raise PolicyError("a key to be blinded is no point that an owner would send") from None


def to_array(points: Points) -> pa.Array:
    """Rows of bytes as Arrow has them."""
    packed = np.ascontiguousarray(points)
    kind = pa.binary(points.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(packed), [None, pa.py_buffer(packed)])


def to_points(array: pa.Array) -> Points:
    """The other way; no entry may be missing."""
    size = array.type.byte_width
    packed = np.frombuffer(array.buffers()[1] or b"", np.uint8)[array.offset * size :]
    return packed[: len(array) * size].reshape(-1, size)


def _packed(points: list[bytes]) -> Points:
    return np.frombuffer(b"".join(points), np.uint8).reshape(-1, SIZE)


def _point(token: bytes) -> bytes:
    for counter in range(256):
        found = hashlib.sha256(b"tablepuppet point %c%b" % (counter, token)).digest()
        u = int.from_bytes(found, "little") % 2**255
        if _is_square(u * (u * (u + _A) + 1) % _PRIME):
            return found
    raise AssertionError("half of all numbers are points")


def _is_square(number: int) -> bool:
    """Whether a number has a root modulo p, by Jacobi's symbol: a quarter of the time that Euler's power takes.

    >>> [n for n in range(1, 10) if _is_square(n)]
    [1, 3, 4, 5, 9]
    """
    top, bottom, sign = number, _PRIME, 1
    while top:
        twos = (top & -top).bit_length() - 1
        top >>= twos
        if twos & 1 and bottom & 7 in (3, 5):
            sign = -sign
        if top & 3 == 3 and bottom & 3 == 3:
            sign = -sign
        top, bottom = bottom % top, top
    return bottom == 1 and sign == 1
