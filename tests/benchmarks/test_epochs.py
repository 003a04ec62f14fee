"""Epochs beside torch's are of the same rows."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from benchmarks.epochs import HEADINGS, _sales, cells, measure_here


def test_torch_has_the_train_rows_of_the_join_as_the_tables_encode_them() -> None:
    join = _sales(700)
    case, encoded, labels = join.case, join.encoded, join.labels
    with duckdb.connect(":memory:") as connection:
        for name, table in case.tables.items():
            connection.register(name, table)
        query = f"SELECT sales, w0, size, dept FROM ({case.query}) JOIN facts USING (sales) WHERE is_test = 0"
        joined = connection.execute(query.replace("dept FROM", "facts.dept FROM")).fetchnumpy()
    order, other = np.argsort(labels), np.argsort(joined["sales"])
    np.testing.assert_array_equal(labels[order], joined["sales"][other])
    np.testing.assert_array_equal(encoded[1][order, 0], joined["w0"][other])
    np.testing.assert_array_equal(encoded[2][order, 0], joined["size"][other])
    departments = [f"dept {code}" for code in encoded[0][order, 1:].argmax(axis=1)]
    assert departments == list(joined["dept"][other])


@pytest.mark.slow
def test_every_kind_of_epoch_is_measured() -> None:
    found = measure_here(70)
    assert [(f.model, f.algorithm) for f in found] == [
        ("linear", "sgd"),
        ("mlp", "sgd"),
        ('head="mlp"', "sgd"),
        ("mlp", "admm"),
    ]
    assert all(f.rows == 60 and f.ours > 0 and f.torch > 0 for f in found)
    assert all(len(cells(f)) == len(HEADINGS) for f in found)
