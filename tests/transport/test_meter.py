"""The meter counts what passes, and the seconds follow from it."""

from __future__ import annotations

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.errors import CatalogError, JobError, TransportError
from tablepuppet.exchanges.parts import Parameters, Release
from tablepuppet.exchanges.registry import REQUESTS
from tablepuppet.exchanges.schema import CloseJob, DescribeTable
from tablepuppet.protocol.base import Done, Failure
from tablepuppet.protocol.codec import Frame, decode, encode
from tablepuppet.transport.link import Link, LocalTransport
from tablepuppet.transport.meter import Network


def answering(frame: Frame) -> Frame:
    request = decode(frame, REQUESTS)
    if isinstance(request, Release):
        return encode(Parameters(values=np.zeros((request.part, 1))))
    if isinstance(request, DescribeTable):
        return encode(Failure(error="CatalogError", message="no such table"))
    return encode(Done())


def link() -> Link:
    return Link(LocalTransport({"a": answering, "b": answering}))


def test_a_round_counts_both_directions_and_its_slowest_path() -> None:
    wire = link()
    wire.ask({"a": [Release(job="j", part=1000)], "b": [Release(job="j", part=10)]}, "training")
    account = wire.meter.account("training")
    assert account.rounds == 1
    assert account.payload_up == 8 * 1010
    assert account.each_round[0].slowest == account.by_client["a"]
    assert account.bytes == sum(account.by_message.values()) == sum(account.by_client.values())
    assert wire.meter.account("setup").rounds == 0


def test_seconds_are_latency_and_the_slowest_path_over_the_bandwidth() -> None:
    wire = link()
    for _ in range(3):
        wire.ask({"a": [Release(job="j", part=1000)], "b": [Release(job="j", part=1000)]}, "training")
    traffic = wire.meter.traffic()
    slow = sum(r.slowest for r in traffic.each_round)
    assert traffic.seconds("us-uk") == pytest.approx(3 * 0.136 + slow * 8 / 0.42e9)
    assert traffic.seconds(tp.Network(latency=1.0, bandwidth=1e9)) == pytest.approx(3.0)
    assert traffic.seconds("us-us", link="shared") > traffic.seconds("us-us")
    with pytest.raises(JobError, match="us-uk"):
        traffic.seconds("mars")
    with pytest.raises(JobError):
        Network(latency=-1, bandwidth=1)


def test_a_clients_failure_is_raised_as_the_same_error_with_its_name() -> None:
    with pytest.raises(CatalogError, match="client b: no such table"):
        link().ask({"a": [CloseJob(job="j")], "b": [DescribeTable(table="t")]})


def test_an_error_class_that_does_not_exist_becomes_a_transport_error() -> None:
    def odd(frame: Frame) -> Frame:
        return encode(Failure(error="SystemExit", message="boom"))

    with pytest.raises(TransportError, match="boom"):
        Link(LocalTransport({"a": odd})).ask({"a": [CloseJob(job="j")]})


@pytest.mark.parametrize(("algorithm", "values"), [("admm", 2), ("newton", 2)])
def test_payload_bytes_of_a_run_are_those_of_the_complexity_table(algorithm: str, values: int) -> None:
    rng = np.random.default_rng(0)
    import pyarrow as pa

    n, k = 5000, 300
    left = pa.table({"k": rng.integers(0, k, n), "x": rng.normal(size=n), "y": rng.normal(size=n)})
    right = pa.table({"k": np.arange(k), "z": rng.normal(size=k)})
    federation = tp.Federation({"l": left, "r": right})
    result = federation.train(
        "SELECT l.x, r.z, l.y FROM l JOIN r ON l.k = r.k",
        label="y",
        model="linear",
        algorithm=algorithm,
        epochs=4,
        test_fraction=0.0,
    )
    traffic = result.traffic
    expected = values * (n + k) * 8 * traffic.rounds
    assert traffic.payload_up + traffic.payload_down == pytest.approx(expected, rel=0.05)
    assert traffic.bytes == pytest.approx(expected, rel=0.05)
