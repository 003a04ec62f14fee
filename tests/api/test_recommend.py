"""Recommendations are predictions for a user and every item, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.owner.test_ids import ALS, QUERY, tables

import tablepuppet as tp
from tablepuppet.owner.policy import Policy


def test_the_best_items_of_a_user_are_those_that_predict_would_put_first() -> None:
    held = tables()
    with tp.Federation(held) as owner:
        result = owner.train(QUERY, **ALS)
        found = owner.recommend(result, user=7, n=5)
        everything = owner.recommend(result, user=7, n=100, met=True)
        pairs = pa.table({"u": np.full(40, 7), "i": np.arange(40)})
        with tp.Federation(held | {"ratings": pairs}) as other:
            expected = other.predict(result, QUERY.replace(", r.stars", ""), key="i")
    assert everything.num_rows == 40
    by_item = dict(zip(expected["i"].to_pylist(), expected["prediction"].to_pylist(), strict=True))
    for item, score in zip(everything["i"].to_pylist(), everything["prediction"].to_pylist(), strict=True):
        assert score == pytest.approx(by_item[item], abs=1e-12)
    assert everything["prediction"].to_pylist() == sorted(by_item.values(), reverse=True)
    met = set(held["ratings"].filter(pa.compute.equal(held["ratings"]["u"], 7))["i"].to_pylist())
    left = [i for i in everything["i"].to_pylist() if i not in met]
    assert found["i"].to_pylist() == left[:5]


def test_tables_on_either_side_and_conditions_come_along() -> None:
    held = tables()
    held["makers"] = pa.table({"i": np.arange(40), "kind": [f"kind {k % 3}" for k in range(40)]})
    query = (
        "SELECT u.name, u.age AS years, i.title, m.kind, r.stars > 0 AS liked FROM ratings r JOIN users u ON r.u = u.u "
        "JOIN items i ON r.i = i.i LEFT JOIN makers m ON m.i = i.i WHERE i.price < 0.5 AND r.stars > -9"
    )
    with tp.Federation(held) as owner:
        result = owner.train(query, label="liked", head="factor", rank=2, epochs=2)
        found = owner.recommend(result, user=3, n=40, met=True)
        users = owner.recommend(result, user=3, n=100, met=True, by="i")
    assert found.column_names[0] == "i"
    assert found.num_rows == 20  # the cheap half of the items
    assert found["probability"].to_pylist() == sorted(found["probability"].to_pylist(), reverse=True)
    assert users.column_names[0] == "u"
    assert users.num_rows == 60


@pytest.mark.parametrize(
    ("query", "given", "sentence"),
    [
        (QUERY, {"user": 1000}, "no row of the user's table"),
        (QUERY, {"user": 1, "n": 0}, "n must be at least 1"),
        (QUERY, {"user": 1, "by": "x"}, "by must be the alias"),
        (QUERY.replace("SELECT", "SELECT r.i AS again,"), {"user": 1}, "never met have none"),
        ("SELECT u.age, r.stars FROM ratings r JOIN users u ON r.u = u.u", {"user": 1}, "there are 1 such tables"),
    ],
)
def test_what_cannot_be_recommended_is_said(query: str, given: dict[str, Any], sentence: str) -> None:
    with tp.Federation(tables()) as owner:
        result = owner.train(query, label="stars", head="mlp", epochs=1)
        with pytest.raises(tp.TablePuppetError, match=sentence):
            owner.recommend(result, **given)


def test_owners_who_show_no_identifiers_and_few_rows_to_nobody_recommend_nothing() -> None:
    for policy, sentence in ((Policy(identifiers=False), "identifiers"), (Policy(minimum_rows=5), "minimum_rows")):
        held = {"items": policy} if policy.identifiers is False else {"users": policy}
        with tp.Federation(tables(), policies=held) as owner:
            result = owner.train(QUERY, **ALS)
            with pytest.raises(tp.TablePuppetError, match=sentence):
                owner.recommend(result, user=3)


def test_hit_rate_and_ndcg_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    scores, relevant = random.normal(size=(30, 50)), (random.random((30, 50)) < 0.1).astype(float)
    relevant[3] = 0.0  # a user of whom nothing is known
    users = np.repeat(np.arange(30), 50)
    shuffled = random.permutation(1500)
    found = tp.ranking_metrics(users[shuffled], scores.ravel()[shuffled], relevant.ravel()[shuffled], n=10)
    kept = relevant.any(axis=1)
    assert found["ndcg"] == pytest.approx(metrics.ndcg_score(relevant[kept], scores[kept], k=10), abs=1e-12)
    top = np.argsort(-scores, axis=1)[:, :10]
    hits = np.take_along_axis(relevant, top, axis=1).max(axis=1)
    assert found["hit_rate"] == pytest.approx(float(hits[kept].mean()))
    with pytest.raises(tp.TablePuppetError, match="no row is relevant"):
        tp.ranking_metrics([1, 2], [0.1, 0.2], [0, 0])
