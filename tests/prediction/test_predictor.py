"""Single requests by key: what a batch answers for the same key, from memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.prediction.shop import NEW, QUERY, federation, tables

import tablepuppet as tp
from tablepuppet.errors import ModelError


@pytest.fixture(scope="module")
def result() -> tp.Result:
    with federation(tables()) as shop:
        return shop.train(QUERY.format(label="returned"), label="returned")


def test_a_key_is_answered_as_the_batch_answers_it(result: tp.Result) -> None:
    with federation(tables(1)) as shop:
        predictor = shop.predictor(result, NEW, key="o.order_id")
        batch = shop.predict(result, NEW, key="order_id")
    assert len(predictor) == batch.num_rows
    for row in (0, 17, 599):
        assert predictor(1000 + row).equals(batch.slice(row, 1))
        assert predictor(np.int64(1000 + row))["probability"][0] == batch["probability"][row]


def test_a_key_with_several_joined_rows_gives_them_all(result: tp.Result) -> None:
    with federation(tables(1)) as shop:
        by_item = shop.predictor(result, NEW, key="item_id")
        by_both = shop.predictor(result, NEW, key=("item_id", "channel"))
    items, channels = tables(1)["orders"]["item_id"].to_pylist(), tables(1)["orders"]["channel"].to_pylist()
    assert by_item(7).num_rows == items.count(7)
    assert by_both(7, "web").num_rows == list(zip(items, channels, strict=True)).count((7, "web"))
    assert repr(by_both).startswith("Predictor(")


def test_an_unknown_key_is_said_without_showing_it(result: tp.Result) -> None:
    with federation(tables(1)) as shop:
        predictor = shop.predictor(result, NEW, key="order_id")
    for unknown in (987654321, "987654321", None, [1]):
        with pytest.raises(ModelError, match="no joined row has this order_id") as refused:
            predictor(unknown)
        assert "987654321" not in str(refused.value)
    with pytest.raises(ModelError, match="1 values, and 2 were given"):
        predictor(1, 2)


@pytest.mark.parametrize("requests", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_single_requests_ask_nobody_or_ask_once_whether_a_table_changed(
    result: tp.Result, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes them fast: a predictor asks no client at all, repeated predictions by key one round each."""
    with federation(tables(1)) as shop:
        predictor = shop.predictor(result, NEW, key="order_id")
        for _ in range(2):
            shop.predict(result, NEW, key="order_id", keys=[1000])
        exchange, rounds = shop._transport.exchange, []

        def counted(frames: Any, **options: Any) -> Any:
            rounds.append(len(frames))
            return exchange(frames, **options)

        monkeypatch.setattr(shop._transport, "exchange", counted)
        keys = np.random.default_rng(0).integers(1000, 1600, requests).tolist()
        single = [predictor(key)["probability"][0].as_py() for key in keys]
        assert not rounds
        again = [shop.predict(result, NEW, key="order_id", keys=[key])["probability"][0].as_py() for key in keys]
        assert len(rounds) == requests
    np.testing.assert_allclose(single, again, rtol=0, atol=1e-12)
