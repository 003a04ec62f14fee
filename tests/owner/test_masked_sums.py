"""Secure aggregation in whole runs: the same models, and a server that can read nothing but sums."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.privacy.test_runs import Tap

import tablepuppet as tp
from tablepuppet.errors import PolicyError, PrivacyError, TransportError
from tablepuppet.exchanges.base import Exchange
from tablepuppet.exchanges.features import FeatureNames, SumStatistics
from tablepuppet.exchanges.registry import EXCHANGES, REQUESTS, RESPONSES
from tablepuppet.exchanges.start import Started, StartPart
from tablepuppet.owner.policy import Policy
from tablepuppet.owner.state import ClientState, Sealing
from tablepuppet.protocol.base import Masked, Message, Partial
from tablepuppet.protocol.codec import decode
from tablepuppet.protocol.columns import IdStatistics, NumberEncoder, NumberStatistics
from tablepuppet.training.server import is_settled, sum_parts

QUERY = "SELECT a.x, a.c, b.z, a.y FROM a JOIN b ON a.k = b.k"
OFF: dict[str, Any] = {"secure_aggregation": False}


def federation(a: int = 3, b: int = 1, rows: int = 400, **given: Any) -> tp.Federation:
    generator = np.random.default_rng(5)
    left = pa.table(
        {
            "k": generator.integers(0, 30, rows),
            "x": generator.normal(size=rows),
            "c": generator.choice(["p", "q", "r"], rows),
            "y": generator.normal(size=rows) > 0,
        }
    )
    right = pa.table({"k": np.arange(30), "z": generator.normal(size=30)})
    return tp.Federation({"a": slices(left, a), "b": slices(right, b)}, **given)


def slices(table: pa.Table, owners: int) -> list[pa.Table]:
    ends = np.linspace(0, len(table), owners + 1).astype(int)
    return [table.slice(start, end - start) for start, end in pairwise(ends)]


def train(owners: tp.Federation, algorithm: Any = "sgd", privacy: Any = None, **given: Any) -> tp.Result:
    plain: dict[str, Any] = {"label": "y", "model": "logistic", "epochs": 4, "batch_size": 100}
    return owners.train(QUERY, algorithm=algorithm, privacy=privacy, **(plain | given))


def answers(tap: Tap, kind: type) -> list[Any]:
    decoded = [decode(frame, RESPONSES) for frame in tap.up]
    return [a for a in decoded if isinstance(a, kind)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "algorithm", ["newton", "admm", tp.Admm(union="exact"), "sgd", tp.Sgd(optimizer="adam")], ids=repr
)
@pytest.mark.parametrize(("a", "b"), [(3, 3), (7, 4)])
def test_a_masked_run_gives_the_model_of_a_plain_one(algorithm: Any, a: int, b: int) -> None:
    with federation(a, b) as owners:
        tap = Tap(owners)
        masked = train(owners, algorithm)
        assert answers(tap, Masked)
        assert not answers(tap, Partial)
        plain = train(owners, algorithm, OFF)
        assert answers(tap, Partial)
    assert masked.objective == pytest.approx(plain.objective, rel=1e-13)
    weights = (masked.coefficients()["weight"], plain.coefficients()["weight"])
    assert np.allclose(*weights, rtol=0, atol=1e-10)


def test_a_masked_network_stays_in_its_own_precision() -> None:
    pytest.importorskip("torch")
    for algorithm in (tp.Sgd(learning_rate=0.1), tp.Admm(inner_rounds=2, local_epochs=1)):
        with federation() as owners:
            masked = train(owners, algorithm, model="mlp")
            plain = train(owners, algorithm, OFF, model="mlp")
        assert masked.blocks[0].theta.dtype == np.float32
        assert masked.objective == pytest.approx(plain.objective, rel=1e-4)


def test_sums_are_masked_from_three_clients_on_and_for_two_if_asked() -> None:
    for clients, privacy, is_masked in ((2, {}, False), (2, {"secure_aggregation": True}, True), (3, OFF, False)):
        with federation(clients) as owners:
            tap = Tap(owners)
            result = train(owners, privacy=privacy)
            assert bool(answers(tap, Masked)) == is_masked
            assert ("of no single one (masked)" in str(result.plan)) == is_masked


@pytest.mark.parametrize(("clients", "is_synced"), [(2, False), (3, True)])
def test_a_step_under_masks_is_on_the_disk_before_its_answer_leaves(clients: int, is_synced: bool) -> None:
    """After a power cut a client would answer the step again, under the same mask."""
    found: set[bool] = set()
    with federation(a=clients) as owners:

        def ask(event: Any) -> None:
            own = [client for client in owners._clients.values() if "a" in client.tables.names]
            found.update(client.answers_once(job) for client in own for job in client.contracts.jobs)

        train(owners, epochs=1, batch_size=None, learning_rate=0.1, on_round=ask)
    assert found == {is_synced}


def test_what_single_clients_send_is_noise_and_its_sum_is_the_gradient() -> None:
    with federation(3) as owners:
        tap = Tap(owners)
        train(owners, epochs=1, batch_size=None, learning_rate=0.1)
        masked = [a for a in answers(tap, Masked) if a.values]
    masked = masked[-3:]  # statistics of features come first
    sent = [a.values[0] for a in masked]
    plain = sum_parts(masked)[0]
    assert np.abs(plain).max() < 1  # a mean gradient of a logistic loss on standardised features
    for one in sent:
        assert np.abs(one.astype(float)).max() > 2**59  # all 64 bits are in use
    assert not np.allclose(plain, sent[0].astype(float))


def with_gaps(clients: int) -> tp.Federation:
    """Numbers of all sizes, vectors, missing values, and a client that has none but NULL."""
    generator = np.random.default_rng(6)
    rows = 300
    size = generator.normal(1e9, 3.0, rows)
    size[100:200] = np.nan
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(generator.normal(size=2 * rows)), 2)
    table = pa.table(
        {
            "k": generator.integers(0, 9, rows),
            "size": pa.array(size, from_pandas=True),
            "tiny": generator.normal(0.0, 1e-7, rows),
            "v": vectors,
            "kind": pa.array([None if i % 7 == 0 else "abcd"[i % 4 if i < 200 else 0] for i in range(rows)]),
            "y": generator.normal(size=rows) > 0,
        }
    )
    return tp.Federation({"t": slices(table, clients), "u": pa.table({"k": np.arange(9), "z": np.arange(9.0)})})


def test_statistics_of_features_are_summed_under_masks_and_give_the_same_encoders() -> None:
    query = "SELECT t.size, t.tiny, t.v, t.kind, u.z, t.y FROM t JOIN u ON t.k = u.k"
    given: dict[str, Any] = {"label": "y", "algorithm": "newton", "epochs": 2, "max_categories": 2}
    with with_gaps(3) as owners:
        tap = Tap(owners)
        masked = owners.train(query, **given)
        told = [a.columns for a in answers(tap, FeatureNames)]
        plain = owners.train(query, privacy=OFF, **given)
    assert len(told) == 3
    for column in (c for columns in told for c in columns):
        if isinstance(column, NumberStatistics):
            assert (column.weight, column.missing) == (0.0, 0.0)
            assert not column.mean.any()
            assert not column.spread.any()
        else:
            assert column.missing == 0.0
            assert not column.weights.any()
    for one, other in zip(masked.blocks[0].encoders, plain.blocks[0].encoders, strict=True):
        if isinstance(one, NumberEncoder) and isinstance(other, NumberEncoder):
            assert (np.abs(one.mean - other.mean) <= 1e-12 * other.scale + 1e-15 * np.abs(other.mean)).all()
            np.testing.assert_allclose(one.scale, other.scale, rtol=1e-12)
            assert one.has_missing == other.has_missing
        else:
            assert one == other


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_figures_that_training_begins_with_are_summed_under_masks_too(algorithm: str) -> None:
    told = []
    for privacy in (None, OFF):
        with federation(3, 3) as owners:
            tap = Tap(owners)
            train(owners, algorithm, privacy, epochs=1, batch_size=None)
        told.append([started.figures for started in answers(tap, Started)])
    assert told[0] == [{}] * 6
    assert all(told[1])


def test_of_its_statistics_a_client_tells_sizes_in_steps_of_sixteen_doublings_only() -> None:
    with with_gaps(3) as owners:
        tap = Tap(owners)
        owners.explain("SELECT t.size, t.kind, u.z, t.y FROM t JOIN u ON t.k = u.k", label="y")
        exponents = {e for a in answers(tap, Masked) for e in a.exponents}
    assert exponents
    assert all(e % 16 == 0 for e in exponents)


def test_clients_are_told_names_and_means_of_all_and_no_count() -> None:
    with federation(3) as owners:
        tap = Tap(owners)
        train(owners)
    asked = [r for r in (decode(f, REQUESTS) for f in tap.down) if isinstance(r, SumStatistics)]
    assert {r.is_second for r in asked} == {False, True}
    for column in (c for r in asked for c in r.columns):
        assert not isinstance(column, IdStatistics)
        assert column.missing == 0.0
        assert not np.any(column.weight if isinstance(column, NumberStatistics) else column.weights)
    assert all(np.any(c.mean) for r in asked if r.is_second for c in r.columns if isinstance(c, NumberStatistics))


def test_the_server_cannot_slip_in_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with federation(3) as owners:
        client = owners._clients["a[0]"]
        registry: dict[type, Exchange] = EXCHANGES
        start = registry[StartPart]

        def meddled(own: ClientState, request: StartPart) -> Message:
            if own is not client:
                return start.handle(own, request)
            other = Sealing(request.job, "a[1]", request.peers[1].part, b"the server's own guess" * 2)
            return start.handle(own, replace(request, peers=[request.peers[0], other.offer(), request.peers[2]]))

        monkeypatch.setitem(registry, StartPart, dataclasses.replace(start, handle=meddled))
        with pytest.raises(PrivacyError, match=r"a\[0\].*in the name of a\[1\] was not made by a client"):
            train(owners)


def test_an_owner_can_insist_on_masked_sums() -> None:
    strict = Policy(minimum_clients=3)
    with federation(3, policies={"a": strict}) as owners:
        train(owners)
        with pytest.raises(PolicyError, match=r"masked sums over at least 3 clients .* \(rule minimum_clients\)"):
            train(owners, privacy=OFF)
    with federation(2, policies={"a": strict}) as owners, pytest.raises(PolicyError, match="minimum_clients"):
        train(owners, privacy={"secure_aggregation": True})


def sealings(parties: int = 3) -> list[Sealing]:
    found = [Sealing("job", f"c{i}", i, b"k" * 32) for i in range(parties)]
    keys = [s.offer() for s in found]
    for sealing in found:
        sealing.meet(keys)
    return found


def test_a_sum_that_outgrows_its_scale_is_asked_for_again_and_never_wraps() -> None:
    parties = sealings()
    for size in (1.0, 1e-9, 1e200, 3e-280, 0.0):
        values = [np.random.default_rng(i).normal(size=5) * size for i in range(3)]
        sent = [s.seal(Partial(values=[v]), "training") for s, v in zip(parties, values, strict=True)]
        if not is_settled(sent):
            scale = max(a.exponents[0] for a in sent if isinstance(a, Masked)) + 1
            sent = [s.again([scale]) for s in parties]
        assert is_settled(sent)
        assert np.allclose(sum_parts(sent)[0], sum(values), rtol=0, atol=1e-14 * size)


def test_the_same_summand_asked_for_again_comes_under_another_mask() -> None:
    first, *_ = sealings()
    first.seal(Partial(values=[np.ones(8)]), "training")
    one, two = first.again([2]), first.again([2])
    assert not (one.values[0] == two.values[0]).any()
    with pytest.raises(TransportError, match="no sum under way"):
        sealings()[0].again([2])


def test_a_checkpoint_goes_on_with_the_next_mask() -> None:
    first, second, third = sealings()
    first.seal(Partial(values=[np.ones(4)]), "training")
    again = Sealing("job", "c0", 0, b"k" * 32)
    again.meet(first.peers)
    again.restore(first.state)
    for other in (second, third):
        other.seal(Partial(values=[np.ones(4)]), "training")
    sent = [s.again([2]) for s in (again, second, third)]
    assert np.allclose(sum_parts(sent)[0], 3.0)


def test_a_run_that_diverges_says_so_through_masks() -> None:
    first, second, third = sealings()
    sent = [
        first.seal(Partial(values=[np.array([1.0, np.inf])]), "training"),
        second.seal(Partial(values=[np.ones(2)]), "training"),
        third.seal(Partial(values=[np.ones(2)]), "training"),
    ]
    assert is_settled(sent)
    assert np.isnan(sum_parts(sent)[0]).all()
    assert isinstance(sent[0], Partial)
    assert np.isnan(sent[0].values[0]).all()  # nothing of the finite one either


def test_a_column_may_lie_in_a_masked_block_and_in_another() -> None:
    rows = pa.table({"k": [1, 2, 3], "x": [1.0, 2.0, 4.0], "y": [1.0, 3.0, 2.0]})
    query = "SELECT a.x, b.z, a.y FROM a JOIN b USING (k) UNION ALL SELECT c.x, c.x, c.y FROM c"
    tables = {"a": rows, "c": rows, "b": slices(pa.table({"k": [1, 2, 3], "z": [0.0, 1.5, 3.0]}), 3)}
    with tp.Federation(tables) as owners:
        result = owners.train(query, label="y", model="linear", test_fraction=0.0, l2=0.0)
    x, z, y = (np.array(values) for values in ([1.0, 2, 4, 1, 2, 4], [0.0, 1.5, 3, 1, 2, 4], [1.0, 3, 2, 1, 3, 2]))
    _, squares, *_ = np.linalg.lstsq(np.column_stack([x, z, np.ones(6)]), y, rcond=None)
    assert result.objective == pytest.approx(squares[0] / 12)
