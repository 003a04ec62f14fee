"""A small federation with fan-out, and torch on its materialised join: the oracle of neural training."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from tests.joined_rows import joined_rows

import tablepuppet as tp
from tablepuppet.join.mapping import rows_here
from tablepuppet.owner.row_sets import order_bits

JOINS = {
    "one-to-many": "SELECT o.q, o.t, i.price, i.kind, o.{y} FROM orders o JOIN items i ON o.item = i.item",
    "many-to-many": (
        "SELECT o.q, o.t, i.price, i.kind, g.v, o.{y} "
        "FROM orders o JOIN items i ON o.item = i.item JOIN tags g ON g.item = i.item"
    ),
    "left": (
        "SELECT o.q, o.t, i.price, i.kind, g.v, o.{y} "
        "FROM orders o JOIN items i ON o.item = i.item LEFT JOIN tags g ON g.item = o.item"
    ),
    "star": (
        "SELECT b.age, b.town, i.price, i.kind, o.{y} "
        "FROM orders o JOIN buyers b ON o.buyer = b.buyer JOIN items i ON o.item = i.item"
    ),
    "star with tags": (
        "SELECT b.age, i.price, g.v, o.{y} FROM orders o JOIN buyers b ON o.buyer = b.buyer "
        "JOIN items i ON o.item = i.item JOIN tags g ON g.item = i.item"
    ),
}
LOSSES = {"number": "squared", "flag": "logistic", "class": "softmax", "seen": "logistic"}


def tables(rows: int = 300, items: int = 25) -> dict[str, pa.Table]:
    random = np.random.default_rng(7)
    item = random.integers(0, items, rows)
    q, t = random.normal(size=(2, rows))
    price = random.normal(size=items)
    signal = np.tanh(q) - price[item] ** 2 + 0.3 * random.normal(size=rows)
    other = np.random.default_rng(8)
    return {
        "orders": pa.table(
            {
                "item": item,
                "buyer": other.integers(0, 40, rows),
                "seen": np.ones(rows, bool),
                "q": q,
                "t": t,
                "number": signal,
                "flag": signal > 0,
                "class": np.digitize(signal, [-1.0, 0.0, 1.0]).astype(str),
            }
        ),
        "items": pa.table({"item": np.arange(items), "price": price, "kind": random.choice(["a", "b", "c"], items)}),
        "buyers": pa.table(
            {"buyer": np.arange(40), "age": other.normal(size=40), "town": other.choice(["x", "y"], 40)}
        ),
        # items without a tag (LEFT JOIN finds none) and with several
        "tags": pa.table({"item": random.integers(0, items - 5, 60), "v": random.normal(size=60)}),
    }


def federation(clients: int = 1, rows: int = 300) -> tp.Federation:
    """Every table cut into slices, one a client."""
    held: dict[str, Any] = {}
    for name, table in tables(rows).items():
        borders = np.linspace(0, len(table), clients + 1).astype(int)
        held[name] = [table.slice(a, b - a) for a, b in itertools.pairwise(borders)]
    return tp.Federation(held)


def parameters(module: torch.nn.Module) -> NDArray[Any]:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


class Joined:
    """The materialised join behind a result: encoded rows of each block, expanded, and labels."""

    def __init__(self, owner: tp.Federation, query: str, label: str, result: tp.Result, dtype: torch.dtype) -> None:
        # The centralised baseline would pool just these features; here they are written out once more.
        mapping = joined_rows(owner, result.plan.job).mapping
        data = tables()
        self.features: list[torch.Tensor] = []
        self.found: list[torch.Tensor] = []
        for number, block in enumerate(mapping.bound.blocks):
            table = data[block.table]
            starts = np.linspace(0, len(table), _clients(owner, block.table) + 1).astype(int)
            base = []
            for part in mapping.parts_of(number):
                k = int(part.client.rpartition("[")[2].rstrip("]")) if "[" in part.client else 0
                own = starts[k + 1] - starts[k]
                bits = order_bits(b"", f"{block.table} None", result.plan.job.seed, int(starts[k]), int(own))
                base.append(starts[k] + np.argsort(bits, kind="stable")[part.train_rows])
            rows = np.concatenate(base)
            index = rows_here(mapping.train).indices[number].index
            place = np.arange(mapping.train.rows) if index is None else index
            found = place >= 0
            chosen = rows[np.where(found, place, 0)]
            encoded = _encoded(table, [name.partition(".")[2] for name in block.features], chosen, found)
            self.features.append(torch.tensor(encoded, dtype=dtype))
            self.found.append(torch.tensor(found[:, None], dtype=dtype))
        self.rows = rows_here(mapping.train)
        labels = self.rows.joined_labels()
        self.weights = self.rows.joined_weights()
        self.labels = torch.tensor(labels, dtype=dtype)
        self.loss = LOSSES[label]

    def scores(self, modules: list[torch.nn.Module], rows: Any) -> torch.Tensor:
        blocks = zip(modules, self.features, self.found, strict=True)
        return sum((m(x[rows]) * f[rows] for m, x, f in blocks), torch.zeros(()))

    def objective(self, modules: list[torch.nn.Module], rows: Any, l2: float) -> torch.Tensor:
        F = torch.nn.functional
        a, y = self.scores(modules, rows), self.labels[rows]
        if self.loss == "squared":
            loss = 0.5 * F.mse_loss(a[:, 0], y)
        elif self.loss == "logistic":
            loss = F.binary_cross_entropy_with_logits(a[:, 0], y)
        else:
            loss = F.cross_entropy(a, y.long())
        return loss + 0.5 * l2 * sum(p.square().sum() for m in modules for p in m.parameters())

    def batches(self, epochs: int, size: int | None, seed: int) -> Any:
        """The documented order: a permutation from (seed, epoch), cut into batches."""
        rows = len(self.labels)
        for epoch in range(epochs):
            if size is None:
                yield slice(None)
                continue
            order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(rows))
            yield from torch.split(order, size)


def _clients(owner: tp.Federation, table: str) -> int:
    return len(owner._tables[table])


def _encoded(table: pa.Table, columns: list[str], rows: NDArray[Any], found: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Numbers standardised over the joined rows that exist, strings one-hot, missing rows zero."""
    out = []
    for name in columns:
        values = table.column(name).to_numpy(zero_copy_only=False)[rows]
        if values.dtype == object:
            kinds = np.unique(values[found])
            out.append((values[:, None] == kinds).astype(float))
        else:
            mean = values[found].mean()
            out.append(((values - mean) / np.sqrt(((values[found] - mean) ** 2).mean()))[:, None])
    encoded = np.concatenate(out, axis=1)
    encoded[~found] = 0.0
    return encoded
