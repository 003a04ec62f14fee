"""What classes say of themselves: which others their fields are declared to hold, and a fingerprint of them all.

Two ends that give the same fingerprint understand each other's messages, whatever their packages call themselves. It
covers names, fields and declared types; what these mean is `PROTOCOL` of envelopes.py.
"""

from __future__ import annotations

import builtins
import hashlib
import inspect
import sys
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.transport.envelopes import FROM_CLIENT, FROM_SERVER, PROTOCOL


@cache
def reachable(roots: tuple[Any, ...]) -> frozenset[type]:
    """Classes of ours that these types are made of, and that their fields, and those of the fields, may hold."""
    found: set[type] = set()
    left: list[Any] = list(roots)
    while left:
        kind = left.pop()
        if get_origin(kind) is not None:
            left += [get_origin(kind), *get_args(kind)]
        if not isinstance(kind, type) or kind in found or not kind.__module__.startswith("tablepuppet."):
            continue
        found.add(kind)
        if is_dataclass(kind) or issubclass(kind, msgspec.Struct):
            left += get_type_hints(kind, localns=_Names(vars(sys.modules[kind.__module__]))).values()
    return frozenset(found)


class _Names(dict[str, Any]):
    """Names of a module; those that only a type checker knows stand for anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


@cache
def fingerprint(roots: tuple[Any, ...]) -> str:
    """The protocol's number, and a hash of all that messages of these types are declared to be.

    >>> fingerprint((int,)).partition("-")[0] == str(PROTOCOL)
    True
    """
    lines = sorted(f"{kind.__name__} {_fields(kind)}" for kind in reachable(roots))
    return f"{PROTOCOL}-{hashlib.blake2b(chr(10).join(lines).encode(), digest_size=6).hexdigest()}"


def _fields(kind: type) -> list[tuple[str, str]]:
    return [(name, str(told)) for base in kind.__mro__[::-1] for name, told in inspect.get_annotations(base).items()]


def client_protocol() -> str:
    """What the server and its clients say to each other."""
    return fingerprint((FROM_CLIENT, FROM_SERVER, REQUESTS, RESPONSES))
