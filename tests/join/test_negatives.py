"""Negatives: pairs that did not meet stand beside the joined rows, and all else follows from joined rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.algorithms.neural_join import JOINS, federation
from tests.joined_rows import joined_rows
from tests.plan.disclosure import expect_disclosures

import tablepuppet as tp
from tablepuppet.join.mapping import TableMapping, rows_here

VIEWS = "SELECT u.name, u.age, i.title, v.stars FROM views v JOIN users u ON v.u = u.u JOIN items i ON v.i = i.i"


def views(users: int = 50, items: int = 30, each: int = 6, seed: int = 0) -> dict[str, pa.Table]:
    """What users looked at: what suits them, most of the time."""
    random = np.random.default_rng(seed)
    score = 2.0 * random.normal(size=(users, 2)) @ random.normal(size=(2, items)) + random.gumbel(size=(users, items))
    chosen = np.argsort(-score, axis=1)[:, :each]
    order = random.permutation(users * each)
    return {
        "views": pa.table(
            {
                "u": np.repeat(np.arange(users), each)[order],
                "i": chosen.ravel()[order],
                "stars": random.integers(1, 6, users * each),
                "hour": random.integers(0, 24, users * each),
            }
        ),
        "users": pa.table(
            {"u": np.arange(users), "name": [f"u{k}" for k in range(users)], "age": random.normal(size=users)}
        ),
        "items": pa.table({"i": np.arange(items), "title": [f"i{k}" for k in range(items)]}),
    }


def mapped(tables: dict[str, Any], query: str = VIEWS, label: str = "stars", **given: Any) -> TableMapping:
    with tp.Federation(tables) as owners:
        return joined_rows(owners, owners.explain(query, label=label, **given).job).training


def pairs(mapping: TableMapping, side: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The pairs of a side that met and that did not, by the owners' row numbers."""
    rows = rows_here(getattr(mapping, side))
    held = "train_rows" if side == "train" else "test_rows"
    columns = []
    for number, index in enumerate(rows.indices):
        own = np.concatenate([getattr(part, held) for part in mapping.parts_of(number)])
        columns.append(own[index.numbers(rows.rows)].tolist())
    found = list(zip(*columns, strict=True))
    is_seen = rows.joined_labels() == 1.0
    return [p for p, yes in zip(found, is_seen, strict=True) if yes], [
        p for p, yes in zip(found, is_seen, strict=True) if not yes
    ]


def test_pairs_never_met_and_every_row_that_was_seen_has_as_many_of_its_users() -> None:
    given: dict[str, Any] = {"validation_fraction": 0.2, "test_fraction": 0.2}
    plain, mapping = mapped(views(), **given), mapped(views(), negatives=3, **given)
    met = {side: pairs(mapping, side)[0] for side in ("train", "validation", "test")}
    everywhere = {pair for found in met.values() for pair in found}
    for side, seen in met.items():
        drawn = pairs(mapping, side)[1]
        assert len(seen) == getattr(plain, side).rows
        assert len(drawn) == 3 * len(seen)
        assert not set(drawn) & (set(seen) if side == "train" else everywhere)
        users = np.unique([u for u, _ in seen], return_counts=True)
        np.testing.assert_array_equal(np.unique([u for u, _ in drawn], return_counts=True)[1], 3 * users[1])
    for index, often in zip(rows_here(mapping.train).indices, mapping.multiplicity, strict=True):
        np.testing.assert_array_equal(often, np.bincount(index.numbers(mapping.train.rows)))


def test_items_are_drawn_evenly_from_those_that_a_user_has_not_met() -> None:
    met, drawn = pairs(mapped(views(users=300, items=12, each=2), negatives=20, test_fraction=0.0), "train")
    has_met = np.zeros((300, 12))
    has_met[tuple(np.transpose(met))] = 1.0
    often = has_met.sum(axis=0)
    assert often.max() > 4 * often.min()
    expected = 40 * ((1.0 - has_met) / 10).sum(axis=0)
    found = np.bincount([i for _, i in drawn], minlength=12)
    assert (np.abs(found - expected) < 4 * np.sqrt(expected)).all()


def test_draws_follow_from_the_seed_alone() -> None:
    first, again, other = (pairs(mapped(views(), negatives=2, seed=seed), "train")[1] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_users_who_have_met_nearly_everything_have_fewer_pairs() -> None:
    tables = views(users=20, items=8, each=7)
    mapping = mapped(tables, negatives=4, test_fraction=0.0)
    seen, drawn = pairs(mapping, "train")
    assert 0 < len(drawn) <= 4 * len(seen)
    assert not set(seen) & set(drawn)
    assert mapping.label.negatives == len(drawn)
    with pytest.raises(tp.TablePuppetError, match="every user has met every item"):
        mapped(views(users=20, items=8, each=8), negatives=4, test_fraction=0.0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("join", ["star", "star with tags"])
def test_a_factor_head_is_torchs_on_the_materialised_join_and_the_same_pairs(join: str, clients: int) -> None:
    torch = pytest.importorskip("torch")
    from tests.models.heads.head_join import Oracle, trained

    given: dict[str, Any] = {"negatives": 3, "head": "factor", "rank": 3, "optimizer": "adam", "shrinkage": 0.1}
    result, joined = trained(join, "seen", clients, **given)
    assert sorted(set(joined.labels.tolist())) == [0.0, 1.0]
    assert len(joined.labels) == result.plan.mapping.train_rows
    Oracle(result, joined).train(lambda p: torch.optim.Adam(p, lr=0.05)).agrees(result)


def test_items_with_several_tables_are_drawn_with_rows_that_belong_together() -> None:
    with federation() as owners:
        job = owners.explain(JOINS["star with tags"].format(y="seen"), label="seen", negatives=2).job
        rows = rows_here(joined_rows(owners, job).training.train)
    numbers = [index.numbers(rows.rows).tolist() for index in rows.indices]
    seen = int(rows.joined_labels().sum())
    together = set(zip(*(own[:seen] for own in numbers[1:]), strict=True))
    assert set(zip(*(own[seen:] for own in numbers[1:]), strict=True)) <= together


@pytest.mark.parametrize("algorithm", ["als", "sgd"])
def test_explain_knows_bytes_rounds_and_exposure_with_pairs(algorithm: str) -> None:
    with tp.Federation(views()) as owners:
        given: dict[str, Any] = {"label": "stars", "head": "factor", "rank": 4, "algorithm": algorithm, "epochs": 3}
        result = owners.train(VIEWS, negatives=4, **given)
        without = owners.explain(VIEWS, **given)
    planned = result.plan.cost(algorithm, 3)
    assert planned.rounds == result.traffic.rounds
    assert planned.bytes == pytest.approx(result.traffic.bytes, rel=0.05)
    assert result.traffic.all_told == expect_disclosures(result.plan, len(result.history))
    assert result.plan.mapping.blocks[0].most > without.mapping.blocks[0].most
    assert "300 joined rows as what was seen, and beside them 1,200 pairs of rows that did not meet" in str(result.plan)
    assert "the label stars of 300 joined rows" in str(result.plan)


def test_a_model_of_what_was_seen_recommends_better_than_what_everybody_looks_at() -> None:
    tables = views(users=300, items=60, each=12)
    seen = tables["views"]
    is_asked = np.zeros(len(seen), bool)
    is_asked[np.unique(seen["u"].to_numpy(), return_index=True)[1]] = True  # one of each user
    with tp.Federation(tables | {"views": seen.filter(~is_asked)}) as owners:
        result = owners.train(VIEWS, label="stars", negatives=4, head="factor", test_fraction=0.0)
        found = owners.recommend(result, user=7, n=10)
    assert found.column_names == ["i", "prediction", "probability"]
    known = {i for u, i in zip(*(seen.filter(~is_asked)[c].to_pylist() for c in "ui"), strict=True) if u == 7}
    assert not known & set(found["i"].to_pylist())
    every = np.array([(u, i) for u in range(300) for i in range(60)])
    pair = pa.table({"u": every[:, 0], "i": every[:, 1], "stars": np.zeros(len(every))})
    with tp.Federation(tables | {"views": pair}) as owners:
        scored = owners.predict(result, key=["u", "i"])
    u, i = (scored[c].to_numpy() for c in "ui")
    kept = seen.filter(~is_asked)
    is_open = ~np.isin(u * 60 + i, kept["u"].to_numpy() * 60 + kept["i"].to_numpy())
    wanted = seen.filter(is_asked)
    relevant = np.isin(u * 60 + i, wanted["u"].to_numpy() * 60 + wanted["i"].to_numpy())
    often = np.bincount(kept["i"].to_numpy(), minlength=60)[i]
    by_model, by_all = (
        tp.ranking_metrics(u[is_open], s[is_open], relevant[is_open]) for s in (scored["probability"].to_numpy(), often)
    )
    assert by_model["hit_rate"] > 1.2 * by_all["hit_rate"], (by_model, by_all)
    assert by_model["ndcg"] > 1.2 * by_all["ndcg"], (by_model, by_all)


THREE = VIEWS.replace("FROM views v", "FROM views v JOIN users w ON v.hour = w.u").replace(
    "u.name,", "u.name, w.age AS a,"
)


@pytest.mark.parametrize(
    ("query", "given", "sentence"),
    [
        (VIEWS.replace("v.stars", "v.hour, v.stars"), {}, "no features of views, which holds the label: v.hour"),
        (VIEWS.replace("i.title, ", ""), {}, "1 of 2 such tables have features"),
        (THREE, {}, "3 of 3 such tables have features"),
        (f"{VIEWS} UNION ALL {VIEWS}", {}, "without UNION ALL"),
        (VIEWS.replace("v.stars", "v.stars - 1 AS stars"), {}, "is 0 in some joined rows"),
        (VIEWS.replace("v.stars", "CAST(v.stars AS VARCHAR) AS stars"), {}, r"select \(column IS NOT NULL\) AS seen"),
        (VIEWS, {"negatives": -1}, "negatives must be at least 0, not -1"),
        (VIEWS, {"negatives": 10**12}, "negatives must be at most 1,000"),
        (VIEWS, {"model": "linear"}, "two classes, and the squared loss has others"),
        (VIEWS, {"privacy": {"label": {"epsilon": 1.0}}}, "leave privacy.features"),
        (VIEWS, {"engine": "ray"}, "drawn in one process"),
        (
            VIEWS,
            {"max_joined_rows": 400},
            "4 negatives for each joined row make 1,500 rows, more than the limit of 400",
        ),
    ],
)
def test_what_negatives_cannot_be_drawn_from_is_said(query: str, given: dict[str, Any], sentence: str) -> None:
    with tp.Federation(views()) as owners, pytest.raises(tp.TablePuppetError, match=sentence):
        owners.train(query, label="stars", **{"negatives": 4} | given)


def test_a_label_of_ones_own_says_what_was_seen_and_other_models_learn_it_too() -> None:
    query = VIEWS.replace("v.stars", "(v.stars IS NOT NULL) AS seen")
    with tp.Federation(views(users=100)) as owners:
        newton = owners.train(query, label="seen", negatives=4)
        central = owners.train(query, label="seen", negatives=4, algorithm="centralized")
        by_stars = owners.train(VIEWS, label="stars", negatives=4)
        trees = owners.train(query, label="seen", negatives=4, model="boosted", trees=5)
        found = tp.cross_validate(owners, query, label="seen", negatives=4, folds=3)
    assert newton.metrics["test"]["log_loss"] == pytest.approx(central.metrics["test"]["log_loss"], abs=1e-6)
    assert newton.objective == by_stars.objective
    assert newton.classes == trees.classes == (0, 1)
    assert trees.metrics["train"]["auc"] > 0.6
    assert found is not None
