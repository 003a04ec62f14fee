"""Tables in memory: Arrow tables, batches and datasets, pandas and polars DataFrames.

In: one of those. Out: a Source over the same memory, wherever Arrow can share it.

embed: text → vectors at the owner, before training, computed once. In: a table and the name of a text column. Out: the
same table with one more column, a fixed-size list, which a query selects as a feature like any number. The text stays
where it is. With a cache folder, equal texts under the same embedder are never embedded twice.
"""

import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tablepuppet.errors import SourceError
from tablepuppet.output_files import write_whole
from tablepuppet.sources import duckdb_source
from tablepuppet.sources.source import Source

_EXACT = 2**53  # floats below it are exact integers


def open_memory(value: Any, name: str) -> Source:
    """Opens an Arrow table, batch or dataset, or a DataFrame."""
    datasets = sys.modules.get("pyarrow.dataset")  # of which there is none before it is imported
    if datasets is not None and isinstance(value, datasets.Dataset):
        check_names(value.schema.names, name)
        if all(_duckdb_type(field.type) == field.type for field in value.schema):
            return duckdb_source.from_arrow(name, value)
        value = value.to_table()
    table = _to_arrow(value, name)
    check_names(table.column_names, name)
    for i, field in enumerate(table.schema):  # types that DuckDB does not take from Arrow, as the nearest that it does
        kind = _duckdb_type(field.type)
        if kind != field.type:
            table = table.set_column(i, field.name, table.column(i).cast(kind))
    return duckdb_source.from_arrow(name, table)


def _to_arrow(value: object, name: str) -> pa.Table:
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return _from_pandas(value, name)
    if hasattr(value, "__arrow_c_stream__"):  # polars, and any other library that speaks Arrow
        with suppress(pa.ArrowInvalid):  # of a column, which is no table
            return pa.table(value)
    hint = "; call .collect() on it first" if hasattr(value, "collect") else ""
    hint = "; call .to_frame() on it first" if hasattr(value, "to_frame") else hint
    module, kind = type(value).__module__, type(value).__name__
    found = f"a value of type {kind}" if module == "builtins" else f"a {module}.{kind}"
    raise SourceError(
        f"table {name}: {found} is not a source{hint}. Give a path, "
        "a pyarrow.Table, a pandas or polars DataFrame, or tp.source(url, table=…)"
    )


def check_names(names: Sequence[str], name: str) -> None:
    """Refuses a table without columns, or with two that SQL cannot distinguish."""
    if not names:
        raise SourceError(f"table {name} has no columns; give a table with at least one")
    seen: dict[str, str] = {}
    for column in names:
        if not isinstance(column, str) or not column:
            raise SourceError(f"table {name} has a column without a name; rename it")
        if column.lower() in seen:
            raise SourceError(
                f"table {name} has columns {seen[column.lower()]!r} and {column!r}, which SQL does not tell apart; "
                "rename one"
            )
        seen[column.lower()] = column


def _from_pandas(frame: Any, name: str) -> pa.Table:
    """The columns of a DataFrame; a named index is a column too, as in `DataFrame.to_sql`."""
    index = [level for level in frame.index.names if level is not None]
    check_names([str(column) for column in [*index, *frame.columns]], name)
    frame = frame.reset_index(level=index) if index else frame
    arrays = []
    for column in frame.columns:
        try:
            array = pa.array(frame[column], from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # Arrow's own message quotes the value that it stumbled over.
            raise SourceError(
                f"table {name}: column {column!r} of the DataFrame ({frame[column].dtype}) mixes types or holds "
                "objects that are not numbers, strings, dates or arrays; convert it with .astype(...) first"
            ) from None
        arrays.append(_integers(array))
    return pa.table(arrays, names=[str(column) for column in frame.columns])


def _integers(array: pa.Array) -> pa.Array:
    """Whole numbers that pandas keeps as floats, because some are missing, as integers: they may be keys."""
    if not pa.types.is_float64(array.type) or not 0 < array.null_count < len(array):
        return array
    whole = array.cast(pa.int64(), safe=False)
    bounds = pc.min_max(pc.abs(array))["max"].as_py()
    is_whole = bounds < _EXACT and pc.all(pc.equal(whole.cast(pa.float64()), array)).as_py()
    return whole if is_whole else array


def _duckdb_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else pa.float64()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_duckdb_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        value = _duckdb_type(kind.value_type)
        return kind if value == kind.value_type else pa.large_list(value)
    return kind


Embedder = Callable[[Sequence[str]], Any]  # texts → (texts, size) numbers
_TEXTS_AT_ONCE = 2048  # texts that are embedded at once, and then kept


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
    for start in range(0, len(missing), _TEXTS_AT_ONCE):
        chunk = missing[start : start + _TEXTS_AT_ONCE]
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
    def open(cls, using: str | Embedder, cache: Path | None) -> Self:
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
        table = pa.table({"text": pa.array(list(self.places), pa.binary()), "vector": lists})
        write_whole(self.file, lambda file: pq.write_table(table, file), "vectors", SourceError)


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
