"""Clients and coordinator in processes of their own give what one process gives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.network.parties import LASTING, OWNERS, QUERY, Parties, assert_same, in_process, kept_runs, running, tables

import tablepuppet as tp
from tablepuppet.errors import PolicyError


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    with running(tmp_path_factory.mktemp("federation"), tables()) as started:
        yield started


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "newton"},
        {"algorithm": "admm", "epochs": 4},
        {"algorithm": "sgd", "batch_size": 100, "epochs": 2},
        {"algorithm": "newton", "wire": "float32+zstd"},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_a_run_over_the_network_equals_one_in_process_bit_for_bit(parties: Parties, options: dict[str, Any]) -> None:
    rounds: list[int] = []
    network = parties.connect().train(QUERY, label="y", on_round=lambda event: rounds.append(event.round), **options)
    with in_process(tables()) as federation:
        local = federation.train(QUERY, label="y", **options)
    assert_same(network, local)
    assert rounds == sorted(set(rounds))


@pytest.mark.slow
def test_a_run_of_large_messages_is_the_same_over_the_network(tmp_path: Path) -> None:
    held = tables(280_000)  # a round of more than a million values
    with running(tmp_path, held) as parties, in_process(held) as federation:
        network = parties.connect().train(QUERY, label="y", algorithm="newton")
        local = federation.train(QUERY, label="y", algorithm="newton")
    assert local.traffic.rounds == 2 * len(local.history)  # orders have two owners, items one
    assert_same(network, local)


def test_explain_profile_and_predict_work_as_in_process(parties: Parties) -> None:
    federation = parties.connect()
    with in_process(tables()) as local:
        plan, same = federation.explain(QUERY, label="y"), local.explain(QUERY, label="y")
        assert re.search(r"client store-eu, \d+ rows", str(plan))
        assert plan.shape.joined == same.shape.joined
        assert plan.costs == same.costs
        assert federation.profile(QUERY, label="y") == local.profile(QUERY, label="y")
        result = federation.train(QUERY, label="y")
        predicted, expected = result.predict(federation), result.predict(local)
        order = [(name, "ascending") for name in ("item", "probability")]  # owners' own orders do not show
        sorted_here = predicted.drop_columns("client").sort_by(order)
        assert sorted_here.equals(expected.drop_columns("client").sort_by(order))
        sides = [r.predict(f, split=True) for r, f in ((result, federation), (local.train(QUERY, label="y"), local))]
        here, there = (zip(*(t[c].to_pylist() for c in ("item", "probability", "split")), strict=True) for t in sides)
        shown = [sorted((item, round(p, 6), side) for item, p, side in rows) for rows in (here, there)]
        assert shown[0] == shown[1]
        assert {side for _, _, side in shown[0]} == {"train", "test"}
        assert federation.evaluate(result) == local.evaluate(result)
        assert federation.compare(result, result) == local.compare(result, result)
        assert federation.drift(result) == local.drift(result)
        by_table: dict[str, Any] = {"by": "table", "repeats": 1}
        assert federation.importance(result, **by_table).equals(local.importance(result, **by_table))
        with pytest.raises(PolicyError, match="allow_reconstruction"):  # each value is one more number of every row
            federation.partial_dependence(result, feature="o.x")
        trees = federation.train(QUERY, label="y", algorithm="boosting", trees=3, depth=2)
        feature = trees.importance()["feature"][0]
        curves = [f.partial_dependence(trees, feature=feature) for f in (federation, local)]
        assert curves[0].equals(curves[1])
        again = federation.train(QUERY, label="y", warm_start=result)
        assert len(again.history) < len(result.history)


def test_an_estimator_scores_and_stops_early_over_the_network(parties: Parties) -> None:
    given: dict[str, Any] = {"algorithm": "sgd", "optimizer": "adam", "learning_rate": 1.0, "batch_size": 100}
    model = tp.RelationalClassifier(
        test_fraction=0.2, validation_fraction=0.3, patience=1, class_weight="balanced", **given
    )
    federation = parties.connect()
    model.fit(federation, QUERY, label="y", weight="1 + x * x")
    with in_process(tables()) as local:
        same = tp.RelationalClassifier(**model.get_params()).fit(local, QUERY, label="y", weight="1 + x * x")
        assert_same(model.result_, same.result_)
        assert model.score(federation, rows="all") == same.score(local, rows="all")
    assert model.result_.epoch < len(model.result_.history)


def test_an_error_of_a_client_reaches_the_user_and_the_server_goes_on(parties: Parties) -> None:
    with pytest.raises(tp.TablePuppetError, match="Did you mean"):
        parties.connect().train(QUERY.replace("o.x", "o.xx"), label="y")
    with pytest.raises(tp.TablePuppetError, match="never pooled"):
        parties.connect().train(QUERY, label="y", algorithm="centralized")
    assert parties.connect().train(QUERY, label="y").metrics["train"]


def test_every_model_that_was_trained_with_the_owners_may_be_applied_to_their_rows(parties: Parties) -> None:
    federation = parties.connect()
    for algorithm in (
        "newton",
        "admm",
        "sgd",
    ):  # orders has two columns: two models of the server's choice would tell them
        result = federation.train(QUERY, label="y", algorithm=algorithm, epochs=2)
        assert result.predict(federation).num_rows > 0


def test_a_finished_run_leaves_only_the_owners_account_at_the_clients(parties: Parties) -> None:
    parties.connect().train(QUERY, label="y")
    for name in OWNERS:
        assert {p.name for p in (parties.folder / "state" / name).iterdir()} <= set(LASTING)
        assert not kept_runs(parties.folder / "state" / name)
    assert not kept_runs(parties.folder / "state" / "server", "step")


def test_the_command_line_trains_against_a_running_server(parties: Parties) -> None:
    job = parties.folder / "job.toml"
    job.write_text(f'query = "{QUERY}"\nlabel = "y"\n')
    command = [sys.executable, "-m", "tablepuppet", "train", str(job), "--federation", str(parties.federation)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout)


def test_health_and_metrics_tell_who_is_there(parties: Parties) -> None:
    def get(page: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{parties.health}/{page}", timeout=60) as answer:
            return str(answer.read().decode())

    assert json.loads(get("health")) == {"status": "ok"}
    assert set(json.loads(get("status"))["connected"]) == set(OWNERS)
    assert 'tablepuppet_client_connected{client="supplier"} 1' in get("metrics")


def test_everybody_leaves_cleanly_when_told_to(tmp_path: Path) -> None:
    with running(tmp_path, tables()) as parties:
        codes = parties.stop()
        logs = parties.logs()
    assert set(codes.values()) == {0}, logs
    assert "Traceback" not in logs


def _in_order(predicted: pa.Table) -> pa.Table:
    """Owners show their rows in another order at every prediction."""
    return predicted.sort_by([(name, "ascending") for name in predicted.column_names])


def test_owners_hold_their_parts_and_requests_by_key_see_a_changed_table(tmp_path: Path) -> None:
    held = tables(60)
    with running(tmp_path, held) as parties:
        federation = parties.connect()
        released, kept = (federation.train(QUERY, label="y", release=r, test_fraction=0) for r in (True, False))
        assert kept.withheld == ("o", "i")
        assert _in_order(federation.predict(kept)).equals(_in_order(federation.predict(released)))
        for owner in OWNERS:
            assert (parties.folder / "models" / owner / kept.id / "blocks").is_dir()
        for name in ("supplier", "server"):  # parts outlive their processes
            parties.kill(name)
        parties.start("server", "supplier")
        parties.await_clients()
        given: dict[str, Any] = {"key": "item", "keys": [3, 4]}
        answers = [_in_order(federation.predict(kept, **given)) for _ in range(3)]
        assert all(answer.equals(answers[0]) for answer in answers)
        items = held["supplier"]
        dearer = items.set_column(1, "price", pa.array(items["price"].to_numpy() + 5.0))
        pq.write_table(dearer, tmp_path / "supplier.parquet")
        assert not _in_order(federation.predict(kept, **given)).equals(answers[0])
