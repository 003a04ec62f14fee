"""The parts of models that an owner holds: its block's parameters and encoders, which can stay with the owner.

    models/0b2675b6aca85709/blocks/1/block.json     features, encoders, the expressions that they are computed from
    models/0b2675b6aca85709/blocks/1/theta.arrow    the parameters, row by row

In: a trained part, or the folder of a block that `result.save` wrote. Out: the part, when the server asks for
predictions with it. A part is applied only to the expressions that it was trained on: with expressions of
its own choice a server could read the parameters off the predictions.
"""

import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.messages import SplitRule
from tablepuppet.errors import ModelError, PolicyError
from tablepuppet.models.spec import ModelSpec
from tablepuppet.output_files import reason
from tablepuppet.protocol.columns import ColumnInfo, Encoder, NumberEncoder
from tablepuppet.sources.columns import NUMBER_KINDS, STRING_KINDS

log = logging.getLogger(__name__)
FORMAT = "tablepuppet model"
VERSION = 4
_MODEL = re.compile(r"[0-9a-f]{16}")
_T = TypeVar("_T", bound=msgspec.Struct)


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int


class _Block(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The fields that a part and its file have in common."""

    model: str  # the id of the model that it is a part of
    name: str  # the block's
    features: tuple[str, ...]
    encoders: tuple[Encoder, ...]
    outputs: int = 1
    spec: ModelSpec = ModelSpec()
    uses: tuple[tuple[str, ...], ...] = ()  # the features as SQL over the table's columns, for each use of the table
    splits: tuple[SplitRule, ...] = ()  # of boosted trees, which have neither encoders nor parameters
    askers: tuple[str, ...] = ()  # users who may apply it: who trained it, and those it was shared with; none: all


class _BlockFile(_Block, frozen=True, forbid_unknown_fields=True, kw_only=True, eq=False):
    format: str
    version: int
    shape: tuple[int, ...]


class BlockPart(_Block, frozen=True, kw_only=True, eq=False):
    """One block of a model: all that its owner needs to predict with it."""

    theta: NDArray[np.float64]

    def check(self, reads: Sequence[str], columns: Sequence[ColumnInfo]) -> None:
        """Refuses to be applied to anything but its own features, of the types that they had.

        A part may know its features as the guard wrote them (`reads`) or by the names that the server sent.
        """
        as_sent = (*(column.name for column in columns), *reads[len(columns) :])
        if tuple(reads) not in self.uses and as_sent not in self.uses:
            raise PolicyError(
                f"its part {self.name} of the model is applied to the expressions that it was trained on only; "
                "select the features as the model's own query does"
            )
        if self.spec.kind == "boosted":
            check_splits(self.features, columns, self.splits)
        else:
            check_types(self.features, columns, self.encoders)


def check_splits(features: Sequence[str], columns: Sequence[ColumnInfo], splits: Sequence[SplitRule]) -> None:
    """Every feature is still of the type that the splits of trees take it for."""
    takes = {split.feature: split.is_number for split in splits}
    _refuse_changed(
        [(features[f], columns[f], is_number) for f, is_number in sorted(takes.items()) if f < len(features)]
    )


def check_types(features: Sequence[str], columns: Sequence[ColumnInfo], encoders: Sequence[Encoder]) -> None:
    _refuse_changed([(n, c, isinstance(e, NumberEncoder)) for n, c, e in zip(features, columns, encoders, strict=True)])


def _refuse_changed(uses: Sequence[tuple[str, ColumnInfo, bool]]) -> None:
    changed = []
    for name, column, is_number in uses:
        if column.kind not in (NUMBER_KINDS if is_number else STRING_KINDS):
            trained = "a number" if is_number else "text"
            changed.append(f"{name} was {trained} in training and is {column.detail or column.kind} now")
    if changed:
        raise ModelError(f"the model does not fit these tables: {'; '.join(changed)}; cast it in the query, or retrain")


class PartStore:
    """The parts that one client holds: in memory, or in a folder that outlives the process."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._parts: dict[tuple[str, str], BlockPart] = {}

    def hold(self, part: BlockPart, number: int) -> None:
        """Takes a part in, whole or not at all; a second use of the same block is added to the first."""
        if not _MODEL.fullmatch(part.model) or number < 0:
            raise ModelError("a model's name must be sixteen hexadecimal digits, and a block's a number")
        before = self._find_part(part.model, part.name)
        if before is not None:
            # No server may put another part in its place.
            if not np.array_equal(before.theta, part.theta) or before.splits != part.splits:
                raise ModelError(f"this client holds another part {part.name} of model {part.model} already")
            part = msgspec.structs.replace(part, uses=tuple(dict.fromkeys((*before.uses, *part.uses))))
        if self._folder is not None:
            target = self._folder / part.model / "blocks" / str(number)
            try:
                with whole_folder(target) as unfinished:
                    write_part(part, unfinished)
            except OSError as error:
                raise ModelError(f"its part of the model cannot be kept: {reason(error)}") from None
        self._parts[part.model, part.name] = part

    def take_out(self, model: str, name: str) -> BlockPart:
        """A part that is kept elsewhere from now on; its folder stays."""
        found = self.find(model, name)
        self._parts.pop((model, name), None)
        return found

    def find(self, model: str, name: str, askers: tuple[str, ...] = ()) -> BlockPart:
        """A part by its model and block; for users, one that all may apply: of others' they learn nothing."""
        found = self._find_part(model, name)
        if found is None or (found.askers and not set(askers) <= set(found.askers)):
            raise ModelError(
                f"this client holds no part {name} of model {model}; train with it again, or copy the block's folder "
                "of the saved model to its models folder"
            )
        return found

    def _find_part(self, model: str, name: str) -> BlockPart | None:
        if (model, name) not in self._parts and self._folder is not None:
            self._look()
        return self._parts.get((model, name))

    def _look(self) -> None:
        """Reads the parts in the folder; the owner's own log reports a damaged one."""
        assert self._folder is not None
        for file in sorted(self._folder.rglob("block.json")):
            try:
                part = read_part(file.parent)
            except ModelError as error:
                log.warning("passed over: %s", error)
            else:
                self._parts.setdefault((part.model, part.name), part)


def write_part(part: BlockPart, folder: Path) -> None:
    folder.mkdir(parents=True)
    theta = np.ascontiguousarray(part.theta, np.float64)
    file = _BlockFile(format=FORMAT, version=VERSION, shape=theta.shape, **_shared_fields(part))
    (folder / "block.json").write_bytes(to_json(file))
    with pa.ipc.new_file(str(folder / "theta.arrow"), pa.schema([("theta", pa.float64())])) as writer:
        writer.write_table(pa.table({"theta": theta.ravel()}))


def read_part(folder: Path) -> BlockPart:
    file = read_json(folder / "block.json", _BlockFile)
    try:
        with pa.ipc.open_file(str(folder / "theta.arrow")) as reader:
            theta = reader.read_all().column("theta").to_numpy()
    except (OSError, KeyError, pa.ArrowException):
        raise ModelError(f"{folder / 'theta.arrow'} is missing or damaged; copy the model again") from None
    if theta.dtype != np.float64 or theta.size != np.prod(file.shape, dtype=np.int64):
        raise ModelError(f"{folder / 'theta.arrow'} does not have the size that block.json gives; copy the model again")
    return BlockPart(theta=theta.reshape(file.shape), **_shared_fields(file))


def _shared_fields(block: _Block) -> dict[str, Any]:
    return {name: getattr(block, name) for name in _Block.__struct_fields__}


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A path next to the target to write a folder to; in the end it takes the target's place, or is gone."""
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        yield unfinished
        _put(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _put(unfinished: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.rename(unfinished, target)
        return
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    os.rename(target, old)
    os.rename(unfinished, target)
    shutil.rmtree(old)


def read_json(file: Path, kind: type[_T]) -> _T:
    """A JSON file of ours, whose format and version are checked first."""
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


def to_json(value: msgspec.Struct) -> bytes:
    """Readable JSON; numbers are written so that they read back to the same bits."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=to_plain), indent=1)


def to_plain(value: Any) -> Any:
    """Arrays and numbers of NumPy as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"a {type(value).__name__} cannot be saved")


def _array(kind: type, value: Any) -> Any:
    if (get_origin(kind) or kind) is not np.ndarray:
        raise ValueError("unknown type")
    return np.array(value, np.float64 if "float" in str(kind) else np.int64)
