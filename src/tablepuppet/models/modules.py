"""Torch modules of a block: the multi-layer perceptron, or a user's own; and their clipped gradients.

In: a ModelSpec, the width of the block's encoded features, d_c. Out: a `torch.nn.Module` that maps (rows, width) to
(rows, d_c). Its initial values are the same wherever it is built: parameters are drawn under `torch.manual_seed(seed +
block)`, in float32, and then cast.

`clipped_sums`. In: a module, its parameters by name, rows x and a signal Y. Out: Σ_k s_k (∂h_k/∂θ)ᵀ Y_k, by parameter,
with s_k = min(1, C/‖·‖, R‖Y_k‖/‖·‖). In a chain of dense layers the gradient of a row is an outer product per layer,
δ aᵀ, whose norm is known from its factors: ‖g_k‖² = Σ_layers ‖δ‖² (‖a‖² + 1). Other modules get a gradient per row, few
rows at a time.
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

from tablepuppet.arrays import NUMBERS_PER_ROW_GRADIENTS, pieces
from tablepuppet.errors import JobError, TablePuppetError, TrainingError
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.gaussian import GradientPrivacy

if TYPE_CHECKING:
    from torch import Tensor
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


def clipped_sums(
    module: Module, parameters: dict[str, Tensor], x: Tensor, signal: Tensor, privacy: GradientPrivacy
) -> list[Tensor]:
    """The clipped sum, one tensor per parameter, in their order; no summand is longer than C, nor than R·‖Y_k‖."""
    sums = _by_layers if is_dense_chain(module) else _by_rows
    most = (privacy.reach * (signal * signal).sum(1).sqrt()).nan_to_num(privacy.clip).clamp(max=privacy.clip)
    return sums(module, parameters, x, signal, most)


def _scale(squares: Tensor, most: Tensor) -> Tensor:
    """The factor that brings each row's norm to at most `most`."""
    return cast("Tensor", need_torch().where(squares > most * most, most / squares.clamp(min=1e-300).sqrt(), 1.0))


def is_dense_chain(module: Module) -> bool:
    """Whether the module is dense layers one after the other, with nothing trainable between them."""
    nn = need_torch().nn
    if not isinstance(module, nn.Sequential):
        return False
    return all(type(layer) is nn.Linear or not list(layer.parameters()) for layer in module)


def _by_layers(module: Module, parameters: dict[str, Tensor], x: Tensor, signal: Tensor, most: Tensor) -> list[Tensor]:
    torch = need_torch()
    layers: Any = module
    out, inputs, outputs = x, {}, {}
    for i, layer in enumerate(layers):
        if type(layer) is torch.nn.Linear:
            weight = parameters.get(f"{i}.weight", layer.weight).detach()
            bias = parameters.get(f"{i}.bias", layer.bias)
            inputs[i] = out
            out = torch.nn.functional.linear(out, weight, None if bias is None else bias.detach())
            outputs[i] = out if out.requires_grad else out.requires_grad_()
        else:
            out = layer(out)
    deltas = dict(zip(outputs, torch.autograd.grad(out, list(outputs.values()), signal), strict=True))
    squares = torch.zeros(len(x), dtype=signal.dtype)
    for i, delta in deltas.items():
        own = (delta * delta).sum(1)
        if f"{i}.weight" in parameters:
            squares += own * (inputs[i].detach() ** 2).sum(1)
        if f"{i}.bias" in parameters:
            squares += own
    scale = _scale(squares, most)
    found = {}
    for i, delta in deltas.items():
        scaled = delta * scale[:, None]
        found[f"{i}.weight"] = scaled.T @ inputs[i].detach()
        found[f"{i}.bias"] = scaled.sum(0)
    return [found[name] for name in parameters]


def _by_rows(module: Module, parameters: dict[str, Tensor], x: Tensor, signal: Tensor, most: Tensor) -> list[Tensor]:
    torch = need_torch()
    held = {name: p.detach() for name, p in parameters.items()}

    def score(given: dict[str, Tensor], row: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(module, given, (row[None],))
        return (out[0] * weight).sum()

    each = torch.func.vmap(torch.func.grad(score), in_dims=(None, 0, 0), randomness="different")
    size = max(1, NUMBERS_PER_ROW_GRADIENTS // max(1, sum(p.numel() for p in held.values())))
    totals = [torch.zeros_like(p) for p in held.values()]
    for some in pieces(len(x), size):
        try:
            found = each(held, x[some], signal[some])
        except RuntimeError:
            raise TrainingError(
                "this module has no gradient per row (does it mix rows, as batch normalisation does?); "
                "replace such layers, for example by LayerNorm or GroupNorm"
            ) from None
        gradients = [found[name] for name in held]
        squares = sum((g.flatten(1) ** 2).sum(1) for g in gradients)
        scale = _scale(torch.as_tensor(squares), most[some])
        for total, gradient in zip(totals, gradients, strict=True):
            total += torch.tensordot(scale, gradient, dims=1)
    return totals
