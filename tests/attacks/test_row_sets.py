"""Few rows: jobs that differ by a person, conditions that pick one out, splits that hold one back: none is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.errors import ApprovalError, PolicyError
from tablepuppet.owner.owner_files import Approvals
from tablepuppet.owner.owner_log import OwnerLog
from tablepuppet.owner.policy import Policy, TableRules
from tablepuppet.owner.row_sets import RowSet, RowSets
from tablepuppet.protocol.contract import Contract

ROWS = 600
FEATURES = ["age", "income", "delay"]
QUERY = "SELECT p.age, p.income, p.delay, p.late FROM people p"


def people(seed: int = 3) -> pa.Table:
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {"id": np.arange(ROWS), "zip": random.integers(0, 6, ROWS)}
    columns |= {name: random.normal(size=ROWS) for name in FEATURES}
    return pa.table(columns | {"late": random.normal(size=ROWS)})


def federation(**rules: Any) -> tp.Federation:
    return tp.Federation({"people": people()}, policies={"people": Policy(**({"minimum_rows": 50} | rules))})


def train(owners: tp.Federation, where: str = "", **options: Any) -> tp.Result:
    given: dict[str, Any] = {"label": "late", "algorithm": "newton", "epochs": 3, "test_fraction": 0.0} | options
    return owners.train(QUERY + where, **given)


def second_moments(result: tp.Result) -> list[Any]:
    """What an analyst has of the rows: means and spreads of every feature, from the model's encoders."""
    (block,) = result.model.blocks
    return [(float(e.mean[0]), float(e.scale[0])) for e in block.encoders]  # type: ignore[union-attr]


def read_row(every: tp.Result, without: tp.Result) -> list[float]:
    """Attack: the features of the one row by which two jobs differ."""
    pairs = zip(second_moments(every), second_moments(without), strict=True)
    return [ROWS * a - (ROWS - 1) * b for (a, _), (b, _) in pairs]


def test_two_jobs_without_rules_differ_by_a_person_whose_features_the_analyst_reads() -> None:
    """Keeps the documentation honest: an owner without rules is not protected."""
    with tp.Federation({"people": people()}) as owners:
        found = read_row(train(owners), train(owners, " WHERE p.id <> 7"))
    assert found == pytest.approx([people()[name][7].as_py() for name in FEATURES], abs=1e-9)


@pytest.mark.parametrize(
    "where",
    {
        "not one": "p.id <> 7",
        "not one, in other words": "NOT (p.id BETWEEN 7 AND 7)",
        "two halves": "p.id < 7 OR p.id > 7",
        "by a combination": "NOT (p.zip = 3 AND p.id >= 7 AND p.id <= 7)",
        "a few": "p.id >= 20",
        "one of many": "p.id BETWEEN 100 AND 400 OR (p.id = 5 AND p.delay > 0.3)",
        "as a tracker": "(p.id >= 5 OR p.id > 300) AND (p.id <= 5 OR p.id > 300) AND (p.delay > 0.3 OR p.id > 300)",
        "by arithmetic": "least(abs(p.id - 250.0) - 150.5, abs(p.id - 5) * 1e9 - p.delay + 0.3) < 0",
        "by a case": "CASE WHEN p.id = 5 THEN p.delay > 0.3 ELSE TRUE END",
        "by a null": "nullif(p.id, 7) IS NOT NULL",
    }.values(),
)
def test_conditions_that_pick_out_few_rows_are_refused(where: str) -> None:
    with federation() as owners:
        for verb in (owners.train, owners.explain):
            with pytest.raises(PolicyError, match=r"rule minimum_rows"):
                verb(f"{QUERY} WHERE {where}", label="late", test_fraction=0.0)
        with pytest.raises(PolicyError, match=r"rule minimum_rows"):
            owners.profile(f"{QUERY} WHERE {where}", label="late")
        log = owners._clients["people"].log.entries
    assert [entry.event for entry in log].count("refused") == 3
    assert not [entry for entry in log if entry.event in ("agreed", "disclosed")]


@pytest.mark.parametrize("x", [-3.0, -0.5, 0.0, 0.5, 3.0])
def test_the_answer_to_a_count_does_not_depend_on_the_person(x: float) -> None:
    """Whether a person's delay is larger than x shows neither in a count nor in the refusal."""
    with federation() as owners, pytest.raises(PolicyError) as refused:
        owners.explain(f"{QUERY} WHERE p.id BETWEEN 100 AND 148 OR (p.id = 5 AND p.delay > {x})", label="late")
    with federation() as owners, pytest.raises(PolicyError) as other:
        owners.explain(f"{QUERY} WHERE p.id BETWEEN 100 AND 148 OR (p.id = 5 AND p.delay > 99)", label="late")
    assert str(refused.value) == str(other.value)


def test_rows_that_differ_by_few_from_those_of_an_earlier_job_are_refused() -> None:
    ranges = [(0, 299), (0, 300), (1, 299), (5, 310)]
    with federation() as owners:
        train(owners, " WHERE p.id BETWEEN 0 AND 299")
        train(owners, " WHERE p.id BETWEEN 0 AND 299", epochs=2)  # the same rows again
        train(owners, " WHERE p.id BETWEEN 100 AND 399")  # many others
        for low, high in ranges[1:]:
            with pytest.raises(PolicyError, match=r"differ from those of an earlier agreed job by fewer than 50"):
                owners.explain(f"{QUERY} WHERE p.id BETWEEN {low} AND {high}", label="late", test_fraction=0.0)
        client = owners._clients["people"]
        kept = {name for (name,) in client.row_sets._open_database().execute("SELECT name FROM sets")}
    agreed = [entry for entry in client.log.entries if entry.event == "agreed"]
    assert len(agreed) == 3
    names = {name for entry in agreed for name in entry.detail["rows"].values()}
    assert len(names) == 2
    assert not names & kept  # the log's head is shown: who knows all rows but one could guess that one by their names


def test_a_list_of_keys_with_one_more_is_noticed_whatever_else_is_asked() -> None:
    many = ", ".join(str(i) for i in range(100, 400))
    with federation() as owners:
        train(owners, f" WHERE p.id IN ({many}) AND p.delay > 0")
        for x in (-9.0, 0.0):
            with pytest.raises(PolicyError, match=r"minimum_difference|minimum_rows"):
                train(owners, f" WHERE p.id IN ({many}, 5) AND p.delay > {x}")


@pytest.mark.parametrize(
    "options",
    [
        {"test_where": "p.id = 6"},
        {"test_where": "p.id BETWEEN 0 AND 20"},
        {"validation_where": "p.id = 6"},
        {"test_fraction": 0.002},
    ],
)
def test_few_rows_are_not_held_back_for_a_metric_that_tells_of_them(options: dict[str, Any]) -> None:
    with federation() as owners, pytest.raises(PolicyError, match="rule minimum_rows"):
        train(owners, **options)


def test_splits_that_differ_by_few_rows_are_refused() -> None:
    with federation() as owners:
        train(owners, test_fraction=0.3)
        train(owners, test_fraction=0.3, seed=1)
        with pytest.raises(PolicyError, match="minimum_difference"):
            train(owners, test_fraction=0.302)


def test_rows_that_another_owners_filter_takes_out_of_the_join_are_noticed() -> None:
    places = pa.table({"zip": np.arange(60), "wealth": np.random.default_rng(1).normal(size=60)})
    one_each = people().set_column(1, "zip", pa.array(np.arange(ROWS) % 60))
    query = "SELECT p.age, q.wealth, p.late FROM people p JOIN places q ON p.zip = q.zip"
    policies = {"people": Policy(minimum_rows=50)}
    with tp.Federation({"people": one_each, "places": places}, policies=policies) as owners:
        owners.train(query, label="late", epochs=2, test_fraction=0.0)
        with pytest.raises(PolicyError, match=r"client people.*minimum_difference"):
            owners.train(query + " WHERE q.zip <> 3", label="late", epochs=2, test_fraction=0.0)


@pytest.mark.parametrize("keys", [[7], [7, 8]], ids=["one", "two, each less than half"])
def test_a_key_that_another_owner_repeats_does_not_make_means_one_persons(keys: list[int]) -> None:
    """An owner who works with the analyst named one person's key so often that the others hardly counted."""
    often = np.concatenate([np.arange(ROWS), np.repeat(keys, 200 * ROWS // len(keys))])
    visits = pa.table({"person": often, "cost": np.random.default_rng(1).normal(size=len(often))})
    query = "SELECT p.age, p.delay, v.cost FROM visits v JOIN people p ON v.person = p.id"
    given: dict[str, Any] = {"label": "cost", "epochs": 1, "test_fraction": 0.0}
    with tp.Federation({"people": people(), "visits": visits}) as owners:
        result = owners.train(query, **given)
        encoder: Any = next(block for block in result.model.blocks if block.table == "people").encoders[1]
        theirs = np.mean([people()["delay"][key].as_py() for key in keys])
        assert encoder.mean[0] == pytest.approx(theirs, abs=0.03)
    policies = {"people": Policy(minimum_rows=50)}
    with tp.Federation({"people": people(), "visits": visits}, policies=policies) as owners:
        for verb in (owners.train, owners.explain):
            with pytest.raises(PolicyError, match=r"client people.*are most of all joined rows.*minimum_rows"):
                verb(query, **given)
    fair = visits[: ROWS + ROWS // 50]  # that person counts more than others, and little beside all of them
    with tp.Federation({"people": people(), "visits": fair}, policies=policies) as owners:
        owners.train(query, **given)


def test_a_weight_or_feature_that_is_zero_for_all_but_one_is_refused() -> None:
    with federation() as owners:
        with pytest.raises(PolicyError, match="rule minimum_rows"):
            train(owners, weight="CASE WHEN p.id = 7 THEN 0 ELSE 1 END")
        with pytest.raises(PolicyError, match="rule minimum_rows"):
            owners.train("SELECT CASE WHEN p.id = 7 THEN p.age ELSE 0 END AS x, p.late FROM people p", label="late")


def test_a_subquerys_conditions_count_too() -> None:
    inner = "(SELECT id, age, delay, late FROM people WHERE id <> 7)"
    grouped = "(SELECT zip, avg(age) AS age, avg(late) AS late FROM people WHERE id <> 7 GROUP BY zip)"
    having = (
        "(SELECT id, avg(age) AS age, avg(late) AS late FROM people GROUP BY id HAVING max(delay) > 0 OR min(id) > 9)"
    )
    with federation() as owners:
        for query in (inner, grouped, having):
            with pytest.raises(PolicyError, match="rule minimum_rows"):
                owners.train(f"SELECT q.age, q.late FROM {query} q", label="late", test_fraction=0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"feature": "pow(0, abs(p.id - 7)) * p.delay + p.age"},
        {"feature": "p.delay * strpos(',7,', ',' || p.id || ',')"},
        {"weight": "1 - pow(0, abs(p.id - 7))"},
        {"feature": "p.delay * pow(0, abs(p.id - 7))", "label": "f"},
    ],
)
def test_arithmetic_picks_no_row_out_of_a_sum_over_all(options: dict[str, Any]) -> None:
    """The mean in an encoder, or the intercept, was one person's delay."""
    feature, given = options.pop("feature", "p.income"), {"label": "late"} | options
    with tp.Federation({"people": people()}) as owners:
        result = owners.train(
            f"SELECT {feature} AS f, p.age, p.late FROM people p", test_fraction=0.0, epochs=2, **given
        )
        if not options:
            (f, _), (age, _) = second_moments(result)
            hidden = ROWS * (f - age if "age" in feature else f)
            assert hidden == pytest.approx(people()["delay"][7].as_py(), abs=1e-9)
    with federation() as owners:
        for verb in (owners.train, owners.explain):
            with pytest.raises(PolicyError, match=r"tells of fewer than 50 rows.*rule minimum_rows"):
                verb(f"SELECT {feature} AS f, p.age, p.late FROM people p", test_fraction=0.0, **given)


@pytest.mark.parametrize(
    "query",
    {
        "an order": "SELECT id, age, delay, late FROM people ORDER BY delay LIMIT 100",
        "two pieces": "(SELECT id, age, delay, late FROM people ORDER BY id LIMIT 7) UNION ALL "
        "(SELECT id, age, delay, late FROM people ORDER BY id LIMIT 592 OFFSET 8)",
        "the rest": "SELECT age, delay, late FROM people EXCEPT SELECT age, delay, late FROM people WHERE id = 7",
        "a value": "SELECT id, age, (SELECT max(delay) FROM people) AS delay, late FROM people",
        "a window": "SELECT age, first_value(delay) OVER (ORDER BY abs(id - 7)) AS delay, late FROM people",
        "a neighbour": "SELECT a.age, b.delay, a.late FROM people a JOIN people b ON a.id = b.id + 1",
        "few of many": "SELECT a.age, b.delay, a.late FROM people a JOIN people b ON a.zip = b.id GROUP BY ALL",
        "an extreme": "SELECT p.age, q.d AS delay, p.late FROM people p, (SELECT min_by(delay, id) d FROM people) q",
        "a sum": "SELECT zip, age, late, sum(delay * pow(0, abs(id - 7))) AS delay FROM people GROUP BY zip, age, late",
        "another name": "SELECT a.age, a.delay, a.late FROM "
        "(SELECT abs(sign(id - 7)) AS age, delay, late FROM people) a WHERE a.age > 0",
        "a truth": "SELECT age, delay, late, count(*) FROM people WHERE (id - 7)::BOOLEAN GROUP BY age, delay, late",
    }.values(),
)
def test_a_subquery_picks_no_row_out_by_other_means_than_comparing(query: str) -> None:
    with federation() as owners, pytest.raises(PolicyError, match="rule minimum_rows"):
        owners.explain(f"SELECT q.age, q.delay, q.late FROM ({query}) q", label="late", test_fraction=0.0)


def test_honest_expressions_and_groups_pass() -> None:
    grouped = (
        "SELECT id // 3 AS trio, avg(age) AS age, max(delay) AS delay, sum(late) AS late FROM people GROUP BY id // 3"
    )
    with federation() as owners:
        train(owners, weight="1 + abs(p.delay)")
        owners.train("SELECT p.age * p.income AS a, exp(p.delay) AS b, p.late FROM people p", label="late", epochs=2)
        owners.explain(f"SELECT q.age, q.delay, q.late FROM ({grouped}) q", label="late", test_fraction=0.0)


def test_rows_to_predict_are_chosen_by_their_keys_only() -> None:
    """Whether a row is among the predictions would tell a feature of it."""
    with federation() as owners:
        result = train(owners)
        with pytest.raises(PolicyError, match="not on column delay"):
            owners.predict(result, QUERY + " WHERE p.delay > 0.3", key="id")


def test_an_owner_may_grant_filters_and_a_smaller_difference() -> None:
    columns = {"people": TableRules(features=("age", "income", "delay"), keys=("id",), labels=("late",))}
    with federation(tables=columns) as owners, pytest.raises(PolicyError, match=r"delay may not be filtered by"):
        train(owners, " WHERE p.delay > 0")
    with federation(minimum_difference=1) as owners:
        train(owners, " WHERE p.id BETWEEN 0 AND 299")
        train(owners, " WHERE p.id BETWEEN 0 AND 300")


def test_a_person_may_approve_rows_that_a_rule_refuses_and_another_contract_needs_another_approval() -> None:
    with federation() as owners:
        approvals = owners._clients["people"].approvals
        train(owners)
        with pytest.raises(PolicyError):
            train(owners, " WHERE p.id <> 7")
        (contract,) = approvals.waiting()
        assert any("fewer than 50" in note for note in approvals.notes(contract))
        approvals.decide(contract.hash, is_approved=True, scope="once")
        train(owners, " WHERE p.id <> 7")
        with pytest.raises(PolicyError):
            train(owners, " WHERE p.id <> 7")
    with federation(ask=True) as owners:
        approvals = owners._clients["people"].approvals
        for where in ("", " WHERE p.id <> 7"):
            with pytest.raises(ApprovalError, match="waits for a person"):
                train(owners, where)
            (contract,) = approvals.waiting()
            approvals.decide(contract.hash, is_approved=True)
            train(owners, where)


def test_an_approval_covers_the_objections_that_were_shown() -> None:
    approvals, contract = Approvals(), Contract(purpose="train", asker="ann", label="y", scans=(), blocks=())
    approvals.wait(contract)
    approvals.decide(contract.hash, is_approved=True)
    assert approvals.decision(contract, "job") is not None
    assert approvals.decision(contract, "job", ("its rows differ",)) is None
    approvals.wait(contract, ("its rows differ", "few rows"))
    assert approvals.waiting() == [contract]
    approvals.decide(contract.hash, is_approved=True)
    assert approvals.decision(contract, "job", ("few rows",)) is not None


def test_row_sets_outlive_the_process_and_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    keys = np.random.default_rng(0).integers(0, 2**62, 5000).astype(np.uint64)
    path = tmp_path / "state" / "row_sets.sqlite"
    first = RowSets(path)
    first.keep([RowSet("people", "rows", first.sketch(keys, 50))])
    again = RowSets(path)
    assert again.nearest("people", "rows", keys, 50) is None
    assert again.nearest("people", "rows", keys[3:], 50) == 3
    assert again.nearest("people", "rows", keys[50:], 50) is None
    assert again.nearest("people", "rows", keys[70:], 100) == 70  # a stricter policy later on
    assert path.stat().st_mode & 0o077 == 0
    assert path.stat().st_size < 40_000


def test_folds_of_a_search_are_rows_that_a_job_is_about() -> None:
    """Each is held out of a model, and left out of all others: few rows in one, or two searches that differ by few."""
    given: dict[str, Any] = {"label": "late", "epochs": 2, "test_fraction": 0.0}
    with federation() as owners:
        tp.search(owners, QUERY, {"l2": [0.1, 1.0]}, folds=3, **given)
        with pytest.raises(PolicyError, match=r"a fold would have fewer than 50 rows of people.*minimum_rows"):
            tp.search(owners, QUERY, {"l2": [0.1]}, folds=20, **given)
        tp.search(owners, QUERY, {"l2": [0.5]}, folds=3, **given)  # the same rows again
    with federation() as owners:
        tp.search(owners, QUERY, {"l2": [0.1]}, folds=3, time="p.id", **given)  # the first of four are ids below 150
        with pytest.raises(PolicyError, match=r"differ from those of an earlier.*minimum_difference"):
            train(owners, test_where="p.id < 155")


@pytest.mark.parametrize("lost", ["deleted", "older"])
def test_lost_row_sets_are_noticed_by_the_log_and_accepted_by_a_person(tmp_path: Path, lost: str) -> None:
    sets, lines = tmp_path / "row_sets.sqlite", tmp_path / "log.jsonl"

    def explain(where: str) -> None:
        with federation() as owners:
            client = owners._clients["people"]
            client.secret, client.row_sets, client.log = bytes(32), RowSets(sets), OwnerLog(lines)
            owners.explain(f"{QUERY} {where}", label="late", test_fraction=0.0)

    explain("")
    older = sets.read_bytes()
    explain("WHERE p.id < 300")
    explain("WHERE p.id < 300")
    sets.unlink() if lost == "deleted" else sets.write_bytes(older)
    for where in ("WHERE p.id < 299", ""):
        with pytest.raises(PolicyError, match=r"row_sets.sqlite was deleted or restored.*tablepuppet log accept"):
            explain(where)
    OwnerLog(lines).accept(OwnerLog(lines).head)
    explain("")
