"""CPU time of an epoch beside that of a plain torch loop over the materialised join: the same model and batches.

In: a number of joined rows. Out: Epochs, one for each model and batch size. Epochs of both are taken by turns in one
process and compared by their medians, so that whatever else the machine does is done to both. Ours has all that an
epoch is in one process: messages of three clients, their checks, figures of train and test rows. torch's has one
thread, rows that are encoded and joined already, and takes no figures. A network is one perceptron a table; where an
algorithm takes local steps of its own, torch takes batches of 64.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.cases import Case
from benchmarks.figures import L2
from tablepuppet.algorithms.algorithm import Algorithm
from tablepuppet.algorithms.registry import FEDERATED
from tablepuppet.api import Federation
from tablepuppet.arrays import Array
from tablepuppet.models.modules import need_torch, one_torch_thread

ROWS = (582, 5000, 20_000)
BATCHES = (64, 256, 1024, None)  # None: all rows
MODELS = ("linear", "mlp", 'head="mlp"')
_STEPS, _EPOCHS = 400, (7, 40)
_HIDDEN, _HEAD = 16, (64, 32)
_TESTED = 7  # every so many rows one is for the test
HEADINGS = ("rows", "model", "algorithm", "batch", "ms", "torch ms", "× torch")


@dataclass(frozen=True, slots=True)
class Epochs:
    """Milliseconds of CPU time of an epoch: medians of all but the first two."""

    rows: int
    model: str
    algorithm: str
    batch: int | None
    ours: float
    torch: float


def cells(f: Epochs) -> list[str]:
    """A row of the table of figures."""
    batch = "all" if f.batch is None else f"{f.batch:,}"
    return [f"{f.rows:,}", f.model, f.algorithm, batch, f"{f.ours:.2f}", f"{f.torch:.2f}", f"{f.ours / f.torch:.2f}"]


def measure_epochs(rows: int) -> list[Epochs]:
    """All models and batch sizes on a join of so many rows, in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure_here, rows).result()


def measure_here(rows: int) -> list[Epochs]:
    """The same here: all models by algorithms that take batches, and networks by the others that train them."""
    join = _sales(rows)
    able = [algorithm for algorithm in FEDERATED if not algorithm.requires_linear]
    sizes = [size for size in BATCHES if size is None or size < len(join.labels)]
    jobs = [(model, a, size) for a in able if a.uses_batches for model in MODELS for size in sizes]
    jobs += [("mlp", a, BATCHES[0]) for a in able if not a.uses_batches]
    with one_torch_thread():
        return [_measure_job(join, *job) for job in jobs]


@dataclass(frozen=True, slots=True)
class _EncodedJoin:
    """A case, and its train rows as torch takes them."""

    case: Case
    encoded: list[Array]  # of each table, per joined row
    labels: Array


def _sales(rows: int) -> _EncodedJoin:
    """Sales of a department in a week ⋈ the week ⋈ the store; the train rows' columns as each table encodes them."""
    rng = np.random.default_rng(rows)
    weeks, stores, departments = max(20, rows // 4), 45, 80
    week, store, department = (rng.integers(0, n, rows) for n in (weeks, stores, departments))
    kind, size, weather = rng.integers(0, 3, stores), rng.normal(size=stores), rng.normal(size=(weeks, 4))
    price = rng.normal(size=rows)
    label = np.sin(price) + 0.1 * department + weather[week, 0] * size[store] + rng.normal(size=rows)
    is_test = np.arange(rows) % _TESTED == 0
    facts = {"week": week, "store": store, "price": price, "is_test": is_test.astype(np.int8), "sales": label}
    tables = {
        "facts": _table(facts, dept=department),
        "weeks": _table({"week": np.arange(weeks)} | {f"w{j}": np.ascontiguousarray(weather[:, j]) for j in range(4)}),
        "stores": _table({"store": np.arange(stores), "size": size}, kind=kind),
    }
    query = (
        "SELECT f.price, f.dept, w.w0, w.w1, w.w2, w.w3, s.size, s.kind, f.sales FROM facts f "
        "JOIN weeks w ON f.week = w.week JOIN stores s ON f.store = s.store"
    )
    joined = [
        np.column_stack([price, np.eye(departments)[department]]),
        weather[week],
        np.column_stack([size[store], np.eye(3)[kind[store]]]),
    ]
    case = Case(f"sales-{rows:,}", tables, query, "sales")
    return _EncodedJoin(case, [x[~is_test] for x in joined], label[~is_test])


def _table(numbers: dict[str, Any], **texts: Any) -> pa.Table:
    columns = {name: pa.array(values) for name, values in numbers.items()}
    return pa.table(columns | {name: pa.array([f"{name} {code}" for code in codes]) for name, codes in texts.items()})


def _measure_job(join: _EncodedJoin, kind: str, algorithm: Algorithm[Any], size: int | None) -> Epochs:
    case, labels = join.case, join.labels
    batches = 1 if size is None else -(-len(labels) // size)
    epochs = min(max(_STEPS // batches, _EPOCHS[0]), _EPOCHS[1])
    given: dict[str, Any] = {"head": "mlp"} if kind.startswith("head") else {}
    given |= {"batch_size": size} if algorithm.uses_batches else {}
    beside = _torch_epoch(join.encoded, labels, kind, size)
    ours: list[float] = []
    theirs: list[float] = []
    last = 0.0

    def on_round(event: Any) -> None:
        nonlocal last
        if event.record is None:
            return
        began = time.process_time()
        ours.append(began - last)
        beside()
        last = time.process_time()
        theirs.append(last - began)

    model = "linear" if kind == "linear" else "mlp"
    with Federation(case.tables) as federation:
        federation.train(
            case.query,
            label=case.label,
            model=model,
            algorithm=algorithm.name,
            epochs=epochs,
            test_where="is_test = 1",
            on_round=on_round,
            progress=False,
            **given,
        )
    found = (1e3 * median(times[2:]) for times in (ours, theirs))
    return Epochs(len(labels), kind, algorithm.name, size, *found)


def _torch_epoch(encoded: Sequence[Array], labels: Array, kind: str, size: int | None) -> Callable[[], None]:
    """An epoch over the materialised join, by Adam."""
    torch = need_torch()
    nn, dtype = torch.nn, torch.float64 if kind == "linear" else torch.float32
    inputs = [torch.tensor(x, dtype=dtype) for x in ([np.hstack(encoded)] if kind == "linear" else encoded)]
    target = torch.tensor((labels - labels.mean()) / labels.std(), dtype=dtype)

    def network(*sizes: int) -> Any:
        layers: list[Any] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after, dtype=dtype), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    is_head = kind.startswith("head")
    hidden = () if kind == "linear" else (_HIDDEN,)
    parts = [network(x.shape[1], *hidden, _HIDDEN if is_head else 1) for x in inputs]
    head = network(_HIDDEN * len(parts), *_HEAD, 1) if is_head else None
    trained = [p for part in (*parts, *([] if head is None else [head])) for p in part.parameters()]
    optimizer = torch.optim.Adam(trained, lr=0.01, weight_decay=L2)

    def epoch() -> None:
        order = torch.randperm(len(target))
        for rows in [None] if size is None else order.split(size):
            optimizer.zero_grad()
            chosen = inputs if rows is None else [x[rows] for x in inputs]
            given = [part(x) for part, x in zip(parts, chosen, strict=True)]
            scores = sum(given[1:], start=given[0]) if head is None else head(torch.cat(given, 1))
            loss = 0.5 * (scores[:, 0] - (target if rows is None else target[rows])).square().mean()
            loss.backward()
            optimizer.step()

    return epoch
