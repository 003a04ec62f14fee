"""The text of a plan, word for word."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.plan.jobs import LABELS, shop

import tablepuppet as tp

GOLDENS = Path(__file__).parent / "goldens"


def check(name: str, text: str) -> None:
    """`UPDATE_GOLDENS=1 pytest …` writes the text anew; read the difference before you commit it."""
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "model", "algorithm", "orders"),
    [
        ("newton", "logistic", "newton", 2),
        ("admm-many-clients", "softmax", "admm", 9),
        ("sgd-one-client-each", "linear", "sgd", 1),
        ("centralized", "linear", "centralized", 1),
    ],
)
def test_a_plan_reads_like_its_golden_text(name: str, model: str, algorithm: str, orders: int) -> None:
    label, query = LABELS[model]
    with shop(orders) as federation:
        plan = federation.explain(query, label=label, model=model, algorithm=algorithm, batch_size=256)
    check(name, str(plan))


def test_after_training_the_counted_figures_stand_beside_the_estimates() -> None:
    label, query = LABELS["logistic"]
    with shop(2) as federation:
        result = federation.train(query, label=label, algorithm="newton", epochs=3)
    check("newton-trained", result.explain())


def test_what_trees_cost_is_told_of_the_run_for_no_two_are_alike() -> None:
    label, query = LABELS["logistic"]
    with shop(1) as federation:
        plan = federation.explain(query, label=label, model="boosted", algorithm=tp.Boosting(trees=30))
    titles, head, line = str(plan).split("Estimated cost (▸ is this job)\n")[1].splitlines()[:3]
    assert [part.strip() for part in titles.split("│")] == ["", "30 trees", "memory"]
    run = plan.cost("boosting", 30)
    assert line.split("│")[1].split()[0] == run.rounds_text == "2–33"
    assert head.split("│")[1].split() == ["rounds", "bytes", "CPU", "US-UK", "US-US"]
    costs = plan._repr_html_().split("Estimated cost")[1].split("</pre>")[0]
    assert f"{titles}\n{head}" in costs
    assert "epochs" not in costs


def test_the_documentation_quotes_plans_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8").splitlines()
    quoted = [line[4:] for line in page if line.startswith("    ") and line.strip()]
    printed = {line for golden in ("newton", "newton-trained") for line in _lines(golden)}
    assert len(quoted) > 15
    assert [line for line in quoted if line not in printed] == []


def _lines(golden: str) -> list[str]:
    return (GOLDENS / f"{golden}.txt").read_text(encoding="utf-8").splitlines()


def test_a_plan_says_which_statistics_of_features_are_read_from_whom() -> None:
    label, query = LABELS["logistic"]
    private = {"features": {"epsilon": 1.0, "delta": 1e-5, "bounds": {"quantity": (0, 9), "price": (0, 99)}}}
    with shop(3) as federation:
        plain = _learns(federation.explain(query, label=label))
        secret = _learns(
            federation.explain(
                query.partition("WHERE")[0],  # a condition on a private column would count it exactly
                label=label,
                algorithm="sgd",
                privacy={**private, "allow_reconstruction": True},
            )
        )
    categories = "the names and counts of the categories of i.category"
    masked = "summed over the 3 clients of o, and of no single one (masked), before training: the "
    assert f"{masked}mean, spread and number of missing values of o.quantity" in plain["server"]
    assert f"{masked}number of missing values of o.quantity" in secret["server"]
    assert any(line.endswith(f"number of missing values of i.price; {categories}") for line in plain["server"])
    assert any("over all clients of o" in line for line in plain["3 clients of orders (o)"])
    assert not any("spread" in line for learns in secret.values() for line in learns)


def _learns(plan: tp.Plan) -> dict[str, tuple[str, ...]]:
    return {insight.party: insight.learns for insight in plan.insights}


def test_a_plan_says_what_privacy_the_job_will_spend() -> None:
    label, query = LABELS["logistic"]
    with shop(2) as federation:
        plan = federation.explain(query, label=label, privacy={"label": {"epsilon": 3.0}})
    assert "noised by its owner (ε = 3 a row)" in str(plan)
    assert "Privacy that the job spends" in str(plan)
    assert all(line in str(plan).replace("\n    ", " ") for line in plan.ledger.lines())
    assert json.loads(plan.to_json())["privacy"]["releases"]


def test_a_plan_says_what_happens_to_numbers_on_the_wire() -> None:
    label, query = LABELS["logistic"]
    with shop(2) as federation:
        assert "wire" not in str(federation.explain(query, label=label))
        plan = federation.explain(query, label=label, wire="float32+zstd")
    assert "  wire float32+zstd: numbers travel as float32, with seven digits, messages are compressed" in str(plan)


def test_a_union_of_a_table_with_itself_has_one_line_per_branch() -> None:
    branch = "SELECT a.price, b.price AS other, a.category FROM items a JOIN items b ON a.item_id = b.item_id"
    with shop(1) as federation:
        plan = federation.explain(f"{branch} UNION ALL {branch}", label="category", model="softmax")
    assert [fit.alias for fit in plan.mapping.fits] == ["a", "b", "a", "b"]
    check("self-join-union", str(plan))


def test_the_document_holds_the_figures_of_the_text() -> None:
    label, query = LABELS["logistic"]
    with shop(2) as federation:
        plan = federation.explain(query, label=label)
    document = json.loads(plan.to_json())
    assert document["joined_rows"] == plan.mapping.joined_rows
    assert [row["algorithm"] for row in document["costs"]] == [row.algorithm for row in plan.costs]
    assert document["costs"][0]["epoch"]["rounds"] == 2
    assert [block["columns"] for block in document["blocks"]] == [1, 4]


def test_neither_text_nor_repr_shows_a_row() -> None:
    label, query = LABELS["logistic"]
    with shop(2) as federation:
        plan = federation.explain(query, label=label)
    assert "array" not in str(plan) + repr(plan)
    assert repr(plan) == f"Plan(logistic by newton, {plan.mapping.joined_rows:,} joined rows)"


def test_the_advice_turns_to_sgd_where_matrices_are_too_wide() -> None:
    from msgspec.structs import replace

    label, query = LABELS["logistic"]
    with shop(3) as federation:
        plan = federation.explain(query, label=label)
    assert plan.advice.algorithm == "newton"
    assert replace(plan, widths=(15_000, 4)).advice.algorithm == "newton"  # which sends a diagonal
    assert replace(plan, widths=(30_000, 4)).advice.algorithm == "sgd"
    assert isinstance(plan, tp.Plan)


def test_neither_costs_nor_advice_name_what_refuses_the_loss() -> None:
    label, query = LABELS["linear"]
    with shop(1, 1) as federation:
        plan = federation.explain(query, label=label, model="quantile")
        for cost in plan.costs:
            federation.explain(query, label=label, model="quantile", algorithm=cost.algorithm)
    assert "newton" not in {cost.algorithm for cost in plan.costs}
    assert (plan.advice.algorithm, "hundred rounds" in plan.advice.why) == ("admm", True)


def test_a_network_of_very_many_rounds_is_warned_of_with_settings_that_take_fewer() -> None:
    label, query = LABELS["logistic"]
    with shop(1) as federation:
        plan = federation.explain(query, label=label, model="mlp", batch_size=8, epochs=29)
        many, trees = plan.remarks
        size = int(many.split("batch_size=")[1].split(",")[0])
        fewer = federation.explain(query, label=label, model="mlp", batch_size=size, epochs=29)
    assert f"about {plan.cost('sgd', 29).rounds:,} rounds" in many
    assert f"there are {fewer.cost('sgd', 29).rounds:,};" in many
    assert 'model="boosted"' in trees
    assert fewer.remarks == []
