"""Predict: a model and a query's new rows → an Arrow table with one prediction per joined row.

Four rounds: schemas, scans, keys, and scores. In the last, each client receives the encoders and parameters of its
block and answers with h of its rows. The server expands them to joined rows and adds them up, as in training. No
feature leaves its owner.

Columns:

- The key.
- `prediction`, in the label's own type.
- Where scores are probabilities: `probability` of the second class for two classes, `probability_<class>` for each
  class of softmax.
- `assumed`, where the request allowed owners to be missing: the tables whose mean contribution stands in for an unknown
  row.
- `split`, where it was asked for.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.registry import own_model
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.contract import ModelUse, agree, score_contracts
from tablepuppet.errors import JobError, ModelError
from tablepuppet.exchanges.prediction import Identifiers, ScoreOwnRows, ScoreRows, Scores, SendIdentifiers
from tablepuppet.job.make import plain_value
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.mapping import Class, Part
from tablepuppet.join.new_rows import NewRows, map_new_rows
from tablepuppet.join.row_index import RowIndex
from tablepuppet.models.heads.base import apply_head
from tablepuppet.models.heads.kinds import trained_head
from tablepuppet.output_files import as_path, write_whole
from tablepuppet.owner.part_store import check_types
from tablepuppet.prediction.missing_owners import Reachable
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.saved import block_fingerprints
from tablepuppet.prediction.split_record import AskedSides, split_record
from tablepuppet.privacy.options import privacy_of
from tablepuppet.protocol.base import Message
from tablepuppet.sources.syntax import unused_name
from tablepuppet.sql.across_owners import read_query
from tablepuppet.sql.binding import Key, Servable, Wanted, bind_features
from tablepuppet.sql.checks import NOTHING, LabelColumns
from tablepuppet.sql.ucq import Tables
from tablepuppet.transport.link import Link

_MOST_SCALE = 19  # of decimals that have room for every integer of 64 bits


def predict_rows(
    model: Model,
    query: str,
    tables: Tables,
    link: Link,
    job: str,
    *,
    key: Sequence[str] | None = None,
    only: Sequence[Key] | None = None,
    there: Reachable | None = None,
    max_joined_rows: int | None = None,
    split: bool = False,
) -> pa.Table:
    """The base's key, the prediction and its probability for each joined row, ordered by the base's rows.

    `split`: also the side of the base's row in the split that the model was trained with.
    """
    record = split_record(model) if split else None
    wanted = Wanted(
        blocks=tuple((block.name, block.features) for block in model.blocks),
        label=model.label,
        bases=model.label_aliases,
        key=None if key is None else tuple(key),
        only=None if only is None else tuple(map(tuple, only)),
        beside=NOTHING if record is None else LabelColumns(None, record.test_where, record.validation_where),
    )
    servable = bind_features(read_query(query, tables, link), wanted, tables=tables, link=link, job=job)
    here = [(b, s) for b, s in zip(model.blocks, servable.bound.blocks, strict=True) if not b.is_held]
    own_kind = own_model(model.spec)
    if own_kind is not None:
        for block, bound in here:
            own_kind.check_columns(block, bound.columns)
    else:
        check_types(  # owners check the parts that they hold
            [f for b, _ in here for f in b.features],
            [c for _, s in here for c in s.columns],
            [e for b, _ in here for e in b.encoders],
        )
    scans = [branch.relations[branch.label_relation].scan for branch in servable.bound.branches]
    absent, incomplete = (frozenset[str](),) * 2 if there is None else (there.absent, there.incomplete)
    for table in (servable.bound.scans[scan].table for scan in scans):  # whose rows are those to predict
        if table in absent:
            raise ModelError(f"no owner of table {table} can be reached, and its rows are those to predict; try later")
    identifiers = [(s, column) for s, own in zip(scans, servable.key_columns, strict=True) for column in own]
    privacy = privacy_of(model.metadata.get("keys"))
    asked = None if record is None else AskedSides.of(record, servable.bound)
    use = ModelUse((block_fingerprints(model),), () if asked is None else asked.terms)
    agree(score_contracts(servable.bound, use, identifiers, link.asker, privacy), link, job)
    rows = map_new_rows(
        servable.bound, link, job=job, max_joined_rows=max_joined_rows, incomplete=incomplete, privacy=privacy
    )
    scores = _scores(model, rows, link, job)
    keys = _identifiers(servable, rows, link, job)
    sides = None if asked is None else asked.sides(rows, link, job)
    if there is None:
        return answer(model, keys, scores, None, sides)
    assumed = {b.table: a for b, a in zip(model.blocks, rows.assumed, strict=True) if a is not None}
    table = answer(model, keys, scores, assumed, sides)
    return table.replace_schema_metadata({"tablepuppet.missing": ", ".join(there.missing)})


def as_keys(given: Sequence[Any]) -> list[Key]:
    """Keys as a user gives them: a value each, or a tuple of values for a key of several columns.

    >>> as_keys([7, 8]), as_keys([("UA", 7)])
    ([(7,), (8,)], [('UA', 7)])
    """
    if isinstance(given, str | bytes) or not isinstance(given, Sequence | np.ndarray):
        raise JobError("keys must be a list: one value, or one tuple of values, for each row that you ask for")
    return [tuple(map(plain_value, key if isinstance(key, tuple | list) else [key])) for key in given]


def _scores(model: Model, rows: NewRows, link: Link, job: str) -> Array:
    """The score of each joined row; where an owner is missing, its table's mean contribution stands in."""
    joined, indices = rows.joined, list(rows.joined.indices)
    parts = [(part, part.test_rows, part.test) for part in rows.parts]
    blocks = ask_blocks(model, parts, [index.rows for index in indices], link, job)
    if own_model(model.spec) is None:
        for number, assumed in enumerate(rows.assumed):
            if assumed is None:
                continue
            count = indices[number].rows  # the mean is one more row of the block
            blocks[number] = np.vstack([blocks[number], model.blocks[number].mean])
            numbers = np.where(assumed, count, indices[number].numbers(joined.rows))
            indices[number] = RowIndex.of(numbers, count + 1)
        joined = replace(joined, indices=tuple(indices))
    return joined_scores(model, joined, blocks)


def ask_blocks(
    model: Model, parts: Sequence[tuple[Part, RowNumbers, slice]], sizes: Sequence[int], link: Link, job: str
) -> list[Array]:
    """One round: each block's contributions to its rows, h or bits of splits. `parts`: with rows and their places."""
    own = own_model(model.spec)
    if own is not None:
        return own.ask_rows(model, parts, sizes, link, job)
    requests = [(part.client, score_request(model, part, rows, job)) for part, rows, _ in parts]
    answers: list[Scores] = link.ask_each(requests, "evaluation")
    found = [np.zeros((size, width)) for size, width in zip(sizes, model.widths, strict=True)]
    for (part, _, place), answer in zip(parts, answers, strict=True):
        values = answer.values
        if values.shape != found[part.block][place].shape:
            raise ModelError(
                f"client {part.client} predicts {values.shape} values where {model.widths[part.block]} a row are due"
            )
        found[part.block][place] = values
    return found


def joined_scores(model: Model, rows: JoinedRows, blocks: Sequence[Array]) -> Array:
    """The score of each joined row, from the blocks' contributions."""
    own = own_model(model.spec)
    if own is not None:
        return own.scores(model, blocks, [index.numbers(rows.rows) for index in rows.indices], rows.rows)
    if not rows.rows:
        return np.zeros((0, model.outputs))
    headed = apply_head(rows, trained_head(model.head))
    headed.allocate("scores", model.outputs)
    headed.run(_keep_scores, blocks, writes=("scores",), intercept=model.encoded_intercept)
    return rows.collect("scores")


def _keep_scores(shard: Any, *, intercept: Array) -> tuple[Sequence[Array], dict[str, Any]]:
    shard.state["scores"][...] = shard.scores + intercept
    return (), {}


def _identifiers(servable: Servable, rows: NewRows, link: Link, job: str) -> pa.Table:
    """The key of each joined row's base row, and which client holds it where there are several."""
    bound = servable.bound
    scans = [branch.relations[branch.label_relation].scan for branch in bound.branches]
    places = list(zip(scans, map(tuple, servable.key_columns), strict=True))
    # Branches may share a scan, which is asked once.
    asked = list(dict.fromkeys((c, scan, own) for scan, own in places if own for c in bound.scans[scan].clients))
    requests = [(client, SendIdentifiers(job=job, scan=scan, columns=list(own))) for client, scan, own in asked]
    answers: dict[Any, Identifiers] = dict(zip(asked, link.ask_each(requests, "evaluation"), strict=True))
    several = any(len(bound.scans[scan].clients) > 1 for scan in scans)
    tables, owner = [], unused_name("client", servable.key)
    for (scan, own), base_rows in zip(places, rows.base_rows, strict=True):
        parts = []
        for client in bound.scans[scan].clients:
            part = answers[client, scan, own].columns.rename_columns(list(servable.key)) if own else pa.table({})
            held = {owner: pa.repeat(client, rows.client_rows[scan][client])} if several else {}
            parts.append(pa.table(held | dict(zip(part.column_names, part.columns, strict=True))))
        whole = _stack(parts)
        tables.append(whole.take(pa.array(base_rows)) if whole.num_columns else whole)
    return _stack(tables)


def _stack(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of one table after another; a key may be an integer in one and a decimal in another."""
    kinds = [{field.type for field in column} for column in zip(*(table.schema for table in tables), strict=True)]
    for place, found in enumerate(kinds):
        scales = [kind.scale for kind in found if pa.types.is_decimal(kind)]
        if len(found) > 1 and scales:
            is_exact = max(scales) <= _MOST_SCALE and not any(map(pa.types.is_floating, found))
            kind = pa.decimal128(38, max(scales)) if is_exact else pa.float64()
            tables = [t.set_column(place, t.field(place).name, t.column(place).cast(kind)) for t in tables]
    return pa.concat_tables(tables, promote_options="permissive")


def score_request(
    model: Model,
    part: Part,
    rows: RowNumbers,
    job: str,
    *,
    shuffled: Sequence[int] = (),
    fixed: int = -1,
    value: float | str | None = None,
) -> Message:
    """A request for h of some rows of a part; `shuffled`: features whose values change rows first; `fixed`: a feature
    that is set to a value."""
    block = model.blocks[part.block]
    common: dict[str, Any] = {"job": job, "scan": part.scan, "columns": list(part.columns), "rows": rows}
    common |= {"name": block.name, "shuffled": tuple(shuffled)}
    if block.is_held:
        return ScoreOwnRows(**common, model=model.id)
    return ScoreRows(
        **common,
        encoders=list(block.encoders),
        theta=block.theta,
        model=model.spec,
        outputs=model.widths[part.block],
        fixed=fixed,
        value=value,
    )


def answer(
    model: Model,
    keys: pa.Table,
    scores: Array,
    missing: Mapping[str, NDArray[np.bool_]] | None,
    sides: pa.Array | None = None,
) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    predicted, probabilities = model.loss.predict(scores), model.loss.probabilities(scores)
    if not model.classes:
        columns["prediction"] = pa.array(predicted)
    else:
        columns["prediction"] = pa.array(model.classes).take(pa.array(predicted.astype(np.int32)))
    if probabilities is not None and model.outputs == 1:
        columns["probability"] = pa.array(probabilities[:, 1])
    elif probabilities is not None:
        named = class_names(model.classes)
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
    if not isinstance(threshold, int | float) or not 0.0 <= threshold <= 1.0:
        raise ModelError("threshold must be a probability, from 0 to 1: result.threshold() chooses one")
    is_second = (table["probability"].to_numpy() >= threshold).astype(np.int32)
    place = table.column_names.index("prediction")
    return table.set_column(place, "prediction", pa.array(model.classes).take(pa.array(is_second)))


def write(table: pa.Table, path: str | Path) -> None:
    """Writes predictions to .parquet or .csv, all or nothing."""
    target = check_file(path)
    save = pq.write_table if target.suffix.lower() == ".parquet" else pyarrow.csv.write_csv
    write_whole(target, lambda file: save(table, file), "predictions", ModelError)


def check_file(path: str | Path) -> Path:
    """The file for predictions, if its kind is supported."""
    target = as_path(path, "predictions", ModelError)
    if target.suffix.lower() not in (".parquet", ".csv"):
        raise ModelError(f"predictions are written to .parquet or .csv, and {target} ends in neither")
    return target


def class_names(classes: tuple[Class, ...]) -> list[str]:
    names: list[str] = pa.array(classes).cast(pa.string()).to_pylist()
    return names


def _name_missing_tables(missing: Mapping[str, NDArray[np.bool_]], rows: int) -> pa.Array:
    """The names of the tables that each row lacks, or an empty text."""
    # Each set of tables is a number, one bit for each table.
    sets = sum((marks.astype(np.int64) << bit for bit, marks in enumerate(missing.values())), np.zeros(rows, np.int64))
    found, codes = np.unique(sets, return_inverse=True)
    names = [", ".join(table for bit, table in enumerate(missing) if int(code) >> bit & 1) for code in found]
    return pa.array(names, pa.string()).take(pa.array(codes))
