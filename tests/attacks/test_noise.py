"""Attacks on what leaves under noise: repeated draws, exact figures beside it, digits of noise, uncounted rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.attacks.meddler import QUERY, shop

import tablepuppet as tp
from tablepuppet.errors import JobError, PolicyError
from tablepuppet.exchanges.features import FeatureStatistics
from tablepuppet.exchanges.labels import DescribeLabels, Labels, LabelSummary, SendLabels
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.schema import CloseJob, OpenScan
from tablepuppet.owner.policy import LabelRules, Policy
from tablepuppet.privacy.gaussian import noised, secure_generator
from tablepuppet.privacy.options import LabelPrivacy
from tablepuppet.protocol.contract import Column, Contract, ScanTerms

PRIVATE = {"epsilon": 5.0, "cap": 50, "bounds": {"price": (-3, 3), "amount": (-3, 3)}}


def noisy_labels(
    federation: tp.Federation, filter: str, label: str = '"y"', classes: tuple[float, ...] = (0.0, 1.0)
) -> dict[int, float]:
    """The labels that leave under a filter, by what the owner knows a row as."""
    client, job = federation._clients["orders"], filter
    privacy = LabelPrivacy(epsilon=1.0)
    terms = ScanTerms(0, "orders", (Column('"id"', ("key",)), Column(label, ("label",))), filter)
    contract = Contract(
        purpose="train", asker="s", label="y", scans=(terms,), blocks=(), label_privacy=privacy, wants_classes=True
    )
    client.answer(OpenScan(job=job, scan=0, table="orders", columns=['"id"', label], filter=filter))
    client.answer(ProposeContract(job=job, contract=contract))
    ask: dict[str, Any] = {"offset": 0, "classes": list(classes)}
    answer = client.answer(SendLabels(job=job, scan=0, column=1, **ask))
    assert isinstance(answer, Labels)
    ids = client.tables.scan(job, 0).rows().column("c0").to_pylist()
    client.answer(CloseJob(job=job))
    return dict(zip(ids, [classes[int(value)] for value in answer.values], strict=True))


def test_a_row_has_one_noisy_label_under_any_filter_and_any_spelling() -> None:
    with tp.Federation(shop()) as federation:
        drawn = [noisy_labels(federation, f'"id" > {-k - 1}') for k in range(15)]
        drawn.append(noisy_labels(federation, '"id" >= 50'))
        drawn.append(noisy_labels(federation, '"id" >= 0', '"y" + 0'))
    votes: dict[int, set[float]] = {}
    for labels in drawn:
        for row, value in labels.items():
            votes.setdefault(row, set()).add(value)
    assert all(len(seen) == 1 for seen in votes.values())  # averaging over branches or jobs tells nothing more


def test_almost_equal_epsilons_do_not_draw_labels_again() -> None:
    with tp.Federation(shop()) as federation, pytest.raises(JobError, match=r"multiple of 0\.01"):
        federation.train(QUERY, label="y", model="logistic", privacy={"label": {"epsilon": 1.000001}})


def test_values_of_a_private_number_do_not_leave_to_choose_a_model() -> None:
    tables = shop()
    orders = tables["orders"].set_column(4, "y", pa.array(np.random.default_rng(0).normal(size=200)))
    with tp.Federation({**tables, "orders": orders}) as federation:
        told: list[Any] = []
        client = federation._clients["orders"]
        answer = client.answer
        client.answer = lambda message: told.append((message, found := answer(message))) or found  # type: ignore[method-assign, func-returns-value]
        federation.explain(QUERY, label="y", privacy={"label": {"epsilon": 1.0, "bounds": (-3, 3)}})
    summary = next(found for message, found in told if isinstance(message, DescribeLabels))
    assert summary.classes == []


@pytest.mark.parametrize("given", [{"test_where": "y = 1"}, {"weight": "y"}], ids=str)
def test_a_label_under_noise_is_not_counted_by_a_split_or_a_weight(given: dict[str, Any]) -> None:
    with tp.Federation(shop()) as federation, pytest.raises(PolicyError, match="labels leave under noise only"):
        federation.train(QUERY, label="y", model="logistic", privacy={"label": {"epsilon": 1.0}}, **given)


@pytest.mark.parametrize(
    ("query", "way"),
    [
        (f"{QUERY} JOIN orders p ON o.id = p.id WHERE p.y = 1", "a filter"),
        (f"{QUERY} JOIN orders p ON o.id = p.id".replace("i.price", "p.y AS other"), "a feature"),
        ("SELECT o.amount, i.price, o.y FROM orders o JOIN items i ON o.y = i.item", "a join key"),
        ("SELECT o.y * o.amount AS x, i.price, o.y FROM orders o JOIN items i ON o.item = i.item", "a feature"),
    ],
)
def test_a_label_under_noise_leaves_by_no_other_way(query: str, way: str) -> None:
    with tp.Federation(shop()) as federation, pytest.raises(PolicyError, match=f"column y is also {way}"):
        federation.train(query, label="y", model="logistic", privacy={"label": {"epsilon": 1.0}})


def test_a_filter_on_the_label_is_refused_under_noise_unless_its_owner_grants_it(tmp_path: Path) -> None:
    query = f"{QUERY} WHERE o.y = 1 OR o.amount > 0"
    given: dict[str, Any] = {"label": "y", "model": "logistic", "privacy": {"label": {"epsilon": 1.0}}}
    with tp.Federation(shop()) as federation, pytest.raises(PolicyError, match="column y is also a filter"):
        federation.explain(query, **given)
    (tmp_path / "p.toml").write_text(
        '[tables.orders]\nfeatures = ["amount"]\nkeys = ["item"]\nlabels = ["y"]\nfilters = ["y", "amount"]\n'
    )
    with tp.Federation(shop(), policies={"orders": tmp_path / "p.toml"}) as federation:
        federation.explain(query, **given)


@pytest.mark.parametrize("rules", ["[labels]\nepsilon = 1.0\n", "[budget.orders]\nlabel = 1.0\n"])
def test_another_job_does_not_read_as_something_else_what_left_as_a_noisy_label(rules: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(rules)
    noisy = {"label": {"epsilon": 1.0}}
    plain = "SELECT o.amount, i.price, i.colour, o.id % 2 AS z FROM orders o JOIN items i ON o.item = i.item"
    with tp.Federation(shop(), policies={"orders": path}) as federation:
        federation.explain(QUERY, label="y", model="logistic", privacy=noisy)
        federation.profile(plain)
        others = {"o.amount": "o.amount + o.y AS amount", "o.item = i.item": "o.item + o.y = i.item"}
        for query in (plain + " WHERE o.y = 1", *(plain.replace(*pair) for pair in others.items())):
            with pytest.raises(PolicyError, match="labels made of column y left under noise"):
                federation.explain(query, label="z", model="logistic", privacy=noisy)
        with pytest.raises(PolicyError, match="labels made of column y left under noise"):
            federation.profile(plain + " WHERE o.y = 1")
        path.write_text(rules + '[tables.orders]\nfeatures = ["amount", "y"]\nlabels = ["y"]\nkeys = ["item"]\n')
        with tp.Federation(shop(), policies={"orders": path}) as granted:
            granted.explain(QUERY, label="y", model="logistic", privacy=noisy)
            granted.profile(QUERY)


def test_rows_to_predict_are_not_chosen_by_a_label_that_leaves_under_noise_only() -> None:
    """Whether a row is among the predictions would be its label."""
    strict = {"orders": Policy(labels=LabelRules(epsilon=1.0))}
    given: dict[str, Any] = {"label": "y", "model": "logistic", "privacy": {"label": {"epsilon": 1.0}}}
    for policies, is_refused in ((None, False), (strict, True)):
        with tp.Federation(shop(), policies=policies) as federation:
            result = federation.train(QUERY, **given)
            if is_refused:
                with pytest.raises(PolicyError, match="not on column y"):
                    federation.predict(result, f"{QUERY} WHERE o.y = 1", key="id")
                assert federation.predict(result, key="id").num_rows == 200
            else:
                shown = federation.predict(result, f"{QUERY} WHERE o.y = 1", key="id")
                assert shown.num_rows == int(np.sum(shop()["orders"]["y"].to_numpy()))


def test_other_ways_to_write_a_label_draw_it_no_more_often_than_its_owner_allows() -> None:
    """1 − y, and y among more classes, are drawn anew: many of them would vote."""
    ways = ["o.y", "1 - o.y", "o.y + 2 * (o.item % 2)", "o.y + 2 * (o.item % 3)", "o.y + 2 * (o.item % 5)"]
    strict = {"orders": Policy(labels=LabelRules(epsilon=1.0))}
    label = {"epsilon": 1.0, "classes": ["0", "1", "2", "3"]}
    given: dict[str, Any] = {"label": "z", "epochs": 1, "privacy": {"label": label}}
    queries = [f"SELECT o.amount, CAST({way} AS VARCHAR) AS z FROM orders o" for way in ways]
    with tp.Federation(shop()) as federation:
        for query in queries:
            federation.train(query, **given)
        assert federation._clients["orders"].log.account.spent("orders", "label") == 5.0
    with tp.Federation(shop(), policies=strict) as federation:
        federation.train(queries[0], **given)
        for query in queries[1:]:
            for verb in (federation.train, federation.explain):
                with pytest.raises(PolicyError, match=r"rule labels\.epsilon"):
                    verb(query, **given)
        federation.train(queries[0], **given)  # nothing new


def test_a_private_models_file_holds_no_exact_figure(tmp_path: Path) -> None:
    given: dict[str, Any] = {"algorithm": "sgd", "epochs": 1, "batch_size": None}
    private = {"features": PRIVATE, "allow_reconstruction": True}
    with tp.Federation(shop()) as federation:
        result = federation.train(QUERY, label="y", model="logistic", privacy=private, **given)
        result.save(tmp_path / "model")
        assert not any(block.mean.any() for block in result.blocks)
    assert "metrics" not in tp.load(tmp_path / "model").metadata
    lines = result.privacy.lines()
    assert all("all tables' parameters" in line for line in lines)


def test_local_predictions_count_evaluation_and_every_use_of_a_table() -> None:
    private = {"predictions": {"mode": "local", "epsilon": 2.0}}
    given: dict[str, Any] = {"label": "y", "model": "logistic", "algorithm": "admm", "epochs": 3, "privacy": private}
    with tp.Federation(shop()) as federation:
        once = federation.explain(QUERY, **given)
        twice = federation.explain(
            "SELECT o.amount, i.price, j.price AS p2, o.y FROM orders o JOIN items i ON o.item = i.item "
            "JOIN items j ON o.item = j.item",
            **given,
        )
    steps = {release.table: release.steps for release in once.ledger.releases}
    assert steps["items"] == 3 + 4  # three rounds, and four evaluations
    assert {r.table: r.steps for r in twice.ledger.releases}["items"] == 2 * (3 + 4)
    for plan in (once, twice):
        assert plan.ledger.epsilon("predictions", "items", "server") <= 2.0 * (1 + 1e-3)
        [most] = {release.noise for release in plan.ledger.releases}
        for added in plan.private.noise.gradients:  # what clients add is what the ledger counts
            assert added is not None
            assert added.prediction_noise == pytest.approx(most * 2.0 * added.prediction_bound)


@pytest.mark.parametrize(
    ("other", "epsilon"), [("o.y", 1.0), ("o.y AS y", 1.0), ("1 - o.y AS y", 2.0)], ids=["same", "alias", "another"]
)
def test_a_row_whose_label_is_two_expressions_is_drawn_twice_and_counted_twice(other: str, epsilon: float) -> None:
    """Both draws are of the same label: a claim of one would be of half of what is told."""
    query = "SELECT o.amount, {} FROM orders o JOIN items i ON o.item = i.item"
    label = {"label": {"epsilon": 1.0, "classes": [0, 1]}}
    with tp.Federation(shop()) as federation:
        both = f"{query.format('o.y')} UNION ALL {query.format(other)}"
        plan = federation.explain(both, label="y", model="logistic", privacy=label)
    assert plan.private.ledger.epsilon("label", "orders", "everyone") == epsilon


def test_noise_leaves_no_digits_that_tell_of_the_value() -> None:
    values = np.random.default_rng(1).normal(size=2000)
    shown = noised(values, 0.7, secure_generator())
    grid = 2.0 ** (np.floor(np.log2(0.7)) - 30)
    assert (np.rint(shown / grid) * grid == shown).all()
    assert abs(np.std(shown - values) - 0.7) < 0.08  # seven deviations of its own


def test_what_has_a_budget_is_neither_measured_nor_scored_as_it_is(tmp_path: Path) -> None:
    """Metrics and scores are made of exact features and labels, whatever noise the model was trained with."""
    policy = tmp_path / "policy.toml"
    policy.write_text("[budget.items]\nfeatures = 10.0\n")
    privacy = {"features": PRIVATE, "allow_reconstruction": True}
    with tp.Federation(shop(), policies={"items": policy}) as federation:
        result = federation.train(QUERY, label="y", algorithm="sgd", epochs=2, batch_size=None, privacy=privacy)
        with pytest.raises(PolicyError, match=r"metrics would be computed.*budget\.items\.features"):
            federation.evaluate(result)
        with pytest.raises(PolicyError, match=r"scores would be computed.*budget\.items\.features"):
            federation.predict(result)
        log = federation._clients["items"].log.entries
    assert [entry.event for entry in log].count("refused") == 2
    told = [entry for entry in log if entry.event == "disclosed"]
    assert len(told) == 1  # of training; nothing left before the refusals
    policy.write_text("predictions = true\n[budget.items]\nfeatures = 10.0\n")
    with tp.Federation(shop(), policies={"items": policy}) as federation:
        assert federation.predict(result).num_rows == 200
        with pytest.raises(PolicyError, match="metrics would be computed"):
            federation.evaluate(result)
    policy.write_text("[budget.orders]\nlabel = 3.0\n")
    with tp.Federation(shop(), policies={"orders": policy}) as federation:
        with pytest.raises(PolicyError, match="labels of orders have a budget"):
            federation.evaluate(result)
        assert not [entry for entry in federation._clients["orders"].log.entries if entry.event == "disclosed"]


def test_a_subquery_does_not_draw_labels_anew() -> None:
    """Eight ways to write one subquery gave eight draws for the price of one."""
    with tp.Federation(shop()) as federation:
        for k in range(3):
            inner = f"(SELECT item, amount + {k} AS amount, y FROM orders)"
            query = f"SELECT o.amount, i.price, o.y FROM {inner} o JOIN items i ON o.item = i.item"
            with pytest.raises(PolicyError, match=r"draw the labels of orders anew; under label privacy"):
                federation.train(query, label="y", model="logistic", epochs=1, privacy={"label": {"epsilon": 1.0}})
            assert federation.train(query, label="y", model="logistic", epochs=1).history
        spendings = federation._clients["orders"].log.account.spendings
    assert not [spending for spending in spendings if spending.what == "label"]


SINGLE = "CASE WHEN o.id = 7 THEN o.y ELSE 0 END"


@pytest.mark.parametrize(
    ("label", "where"), [(SINGLE, ""), (f"CAST({SINGLE} AS VARCHAR)", ""), ("o.y", "WHERE o.id = 7 OR o.y0 = 0")]
)
@pytest.mark.parametrize("classes", [None, [0, 1], [0, 2]])
def test_which_classes_a_label_has_does_not_tell_of_a_row(label: str, where: str, classes: list[float] | None) -> None:
    """Without the rule the list of classes is the label of row 7, and so is an error where one is not in the list."""
    query = f"SELECT o.amount, {label} AS z FROM orders o {where}"
    told = []
    for y in (0, 1):
        orders = shop()["orders"].set_column(4, "y", pa.array(np.where(np.arange(200) == 7, y, np.arange(200) % 2)))
        orders = orders.append_column("y0", pa.array(np.arange(200) % 2))
        if classes is not None and "VARCHAR" in label:
            classes = [str(int(float(c))) for c in classes]  # type: ignore[misc]
        noise = {"epsilon": 1.0} | ({} if classes is None else {"classes": classes})
        with tp.Federation({"orders": orders}) as federation:
            try:
                plan = federation.explain(query, label="z", model="logistic", privacy={"label": noise})
                told.append(str(plan.mapping.label.classes))
            except PolicyError as error:
                told.append(str(error))
    assert told[0] == told[1]
    is_refused = classes is None and label != "o.y"
    assert ("list them" in told[0]) == is_refused


def test_how_many_labels_are_missing_is_not_told_under_noise() -> None:
    """NULLIF(y, 1) would make of that number how many rows have a 1."""
    orders, told = (
        shop()["orders"].append_column("b", pa.array([None if k % 3 else k % 2 == 0 for k in range(200)])),
        [],
    )
    labels: dict[str, dict[str, Any]] = {
        "o.b": {},
        "NULLIF(o.y, 1)": {"classes": [0, 1]},
        "CAST(NULLIF(o.y, 1) AS VARCHAR)": {"classes": ["0", "1"]},
    }
    labels |= {"o.w": {"bounds": [-1.0, 1.0]}, "o.s": {}}
    orders = orders.append_column("w", pa.array([None if k % 3 else 0.5 for k in range(200)]))
    orders = orders.append_column("s", pa.array([None if k % 3 else "ab"[k % 2] for k in range(200)]))
    for label, more in labels.items():
        with tp.Federation({"orders": orders}) as federation:
            owner = federation._clients["orders"]

            def answer(message: Any, inner: Any = owner.answer, label: str = label) -> Any:
                found = inner(message)
                told.extend([(label, found.missing)] if isinstance(found, LabelSummary) else [])
                return found

            owner.answer = answer  # type: ignore[method-assign]
            noise = {"label": {"epsilon": 1.0} | more}
            model = "linear" if "bounds" in more else "logistic"
            federation.explain(f"SELECT o.amount, {label} AS z FROM orders o", label="z", model=model, privacy=noise)
    assert told == [(label, 0) for label in labels]


@pytest.mark.parametrize("number", ["NULLIF(o.amount, 7.5)", "CASE WHEN o.amount < 7 THEN o.amount END"])
def test_how_many_numbers_an_expression_makes_null_is_not_told_under_noise(number: str) -> None:
    """It would count the rows that have a value: one has 7.5 here, and then none."""
    told: list[list[Any]] = []
    for amount in (7.5, 0.5):
        changed = shop()
        amounts = pa.array([amount, *changed["orders"].column("amount").to_pylist()[1:]])
        place = changed["orders"].column_names.index("amount")
        changed["orders"] = changed["orders"].set_column(place, "amount", amounts)
        with tp.Federation(changed) as federation:
            owner = federation._clients["orders"]
            found: list[Any] = []

            def answer(message: Any, inner: Any = owner.answer, found: list[Any] = found) -> Any:
                given = inner(message)
                if isinstance(given, FeatureStatistics):
                    found += [(getattr(c, "weight", None), getattr(c, "missing", None)) for c in given.columns]
                return given

            owner.answer = answer  # type: ignore[method-assign]
            query = f"SELECT {number} AS amount, o.y FROM orders o"
            features = {"epsilon": 5.0, "bounds": {"amount": (-3, 3)}}
            given: dict[str, Any] = {"label": "y", "model": "logistic", "algorithm": "sgd", "epochs": 1}
            federation.train(
                query, **given, test_fraction=0.0, privacy={"features": features, "allow_reconstruction": True}
            )
            told.append(found)
    assert told[0] == told[1] == [(200.0, 0.0)]
