"""embed: text → vectors at the owner, before training, computed once.

In: a table and the name of a text column. Out: the same table with a fixed-size list column beside it, which a query
selects as a feature like any number. The text stays where it is; with a cache folder, equal texts under the same
embedder are never embedded twice.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tablepuppet.errors import SourceError

Embedder = Callable[[Sequence[str]], Any]  # texts → (texts, size) numbers


def embed(
    table: Any,
    column: str,
    *,
    using: str | Embedder = "all-MiniLM-L6-v2",
    to: str | None = None,
    cache: str | Path | None = None,
) -> pa.Table:
    """The table with a vector for each text of a column, called `<column>_embedding` or `to`.

    `using` is a function from texts to vectors, or the name of a sentence-transformers model (extra `text`).

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
    named = using if isinstance(using, str) else f"{using.__module__}.{getattr(using, '__qualname__', using)}"
    digest = hashlib.sha256("\0".join([named, *texts]).encode()).hexdigest()[:24]
    file = None if cache is None else cache / f"embedding-{digest}.parquet"
    if file is not None and file.is_file():
        kept = pq.read_table(file)["vector"].combine_chunks()
        return np.asarray(kept.flatten().to_numpy(), np.float32).reshape(len(texts), -1)
    embedder = _transformer(using) if isinstance(using, str) else using
    vectors = np.asarray(embedder(texts), np.float32) if texts else np.zeros((0, 1), np.float32)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise SourceError(f"the embedder gave shape {vectors.shape} for {len(texts)} texts; give one vector a text")
    if file is not None and texts:
        file.parent.mkdir(parents=True, exist_ok=True)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), vectors.shape[1])
        unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        pq.write_table(pa.table({"vector": lists}), unfinished)
        os.replace(unfinished, file)
    return vectors


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
