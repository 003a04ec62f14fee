"""answer: scores of joined rows → an Arrow table of predictions, and the file that it may be written to.

Columns: the key; `prediction`, in the label's own type; where scores are probabilities, `probability` of the second
class for two classes, `probability_<class>` for each class of softmax; and, where the request allowed owners to be
missing, `assumed`: the tables whose mean contribution stands in for an unknown row; `split`, where it was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import ModelError
from tablepuppet.join.mapping import Class
from tablepuppet.output_files import as_path, write_whole
from tablepuppet.prediction.model import Model


def answer(
    model: Model,
    keys: pa.Table,
    scores: Array,
    missing: Mapping[str, NDArray[np.bool_]] | None,
    sides: pa.Array | None = None,
) -> pa.Table:
    """The table that a prediction returns."""
    columns: dict[str, pa.Array] = {}
    predicted, probabilities = model.loss.predict(scores), model.loss.probabilities(scores)
    if not model.classes:
        columns["prediction"] = pa.array(predicted)
    else:
        columns["prediction"] = _classes(model.classes).take(pa.array(predicted.astype(np.int32)))
    if probabilities is not None and model.outputs == 1:
        columns["probability"] = pa.array(probabilities[:, 1])
    elif probabilities is not None:
        named = _classes(model.classes).cast(pa.string()).to_pylist()
        columns |= {f"probability_{c}": pa.array(probabilities[:, k]) for k, c in enumerate(named)}
    if missing is not None:
        columns["assumed"] = _name_missing_tables(missing, len(scores))
    if sides is not None:
        columns["split"] = sides
    taken = set(keys.column_names) & set(columns)
    kept = keys.rename_columns([f"key_{name}" if name in taken else name for name in keys.column_names])
    if not kept.num_columns:  # a table without columns has no rows either
        return pa.table(columns)
    for name, values in columns.items():
        kept = kept.append_column(name, values)
    return kept


def at_threshold(model: Model, table: pa.Table, threshold: float) -> pa.Table:
    """The same predictions, of the second class where its probability is at least `threshold`."""
    if "probability" not in table.column_names:
        raise ModelError("a threshold needs a model of two classes that predicts probabilities")
    if not 0.0 <= threshold <= 1.0:
        raise ModelError("threshold must be a probability, from 0 to 1: result.threshold() chooses one")
    is_second = (table["probability"].to_numpy() >= threshold).astype(np.int32)
    place = table.column_names.index("prediction")
    return table.set_column(place, "prediction", _classes(model.classes).take(pa.array(is_second)))


def write(table: pa.Table, path: str | Path) -> None:
    """Writes predictions to .parquet or .csv, all or nothing."""
    target = check_file(path)
    save = pq.write_table if target.suffix.lower() == ".parquet" else pyarrow.csv.write_csv
    write_whole(target, lambda file: save(table, file), "predictions", ModelError)


def check_file(path: str | Path) -> Path:
    """Where predictions are to be written, if that is a kind of file that they are written to."""
    target = as_path(path, "predictions", ModelError)
    if target.suffix.lower() not in (".parquet", ".csv"):
        raise ModelError(f"predictions are written to .parquet or .csv, and {target.name} ends in neither")
    return target


def _classes(classes: tuple[Class, ...]) -> pa.Array:
    """The classes in the label's own type."""
    return pa.array(classes)


def _name_missing_tables(missing: Mapping[str, NDArray[np.bool_]], rows: int) -> pa.Array:
    """The names of the tables that each row lacks, or an empty text."""
    # Each set of tables is a number, one bit for each table.
    sets = sum((marks.astype(np.int64) << bit for bit, marks in enumerate(missing.values())), np.zeros(rows, np.int64))
    found, codes = np.unique(sets, return_inverse=True)
    names = [", ".join(table for bit, table in enumerate(missing) if int(code) >> bit & 1) for code in found]
    return pa.array(names, pa.string()).take(pa.array(codes))
