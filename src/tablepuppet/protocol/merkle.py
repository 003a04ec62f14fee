"""Tree heads: one hash that stands for every entry of a log, as RFC 6962 (Certificate Transparency) makes it.

    leaf = SHA-256(0x00 ‖ entry)      node = SHA-256(0x01 ‖ left ‖ right)      empty = SHA-256()

The left half of n leaves is the largest power of two below n. A party that keeps a head notices a log that was cut,
restored from an older copy or forked: its first `size` entries have another root, or are not there.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

Root = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class TreeHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many entries a log has, and their root."""

    size: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    root: Root


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
