"""Blinded join keys (`keys="dh"`): Diffie-Hellman private set intersection over Curve25519.

The construction is that of Meadows (IEEE S&P 1986) and Huberman, Franklin and Hogg (EC 1999). Every owner raises every
key to a secret power; equality shows only after all of them did. The group is that of RFC 7748, the map from
tokens to points `encode_to_curve` of RFC 9380.

    point    u of map_to_curve_elligator2(hash_to_field(token)), suite curve25519_XMD:SHA-512_ELL2_NU_
    blinded  X25519(k, point), k this owner's alone: derived from its secret, the job and the keys' domain

X25519(k₁, X25519(k₂, p)) is X25519(k₂, X25519(k₁, p)): the order of blinding does not matter. A party that has k₁ and
the key of the tokens still has to ask the owner of k₂ about every guess. All points lie on the curve and none on its
twist: blinding preserves which of the two a point lies on, and that would reveal one bit of the key. X25519 multiplies
by the cofactor, which is the last step of RFC 9380.

The library holds Python's lock while it multiplies. Many keys are shared out among processes, one per core. A process
reads its share from one pipe, writes the result to another, and knows nothing else.
"""

import hashlib
import hmac
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from tablepuppet.errors import PolicyError

POINT_SIZE, TOKEN_SIZE = 32, 16
Points = NDArray[np.uint8]  # keys × 32; × 16 where they are tokens
_PRIME = 2**255 - 19
_A = 486662  # the curve is v² = u³ + A u² + u
_DOMAIN = b"tablepuppet keys with curve25519_XMD:SHA-512_ELL2_NU_"
_FIELD_BYTES, _BLOCK = 48, 128  # L of RFC 9380 for this field; bytes of SHA-512's blocks
_MIN_KEYS_FOR_PROCESSES = 20_000  # to start one takes half a second
_MIN_KEYS_FOR_KERNEL = 50_000  # to compile it takes as long as so many symbols in Python
_WRONG_POINT = 3  # the exit code of a process that was given one
_PROGRAM = "from tablepuppet.owner.blinding import work; work()"


def blinding_key(secret: bytes, job: str, domain: str) -> X25519PrivateKey:
    """k of one owner for the keys of one job that are compared with each other."""
    message = b"tablepuppet blinding %d:%b%b" % (len(job.encode()), job.encode(), domain.encode())
    return X25519PrivateKey.from_private_bytes(hmac.digest(secret, message, "sha256"))


def blind(keys: Points, key: X25519PrivateKey) -> Points:
    """Points blinded by one more owner; tokens, which are shorter, become points first."""
    return _share_out(keys.tobytes(), keys.shape[1], key.private_bytes_raw())


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


def map_to_curve(tokens: Sequence[bytes], domain: bytes = _DOMAIN) -> list[bytes]:
    """encode_to_curve of RFC 9380, but for the cofactor. Its test vector (J.4.2, Q of the empty message):

    >>> map_to_curve([b""], b"QUUX-V01-CS02-with-curve25519_XMD:SHA-512_ELL2_NU_")[0][::-1].hex()
    '51125222da5e763d97f3c10fcc92ea6860b9ccbbd2eb1285728f566721c1e65b'
    """
    suffix = domain + bytes([len(domain)])
    squares = [pow(_to_field(token, suffix), 2, _PRIME) for token in tokens]
    first = [-_A * inverse % _PRIME for inverse in _invert([(1 + 2 * square) % _PRIME for square in squares])]
    are_points = _have_roots([u * (u * (u + _A) + 1) % _PRIME for u in first])
    found = [u if is_point else (-u - _A) % _PRIME for u, is_point in zip(first, are_points, strict=True)]
    return [u.to_bytes(POINT_SIZE, "little") for u in found]


def _to_field(token: bytes, suffix: bytes) -> int:
    """hash_to_field of RFC 9380: expand_message_xmd with SHA-512, reduced modulo p."""
    first = hashlib.sha512(bytes(_BLOCK) + token + _FIELD_BYTES.to_bytes(2, "big") + b"\0" + suffix).digest()
    return int.from_bytes(hashlib.sha512(first + b"\1" + suffix).digest()[:_FIELD_BYTES], "big") % _PRIME


def _invert(numbers: Sequence[int]) -> list[int]:
    """The inverses modulo p, by one inversion of their product (Montgomery 1987); none is zero, for −½ has no root."""
    products = [1]
    for number in numbers:
        products.append(products[-1] * number % _PRIME)
    rest = pow(products.pop(), -1, _PRIME)
    inverses = []
    for number, before in zip(reversed(numbers), reversed(products), strict=True):
        inverses.append(rest * before % _PRIME)
        rest = rest * number % _PRIME
    return inverses[::-1]


def _have_roots(numbers: Sequence[int]) -> Sequence[bool]:
    if len(numbers) < _MIN_KEYS_FOR_KERNEL:
        return [_is_square(number) for number in numbers]
    from tablepuppet.owner.jacobi import have_roots  # numba, which takes a second to load

    packed = b"".join([number.to_bytes(POINT_SIZE, "little") for number in numbers])
    found: list[bool] = have_roots(np.frombuffer(packed, "<u8").reshape(-1, 4)).tolist()
    return found


def _is_square(number: int) -> bool:
    """Whether a number has a root modulo p, by Jacobi's symbol: a quarter of the time that Euler's power takes."""
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


def _compute(packed: bytes, size: int, key: bytes) -> bytes:
    """Tokens or points, as points blinded by a key."""
    given = [packed[at : at + size] for at in range(0, len(packed), size)]
    points = map_to_curve(given) if size == TOKEN_SIZE else given
    exchange, point = X25519PrivateKey.from_private_bytes(key).exchange, X25519PublicKey.from_public_bytes
    return b"".join([exchange(point(one)) for one in points])


def _share_out(packed: bytes, size: int, key: bytes) -> Points:
    """A share of the keys for each core."""
    keys, cores = len(packed) // size, os.cpu_count() or 1
    if keys < _MIN_KEYS_FOR_PROCESSES or cores == 1:
        try:
            done = _compute(packed, size, key)
        except ValueError:  # one of the few points that every secret leads to zero
            raise _wrong_point() from None
    else:
        share = -(-keys // cores) * size
        shares = [packed[at : at + share] for at in range(0, len(packed), share)]
        with ThreadPoolExecutor(len(shares)) as waiting:
            done = b"".join(waiting.map(partial(_compute_elsewhere, size=size, key=key), shares))
    return np.frombuffer(done, np.uint8).reshape(-1, POINT_SIZE)


def _compute_elsewhere(packed: bytes, size: int, key: bytes) -> bytes:
    """The same in another process. It receives the secret through its pipe, so that no list of processes shows it."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM],
        input=bytes([size]) + key + packed,
        stdout=subprocess.PIPE,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if done.returncode:
        if done.returncode == _WRONG_POINT:
            raise _wrong_point()
        raise PolicyError(f"a process that blinds keys ended with code {done.returncode}; start the run again")
    return done.stdout


def work() -> None:
    """The main function of such a process."""
    [size], key, packed = sys.stdin.buffer.read(1), sys.stdin.buffer.read(POINT_SIZE), sys.stdin.buffer.read()
    try:
        sys.stdout.buffer.write(_compute(packed, size, key))
    except ValueError:
        sys.exit(_WRONG_POINT)


def _wrong_point() -> PolicyError:
    return PolicyError("a key to be blinded is no point that an owner would send")
