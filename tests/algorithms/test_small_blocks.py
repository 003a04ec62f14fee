"""Newton's second step of light blocks: the same optimum, a full round saved, and every number counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tablepuppet as tp
from tablepuppet.algorithms.newton import server as light
from tablepuppet.algorithms.newton.server import small_blocks
from tablepuppet.algorithms.registry import options_of
from tablepuppet.job.job import Job, JobData
from tablepuppet.plan.plan import Plan
from tablepuppet.sources.encoding import encoded_width

QUERY = "SELECT s.x, a.u, a.v, a.shape, b.w, b.tint, s.y FROM s JOIN a ON s.a = a.a JOIN b ON s.b = b.b"


def tables(rows: int = 4000) -> dict[str, pd.DataFrame]:
    """A large table whose column says some of what its two small neighbours say."""
    random = np.random.default_rng(3)
    a, b = random.integers(0, 40, rows), random.integers(0, 60, rows)
    u, w = random.normal(size=(40, 2)), random.normal(size=60)
    x = u[a, 0] - u[a, 1] + w[b] + random.normal(size=rows)
    y = x + u[a] @ [0.8, 0.4] - 0.7 * w[b] + 0.3 * random.normal(size=rows)
    shapes, tints = (list(map(str, random.choice(list("pqrst"), n))) for n in (40, 60))
    return {
        "s": pd.DataFrame({"a": a, "b": b, "x": x, "y": y}),
        "a": pd.DataFrame({"a": np.arange(40), "u": u[:, 0], "v": u[:, 1], "shape": shapes}),
        "b": pd.DataFrame({"b": np.arange(60), "w": w, "tint": tints}),
    }


def federation(model: str, clients: int) -> tp.Federation:
    held = tables()
    if model != "linear":
        held["s"]["y"] = np.digitize(held["s"]["y"], [0.0] if model == "logistic" else [-1.0, 1.0])
    return tp.Federation({name: [table[k::clients] for k in range(clients)] for name, table in held.items()})


def trained(model: str = "linear", clients: int = 1, **options: Any) -> tp.Result:
    given: dict[str, Any] = {"label": "y", "model": model, "algorithm": "newton", "test_fraction": 0.0, "epochs": 30}
    with federation(model, clients) as held:
        return held.train(QUERY, **given | options)


def plan_of(result: tp.Result) -> Plan:
    return replace(result.plan, widths=tuple(sum(map(encoded_width, block.encoders)) for block in result.blocks))


@pytest.fixture
def every_round_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light, "HEAVY", 0)


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("every_round_is_heavy")
@pytest.mark.parametrize("clients", [1, 2, 3])  # three clients mask their sums
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
def test_the_optimum_is_the_centralised_one(model: str, clients: int) -> None:
    result = trained(model, clients)
    assert result.traffic.rounds > len(result.history) * (2 if clients > 1 else 1)
    best = trained(model, algorithm="centralized", epochs=1).objective
    near = 1e-7 if model == "softmax" else 1e-9  # its curvature is a bound, and thirty rounds leave a little
    assert result.objective == pytest.approx(best, abs=near)


@pytest.mark.usefixtures("every_round_is_heavy")
@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
def test_rounds_and_arrays_are_estimated_to_the_byte(model: str, clients: int) -> None:
    result = trained(model, clients, epochs=4)
    estimate = plan_of(result).cost("newton", len(result.history))
    assert estimate.rounds == result.traffic.rounds
    assert estimate.payload_down == result.traffic.payload_down
    assert estimate.payload_up == result.traffic.payload_up


def test_a_full_round_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    best = trained(algorithm="centralized", epochs=1).objective

    def reached() -> tuple[list[float], int, int]:
        """The gaps by epoch; rounds and bytes until the gap is 1e-8."""
        history = trained().history
        gaps = [record.objective - best for record in history]
        there = next(record for record, gap in zip(history, gaps, strict=True) if gap <= 1e-8)
        return gaps, there.rounds, there.bytes

    gaps, rounds, passed = reached()
    monkeypatch.setattr(light, "HEAVY", 0)
    lighter, as_many, fewer = reached()
    assert lighter[0] < gaps[0] / 100
    assert as_many <= rounds
    assert fewer < passed - 2 * 8 * 3500  # both ways, the numbers of the large table's rows


@pytest.mark.usefixtures("every_round_is_heavy")
def test_an_epoch_stays_within_five_per_cent_of_its_formula() -> None:
    result = trained(epochs=1)
    values = sum(block.rows for block in result.plan.shape.blocks)
    assert result.traffic.rounds == 2
    assert result.traffic.payload_down + result.traffic.payload_up == pytest.approx(2 * 8 * values, rel=0.05)


@pytest.mark.usefixtures("every_round_is_heavy")
def test_a_second_step_is_one_more_number_of_each_row() -> None:
    result = trained(epochs=3)
    told = [
        plan_of(result).algorithm.disclosure(result.plan.shape, tp.Newton(), b, 1) for b in result.plan.shape.blocks
    ]
    assert [disclosure.predictions for disclosure in told] == [3, 4, 4]
    assert [exposure.numbers for exposure in plan_of(result).exposures] == [
        4,
        4,
        4,
    ]  # held-out rows: three epochs, the end
    learns = {insight.party: insight.learns for insight in plan_of(result).insights}
    assert "one prediction per train row and output, up to 3 times, once more of a, b" in learns["server"]
    for party, times in (("client a (a)", 4), ("client s (s)", 3)):
        assert any(f"the slope of the loss at each of its rows, up to {times} times" in line for line in learns[party])
    by_admm = replace(result.plan, job=_by("admm"))
    assert [exposure.numbers for exposure in by_admm.exposures] == [4, 4, 4]


def _by(algorithm: str) -> Job:
    options = options_of(algorithm, {})
    return Job(data=JobData(query=QUERY, label="y"), algorithm=algorithm, options=options, epochs=3)


@pytest.mark.parametrize(
    ("epochs", "width", "is_small"),
    [
        (10, 30, True),  # too few numbers to solve for a row, before and after
        (10, 8, True),  # enough, before and after
        (10, 11, False),  # a row of 11 columns stays unknown for 10 numbers, not for 11
        (10, 22, False),  # the same, where an owner counts evaluations too: 21 and 22
    ],
)
def test_no_row_becomes_known_by_it(epochs: int, width: int, is_small: bool) -> None:
    found = small_blocks([1_000_000, 1000], [5, width], epochs, 1, has_curvature=False)
    assert found == (frozenset({1}) if is_small else frozenset())


@pytest.mark.parametrize(
    ("rows", "light"),
    [
        ([2_000_000, 6000, 6000], {1, 2}),
        ([2_000_000, 60_000, 6000], {2}),  # both together would hold more than their share
        ([500_000, 500_000], set()),  # nobody is light
        ([200_000, 600], set()),  # a round is quick
        ([2_000_000, 0], set()),  # nothing to ask for
    ],
)
def test_light_blocks_hold_next_to_none_of_the_rows(rows: list[int], light: set[int]) -> None:
    assert small_blocks(rows, [50] * len(rows), 10, 1, has_curvature=False) == light


def test_small_federations_have_one_round_an_epoch() -> None:
    result = trained()
    assert result.traffic.rounds == len(result.history)
