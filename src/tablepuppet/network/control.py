"""Messages between users and the coordinator: jobs in, news and results out.

In: dataclasses and structs of tablepuppet. Out: one frame, and the same data from it. A frame makes objects of our own
classes alone, runs none of their code and imports nothing. It holds the declared fields of a value's class, and of
their classes in turn, and nothing else. A result declares metrics and parameters, so joined rows and their labels stay
with the coordinator. A request holds jobs and models alone.
"""

import sys
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from tablepuppet import train as story
from tablepuppet.errors import TransportError
from tablepuppet.job import ARGUMENTS, PARTS, Job
from tablepuppet.plan.plan import Plan
from tablepuppet.prediction.model import Model
from tablepuppet.protocol.codec import UNREADABLE, Buffer, Frame, check_stream, to_stream
from tablepuppet.protocol.evidence import Signature
from tablepuppet.sql.bound import Branch, LabelPlace
from tablepuppet.training.result import Result
from tablepuppet.transport import envelopes as e

_STATE = 2  # how runs and checkpoints lie on the disk
_PLAIN = (type(None), bool, int, float, str, bytes)
_SERIES: dict[str, Any] = {"list": list, "tuple": tuple, "frozenset": frozenset}


def to_frame(value: Any) -> Frame:
    """One frame that holds the value.

    >>> from_frame(to_frame({"a": (1, np.arange(2))}))
    {'a': (1, array([0, 1]))}
    """
    buffers: list[Buffer] = []
    named = value.values() if isinstance(value, dict) else ()  # a user's request: {"model": …, "query": …}
    declared = e.reachable((type(value), *map(type, named)))
    header = msgspec.msgpack.encode(_flat(value, buffers, declared))
    return Frame(header, buffers)


def from_frame(frame: Frame, roots: tuple[type, ...] | None = None) -> Any:
    """The value in a frame; with `roots`, of these classes and the declared types of their fields.

    Without `roots` it is a result, perhaps of an earlier release. Fields that the release did not know have
    their defaults, dropped fields are left out, and a class may lie in another module now.
    """
    allowed = None if roots is None else e.reachable(roots)
    try:
        return _whole(msgspec.msgpack.decode(frame.header), frame.buffers, allowed)
    except UNREADABLE as error:
        raise TransportError(f"a message does not follow the protocol: {str(error)[:500]}") from None


def _flat(value: Any, buffers: list[Buffer], declared: frozenset[type]) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        buffers.append(value.tobytes())
        return ["array", len(buffers) - 1, value.dtype.str, list(value.shape)]
    if isinstance(value, pa.Table):
        buffers.append(to_stream(value))
        return ["table", len(buffers) - 1]
    if isinstance(value, slice):
        return ["slice", value.start, value.stop, value.step]
    for name, series in _SERIES.items():
        if isinstance(value, series):
            return [name, [_flat(v, buffers, declared) for v in value]]
    if type(value).__module__.startswith("tablepuppet."):
        if not issubclass(type(value), tuple(declared)):
            raise TransportError(f"a {type(value).__name__} cannot be part of a result")
        held = {name: _flat(getattr(value, name), buffers, declared) for name in _fields(type(value))}
        return ["object", type(value).__module__, type(value).__qualname__, held]
    if isinstance(value, dict):
        return ["dict", [[_flat(k, buffers, declared), _flat(v, buffers, declared)] for k, v in value.items()]]
    raise TransportError(f"a {type(value).__name__} cannot be part of a result")


def _whole(flat: Any, buffers: Any, allowed: frozenset[type] | None) -> Any:
    if not isinstance(flat, list):
        return flat
    kind, *rest = flat
    if kind == "array":
        index, dtype, shape = rest
        if np.dtype(dtype).hasobject:
            raise ValueError("unknown array type")
        return np.frombuffer(buffers[index], dtype=dtype).reshape(shape)
    if kind == "table":
        stream = pa.py_buffer(buffers[rest[0]])
        check_stream(stream)
        with pa.ipc.open_stream(stream) as reader:
            table = reader.read_all()
        table.validate(full=True)
        return table
    if kind == "slice":
        return slice(*rest)
    if kind in _SERIES:
        return _SERIES[kind](_whole(v, buffers, allowed) for v in rest[0])
    if kind == "dict":
        return {_whole(k, buffers, allowed): _whole(v, buffers, allowed) for k, v in rest[0]}
    if kind == "object":
        module, name, held = rest
        return _make(_class(module, name, allowed), held, buffers, allowed)
    raise ValueError("unknown kind of value")


_EARLIER_NAMES = {"Fan": "FanOutHistogram", "Wave": "RoundTraffic"}  # of classes in results that were kept


def _class(module: str, name: str, allowed: frozenset[type] | None) -> type:
    """A class of ours that is loaded already."""
    name = _EARLIER_NAMES.get(name, name) if allowed is None else name
    kinds = [getattr(sys.modules.get(module), name, None)] if str(module).startswith("tablepuppet.") else []
    if allowed is None:
        loaded = [m for key, m in sys.modules.items() if key.startswith("tablepuppet.")]
        kinds += [kind for m in loaded if getattr(kind := vars(m).get(name), "__module__", "") == m.__name__]
    found = [k for k in kinds if isinstance(k, type) and (is_dataclass(k) or issubclass(k, msgspec.Struct))]
    if not found:
        raise ValueError(f"it holds a {str(name)[:100]}, which this release of TablePuppet does not know")
    if len(found) > 1:  # classes of one name: those of results come first
        found.sort(key=lambda kind: kind not in e.reachable((Result, Plan, Model)))
    if allowed is not None and found[0] not in allowed:
        raise ValueError(f"a {name} is nothing that can be asked for")
    return found[0]


def _make(kind: type, flat: dict[str, Any], buffers: Any, allowed: frozenset[type] | None) -> Any:
    names = _fields(kind)
    if allowed is None and kind is Job and "data" not in flat:
        flat = _in_parts(flat)
    if allowed is None and kind is Branch and "label_place" not in flat:
        flat = _with_place(flat)
    if allowed is not None and set(names) != set(flat):
        raise ValueError(f"{kind.__name__} is not the same at both ends; install the same release of TablePuppet")
    held = {name: _whole(flat[name], buffers, allowed) for name in names if name in flat}
    if issubclass(kind, msgspec.Struct):
        try:
            return kind(**held)
        except TypeError as error:  # which names a field that the earlier release did not have
            raise ValueError(f"its {kind.__name__} lacks a field that this release needs ({error})") from None
    made: Any = object.__new__(kind)
    for own in fields(kind):  # type: ignore[arg-type]
        if own.name not in held and own.default is own.default_factory is MISSING:
            raise ValueError(f"its {kind.__name__} has no {own.name}, which this release of TablePuppet needs")
        default = own.default if own.default_factory is MISSING else own.default_factory()
        object.__setattr__(made, own.name, held.get(own.name, default))
    return made


def _in_parts(flat: dict[str, Any]) -> dict[str, Any]:
    """A job of an earlier release, which had the fields of its parts itself."""
    parts: dict[str, Any] = {}
    for part, kind in PARTS.items():
        held = {field: flat[name] for name, (of, field) in ARGUMENTS.items() if of == part and name in flat}
        parts[part] = ["object", kind.__module__, kind.__name__, held]
    return flat | parts


def _with_place(flat: dict[str, Any]) -> dict[str, Any]:
    """A branch of an earlier release, which had the columns of its label's place itself."""
    *_, relation = flat["relations"][1][flat["label_relation"]]
    columns = {name: flat[f"{name}_column"] for name in _fields(LabelPlace) if f"{name}_column" in flat}
    place = ["object", LabelPlace.__module__, LabelPlace.__name__, {"scan": relation["scan"], **columns}]
    return flat | {"label_place": place}


def _fields(kind: type) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if is_dataclass(kind):
        return tuple(f.name for f in fields(kind))
    raise TransportError(f"a {kind.__name__} cannot be part of a result")


Kind = Literal["train", "explain", "predict"] | story.Question
State = Literal["queued", "running", "waiting", "finished", "failed", "interrupted", "cancelled"]


Name = Annotated[str, msgspec.Meta(max_length=255)]


class Submit(e.Envelope, frozen=True):
    """Frame: the request. `resume`: continue an interrupted run of the same job. → Accepted, then news

    `rounds`: whether news of every round are wanted. `follows`: whether any are. `readers`: other users who may see it.
    """

    kind: Kind
    resume: bool = False
    rounds: bool = True
    follows: bool = True
    readers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)] = ()
    is_draft: bool = False  # nothing is proposed: the contracts come back, for their asker to sign
    signatures: dict[str, Signature] = msgspec.field(default_factory=dict)  # of contracts, by their hashes


class Follow(e.Envelope, frozen=True):
    """Send me news of this run, from now on. → Accepted, then news"""

    run: str
    rounds: bool = True


class Cancel(e.Envelope, frozen=True):
    """Stop a run; `keep`: so that it can be resumed. → Accepted"""

    run: str
    keep: bool = False


class Resume(e.Envelope, frozen=True):
    """Go on with an interrupted run. → Accepted"""

    run: str


class AskStatus(e.Envelope, frozen=True):
    """→ Status"""


class Accepted(e.Envelope, frozen=True):
    run: str


class Status(e.Envelope, frozen=True):
    """Frame: a document about clients and runs."""


class Round(e.Envelope, frozen=True):
    """News: a round has ended. Frame: its RoundEvent."""

    round: int
    rounds: int  # in all


class Waiting(e.Envelope, frozen=True):
    """News: who is away, and for how many more seconds the run waits, or whose approval it waits for; nobody: it
    continues."""

    clients: dict[str, float]
    approval: str = ""


class Finished(e.Envelope, frozen=True):
    """Last news. Frame: the result, the plan, the predictions or the metrics."""


class Failed(e.Envelope, frozen=True):
    """Last news: the error's class and message."""

    error: str
    message: str


News = Round | Waiting | Finished | Failed
FROM_USER = e.Hello | e.Goodbye | e.Heartbeat | Submit | Follow | Cancel | Resume | AskStatus
FROM_ANYBODY = FROM_USER | e.FROM_CLIENT
TO_USER = e.Challenge | e.Welcome | e.Refused | e.Goodbye | e.Heartbeat | Accepted | Status | News


def user_protocol() -> str:
    return e.fingerprint((FROM_USER, TO_USER, Job, Model, Result, Plan))


def run_protocol() -> str:
    """The format of a run on the disk: its request, and the answers of clients."""
    return f"{user_protocol()}/{e.client_protocol()}/{_STATE}"
