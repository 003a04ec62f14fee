"""Ids stay with their owner: what passes the server holds none of them, and the model is the one with names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.plan.disclosure import expect_disclosures

import tablepuppet as tp
from tablepuppet.errors import TransportError
from tablepuppet.owner.policy import Policy
from tablepuppet.owner.tokens import known_ids, names_rows
from tablepuppet.protocol.columns import CategoryEncoder, ColumnInfo, IdEncoder, NumberEncoder

KEY = b"a secret of the clients, 32 bytes"
QUERY = (
    "SELECT u.name, u.age, i.title, i.price, r.stars FROM ratings r JOIN users u ON r.u = u.u JOIN items i ON r.i = i.i"
)
ALS: dict[str, Any] = {"label": "stars", "head": "factor", "rank": 2, "epochs": 3}


def tables(users: int = 60, items: int = 40, rows: int = 900) -> dict[str, Any]:
    random = np.random.default_rng(4)
    u, i = random.integers(0, users, rows), random.integers(0, items, rows)
    p, q = random.normal(size=(users, 2)), random.normal(size=(items, 2))
    return {
        "ratings": pa.table({"u": u, "i": i, "stars": (p[u] * q[i]).sum(axis=1) + 0.1 * random.normal(size=rows)}),
        "users": pa.table(
            {"u": np.arange(users), "name": [f"person-{k:06}" for k in range(users)], "age": random.normal(size=users)}
        ),
        "items": pa.table(
            {"i": np.arange(items), "title": [f"thing-{k:06}" for k in range(items)], "price": np.linspace(0, 1, items)}
        ),
    }


def split(held: dict[str, Any], clients: int) -> dict[str, Any]:
    users = held["users"]
    size = -(-users.num_rows // clients)
    return held | {"users": [users.slice(k * size, size) for k in range(clients)]}


@contextmanager
def watched(owner: tp.Federation, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Every byte that passes between the server and the clients."""
    exchange, seen = owner._transport.exchange, list[bytes]()

    def watch(frames: Any, **options: Any) -> Any:
        answers = exchange(frames, **options)
        for sent in (*frames.values(), *answers.values()):
            seen.extend(bytes(b) for frame in sent for b in (frame.header, *frame.buffers))
        return answers

    with monkeypatch.context() as patch:
        patch.setattr(owner._transport, "exchange", watch)
        yield seen


@pytest.mark.parametrize("given", [{}, {"algorithm": "sgd"}, {"head": "mlp", "rank": None, "widths": 3}])
def test_ids_that_stay_give_the_model_that_names_give(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with tp.Federation(tables(), key=KEY) as owner:
        with watched(owner, monkeypatch) as seen:
            stayed = owner.train(QUERY, **ALS | given)
        assert b"person-" not in b"".join(seen)
        assert b"thing-" not in b"".join(seen)
        with watched(owner, monkeypatch) as seen:
            left = owner.train(QUERY, **ALS | given, ids=[])
        assert b"person-" in b"".join(seen)
    assert stayed.plan.ids == (("here", ""), ("here", ""))
    for a, b in zip(stayed.blocks, left.blocks, strict=True):
        np.testing.assert_array_equal(a.theta, b.theta)
    assert stayed.metrics == left.metrics


def test_clients_of_one_table_mean_the_same_ids_by_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held = split(tables(), 3)
    held["users"][1] = pa.concat_tables([held["users"][1], held["users"][0].slice(0, 5)])  # ids at two clients
    given = ALS | {"epochs": 12, "rank": 3}
    with tp.Federation(held, key=KEY) as owner:
        with watched(owner, monkeypatch) as seen:
            result = owner.train(QUERY, **given)
            first = owner.predict(result)
        assert b"person-" not in b"".join(seen)
        assert result.plan.ids[0] == ("tokens", "")
        again = owner.train(QUERY, **given)
        named = owner.train(QUERY, **given, ids=[])
        result.save(tmp_path / "model")
        np.testing.assert_array_equal(owner.predict(tp.load(tmp_path / "model"))["prediction"], first["prediction"])
    np.testing.assert_array_equal(result.blocks[0].theta, again.blocks[0].theta)
    assert result.blocks[0].theta.shape == named.blocks[0].theta.shape
    assert result.metrics["test"]["rmse"] == pytest.approx(named.metrics["test"]["rmse"], rel=0.05)
    with tp.Federation(held) as other, pytest.raises(tp.TablePuppetError, match="key is not the one"):
        other.predict(tp.load(tmp_path / "model"))


def test_a_model_of_one_process_is_whole_and_cold_rows_are_predicted_from_their_features(tmp_path: Path) -> None:
    held = tables()
    with tp.Federation(held, models=tmp_path / "models") as owner:
        result = owner.train(QUERY, **ALS)
        result.save(tmp_path / "model")
    users = held["users"].set_column(1, "name", pa.array([f"nobody-{k}" for k in range(60)]))
    with tp.Federation(held | {"users": users}) as other:
        cold = other.predict(tp.load(tmp_path / "model"))["prediction"].to_numpy()
    user, item = result.blocks
    names, years = item.encoders[0], user.encoders[1]
    assert isinstance(names, CategoryEncoder)
    assert isinstance(years, NumberEncoder)
    worth = item.encoders[1]
    assert isinstance(worth, NumberEncoder)
    age = (held["users"]["age"].to_numpy() - years.mean) / years.scale
    h = age[:, None] * user.theta[-1]  # the 60 ids come first, and nobody has one of them
    price = (held["items"]["price"].to_numpy() - worth.mean) / worth.scale
    places = [names.categories.index(t) for t in held["items"]["title"].to_pylist()]
    g = price[:, None] * item.theta[-1] + item.theta[places]
    u, i = held["ratings"]["u"].to_numpy(), held["ratings"]["i"].to_numpy()
    score = h[u, 0] + g[i, 0] + (h[u, 1:] * g[i, 1:]).sum(axis=1)
    expected = result.encoded_intercept[0] + result.plan.unit * score
    np.testing.assert_allclose(np.sort(cold), np.sort(expected), rtol=0, atol=1e-9)


def test_owners_who_keep_their_parameters_keep_their_ids_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with tp.Federation(tables(), key=KEY) as owner, watched(owner, monkeypatch) as seen:
        kept = owner.train(QUERY, **ALS, release=False)
        released = owner.train(QUERY, **ALS, seed=0)
        assert kept.withheld == ("u", "i")
        found = owner.predict(kept)
        assert b"person-" not in b"".join(seen)
        np.testing.assert_array_equal(found["prediction"], owner.predict(released)["prediction"])


def test_near_unique_texts_pass_an_owners_rules_as_ids_and_as_nothing_else() -> None:
    strict = Policy(minimum_rows=10)
    with tp.Federation(tables(), policies={"users": strict, "items": strict}) as owner:
        result = owner.train(QUERY, **ALS)
        assert result.blocks[0].theta.shape[0] == 61  # none of them is cut
        with pytest.raises(tp.TablePuppetError, match=r"let them stay \(ids="):
            owner.train(QUERY, **ALS, ids=[])
        summed = owner.train(QUERY, label="stars", ids=["u.name", "title"])
        assert summed.plan.ids == (("here", ""), ("here", ""))


def test_a_hundred_thousand_ids_cost_bytes_and_memory_by_row_and_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 100_000
    held = tables(users=n, items=30, rows=n)
    held["ratings"] = held["ratings"].set_column(0, "u", pa.array(np.arange(n)))
    with tp.Federation(held) as owner:
        with watched(owner, monkeypatch) as seen:
            result = owner.train(QUERY, **ALS | {"rank": 1, "epochs": 1, "test_fraction": 0.1})
        sizes = [len(b) for b in seen]
        assert b"person-" not in b"".join(seen)
    assert result.blocks[0].theta.shape[0] > 85_000
    # Of a row: key tokens and labels, then s, M and h (2, 3 and 2 numbers at rank 1) in three rounds and evaluations.
    assert sum(sizes) < 8 * n * 32
    assert max(sizes) < 8 * n * 4  # of s and M


def test_what_ids_cannot_be_is_said() -> None:
    with tp.Federation(tables()) as owner:
        for given, sentence in (
            ({"ids": ["u.nam"]}, "no feature of the query"),
            ({"ids": ["u.age"]}, "CAST"),
            ({"ids": ["u.name"], "model": "boosted"}, "leave ids out"),
            ({"ids": ["u.name"], "privacy": {"features": {"epsilon": 1.0}}, "algorithm": "sgd"}, "leave one of them"),
        ):
            with pytest.raises(tp.TablePuppetError, match=sentence):
                owner.train(QUERY, label="stars", **given)


def test_explain_and_contracts_say_that_ids_stay() -> None:
    with tp.Federation(tables()) as owner:
        plan = owner.explain(QUERY, **ALS)
        result = owner.train(QUERY, **ALS)
    text = " ".join(str(plan).split())
    assert "how many ids there are in u.name, which stay with their owner" in text
    assert "names and counts of the categories" not in text
    assert result.traffic.all_told == expect_disclosures(plan, len(result.history))
    assert not [told for told in result.traffic.all_told if told.what == "parameters"]


@pytest.mark.parametrize("count", [0, 2, 3, 4])
def test_ids_are_encoded_by_the_owner_who_found_them_with_all_of_them(count: int) -> None:
    column = pa.chunked_array([["a", "b", "c"]]), ColumnInfo("x", "string")
    nobody: Any = None
    encoders = [IdEncoder(count=count, has_missing=False)]
    if count == 3:
        assert known_ids(nobody, nobody, [column], encoders, {0: ["a", "b", "c"]}) != encoders
    for names in ({0: ["a", "b", "c"]} if count != 3 else {}, {1: ["a", "b", "c"]} if count else {0: ["a"]}):
        with pytest.raises(TransportError, match="by the owner who found them, with all of them"):
            known_ids(nobody, nobody, [column], encoders, names)


@pytest.mark.parametrize(
    ("distinct", "times", "missing", "is_name"),
    [
        (20, 1, 0, False),
        (21, 1, 0, True),
        (30, 2, 0, False),
        (30, 1, 29, True),
        (30, 1, 1000, True),
        (30, 2, 1000, False),
    ],
)
def test_a_text_names_rows_where_most_of_those_that_have_one_have_their_own(
    distinct: int, times: int, missing: int, is_name: bool
) -> None:
    texts = [f"text {k}" for k in range(distinct)] * times + [None] * missing
    for column in (pa.chunked_array([texts]), pa.chunked_array([pa.array(texts).dictionary_encode()])):
        assert names_rows(column) == is_name
