"""PredictionCache: requests by key are looked up as long as no table has changed.

In: a request for the rows with some keys, and how it would be predicted from the tables. Out: its answer. The first
request of a kind is predicted for its keys alone; the second predicts all rows and keeps them; from then on a request
costs one round that asks the owners whether their tables are what they were, and a look-up. Where an owner cannot tell
(MySQL), the tables are read at every request.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import pyarrow as pa

from tablepuppet.catalog.serving import Key
from tablepuppet.errors import MappingError
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.predictor import Predictor
from tablepuppet.protocol import DescribeTable, Message, TableSchema
from tablepuppet.query import parse
from tablepuppet.query.derived import base_tables
from tablepuppet.query.scope import matches
from tablepuppet.transport.link import Link

_KEPT = 4  # kinds of request
_ROWS = 2_000_000  # joined rows that are predicted ahead, at most

Predict = Callable[[Sequence[Key] | None, int | None], pa.Table]  # for these keys, or all; up to so many rows


@dataclass(slots=True)
class _Kind:
    """Requests for one model, query and key."""

    owners: dict[str, list[str]]  # client → its tables in the query
    stamps: tuple[bytes, ...] = ()
    predictor: Predictor | None = None
    is_too_large: bool = False


class PredictionCache:
    """What was predicted ahead, for the last few kinds of request."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._digests: WeakKeyDictionary[Model, bytes] = WeakKeyDictionary()
        self._lock = threading.RLock()

    def answer(
        self,
        model: Model,
        query: str,
        tables: Mapping[str, tuple[str, ...]],
        link: Link,
        predict: Predict,
        *,
        key: Sequence[str],
        only: Sequence[Key],
        limit: int | None,
    ) -> pa.Table:
        """The predictions of the rows with these keys."""
        with self._lock:
            kind = self._kind((self._digest(model), query, tuple(key), limit), query, tables)
            stamps = _stamps(kind.owners, link)
            is_same = stamps == kind.stamps
            if not is_same:
                kind.stamps, kind.predictor, kind.is_too_large = stamps, None, False
            elif kind.predictor is None and not kind.is_too_large and all(stamps):
                kind.predictor = _ahead(predict, key, limit)
                kind.is_too_large = kind.predictor is None
            found = kind.predictor.find(only) if kind.predictor is not None else None
        return found if found is not None else predict(only, limit)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._kinds.clear()

    def _kind(self, name: Hashable, query: str, tables: Mapping[str, tuple[str, ...]]) -> _Kind:
        if name not in self._kinds:
            self._kinds[name] = _Kind(_owners(query, tables))
            while len(self._kinds) > _KEPT:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(name)
        return self._kinds[name]

    def _digest(self, model: Model) -> bytes:
        """A figure that no other model has."""
        if model not in self._digests:
            value = hashlib.sha256(f"{model.id} {model.label} {model.query}".encode())
            value.update(model.encoded_intercept.tobytes())
            for block in model.blocks:
                value.update(msgspec.msgpack.encode(block.encoders, enc_hook=np.ndarray.tobytes))
                value.update(np.ascontiguousarray(block.theta).tobytes())
            self._digests[model] = value.digest()
        return self._digests[model]


def _ahead(predict: Predict, key: Sequence[str], limit: int | None) -> Predictor | None:
    """All rows, predicted; None: they are too many to keep."""
    try:
        return Predictor(lambda: predict(None, min(limit or _ROWS, _ROWS)), key)
    except MappingError:
        return None


def _owners(query: str, tables: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Who holds rows of the query's tables; a name that is not known is for the prediction itself to refuse."""
    known = list(tables)
    sources = [source for branch in parse(query).branches for source in branch.sources]
    read = [t.this for s in sources if s.derived is not None for t in base_tables(s.derived)]
    named = [found for name in (*(s.table for s in sources), *read) for found in matches(name, known)]
    owners: dict[str, list[str]] = {}
    for table in dict.fromkeys(known[k] for k in named):
        for client in tables[table]:
            owners.setdefault(client, []).append(table)
    return owners


def _stamps(owners: Mapping[str, Sequence[str]], link: Link) -> tuple[bytes, ...]:
    """One round: what the owners say about the state of their tables."""
    requests: dict[str, list[Message]] = {c: [DescribeTable(table=t) for t in ts] for c, ts in owners.items()}
    answers = link.ask(requests, "evaluation")
    return tuple(cast(TableSchema, answer).stamp for client in owners for answer in answers[client])
