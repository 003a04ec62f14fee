"""embed: text → vectors at the owner, before training, computed once.

In: a table and the name of a text column. Out: the same table with one more column, a fixed-size list, which a query
selects as a feature like any number. The text stays where it is. With a cache folder, equal texts under the same
embedder are never embedded twice, even when rows are added later.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tablepuppet.errors import SourceError

Embedder = Callable[[Sequence[str]], Any]  # texts → (texts, size) numbers
_CHUNK = 2048  # texts that are embedded at once, and then kept


def embed(
    table: Any,
    column: str,
    *,
    using: str | Embedder = "all-MiniLM-L6-v2",
    to: str | None = None,
    cache: str | Path | None = None,
) -> pa.Table:
    """Adds a vector for each text of a column; returns an Arrow table.

    - `table`: an Arrow table or a data frame; `column`: the text column.
    - `using`: a function from texts to vectors, or the name of a sentence-transformers model (extra `text`).
    - `to`: the new column's name, by default `<column>_embedding`; `cache`: a folder that keeps vectors for later.

    >>> import pyarrow as pa
    >>> table = embed(pa.table({"t": ["a", None]}), "t", using=lambda texts: [[1.0, 2.0] for _ in texts])
    >>> table["t_embedding"].to_pylist()
    [[1.0, 2.0], None]
    """
    rows = table if isinstance(table, pa.Table) else pa.table(table)
    if column not in rows.column_names:
        raise SourceError(f"there is no column {column!r} to embed; there are {', '.join(rows.column_names)}")
    texts = rows[column].combine_chunks().cast(pa.large_string())
    distinct = texts.unique().drop_null()
    vectors = _vectors(distinct.to_pylist(), using, None if cache is None else Path(cache).expanduser())
    flat = pa.array(vectors.ravel(), pa.float32())
    lists = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    place = pc.index_in(texts, value_set=distinct, skip_nulls=True)
    name = to or f"{column}_embedding"
    return rows.append_column(name, lists.take(place))


def _vectors(texts: list[str], using: str | Embedder, cache: Path | None) -> NDArray[np.float32]:
    """One vector per text; those that the cache has are read, the others computed and kept as they come."""
    kept = _Kept.open(using, cache)
    keys = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
    missing = [k for k, key in enumerate(keys) if key not in kept.places]
    embedder = _transformer(using) if isinstance(using, str) and missing else using
    for start in range(0, len(missing), _CHUNK):
        chunk = missing[start : start + _CHUNK]
        assert not isinstance(embedder, str)
        vectors = np.asarray(embedder([texts[k] for k in chunk]), np.float32)
        if vectors.ndim != 2 or len(vectors) != len(chunk):
            raise SourceError(f"the embedder gave shape {vectors.shape} for {len(chunk)} texts; give one vector a text")
        kept.add([keys[k] for k in chunk], vectors)
    if not texts:
        return np.zeros((0, kept.vectors.shape[1] or 1), np.float32)
    return kept.vectors[[kept.places[key] for key in keys]]


@dataclass
class _Kept:
    """Vectors by the hash of their text, in memory and, with a cache folder, in a file of the embedder's own."""

    file: Path | None
    places: dict[bytes, int]
    vectors: NDArray[np.float32]

    @classmethod
    def open(cls, using: str | Embedder, cache: Path | None) -> _Kept:
        named = using if isinstance(using, str) else f"{using.__module__}.{getattr(using, '__qualname__', using)}"
        digest = hashlib.sha256(named.encode()).hexdigest()[:24]
        file = None if cache is None else cache / f"embedding-{digest}.parquet"
        if file is None or not file.is_file():
            return cls(file, {}, np.zeros((0, 0), np.float32))
        table = pq.read_table(file)
        flat = np.asarray(table["vector"].combine_chunks().flatten().to_numpy(), np.float32)
        places = {key: place for place, key in enumerate(table["text"].to_pylist())}
        return cls(file, places, flat.reshape(table.num_rows, -1))

    def add(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """More vectors; on the disk before the next are computed."""
        if len(self.vectors) and vectors.shape[1] != self.vectors.shape[1]:
            raise SourceError(
                f"the embedder gives vectors of {vectors.shape[1]} numbers, and the cache {self.file} holds vectors of "
                f"{self.vectors.shape[1]}; give another cache folder, or remove that file"
            )
        self.places |= {key: len(self.vectors) + k for k, key in enumerate(keys)}
        self.vectors = np.concatenate([self.vectors, vectors]) if len(self.vectors) else vectors
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(self.vectors.ravel(), pa.float32()), self.vectors.shape[1])
        unfinished = self.file.with_name(f".{self.file.name}.{secrets.token_hex(4)}")
        pq.write_table(pa.table({"text": pa.array(list(self.places), pa.binary()), "vector": lists}), unfinished)
        os.replace(unfinished, self.file)


def _transformer(name: str) -> Embedder:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise SourceError(
            "embedding by a model's name needs sentence-transformers; install the extra (pip install "
            '"tablepuppet[text]"), or give a function of your own: using=lambda texts: …'
        ) from None
    model = SentenceTransformer(name)
    return lambda texts: model.encode(list(texts), show_progress_bar=False)
