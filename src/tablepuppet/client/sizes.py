"""What a server may make a client compute: models and options that fit this machine, or a refusal.

In: the sizes in a request. Out: nothing, or a TransportError before anything is allocated or begun.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tablepuppet.errors import TransportError
from tablepuppet.memory import memory_limit
from tablepuppet.models.spec import ModelSpec

_MOST_OUTPUTS = 10_000  # classes
_LARGEST_OPTION = 1_000_000  # steps, vectors kept: of an algorithm's options
_COPIES = 16  # arrays of the size of predictions or parameters that training holds


def check_outputs(outputs: int, rows: int) -> None:
    """Refuses more outputs a row than any label has, or than memory holds."""
    if not 1 <= outputs <= _MOST_OUTPUTS:
        raise TransportError(f"a model of {outputs:,} outputs is refused; 1 to {_MOST_OUTPUTS:,} are allowed")
    _check_bytes(8 * rows * outputs, "predictions")


def check_model(spec: ModelSpec, width: int, outputs: int) -> None:
    """Refuses layers that memory does not hold."""
    sizes = (width, *spec.hidden, outputs)
    _check_bytes(8 * sum((before + 1) * after for before, after in pairwise(sizes)), "parameters")


def check_options(options: Any) -> None:
    """Refuses options that would keep this machine busy for ever."""
    for name in getattr(options, "__struct_fields__", ()):
        value = getattr(options, name)
        if isinstance(value, int) and value > _LARGEST_OPTION:
            raise TransportError(f"{name} = {value:,} is refused; at most {_LARGEST_OPTION:,} is allowed")


def _check_bytes(size: int, what: str) -> None:
    most = memory_limit() // 2 // _COPIES
    if size > most:
        raise TransportError(f"{what} of {size:,} bytes are more than this client has memory for")
