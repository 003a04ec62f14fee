"""explain(probe=True): a sum is trained under a contract of its own, and the plan says which model would gain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.transport.link import Link

QUERY = "SELECT a.x, a.name, b.z, b.kind, f.y FROM f JOIN a ON f.a = a.id JOIN b ON f.b = b.id"


def tables(strength: float, rows: int = 4000) -> dict[str, Any]:
    """Two tables of ids and features whose rows have a product of factors, so strong."""
    random = np.random.default_rng(0)
    i, k = random.integers(0, 60, rows), random.integers(0, 40, rows)
    x, z, left, right = (random.standard_normal(n) for n in (60, 40, 60, 40))
    y = x[i] + z[k] + strength * left[i] * right[k] + random.standard_normal(rows)
    a = pa.table({"id": np.arange(60), "x": x, "name": [f"u{n}" for n in range(60)]})
    b = pa.table({"id": np.arange(40), "z": z, "kind": [f"m{n}" for n in range(40)]})
    return {"f": pa.table({"a": i, "b": k, "y": y}), "a": a, "b": b}


@pytest.mark.parametrize(
    "given",
    [{}, {"head": "factor"}, {"model": "boosted"}, {"walk": "factorised"}],
    ids=["sum", "factor", "boosted", "factorised"],
)
def test_a_probe_finds_what_tables_say_together_and_what_it_costs(given: dict[str, Any]) -> None:
    with tp.Federation(tables(1.0)) as owners:
        plan = owners.explain(QUERY, label="y", probe=True, **given)
        usual = owners.explain(QUERY, label="y", **given)
    gains = {gain.model: gain for gain in plan.gains}
    assert gains['head="factor"'].share > 0.2
    assert gains['head="factor"'].blocks == ("a", "b")
    assert gains['head="factor"'].rounds == 24
    assert "Interactions between tables" in str(plan)
    assert '"share"' in plan.to_json()
    assert "Interactions between tables" in plan._repr_html_()
    assert (usual.gains, "Interactions between tables" in str(usual)) == ((), False)


def test_where_tables_say_nothing_together_a_probe_finds_nothing() -> None:
    with tp.Federation(tables(0.0)) as owners:
        plan = owners.explain(QUERY, label="y", probe=True)
    assert [gain.share for gain in plan.gains] == [0.0] * 4
    assert "nothing found" in str(plan)


def test_a_probe_is_a_job_that_owners_agree_to_and_no_parameter_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(link: Link, requests: Any, *given: Any, **named: Any) -> Any:
        asked.extend(message for messages in requests.values() for message in messages)
        return original(link, requests, *given, **named)

    original = Link.ask
    monkeypatch.setattr(Link, "ask", ask)
    with tp.Federation(tables(1.0)) as owners:
        owners.explain(QUERY, label="y", probe=True)
    kinds = {type(message).__name__ for message in asked}
    assert "StartPart" in kinds
    assert not kinds & {"Release", "HoldPart"}
    contracts = [message.contract for message in asked if isinstance(message, ProposeContract)]
    assert [contract.purpose for contract in contracts] == ["explain"] * 3 + ["train"] * 3
    assert not any(contract.training.releases for contract in contracts[3:] if contract.training is not None)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"model": "quantile", "algorithm": "admm"}, "has kinks; leave probe out"),
        ({"privacy": {"label": {"epsilon": 1.0, "bounds": [-9, 9]}}}, "leave it out of private jobs"),
    ],
)
def test_what_a_probe_cannot_look_at_is_said(given: dict[str, Any], sentence: str) -> None:
    with tp.Federation(tables(1.0)) as owners, pytest.raises(tp.TablePuppetError, match=sentence):
        owners.explain(QUERY, label="y", probe=True, **given)


def test_few_rows_and_training_refuse_a_probe() -> None:
    with tp.Federation(tables(1.0, rows=300)) as owners:
        with pytest.raises(tp.TablePuppetError, match="a probe needs two tables"):
            owners.explain(QUERY, label="y", probe=True)
        with pytest.raises(tp.TablePuppetError, match="probe belongs to explain"):
            owners.train(QUERY, label="y", probe=True)
