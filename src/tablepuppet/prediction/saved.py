"""A model on disk: JSON and Arrow, one folder per block; no pickle.

    model/
      model.json              query, label, classes, intercept, the use of each table, metrics
      blocks/0/block.json     the block's features and encoders
      blocks/0/theta.arrow    its parameters, row by row

A block's folder is all that its owner has to hold (owner/part_store.py): it may be moved there. A model whose owners
hold their parts lacks their folders. Everything is written next to the target and then renamed, so that a folder
with that name is whole or absent. `version` rises when an older reader could not understand the file.
"""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tablepuppet.algorithms.boosting.messages import Tree
from tablepuppet.algorithms.registry import own_model
from tablepuppet.errors import ModelError
from tablepuppet.join.mapping import in_label_type
from tablepuppet.models.heads.base import HeadModel, HeadSpec
from tablepuppet.models.spec import ModelSpec
from tablepuppet.output_files import as_path, reason
from tablepuppet.owner import part_store
from tablepuppet.prediction.model import BlockModel, Model, TableUse
from tablepuppet.protocol.columns import Absent
from tablepuppet.protocol.contract import fingerprint


class _BlockEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    table: str
    folder: str
    is_outer: bool
    mean: list[float]
    features: tuple[str, ...] = ()
    absent: tuple[Absent, ...] = ()


class _ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    id: str
    kind: str
    query: str
    label: str
    label_aliases: tuple[str, ...]
    classes: tuple[str | int | float | bool, ...]
    intercept: list[float]
    blocks: list[_BlockEntry]
    tables: tuple[TableUse, ...]
    metadata: dict[str, Any]
    spec: ModelSpec = ModelSpec()
    head: HeadSpec | None = None  # None: a sum
    head_parameters: list[float] = []
    loss: str = ""  # "": the usual one for such labels, in older files
    loss_options: dict[str, float] = {}
    trees: tuple[tuple[Tree, ...], ...] = ()


_SAME = ("kind", "query", "label", "label_aliases", "tables", "metadata", "spec", "loss_options", "trees")  # of both


def save(model: Model, path: str | Path) -> None:
    """Writes a model to a folder, replacing a model that is there; nothing else is ever replaced."""
    target = as_path(path, "the model", ModelError)
    check_target(target)
    try:
        with part_store.whole_folder(target) as unfinished:
            _write(model, unfinished)
    except OSError as error:
        raise ModelError(f"the model cannot be saved to {target}: {reason(error)}; choose another place") from None


def check_target(target: Path) -> None:
    """A model may be saved to a new or empty folder, or in the place of another model."""
    if target.exists() and not (target / "model.json").is_file() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} exists and is not a saved model; choose another folder")


def load(path: str | Path) -> Model:
    """Loads the model in the folder `path`, which `save` wrote. Blocks whose folders are absent stay with their owners.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> result.save(folder)
    >>> load(folder).classes
    (False, True)
    """
    folder = as_path(path, "tp.load", ModelError)
    if not (folder / "model.json").exists() and any(any(folder.glob(f"{p}block.json")) for p in ("", "*/", "*/*/")):
        raise ModelError(f"{folder} holds an owner's part of a model, and no model.json; load the model it is part of")
    file = part_store.read_json(folder / "model.json", _ModelFile)
    return Model(
        **{name: getattr(file, name) for name in _SAME},
        classes=in_label_type(file.classes),  # older files have 0.0 for 0
        encoded_intercept=np.array(file.intercept, np.float64),
        blocks=tuple(_load_block(folder, entry, file.id) for entry in file.blocks),
        id=file.id,
        head=None if file.head is None else HeadModel(file.head, np.array(file.head_parameters, np.float64)),
        loss_name=file.loss,
    )


def _write(model: Model, folder: Path) -> None:
    name = model.id or identity_of(model)
    folder.mkdir(parents=True)
    entries = []
    for number, block in enumerate(model.blocks):
        if not block.is_held:
            part = part_store.BlockPart(
                model=name,
                name=block.name,
                features=block.features,
                encoders=block.encoders,
                theta=block.theta,
                outputs=model.widths[number],
                spec=model.spec,
                uses=block.uses,
                splits=block.splits,
            )
            part_store.write_part(part, folder / "blocks" / str(number))
        given = (block.name, block.table, f"blocks/{number}", block.is_outer, block.mean.tolist())
        entries.append(_BlockEntry(*given, features=block.features, absent=block.absent))
    file = _ModelFile(
        **{name: getattr(model, name) for name in _SAME},
        format=part_store.FORMAT,
        version=part_store.VERSION,
        id=name,
        classes=model.classes,
        intercept=model.encoded_intercept.tolist(),
        blocks=entries,
        head=None if model.head is None else model.head.spec,
        head_parameters=[] if model.head is None else model.head.own.tolist(),
        loss=model.loss_name,
    )
    (folder / "model.json").write_bytes(part_store.to_json(file))


def identity_of(model: Model) -> str:
    """A name that follows from the model, so that the same model is saved as the same files."""
    identity = hashlib.sha256(model.query.encode())
    own = () if model.head is None else (model.head.own,)
    for theta in (model.encoded_intercept, *own, *(block.theta for block in model.blocks)):
        identity.update(np.ascontiguousarray(theta, np.float64).tobytes())
    if model.trees:
        identity.update(msgspec.msgpack.encode([model.trees, [block.splits for block in model.blocks]]))
    return identity.hexdigest()[:16]


def block_fingerprints(model: Model) -> dict[str, str]:
    """The fingerprint of each block's parameters, by name; empty where its owners hold their part."""
    own = own_model(model.spec)
    if own is not None:
        return own.fingerprints(model)
    return {
        block.name: "" if block.is_held else fingerprint(block.encoders, block.theta, model.spec, width)
        for block, width in zip(model.blocks, model.widths, strict=True)
    }


def _load_block(folder: Path, entry: _BlockEntry, model: str) -> BlockModel:
    own = folder / entry.folder
    mean = np.array(entry.mean, np.float64)
    if not own.exists() and entry.features:
        unknown = np.full((0, len(mean)), np.nan)
        given = (entry.name, entry.table, entry.features, (), unknown, entry.is_outer, mean)
        return BlockModel(*given, is_held=True, absent=entry.absent)
    part = part_store.read_part(own)
    if part.model != model or part.name != entry.name:
        raise ModelError(f"{own} belongs to another model; copy the parts of one model together")
    found = (entry.name, entry.table, part.features, part.encoders, part.theta, entry.is_outer, mean, part.uses)
    return BlockModel(*found, splits=part.splits, absent=entry.absent)
