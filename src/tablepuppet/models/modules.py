"""Torch modules of a block: the multi-layer perceptron, or whatever a user's builder returns.

In: a ModelSpec, the width of the block's encoded features, d_c. Out: a `torch.nn.Module` that maps (rows, width) to
(rows, d_c). Its initial values are the same wherever it is built: parameters are drawn under `torch.manual_seed(seed +
block)`, in float32, and then cast.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from tablepuppet.errors import JobError, TablePuppetError, TrainingError
from tablepuppet.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch.nn import Module

Named = tuple[Any, dict[str, Any]]  # a job's model and its options
Builder = Callable[..., "Module"]  # (width, outputs) or (width, outputs, block=name) → module

OWN: dict[str, Any] = {}  # heads and builders of users, by the names that jobs have for them: code never travels
_USES = Counter[str]()  # how many calls have offered each
_NUMBERS = itertools.count(1)

# torch has one random generator a process, and clients may be threads of one.
_RANDOM = threading.Lock()


def need_torch() -> Any:
    """The torch package, or an error that says how to get it."""
    try:
        import torch
    except ImportError:
        raise TrainingError(
            'neural models need torch, which is not installed here; install the extra: pip install "tablepuppet[torch]"'
        ) from None
    return torch


@contextmanager
def torch_random(seed: int) -> Iterator[None]:
    """Torch's random numbers from a seed, for one thread at a time; outside, nothing changes."""
    torch = need_torch()
    with _RANDOM, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        yield


@contextmanager
def offer(*named: tuple[str, Any]) -> Iterator[None]:
    """While inside, this process knows users' heads and builders by their names; None: there is none."""
    given = {name: module for name, module in named if module is not None}
    OWN.update(given)
    _USES.update(given.keys())
    try:
        yield
    finally:
        _USES.subtract(given.keys())
        for name in given:
            if not _USES[name]:  # other predictions with the same model may be under way
                OWN.pop(name, None)


@contextmanager
def named_modules(model: Any, options: dict[str, Any]) -> Iterator[Named]:
    """A job's model and options, with names in place of a builder and of a head; they are known while inside."""
    own: dict[str, Any] = {}
    if callable(model):
        name = f"{getattr(model, '__qualname__', type(model).__name__)}-{next(_NUMBERS)}"
        own[name], model = model, "module"
        options = options | {"module": name}
    if hasattr(head := options.get("head"), "named_parameters"):
        name = f"{type(head).__name__}-{next(_NUMBERS)}"
        own[name] = head
        options = options | {"head": "module", "head_module": name}
    with offer(*own.items()):
        yield model, options


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch computes in its caller's thread alone, so that its bits do not depend on how many threads there are."""
    torch = need_torch()
    before = torch.get_num_threads()
    if before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before != 1:
            torch.set_num_threads(before)


def build_module(
    spec: ModelSpec, width: int, outputs: int, *, seed: int, name: str, builder: Builder | None = None
) -> Module:
    """A block's module with its initial values; `seed` is the job's plus the block's number."""
    torch = need_torch()
    with torch_random(seed):
        if spec.kind == "mlp":
            module = _perceptron(spec, width, outputs)
        elif builder is not None:
            module = copy.deepcopy(_built(builder, width, outputs, name))
        else:
            raise JobError(f"block {name} is a module of your own, {spec.module!r}: its builder is needed here too")
        module = module.to(getattr(torch, spec.dtype))
        check_module(module, (width, outputs), f"the module of block {name}")
    return module


def _perceptron(spec: ModelSpec, width: int, outputs: int) -> Module:
    nn = need_torch().nn
    activations = {
        "relu": nn.ReLU,
        "tanh": nn.Tanh,
        "sigmoid": nn.Sigmoid,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "elu": nn.ELU,
    }
    layers: list[Module] = []
    for size in spec.hidden:
        layers += [nn.Linear(width, size), activations[spec.activation]()]
        if spec.dropout:
            layers.append(nn.Dropout(spec.dropout))
        width = size
    module: Module = nn.Sequential(*layers, nn.Linear(width, outputs))
    return module


def _built(builder: Builder, width: int, outputs: int, name: str) -> Module:
    torch = need_torch()
    try:
        wants_block = "block" in inspect.signature(builder).parameters
    except (TypeError, ValueError):  # a callable without a signature
        wants_block = False
    try:
        module = builder(width, outputs, block=name) if wants_block else builder(width, outputs)
    except TablePuppetError:
        raise
    except Exception as error:  # the user's own code
        raise TrainingError(
            f"the builder failed for block {name} ({width} inputs, {outputs} outputs): {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise TrainingError(
            f"the builder returned a {type(module).__name__} for block {name}; it must return a torch.nn.Module"
        )
    return cast("Module", module)


def check_module(module: Module, sizes: tuple[int, int], what: str) -> None:
    """Two rows go through, as many numbers a row come out as are expected, and no layer mixes rows."""
    torch = need_torch()
    mixes = [type(m).__name__ for m in module.modules() if getattr(m, "track_running_stats", False)]
    if mixes:
        raise TrainingError(
            f"{what} has a {mixes[0]}, whose statistics would depend on how rows are split among clients and batches; "
            "use LayerNorm or GroupNorm"
        )
    trained = next((p for p in module.parameters() if p.requires_grad), None)
    if trained is None:
        raise TrainingError(f"{what} has no parameter to train")
    width, outputs = sizes
    expected = f"it must take 2 rows of {width} numbers to shape (2, {outputs})"
    module.eval()
    try:
        with torch.no_grad():
            shape = tuple(module(torch.zeros(2, width, dtype=trained.dtype)).shape)
    except Exception as error:  # the user's own code
        message = f"{what} fails on rows of {width} numbers: {type(error).__name__}: {error}; {expected}"
        raise TrainingError(message) from error
    if shape != (2, outputs):
        raise TrainingError(f"{what} gives shape {shape}; {expected}")
