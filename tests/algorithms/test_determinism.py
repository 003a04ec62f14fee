"""The same seed gives the same parameters, bit for bit, whatever the number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.neural_join import JOINS, federation

from tablepuppet.join import joined_rows
from tablepuppet.threads import Pool
from tablepuppet.transport.link import LocalTransport

torch = pytest.importorskip("torch")

MODELS: dict[str, dict[str, Any]] = {
    "newton": {"algorithm": "newton"},
    "mlp by sgd": {"algorithm": "sgd", "model": "mlp", "epochs": 2, "dropout": 0.2, "batch_size": 20_000},
    "mlp by admm": {"algorithm": "admm", "model": "mlp", "epochs": 2, "inner_rounds": 2, "local_epochs": 1},
}


def trained(threads: int, monkeypatch: pytest.MonkeyPatch, clients: int, **options: Any) -> Any:
    """All parameters of a run with so many threads: of clients, of walks over joined rows, and of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with federation(clients, rows=20_000) as owner:
            pool = Pool(threads)
            monkeypatch.setattr(joined_rows, "pool", lambda: pool)
            owner._transport.close()
            handlers = {name: client.handle for name, client in owner._clients.items()}
            owner._transport = LocalTransport(handlers, threads=threads)
            result = owner.train(JOINS["one-to-many"].format(y="number"), label="number", seed=5, **options)
        return np.concatenate([block.theta.ravel() for block in result.blocks])
    finally:
        torch.set_num_threads(before)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_parameters_do_not_depend_on_the_number_of_threads(
    options: dict[str, Any], clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(1, monkeypatch, clients, **options)
    for threads in (2, 5):
        np.testing.assert_array_equal(trained(threads, monkeypatch, clients, **options), expected)
