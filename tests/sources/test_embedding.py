"""Text becomes vectors at its owner, once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import tablepuppet as tp

CALLS: list[int] = []


def lengths(texts: Sequence[str]) -> list[list[float]]:
    CALLS.append(len(texts))
    return [[float(len(text)), 1.0] for text in texts]


def test_each_distinct_text_is_embedded_once_and_kept(tmp_path: Path) -> None:
    CALLS.clear()
    table = pa.table({"id": [1, 2, 3, 4], "text": ["ab", "c", "ab", None]})
    first = tp.embed(table, "text", using=lengths, cache=tmp_path)
    second = tp.embed(table, "text", using=lengths, cache=tmp_path, to="v")
    assert CALLS == [2]
    assert first["text_embedding"].to_pylist() == [[2.0, 1.0], [1.0, 1.0], [2.0, 1.0], None]
    assert second["v"].to_pylist() == first["text_embedding"].to_pylist()
    assert first["text_embedding"].type == pa.list_(pa.float32(), 2)


def test_a_column_that_is_not_there_and_a_wrong_shape_are_named() -> None:
    table = pa.table({"text": ["a", "b"]})
    with pytest.raises(tp.TablePuppetError, match="no column"):
        tp.embed(table, "txt", using=lengths)
    with pytest.raises(tp.TablePuppetError, match="one vector a text"):
        tp.embed(table, "text", using=lambda texts: [[1.0]])


def test_only_new_texts_are_embedded_when_rows_are_added(tmp_path: Path) -> None:
    CALLS.clear()
    tp.embed(pa.table({"text": ["ab", "c"]}), "text", using=lengths, cache=tmp_path)
    more = tp.embed(pa.table({"text": ["def", "c", "ab"]}), "text", using=lengths, cache=tmp_path)
    assert CALLS == [2, 1]
    assert more["text_embedding"].to_pylist() == [[3.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    assert (
        tp.embed(pa.table({"text": pa.array([None], pa.string())}), "text", using=lengths)["text_embedding"][0].as_py()
        is None
    )
