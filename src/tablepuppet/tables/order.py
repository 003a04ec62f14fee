"""The order in which clients show their rows: a secret of the clients, and the same whenever a job is repeated.

In: the clients' key, the job's seed, and where a client's rows lie in the whole table. Out: 64 pseudo-random bits for
each row, and the rows sorted by them. Row numbers are positions in this order, so that they say nothing about where
a row lies in its owner's table, which is often sorted by an id or by time.

A row's bits depend on its place in the whole table, not on who holds it. Where a table has several clients they send
the bits along, and the server can put the rows of all in one order: joined rows, and with them the batches of sgd,
are the same however the table is split.
"""

from __future__ import annotations

import hmac

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers

_BLOCK = 8  # numbers in a block of ChaCha20, which its nonce begins to count at
_CHUNK = 1 << 20


def order_bits(key: bytes, scan: str, seed: int, offset: int, rows: int) -> NDArray[np.uint64]:
    """The bits of rows offset, offset + 1, … of a table.

    >>> bool((order_bits(b"k", "t", 7, 0, 30)[11:] == order_bits(b"k", "t", 7, 11, 19)).all())
    True
    """
    secret = hmac.digest(key, f"tablepuppet row order {seed} {scan}".encode(), "sha256")
    block, skipped = divmod(offset, _BLOCK)
    nonce = block.to_bytes(8, "little") + bytes(8)
    stream = Cipher(ChaCha20(secret, nonce), mode=None).encryptor()
    drawn = np.empty(skipped + rows, np.uint64)
    for start in range(0, len(drawn), _CHUNK):
        chunk = drawn[start : start + _CHUNK]
        chunk[:] = np.frombuffer(stream.update(bytes(8 * len(chunk))), np.uint64)
    return drawn[skipped:]


def in_order(bits: NDArray[np.uint64]) -> RowNumbers:
    """The rows sorted by their bits, and by their place where those are equal.

    >>> in_order(np.array([5, 1, 5, 0], np.uint64)).tolist()
    [3, 1, 0, 2]
    """
    # A row's place takes the lowest bits, and one sort of numbers does: several times faster than an argsort. Rows
    # whose bits are equal but for those, a handful in millions, are put in order among themselves.
    places = np.uint64(max(1, len(bits)).bit_length())
    packed = bits >> places << places
    packed |= np.arange(len(bits), dtype=np.uint64)
    packed.sort()
    lowest = packed & ((np.uint64(1) << places) - np.uint64(1))
    order: RowNumbers = lowest.astype(np.int32 if len(bits) < 2**31 else np.int64)
    packed >>= places
    is_tied = np.zeros(len(bits) + 1, np.bool_)
    np.equal(packed[1:], packed[:-1], out=is_tied[1:-1])
    tied = np.flatnonzero(is_tied[1:] | is_tied[:-1])
    rows = order[tied]
    order[tied] = rows[np.lexsort((rows, bits[rows]))]
    return order
