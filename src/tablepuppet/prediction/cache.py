"""Requests by key, answered from memory: Predictor from a batch, PredictionCache as long as no table has changed.

Predictor. In: a batch of predictions and its key. Out: for one key, its rows, in microseconds. Its answers reflect the
tables as they were when it was made or last refreshed.

PredictionCache. In: a request for the rows with some keys, and how it would be predicted from the tables. Out: its
answer. The first request of a kind is predicted for its keys alone. The second predicts all rows and keeps them. Each
later request costs a look-up and one round, which asks the owners whether their tables are unchanged. If an owner
cannot know (MySQL), the tables are read at every request.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tablepuppet.errors import MappingError, ModelError
from tablepuppet.exchanges.schema import DescribeTable
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.saved import identity_of
from tablepuppet.sql.across_owners import read_query
from tablepuppet.sql.binding import Key
from tablepuppet.sql.ucq import Tables, base_tables, matches
from tablepuppet.transport.link import Link


class Predictor:
    """Predictions of all joined rows, found by the key of the label table."""

    def __init__(self, predict: Callable[[], pa.Table], key: Sequence[str]) -> None:
        self.key = tuple(key)
        self._predict = predict
        self.refresh()

    def refresh(self) -> None:
        """Reads the owners' tables anew."""
        import pandas as pd  # here, not above: most runs never need it, and it takes 40 MB and a third of a second

        table = self._predict().combine_chunks()
        columns = [table.column(_answer_name(name, table)).to_pandas() for name in self.key]
        index = pd.Index(columns[0]) if len(columns) == 1 else pd.MultiIndex.from_arrays(columns)
        codes, self._keys = pd.factorize(index)
        # Rows with the same key, one after the other: those of key k lie in order[starts[k]:starts[k + 1]].
        self._order = np.argsort(codes, kind="stable")
        self._starts = np.searchsorted(codes[self._order], np.arange(len(self._keys) + 1))
        self._table = table

    def __call__(self, *key: Any) -> pa.Table:
        """The predictions for one key: a row for each joined row of the base row(s) with that key."""
        if len(key) != len(self.key):
            raise ModelError(f"the key is ({', '.join(self.key)}): {len(self.key)} values, and {len(key)} were given")
        import pandas as pd

        try:
            position = int(self._keys.get_loc(key[0] if len(key) == 1 else key))
        except (KeyError, TypeError, pd.errors.InvalidIndexError):
            raise ModelError(
                f"no joined row has this {' and '.join(self.key)}; it may be new (call refresh()), of another type, "
                "or without partners in the join"
            ) from None
        rows = self._order[self._starts[position] : self._starts[position + 1]]
        return self._table.take(pa.array(rows))

    def find(self, keys: Sequence[Sequence[Any]]) -> pa.Table | None:
        """The predictions for some keys, in the order of the rows; None: the keys are not of the columns' own types."""
        kinds = [self._table.schema.field(_answer_name(name, self._table)).type for name in self.key]
        if not all(len(key) == len(kinds) and all(map(_is_of, key, kinds)) for key in keys):
            return None
        wanted = [key[0] for key in keys] if len(kinds) == 1 else list(map(tuple, keys))
        found = np.unique(self._keys.get_indexer(wanted)) if wanted else np.empty(0, np.intp)
        rows = [self._order[self._starts[k] : self._starts[k + 1]] for k in found if k >= 0]
        return self._table.take(pa.array(np.sort(np.concatenate(rows)) if rows else np.empty(0, np.int64)))

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"Predictor({len(self):,} keys of {', '.join(self.key)})"


def _is_of(value: Any, kind: pa.DataType) -> bool:
    """Whether a key is of the type that its column has, so that a look-up means the same as in SQL."""
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(value, int):
        return bool(pa.types.is_integer(kind)) and -(2**63) <= value < 2**63
    return isinstance(value, str) and any(is_text(kind) for is_text in _TEXTS)


_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def _answer_name(name: str, table: pa.Table) -> str:
    """The answer's name for a key column: without its alias, and set apart from a column of predictions."""
    short = name.rpartition(".")[2]
    return f"key_{short}" if f"key_{short}" in table.column_names else short


_KINDS = 4  # kinds of request
_MAX_ROWS = 2_000_000  # joined rows that are predicted ahead, at most

Predict = Callable[[Sequence[Key] | None, int | None], pa.Table]  # for these keys, or all; up to so many rows


class _Kind(msgspec.Struct):
    """Requests for one model, query and key."""

    owners: list[tuple[str, str]]  # each client with each of its tables in the query
    stamps: tuple[bytes, ...] = ()
    predictor: Predictor | None = None
    is_too_large: bool = False


class PredictionCache:
    """Predictions made ahead, for the last few kinds of request."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._lock = threading.RLock()

    def answer(
        self,
        model: Model,
        query: str,
        tables: Tables,
        link: Link,
        predict: Predict,
        *,
        key: Sequence[str],
        only: Sequence[Key],
        limit: int | None,
    ) -> pa.Table:
        with self._lock:
            kind = self._kind(
                (model.id or identity_of(model), model.label, query, tuple(key), limit), query, tables, link
            )
            asked = [(client, DescribeTable(table=table)) for client, table in kind.owners]
            stamps = tuple(answer.stamp for answer in link.ask_each(asked, "evaluation"))
            if stamps != kind.stamps:
                kind.stamps, kind.predictor, kind.is_too_large = stamps, None, False
            elif kind.predictor is None and not kind.is_too_large and all(stamps):
                try:
                    kind.predictor = Predictor(lambda: predict(None, min(limit or _MAX_ROWS, _MAX_ROWS)), key)
                except MappingError:  # too many to keep
                    kind.is_too_large = True
            found = kind.predictor.find(only) if kind.predictor is not None else None
        return found if found is not None else predict(only, limit)

    def clear(self) -> None:
        with self._lock:
            self._kinds.clear()

    def _kind(self, name: Hashable, query: str, tables: Tables, link: Link) -> _Kind:
        if name not in self._kinds:
            self._kinds[name] = _Kind(_owners(query, tables, link))
            while len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(name)
        return self._kinds[name]


def _owners(query: str, tables: Tables, link: Link) -> list[tuple[str, str]]:
    """Who holds rows of the query's tables; a name that is not known is for the prediction itself to refuse."""
    known = list(tables)
    sources = [source for branch in read_query(query, tables, link).branches for source in branch.sources]
    read = [t.this for s in sources if s.derived is not None for t in base_tables(s.derived)]
    named = [found for name in (*(s.table for s in sources), *read) for found in matches(name, known)]
    return [(client, table) for table in dict.fromkeys(known[k] for k in named) for client in tables[table]]
