"""Whole runs: what really passes between the parties, and what the promises of a job do to it."""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from tests.joined_rows import joined_rows

import tablepuppet as tp
from tablepuppet.algorithms.base import BlockAnswer, Problem
from tablepuppet.algorithms.sgd.rounds import SgdFigures, SgdServer, SgdUpdate
from tablepuppet.errors import PrivacyError
from tablepuppet.exchanges.features import FeatureStatistics
from tablepuppet.exchanges.keys import Keys, SendKeys
from tablepuppet.exchanges.parts import Evaluation
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.exchanges.start import Started
from tablepuppet.join.build import within_cap
from tablepuppet.join.joined_rows import JoinedRows, RowIndex
from tablepuppet.join.mapping import rows_here
from tablepuppet.models.losses import Logistic
from tablepuppet.owner.tokens import job_key, tokens
from tablepuppet.privacy.accounting import gaussian_noise
from tablepuppet.protocol.base import Predictions
from tablepuppet.protocol.codec import Frame, decode
from tablepuppet.protocol.columns import CategoryStatistics, ColumnInfo, NumberStatistics

QUERY = "SELECT r.x, u.age, u.band, r.late FROM rides r JOIN users u ON r.uid = u.uid"
BOUNDS = {"x": (-1.0, 1.0), "age": (18.0, 80.0)}
CANARY_KEY, CANARY_AGE = 7_340_033_771, 54.318726553


def tables(rows: int = 300, users: int = 30) -> dict[str, pa.Table]:
    generator = np.random.default_rng(3)
    ids = np.arange(users) + 1_000_000_007
    ids[4] = CANARY_KEY
    age = generator.uniform(18, 80, users)
    age[4] = CANARY_AGE
    who = generator.integers(0, users, rows)
    x = generator.uniform(-1, 1, rows)
    late = 2 * x + (age[who] - 50) / 20 + generator.normal(size=rows) > 0
    return {
        "users": pa.table({"uid": ids, "age": age, "band": generator.choice(["a", "b", "c"], users)}),
        "rides": pa.table({"uid": ids[who], "x": x, "late": late}),
    }


M = TypeVar("M")


class Tap:
    """Stands between the server and the clients and keeps every frame."""

    def __init__(self, federation: tp.Federation) -> None:
        self._inner = federation._transport
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        federation._transport = self  # type: ignore[assignment]

    def exchange(self, frames: Mapping[str, Sequence[Frame]], **given: Any) -> dict[str, list[Frame]]:
        self.down += [f for given in frames.values() for f in given]
        answers = self._inner.exchange(frames, **given)
        self.up += [f for given in answers.values() for f in given]
        return answers

    def accept(self) -> None:
        self._inner.accept()

    def close(self) -> None:
        self._inner.close()

    def bytes(self) -> bytes:
        return b"".join(b"".join([f.header, *f.buffers]) for f in (*self.down, *self.up))

    def asked(self, kind: type[M]) -> list[M]:
        """The requests of a kind so far."""
        return [m for m in (decode(f, REQUESTS) for f in self.down) if isinstance(m, kind)]

    def predictions(self) -> list[Any]:
        answers = [decode(f, RESPONSES) for f in self.up]
        return [a.values for a in answers if isinstance(a, Predictions)]


def train(federation: tp.Federation, **given: Any) -> tp.Result:
    plain: dict[str, Any] = {"label": "late", "model": "logistic", "algorithm": "sgd", "batch_size": None, "epochs": 3}
    return federation.train(QUERY, **(plain | given))


@pytest.mark.parametrize("algorithm", ["sgd", "admm", "newton"])
def test_captured_traffic_holds_no_raw_key_and_no_planted_value(algorithm: str) -> None:
    with tp.Federation(tables(), key=b"k" * 32) as federation:
        tap = Tap(federation)
        train(federation, algorithm=algorithm)
        seen = tap.bytes()
    for raw in (struct.pack("<q", CANARY_KEY), str(CANARY_KEY).encode(), struct.pack("<d", CANARY_AGE), b"k" * 32):
        assert raw not in seen
    assert len(seen) > 5_000  # it is the traffic that was looked at


def test_row_numbers_do_not_follow_the_owners_order() -> None:
    """The server sees the users' tokens one after the other; their places at the owner must not show."""
    key, users = b"k" * 32, 300
    held = tables(rows=600, users=users)
    with tp.Federation(held, key=key) as federation:
        tap = Tap(federation)
        train(federation, epochs=1)
    sent = [decode(f, RESPONSES) for f in tap.up]
    seen = next(a.columns for a in sent if isinstance(a, Keys) and a.rows == users)["c0"].to_pylist()
    job = next(r.job for r in (decode(f, REQUESTS) for f in tap.down) if isinstance(r, SendKeys))
    info = ColumnInfo("uid", "integer")
    owned = tokens(held["users"]["uid"], info, "hmac", job_key(key, job), "0").to_pylist()
    assert set(owned) == set(seen)
    places = np.array([owned.index(token) for token in seen])
    assert abs(scipy.stats.spearmanr(places, np.arange(users)).statistic) < 6 / np.sqrt(users)
    assert (places == np.arange(users)).mean() < 0.1


@pytest.mark.parametrize("algorithm", ["sgd", "newton"])
def test_what_is_logged_or_said_in_errors_holds_no_key_and_no_value(
    algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), tp.Federation(tables(), key=b"k" * 32) as federation:
        train(federation, algorithm=algorithm, privacy={"label": {"epsilon": 2.0}})
        with pytest.raises(tp.TablePuppetError) as refused:
            train(federation, algorithm=algorithm, privacy={"features": {"epsilon": 1.0}})
    said = caplog.text + "".join(str(r.args) + str(r.msg) for r in caplog.records) + str(refused.value)
    users = tables()["users"]
    values = [*users["uid"].to_pylist(), *users["age"].to_pylist(), f"{CANARY_AGE:.6g}", "kkkkkkkk", (b"k" * 32).hex()]
    for value in values:
        assert str(value) not in said


def test_the_same_search_finds_keys_where_the_job_sends_them_plain() -> None:
    with tp.Federation(tables()) as federation:
        tap = Tap(federation)
        train(federation, privacy={"keys": "plain"})
        assert struct.pack("<q", CANARY_KEY) in tap.bytes()


def reconstruction_error(privacy: dict[str, Any]) -> float:
    """Least squares for the users' encoded features from what the server saw of their predictions, θ known."""
    thetas: list[Any] = []
    with tp.Federation(tables()) as federation:
        tap = Tap(federation)

        def note(_: Any) -> None:
            thetas.append(next(iter(federation._clients["users"].parts.values())).state.theta[:, 0].copy())

        result = train(federation, epochs=12, learning_rate=0.7, privacy=privacy, on_round=note)
        users = [h[:, 0] for h in tap.predictions() if len(h) <= 30][-12:]
    found, *_ = np.linalg.lstsq(np.stack(thetas), np.stack(users), rcond=1e-9)
    age = tables()["users"]["age"].to_numpy()
    encoder = result.blocks[1].encoders[0]
    expected = np.sort((age - encoder.mean[0]) / encoder.scale[0])  # type: ignore[union-attr]
    seen = np.sort(found[0])
    return float(np.abs(seen - expected[: len(seen)]).max()) if len(seen) == len(expected) else float("inf")


def test_exact_predictions_give_the_rows_away_and_noisy_ones_do_not() -> None:
    assert reconstruction_error({}) < 1e-3
    assert reconstruction_error({"predictions": {"mode": "local", "epsilon": 4.0}}) > 0.3


def test_the_server_sees_noisy_predictions_of_test_rows_too_where_they_are_local() -> None:
    with tp.Federation(tables()) as federation:
        tap = Tap(federation)
        train(federation, privacy={"predictions": {"mode": "local", "epsilon": 1.0, "bound": 1.0}})
        shown = [a for a in (decode(f, RESPONSES) for f in tap.up) if isinstance(a, Evaluation)]
    noisy = [values for a in shown for values in (a.test, a.train) if values is not None and len(values) > 20]
    assert len(noisy) >= 4
    assert all(np.abs(values).max() > 3.0 for values in noisy)  # without noise they lie within ±1


@pytest.mark.parametrize(("algorithm", "batch_size"), [("sgd", 60), ("sgd", None), ("admm", None)])
def test_the_same_private_job_twice_draws_other_noise_and_other_batches(algorithm: str, batch_size: int | None) -> None:
    privacy = {"features": {"noise": 2.0, "cap": 5, "bounds": BOUNDS}, "allow_reconstruction": True}
    batches, thetas = [], []
    for _ in range(2):
        with tp.Federation(tables(), key=b"k" * 32) as federation:
            tap = Tap(federation)
            result = train(federation, privacy=privacy, algorithm=algorithm, batch_size=batch_size, epochs=1)
            asked = [r for r in (decode(f, REQUESTS) for f in tap.down) if isinstance(r, SgdUpdate)]
        batches.append([r.next_rows.tolist() for r in asked if r.next_rows is not None])
        thetas.append(result.blocks[0].theta)
    assert (batches[0] != batches[1]) == (batch_size is not None)
    assert not np.isclose(thetas[0], thetas[1], rtol=1e-6).any()


def test_rows_take_part_as_often_as_the_ledger_counts() -> None:
    bases, multiplicity, batch, draws = 200, 12, 72, 300
    rows = bases * multiplicity
    index = RowIndex.of(np.repeat(np.arange(bases), multiplicity), bases)
    joined = JoinedRows(rows, (index,), RowIndex.of(np.arange(rows), rows), np.zeros(rows))
    problem = Problem(
        Logistic(), 0.0, joined, (bases,), (1,), (np.full(bases, multiplicity),), 1, batch, seed=0, is_private=True
    )
    server = SgdServer(problem, tp.Sgd(learning_rate=0.1))
    server.sample_from([5])
    server.begin(problem.zeros(), [SgdFigures()])
    updates = server.opening()
    taking_part = []
    for _ in range(draws):
        assert updates is not None
        taken = updates[0].next_rows
        assert taken is not None
        taking_part.append(len(taken))
        server.absorb([BlockAnswer(np.zeros((len(taken), 1)), np.zeros(1))])
        updates = server.join_step()
        assert updates[0].common["count"] == batch  # the divisor is what a batch holds on average, whatever it holds
    chance = 1 - (1 - batch / rows) ** multiplicity
    assert scipy.stats.binomtest(sum(taking_part), draws * bases, chance).pvalue > 1e-5
    # base rows take part independently of each other; in batches of a fixed size they would not
    spread = float(np.var(taking_part)) * draws / (bases * chance * (1 - chance))
    assert 1e-5 < scipy.stats.chi2.cdf(spread, draws - 1) < 1 - 1e-5


def test_the_cap_holds_for_every_block_and_keeps_as_many_rows_as_it_may() -> None:
    generator = np.random.default_rng(0)
    blocks = [generator.integers(-1, 40, 1000), generator.integers(0, 25, 1000)]
    kept = within_cap(blocks, [7, 11], seed=3)
    for rows, cap in zip(blocks, (7, 11), strict=True):
        found = rows[kept]
        assert np.bincount(found[found >= 0]).max() <= cap
    alone = within_cap(blocks[1:], [11], seed=3)
    assert len(alone) == np.minimum(np.bincount(blocks[1]), 11).sum()
    assert (within_cap(blocks, [7, 11], seed=3) == kept).all()


def test_a_private_run_reports_what_it_spent_with_unit_observer_and_cap() -> None:
    features = {"epsilon": 4.0, "cap": 5, "bounds": BOUNDS}
    with tp.Federation(tables()) as federation:
        result = train(federation, privacy={"features": features, "allow_reconstruction": True}, batch_size=60)
    assert result.privacy.epsilon("features", "users", "outsider") <= 4.0
    assert result.privacy.epsilon("features", "users", "outsider") > 3.8
    assert result.plan.mapping.dropped > 0
    of_users = {r.observer: r for r in result.privacy.releases if r.table == "users"}
    assert (of_users["outsider"].cap, of_users["outsider"].sampling) == (5, "poisson")
    assert of_users["outsider"].partners > 0
    assert of_users["outsider"].rate == pytest.approx(60 / result.plan.mapping.train_rows)
    assert set(of_users) == {"outsider"}  # the server is trusted with predictions: nothing is claimed towards it
    assert any("base row of users with at most 5 joined rows" in line for line in result.privacy.lines())


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_under_feature_privacy_no_moment_is_sent_and_the_intercept_follows_from_labels_alone(algorithm: str) -> None:
    privacy = {"features": {"noise": 2.0, "bounds": BOUNDS}, "allow_reconstruction": True}
    with tp.Federation(tables()) as federation:
        tap = Tap(federation)
        result = train(federation, privacy=privacy, algorithm=algorithm)
        told = [a.columns for a in (decode(f, RESPONSES) for f in tap.up) if isinstance(a, FeatureStatistics)]
        labels = rows_here(joined_rows(federation, result.plan.job).mapping.train).joined_labels()
    numbers = [c for columns in told for c in columns if isinstance(c, NumberStatistics)]
    assert len(numbers) == 2
    assert not any(c.mean.any() or c.spread.any() for c in numbers)
    bands = [c for columns in told for c in columns if isinstance(c, CategoryStatistics)]
    assert [c.weights.tolist() for c in bands] == [[1.0, 1.0, 1.0]]  # names are public, and not how many rows have one
    late = labels.mean()
    assert result.encoded_intercept == pytest.approx([np.log(late / (1 - late))], abs=1e-3)


def test_which_categories_a_private_model_keeps_depends_on_their_names_alone() -> None:
    encoders, held = [], tables()
    for bands in (["a"] * 16 + ["b"] * 14, ["a"] * 14 + ["b"] * 16):
        users = held["users"].set_column(2, "band", pa.array(bands))
        privacy = {"features": {"noise": 2.0, "bounds": BOUNDS}, "allow_reconstruction": True}
        with tp.Federation(held | {"users": users}) as federation:
            result = train(federation, privacy=privacy, algorithm="sgd", epochs=1, max_categories=1)
        encoders.append(str([block.encoders for block in result.blocks]))
    assert encoders[0] == encoders[1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_no_figure_of_a_private_part_depends_on_its_features(algorithm: str, model: str) -> None:
    """Curvatures set learning rates and ρ: under privacy they are what follows from the number of columns."""
    if model == "mlp":
        pytest.importorskip("torch")
    told, held = [], tables()
    other = held["users"].set_column(1, "age", pa.array(np.full(30, 79.9)))
    for users in (held["users"], other):
        with tp.Federation(held | {"users": users}) as federation:
            tap = Tap(federation)
            privacy = {"features": {"noise": 2.0, "bounds": BOUNDS}, "allow_reconstruction": True}
            train(federation, privacy=privacy, algorithm=algorithm, model=model, epochs=1, batch_size=60)
            told.append([a.figures for a in (decode(f, RESPONSES) for f in tap.up) if isinstance(a, Started)])
    assert len(told[0]) == 2
    assert told[0] == told[1]


def test_noise_of_predictions_hides_any_other_row_in_a_rows_place() -> None:
    """Another row moves a prediction from −H to H."""
    privacy = {"predictions": {"mode": "local", "epsilon": 2.0, "bound": 0.7}}
    with tp.Federation(tables()) as federation:
        plan = federation.explain(QUERY, label="late", model="logistic", algorithm="admm", epochs=3, privacy=privacy)
    shown = plan.private.noise.gradients[0]
    assert shown is not None
    assert shown.prediction_noise == pytest.approx(2 * 0.7 * gaussian_noise(2.0, 1e-5, shown.prediction_limit, 1.0))


def test_a_spent_budget_stops_training() -> None:
    features = {"noise": 12.0, "cap": 5, "bounds": BOUNDS}
    privacy = {"features": features, "allow_reconstruction": True, "budget": {"features": 3.0}}
    with tp.Federation(tables()) as federation:
        result = train(federation, privacy=privacy, batch_size=60, epochs=20)
    spent = [result.privacy.epsilon("features", table, "outsider") for table in ("rides", "users")]
    assert 2.95 < max(spent) <= 3.0  # a round more costs 3 %
    assert len(result.history) < 20


@pytest.mark.parametrize(
    ("privacy", "given", "message"),
    [
        (
            {"features": {"epsilon": 1.0, "bounds": BOUNDS}},
            {"algorithm": "newton"},
            "newton needs exact second moments",
        ),
        ({"features": {"epsilon": 1.0}}, {}, "give public bounds"),
        ({"features": {"epsilon": 1.0, "bounds": BOUNDS}}, {}, "enough to reconstruct it"),
        ({"features": {"epsilon": 3.0, "bounds": BOUNDS}, "budget": {"features": 1.0}}, {}, "budget of features"),
        ({"label": {"epsilon": 3.0}, "budget": {"label": 1.0}}, {}, "budget of label"),
    ],
)
def test_what_cannot_be_kept_is_refused(privacy: Any, given: Any, message: str) -> None:
    with tp.Federation(tables()) as federation, pytest.raises(PrivacyError, match=message):
        train(federation, privacy=privacy, **given)


def test_a_repeated_job_sends_the_same_noisy_labels() -> None:
    with tp.Federation(tables()) as federation:
        runs = [train(federation, privacy={"label": {"epsilon": 1.0}}) for _ in range(2)]
        first, second = (joined_rows(federation, run.plan.job).mapping.train.labels for run in runs)
    assert (first == second).all()
    assert runs[0].objective == runs[1].objective


@pytest.mark.parametrize("classes", [2, 10])
def test_a_class_that_noise_leaves_fewer_than_no_rows_sends_no_intercept_to_infinity(classes: int) -> None:
    random = np.random.default_rng(0)
    rare = np.where(random.random(200) < 0.97, 0, random.integers(0, classes, 200))
    table = pa.table({"x": random.normal(size=200), "y": [f"c{c}" for c in rare]})
    with tp.Federation({"people": table}) as federation:
        result = federation.train(
            "SELECT x, y FROM people", label="y", algorithm="newton", l2=1.0, privacy={"label": {"epsilon": 0.1}}
        )
    assert abs(result.objective) < 1e5
    assert max(float(np.abs(block.theta).max()) for block in result.model.blocks) < 1e4
