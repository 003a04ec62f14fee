"""A sum's result names tables that interact, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp

NUMBERS = "SELECT u.a, i.b, r.y FROM ratings r JOIN users u ON r.u = u.u JOIN items i ON r.i = i.i"
IDS = "SELECT u.name, i.name AS item, r.y FROM ratings r JOIN users u ON r.u = u.u JOIN items i ON r.i = i.i"


def tables(kind: str, rows: int = 6000, users: int = 80, items: int = 60) -> dict[str, Any]:
    random = np.random.default_rng(0)
    u, i = random.integers(0, users, rows), random.integers(0, items, rows)
    a, b = random.normal(size=users), random.normal(size=items)
    y = a[u] + b[i] + random.normal(size=rows)
    if kind == "a product":
        y += a[u] * b[i]
    if kind == "outliers":
        y = 1e4 * (np.arange(rows) == 3) + random.normal(size=rows)
    if kind == "tastes":
        y += (random.normal(size=(users, 2))[u] * random.normal(size=(items, 2))[i]).sum(axis=1)
    return {
        "ratings": pa.table({"u": u, "i": i, "y": y}),
        "users": pa.table({"u": np.arange(users), "a": a, "name": [f"u{k}" for k in range(users)]}),
        "items": pa.table({"i": np.arange(items), "b": b, "name": [f"i{k}" for k in range(items)]}),
    }


@pytest.mark.parametrize("query", [NUMBERS, IDS], ids=["numbers", "ids"])
@pytest.mark.parametrize(("kind", "least"), [("nothing", 0), ("outliers", 0), ("a product", 25), ("tastes", 12)])
def test_what_the_sum_leaves_is_found_where_it_is(kind: str, least: int, query: str) -> None:
    with tp.Federation(tables(kind)) as owner:
        result = owner.train(query, label="y")
        messages = result.traffic.total_bytes
        again = owner.train(query, label="y", seed=0)
    notes = [note for note in result.notes if "interact" in note]
    assert again.notes == result.notes
    assert again.traffic.total_bytes == messages
    assert bool(notes) == bool(least)
    for note in notes:
        assert note.startswith("u and i interact")
        share = int(note.split("about ")[1].split("%")[0])
        assert least <= share <= 50
        assert 'head="factor" would take about 24 rounds' in note


def test_private_jobs_heads_and_few_rows_are_not_looked_at() -> None:
    with tp.Federation(tables("a product")) as owner:
        few = owner.train(f"{NUMBERS} WHERE r.u < 20", label="y")
        private = owner.train(NUMBERS, label="y", privacy={"label": {"epsilon": 9.0, "bounds": (-9.0, 9.0)}})
        headed = owner.train(NUMBERS, label="y", head="factor", rank=1)
    for result in (few, private, headed):
        assert not [note for note in result.notes if "interact" in note]


def test_rows_that_an_outer_join_does_not_find_are_left_out() -> None:
    held = tables("a product")
    held["items"] = held["items"].slice(0, 40)
    with tp.Federation(held) as owner:
        result = owner.train(NUMBERS.replace("JOIN items", "LEFT JOIN items"), label="y")
    assert any("u and i interact" in note for note in result.notes)


def repeated_noise(seed: int) -> tuple[dict[str, Any], str]:
    """Labels that nothing predicts, each in many joined rows."""
    random = np.random.default_rng(seed)
    if seed % 2:  # ten partners on each side
        ends = {
            name: pa.table(
                {"k": random.integers(0, 30, 300), "j": random.integers(0, 30, 300), name: random.random(300)}
            )
            for name in "abc"
        }
        ends["b"] = ends["b"].append_column("y", pa.array(random.integers(0, 2, 300)))
        return ends, "SELECT a.a, b.b, c.c, b.y FROM a JOIN b ON a.k = b.k JOIN c ON b.j = c.j"
    users = pa.table({"u": np.arange(80), "a": random.normal(size=80), "y": random.normal(size=80)})
    orders = pa.table({"u": random.integers(0, 80, 5_000), "x": random.normal(size=5_000)})
    return {"users": users, "orders": orders}, "SELECT o.x, u.a, u.y FROM orders o JOIN users u ON o.u = u.u"


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(20))
def test_noise_that_is_joined_often_explains_nothing(seed: int) -> None:
    held, query = repeated_noise(seed)
    with tp.Federation(held) as owner:
        result = owner.train(query, label="y", seed=seed)
    assert not [note for note in result.notes if "interact" in note]


@pytest.mark.parametrize("l2", [1e-4, 10.0])
@pytest.mark.parametrize("model", ["linear", "logistic", "poisson", "huber"])
def test_what_tables_say_by_themselves_is_no_interaction(model: str, l2: float) -> None:
    """Curves where the sum has lines, numbers of single rows, and lines that a penalty flattens."""
    random = np.random.default_rng(0)
    u, i = random.integers(0, 80, 5_000), random.integers(0, 60, 5_000)
    a, b, x = random.normal(size=80), random.normal(size=60), random.normal(size=5_000)
    score = (2 * np.sin(2 * a) + random.normal(size=80))[u] + b[i] ** 2 + x**2
    noisy = score + random.normal(size=5_000)
    counts = random.poisson(np.exp(np.clip(score / 2, -4, 4)))
    y = {"logistic": (noisy > 1.5).astype(int), "poisson": counts}.get(model, noisy)
    held = {
        "ratings": pa.table({"u": u, "i": i, "x": x, "y": y}),
        "users": pa.table({"u": np.arange(80), "a": a}),
        "items": pa.table({"i": np.arange(60), "b": b}),
    }
    with tp.Federation(held) as owner:
        result = owner.train(NUMBERS.replace("r.y", "r.x, r.y"), label="y", model=model, l2=l2)
    assert not [note for note in result.notes if "interact" in note]


def test_a_row_that_two_tables_tell_together_is_no_interaction() -> None:
    """The distance tells the place, whose own number is no curve of what the sum makes of it."""
    random = np.random.default_rng(1)
    north, east = random.normal(size=200), random.normal(size=200)
    k, away, angle = random.integers(0, 200, 8_000), np.hypot(north, east), np.abs(np.arctan2(north, east))
    y = 2 * angle[k] + 3 * away[k] + 0.5 * random.normal(size=8_000)
    flights = pa.table({"k": k, "x": away[k], "y": y})
    places = pa.table({"k": np.arange(200), "north": north, "east": east})
    query = "SELECT f.x, p.north, p.east, f.y FROM flights f JOIN places p ON f.k = p.k"
    with tp.Federation({"flights": flights, "places": places}) as owner:
        result = owner.train(query, label="y")
    assert not [note for note in result.notes if "interact" in note]
