"""Few rows told apart by what they have, not by a condition: rare values, classes, leaves, quantiles, partners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.errors import PolicyError, PrivacyError
from tablepuppet.owner.policy import Policy
from tablepuppet.privacy.analyst import AnalystBudget
from tablepuppet.privacy.ledger import TableBudget

ROWS, LEAST = 600, 20


def people() -> pa.Table:
    random = np.random.default_rng(1)
    is_one = np.arange(ROWS) == 7
    age = random.normal(size=ROWS)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "age": age,
            "late": random.normal(size=ROWS),
            "bonus": np.where(is_one, 1234.5, 0.0),
            "kind": np.where(is_one, "her", random.choice(["these", "those"], ROWS)),
            "blank": pa.array(np.where(is_one, np.nan, age), from_pandas=True),
            "lost": pa.array([None if k == 7 else "found" if k % 2 else "kept" for k in range(ROWS)]),
            "bad": random.integers(0, 2, ROWS),
            "one": is_one.astype(int),
            "exact": pa.array(is_one.astype(int)).cast(pa.decimal128(20, 1)).cast(pa.decimal128(11, 1)),
            "group": np.where(is_one, 2, random.integers(0, 2, ROWS)),
        }
    )


def federation(least: int = LEAST, **tables: Any) -> tp.Federation:
    policies = {"people": Policy(minimum_rows=least)}
    return tp.Federation({"people": people(), **tables}, policies=policies)


def train(owners: tp.Federation, columns: str, label: str = "late", **options: Any) -> tp.Result:
    given: dict[str, Any] = {"label": label, "test_fraction": 0.0} | options
    return owners.train(f"SELECT {columns} FROM people p", **given)


def late() -> float:
    return float(people()["late"][7].as_py())


def test_a_number_that_is_the_same_in_all_rows_but_few_is_no_feature_or_weight() -> None:
    """Its mean is one person's bonus, and its weight what is learned of her label."""
    with federation(1) as owners:
        result = train(owners, "p.bonus, p.age, p.late")
        encoder: Any = result.model.blocks[0].encoders[0]
        assert ROWS * encoder.mean[0] == pytest.approx(1234.5)
    with federation() as owners:
        for verb in (owners.train, owners.explain):
            with pytest.raises(PolicyError, match=r"have the same .*bonus.*rule minimum_rows"):
                verb("SELECT p.bonus, p.age, p.late FROM people p", label="late", test_fraction=0.0)
        with pytest.raises(PolicyError, match="rule minimum_rows"):
            train(owners, "p.age, p.late", weight="p.bonus + 1")


@pytest.mark.parametrize("column", ["kind", "blank", "lost"])
def test_few_rows_without_a_value_or_with_other_names_have_no_column_of_their_own(column: str) -> None:
    """The column's weight would be how far that person's label is from the others'."""

    def told(owners: tp.Federation) -> float:
        """What the model says of her beyond what it says of somebody else who is like her otherwise."""
        result = train(owners, f"p.{column}, p.late", l2=0.0)
        return float(owners.predict(result, key="id").to_pandas().set_index("id")["prediction"][7])

    with federation(1) as owners:
        assert told(owners) == pytest.approx(late(), abs=1e-6)
    with federation() as owners:
        result = train(owners, f"p.{column}, p.late", l2=0.0)
        (encoder,) = result.model.blocks[0].encoders
        assert not encoder.has_missing
        assert not getattr(encoder, "has_other", False)
        assert abs(told(owners) - late()) > 0.1


@pytest.mark.parametrize(
    ("label", "options"),
    [
        ("kind", {}),
        ("one", {}),
        ("exact", {"model": "logistic"}),
        ("group", {"model": "softmax"}),
        ("one", {"algorithm": tp.Boosting(min_child_weight=5)}),
    ],
)
def test_a_class_of_few_rows_is_not_learned(label: str, options: dict[str, Any]) -> None:
    """Its name would leave, and its weights would be that person's features."""
    with federation() as owners:
        for verb in (owners.train, owners.explain):
            with pytest.raises(PolicyError, match=r"some class of the label.*rule minimum_rows") as refused:
                verb(f"SELECT p.age, p.{label} FROM people p", label=label, test_fraction=0.0, **options)
            assert "her" not in str(refused.value).split()
        train(owners, "p.age, p.bad", "bad", epochs=2)


def test_leaves_of_trees_have_so_many_rows() -> None:
    """A leaf of one row is that row's label."""
    with federation() as owners:
        for verb in (owners.train, owners.explain):
            with pytest.raises(PolicyError, match=r"min_child_weight=20 .rule minimum_rows"):
                verb("SELECT p.age, p.late FROM people p", label="late", model="boosted", trees=2)
        result = train(owners, "p.age, p.late", model="boosted", trees=2, min_child_weight=20)
        assert owners.predict(result, key=[])["prediction"].value_counts().field("counts").to_numpy().min() >= LEAST


@pytest.mark.parametrize("quantile", [0.001, 0.99])
def test_a_quantile_beyond_which_few_labels_lie_is_refused(quantile: float) -> None:
    """The last one is the largest label, whoever has it."""
    with federation() as owners:
        given: dict[str, Any] = {"label": "late", "model": "quantile", "algorithm": "admm", "epochs": 5}
        for verb in (owners.train, owners.explain):
            with pytest.raises(PolicyError, match=r"beyond this quantile.*rule minimum_rows"):
                verb("SELECT p.age, p.late FROM people p", quantile=quantile, **given)
        owners.train("SELECT p.age, p.late FROM people p", quantile=0.9, **given)


def visits(times: Any) -> pa.Table:
    person = np.repeat(np.arange(ROWS), times)
    return pa.table({"person": person, "cost": np.random.default_rng(2).normal(size=len(person))})


def test_two_joins_that_meet_all_rows_but_one_twice_as_often_are_not_both_answered() -> None:
    """Every row is met another number of times, and yet the two means differ by one row's value."""
    query = "SELECT p.age, v.cost FROM {} v JOIN people p ON v.person = p.id"
    given: dict[str, Any] = {"label": "cost", "epochs": 2, "test_fraction": 0.0}
    twice = np.where(np.arange(ROWS) == 7, 1, 2)
    tables = {"once": visits(np.ones(ROWS, int)), "twice": visits(twice)}

    def mean(owners: tp.Federation, table: str) -> float:
        result = owners.train(query.format(table), **given)
        encoder: Any = next(block for block in result.model.blocks if block.table == "people").encoders[0]
        return float(encoder.mean[0])

    with federation(1, **tables) as owners:
        first, second = mean(owners, "once"), mean(owners, "twice")
        assert 2 * ROWS * first - (2 * ROWS - 1) * second == pytest.approx(people()["age"][7].as_py(), abs=1e-9)
    with federation(**tables) as owners:
        mean(owners, "once")
        with pytest.raises(PolicyError, match="minimum_difference"):
            mean(owners, "twice")


@pytest.mark.parametrize("person", [7, 7000])
def test_a_profile_does_not_tell_whether_a_few_keys_are_there(person: int) -> None:
    few = pa.table({"person": np.array([person]), "cost": np.ones(1)})
    query = "SELECT p.age, v.cost FROM few v JOIN people p ON v.person = p.id"
    with federation(1, few=few) as owners:
        assert owners.profile(query, label="cost").joins[0].left.orphans == (person != 7)
    with federation(few=few) as owners, pytest.raises(PolicyError, match=r"fewer than 20 rows of few find a partner"):
        owners.profile(query, label="cost")


def test_a_profile_compares_keys_that_every_owner_has_blinded() -> None:
    query = "SELECT p.age, v.cost FROM visits v JOIN people p ON v.person = p.id"
    tables = {"people": people(), "visits": visits(np.arange(ROWS) % 3)}
    policies = {"people": Policy(keys_need_dh=True)}
    with tp.Federation(tables) as owners:
        plain = owners.profile(query, label="cost")
    with tp.Federation(tables, policies=policies) as owners:
        with pytest.raises(PolicyError, match=r'use privacy=.*"keys": "dh"'):
            owners.profile(query, label="cost")
        assert owners.profile(query, label="cost", privacy={"keys": "dh"}) == plain


def test_a_label_that_a_partner_repeats_is_not_learned_by_itself() -> None:
    """The labels' table has no features, so that its owner has no part to count: without the rule, the model's constant
    is one person's label."""
    random = np.random.default_rng(0)
    labels = pa.table({"k": np.arange(200), "y": random.normal(size=200)})
    keys = np.concatenate([np.arange(200), np.full(20_000, 7)])  # the analyst's own table
    tables = {"t": labels, "own": pa.table({"k": keys, "x": random.normal(size=len(keys))})}
    query = "SELECT own.x, t.y FROM t JOIN own ON t.k = own.k"
    given: dict[str, Any] = {"label": "y", "algorithm": "newton", "epochs": 2, "test_fraction": 0.0}
    with tp.Federation(tables) as federation:
        constant = float(federation.train(query, **given).encoded_intercept[0])
        assert constant == pytest.approx(labels["y"][7].as_py(), abs=0.02)
    strict = {"t": Policy(minimum_rows=20)}
    refusal = pytest.raises(PolicyError, match="joined count as fewer than 20")
    with tp.Federation(tables, policies=strict) as federation, refusal:
        federation.train(query, **given)


def test_leaves_of_two_trainings_with_other_bins_differ_by_a_row_unless_features_have_a_budget() -> None:
    """A guard rail does not stop it (docs/guard-rails.md); noise does."""
    random = np.random.default_rng(1)
    x = np.sort(random.uniform(0, 1, 120))
    tables = {"t": pa.table({"x": x, "y": random.normal(size=120)})}
    trees: dict[str, Any] = {"label": "y", "model": "boosted", "trees": 1, "depth": 1, "test_fraction": 0.0}
    for policy, is_refused in ((Policy(), False), (Policy(budget={"t": TableBudget(features=2.0)}), True)):
        with tp.Federation(tables, policies={"t": policy}) as federation:
            if is_refused:
                with pytest.raises(PolicyError, match="features of t have a budget"):
                    federation.train("SELECT t.x, t.y FROM t", bins=7, **trees)
            else:
                found = [federation.train("SELECT t.x, t.y FROM t", bins=bins, **trees) for bins in (5, 6, 7, 8)]
                leaves = {tuple(tree.value) for result in found for output in result.trees for tree in output}
                assert len(leaves) > 1


@pytest.mark.parametrize("is_there", [False, True])
def test_known_keys_and_an_exact_size_tell_of_one_more_unless_it_has_an_analyst_budget(is_there: bool) -> None:
    """The analyst has the keys of enough people, and one whose membership it wants to know."""
    people_and_one = [*range(LEAST), 599 if is_there else 1000]
    known = pa.table({"person": people_and_one, "y": [n % 2 for n in range(LEAST + 1)]})
    query = "SELECT p.age, k.y = 1 AS y FROM known k JOIN people p ON k.person = p.id"
    asked: dict[str, Any] = {"label": "y", "model": "boosted", "splits": "random", "test_fraction": 0.0}
    with federation(known=known) as owners:
        assert owners.explain(query, **asked).mapping.joined_rows == LEAST + is_there
    budget = {"people": TableBudget(analyst=AnalystBudget(epsilon=2.0))}
    asked |= {"privacy": {"analyst": {"epsilon": 1.0, "bounds": {"age": (-3, 3)}}}}
    policies = {"people": Policy(minimum_rows=LEAST, budget=budget)}
    with (
        tp.Federation({"people": people(), "known": known}, policies=policies) as owners,
        pytest.raises(PrivacyError, match="too few for its noise"),
    ):
        owners.explain(query, **asked)
