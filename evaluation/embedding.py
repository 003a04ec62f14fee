"""Texts → vectors of 384 numbers.

With the extra `text`, and a sentence encoder on this machine, that encoder. Without it, hashed word
counts: each word and pair of words falls on one of 384 places with a sign, weighted by the logarithm
of its count, and the vector has length one. It knows no language, and needs neither model nor network.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

SIZE = 384
ENCODER = "EVALUATION_ENCODER"  # environment variable: the folder of a sentence-transformers model


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """One vector per text."""
    encoder = os.environ.get(ENCODER)
    if encoder:
        from sentence_transformers import SentenceTransformer

        vectors: NDArray[np.float32] = SentenceTransformer(encoder).encode(list(texts), normalize_embeddings=True)
        return vectors
    return np.stack([_hashed(text) for text in texts])


def _hashed(text: str) -> NDArray[np.float32]:
    words = re.findall(r"[a-z']+", text.lower())
    counts = Counter([*words, *map(" ".join, pairwise(words))])
    codes = np.array([zlib.crc32(term.encode()) for term in counts], np.uint32)
    weights = np.log1p(np.array(list(counts.values()), float)) * np.where(codes >> 31, 1.0, -1.0)
    vector = np.bincount(codes % SIZE, weights, SIZE) if len(codes) else np.zeros(SIZE)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)
