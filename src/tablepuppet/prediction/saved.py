"""A model on disk: JSON and Arrow, one folder per block; no pickle.

    model/
      model.json              query, label, classes, intercept, what was read of each table, metrics
      blocks/0/block.json     the block's features and encoders
      blocks/0/theta.arrow    its parameters, row by row

A block's folder is all that its owner has to hold. Everything is written beside the target and renamed into place, so
that a folder with that name is whole or not there. `version` rises when an older reader could not understand the file.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np
import pyarrow as pa

from tablepuppet.errors import ModelError
from tablepuppet.models.spec import ModelSpec
from tablepuppet.prediction.model import BlockModel, Model, TableUse
from tablepuppet.transport.messages import ColumnInfo, Encoder
from tablepuppet.writing import as_path

FORMAT = "tablepuppet model"
VERSION = 1
_T = TypeVar("_T", bound=msgspec.Struct)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    table: str
    expressions: list[str]
    columns: list[ColumnInfo]
    names: list[str]
    fingerprint: str


class _BlockEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    table: str
    folder: str
    is_outer: bool
    mean: list[float]


class _ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    id: str
    kind: str
    query: str
    label: str
    label_aliases: list[str]
    classes: list[str | float | bool]
    intercept: list[float]
    blocks: list[_BlockEntry]
    tables: list[_Table]
    metadata: dict[str, Any]
    spec: ModelSpec = ModelSpec()


class _BlockFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    model: str  # the id of the model that it is a part of
    name: str
    features: list[str]
    encoders: list[Encoder]
    shape: list[int]


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int


def save(model: Model, path: str | Path) -> None:
    """Writes a model to a folder, replacing a model that is there; nothing else is ever replaced."""
    target = as_path(path, "the model", ModelError)
    check_target(target)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        _write(model, unfinished)
        _put(unfinished, target)
    except OSError as error:
        raise ModelError(f"the model cannot be saved to {target}: {error.strerror}; choose another place") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check_target(target: Path) -> None:
    """A model may be saved to a new or empty folder, or in the place of another model."""
    if target.exists() and not (target / "model.json").is_file() and (target.is_file() or any(target.iterdir())):
        raise ModelError(f"{target} exists and is not a saved model; choose another folder")


def load(path: str | Path) -> Model:
    """A model that `save` wrote."""
    folder = as_path(path, "tp.load", ModelError)
    file = _read(folder / "model.json", _ModelFile)
    blocks = tuple(_load_block(folder, entry, file.id) for entry in file.blocks)
    return Model(
        kind=file.kind,
        query=file.query,
        label=file.label,
        label_aliases=tuple(file.label_aliases),
        classes=tuple(file.classes),
        intercept=np.array(file.intercept, np.float64),
        blocks=blocks,
        tables=tuple(TableUse(t.table, tuple(t.expressions), tuple(t.columns), tuple(t.names)) for t in file.tables),
        metadata=file.metadata,
        spec=file.spec,
    )


def fingerprint(table: TableUse) -> str:
    """A name for the shape of what was read: it changes when an expression or its type does."""
    shape = [table.table, *((e, c.kind, c.size) for e, c in zip(table.expressions, table.columns, strict=True))]
    return hashlib.sha256(msgspec.json.encode(shape)).hexdigest()[:16]


def _write(model: Model, folder: Path) -> None:
    thetas = [np.ascontiguousarray(block.theta, np.float64) for block in model.blocks]
    identity = hashlib.sha256(model.query.encode())
    for theta in (model.intercept, *thetas):
        identity.update(theta.tobytes())
    name = identity.hexdigest()[:16]
    entries = []
    for number, (block, theta) in enumerate(zip(model.blocks, thetas, strict=True)):
        own = folder / "blocks" / str(number)
        own.mkdir(parents=True)
        part = _BlockFile(
            FORMAT, VERSION, name, block.name, list(block.features), list(block.encoders), list(theta.shape)
        )
        (own / "block.json").write_bytes(_json(part))
        with pa.ipc.new_file(str(own / "theta.arrow"), pa.schema([("theta", pa.float64())])) as writer:
            writer.write_table(pa.table({"theta": theta.ravel()}))
        entries.append(_BlockEntry(block.name, block.table, f"blocks/{number}", block.is_outer, block.mean.tolist()))
    tables = [
        _Table(t.table, list(t.expressions), list(t.columns), list(t.names), fingerprint(t)) for t in model.tables
    ]
    file = _ModelFile(
        format=FORMAT,
        version=VERSION,
        id=name,
        kind=model.kind,
        query=model.query,
        label=model.label,
        label_aliases=list(model.label_aliases),
        classes=list(model.classes),
        intercept=model.intercept.tolist(),
        blocks=entries,
        tables=tables,
        metadata=model.metadata,
        spec=model.spec,
    )
    (folder / "model.json").write_bytes(_json(file))


def _put(unfinished: Path, target: Path) -> None:
    """Renames a finished folder into its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.rename(unfinished, target)
        return
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    os.rename(target, old)
    os.rename(unfinished, target)
    shutil.rmtree(old)


def _load_block(folder: Path, entry: _BlockEntry, model: str) -> BlockModel:
    own = folder / entry.folder
    part = _read(own / "block.json", _BlockFile)
    if part.model != model or part.name != entry.name:
        raise ModelError(f"{own} belongs to another model; copy the parts of one model together")
    try:
        with pa.ipc.open_file(str(own / "theta.arrow")) as reader:
            theta = reader.read_all().column("theta").to_numpy()
    except (OSError, KeyError, pa.ArrowException):
        raise ModelError(f"{own / 'theta.arrow'} is missing or damaged; copy the model again") from None
    if theta.dtype != np.float64 or theta.size != np.prod(part.shape, dtype=np.int64):
        raise ModelError(f"{own / 'theta.arrow'} does not have the size that block.json gives; copy the model again")
    return BlockModel(
        name=entry.name,
        table=entry.table,
        features=tuple(part.features),
        encoders=tuple(part.encoders),
        theta=theta.reshape(part.shape),
        is_outer=entry.is_outer,
        mean=np.array(entry.mean, np.float64),
    )


def _read(file: Path, kind: type[_T]) -> _T:
    """A JSON file of ours, whose format and version are looked at first."""
    try:
        content = file.read_bytes()
    except OSError:
        raise ModelError(f"there is no {file.name} in {file.parent}; give a folder that result.save() wrote") from None
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.format == FORMAT and header.version > VERSION:
            raise ModelError(
                f"{file} has format version {header.version}, and this tablepuppet reads up to {VERSION}; "
                "install a newer tablepuppet"
            )
        return msgspec.json.decode(content, type=kind, dec_hook=_array)
    except msgspec.MsgspecError as error:
        raise ModelError(f"{file} is not a saved model or is damaged: {error}") from None


def _json(value: msgspec.Struct) -> bytes:
    """Readable JSON; numbers are written so that they read back to the same bits."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=np.ndarray.tolist), indent=1)


def _array(kind: type, value: Any) -> Any:
    if (get_origin(kind) or kind) is not np.ndarray:
        raise ValueError("unknown type")
    return np.array(value, np.float64)
