"""A server that carries figures of groups between clients reads none of them, whatever it tells the clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.exchanges.groups import HoldGroups, SendGroups, SumGroups, commitment
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.exchanges.schema import CloseJob, OpenScan
from tablepuppet.owner.policy import Policy
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.codec import Frame, decode, encode

QUERY = """SELECT c.age, t.n, t.total, t.most, c.y FROM clients c JOIN (
    SELECT id, count(*) AS n, sum(cents) AS total, max(cents) AS most FROM payments GROUP BY id) t ON t.id = c.id"""


def bank(clients: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    people = pa.table({"id": np.arange(20), "age": rng.integers(18, 80, 20), "y": rng.normal(size=20)})
    payments = [
        pa.table({"id": np.repeat(np.arange(20), 4), "cents": rng.integers(1_000, 9_000, 80)}) for _ in range(clients)
    ]
    return {"clients": people, "payments": payments}


class Server:
    """Stands for a server that keeps all it sees, and may change what it asks."""

    def __init__(self, federation: tp.Federation, change: Callable[[str, Any], Any] = lambda client, asked: asked):
        self._inner, self._change = federation._transport, change
        self.seen: list[tuple[str, Any, Any]] = []
        federation._transport = self  # type: ignore[assignment]

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        asked = {c: [self._change(c, decode(frame, REQUESTS)) for frame in given] for c, given in frames.items()}
        found = self._inner.exchange({c: [encode(one) for one in given] for c, given in asked.items()}, wait=wait)
        for client, given in asked.items():
            self.seen += [(client, q, decode(a, RESPONSES)) for q, a in zip(given, found[client], strict=True)]
        return found

    def of(self, kind: type[Message]) -> dict[str, tuple[Any, Any]]:
        """A request's kind, and its answer, by client."""
        return {client: (asked, answer) for client, asked, answer in self.seen if isinstance(asked, kind)}

    def accept(self) -> None:
        self._inner.accept()

    def close(self) -> None:
        self._inner.close()


def open_bank(clients: int = 3) -> tp.Federation:
    return tp.Federation(bank(clients), policies={"payments": Policy(merge_groups="extremes")})


@pytest.mark.parametrize("clients", [2, 3])
def test_what_passes_the_server_is_no_clients_figure_and_no_sum(clients: int) -> None:
    given = bank(clients)
    with open_bank(clients) as federation:
        server = Server(federation)
        federation.explain(QUERY, label="y")
    figures: set[int] = set()
    for some in range(1, 2**clients):
        rows = pa.concat_tables([t for c, t in enumerate(given["payments"]) if some >> c & 1]).group_by("id")
        found = rows.aggregate([("cents", "sum"), ("cents", "max"), ("cents", "min"), ("cents", "count")])
        figures |= {int(v) for name in found.column_names if name != "id" for v in found[name].to_pylist()}
    sent = [answer for _, answer in server.of(SumGroups).values()]
    words = np.concatenate([np.concatenate([a.sums.ravel(), a.extremes.ravel()]) for a in sent])
    assert len(words) >= 20 * 5 * (clients - 1)
    held = [asked for asked, _ in server.of(HoldGroups).values()]
    words = np.concatenate([words, *(h.sums.ravel() for h in held), *(h.extremes.ravel() for h in held)])
    assert not figures & {int(w) for w in words}
    assert len(np.unique(words)) > 0.99 * len(words) / 2  # of two clients the same words pass twice
    assert np.abs(words.astype(np.float64)).mean() > 2.0**61  # as of 64 random bits


def test_clients_that_are_told_of_different_holders_share_no_masks() -> None:
    """Where every client believes that another one holds a group, all send it: their masks must not cancel."""

    def change(client: str, asked: Any) -> Any:
        if isinstance(asked, SumGroups) and client == "payments[0]":
            return replace(asked, holders=np.ones_like(asked.holders))
        return asked

    given = bank()
    with open_bank() as federation:
        server = Server(federation, change)
        with pytest.raises(tp.TablePuppetError):
            federation.train(QUERY, label="y")
    sums = [answer.sums for _, answer in server.of(SumGroups).values()]
    assert {len(s) for s in sums} == {20}
    total = np.stack([s.view(np.uint64) for s in sums]).sum(axis=0, dtype=np.uint64).view(np.int64)
    counts = pa.concat_tables(given["payments"]).num_rows // 20
    assert not (total[:, 0] == counts).any()
    assert np.abs(total.astype(np.float64)).min() > 2.0**20


def test_the_same_question_has_the_same_answer_and_another_one_has_other_masks() -> None:
    """A job that is begun again under its name, about other rows, must not show differences of figures."""
    with open_bank() as federation:
        server = Server(federation)
        federation.explain(QUERY, label="y")
        client = federation._clients["payments[1]"]
        wanted = (OpenScan, ProposeContract, SendGroups, SumGroups)
        story = [(q, a) for name, q, a in server.seen if name == "payments[1]" and isinstance(q, wanted)]

        def again(change: Callable[[Any], Any] = lambda asked: asked) -> Any:
            answers = [client.answer(change(asked)) for asked, _ in story]
            client.answer(CloseJob(job=story[0][0].job))
            return answers[-1]

        first = story[-1][1]
        salt = next(a.salt for q, a in story if isinstance(q, SendGroups))
        assert np.array_equal(again().sums, first.sums)

        def others(asked: Any) -> Any:
            if not isinstance(asked, SumGroups):
                return asked
            rows = np.roll(asked.rows, 1)
            commitments = [*asked.commitments]
            commitments[asked.place] = commitment(salt, rows)
            return replace(asked, rows=rows, commitments=commitments)

        second = again(others)
        gap = (second.sums.view(np.uint64) - first.sums.view(np.uint64)).view(np.int64)
        assert np.abs(gap.astype(np.float64)).min() > 2.0**20
        with pytest.raises(tp.TablePuppetError, match="not those that all clients were told of"):
            again(lambda asked: replace(asked, rows=np.roll(asked.rows, 1)) if isinstance(asked, SumGroups) else asked)


def test_groups_are_merged_by_contract_only() -> None:
    """Asked for twice, out of turn, by another number of owners, or without a grant, a client answers nothing."""
    with open_bank() as federation:
        server = Server(federation)
        federation.explain(QUERY, label="y")
        client, name = federation._clients["payments[1]"], "payments[1]"
        job = "0123456789abcdef"
        story = [q for c, q, _ in server.seen if c == name and isinstance(q, OpenScan | ProposeContract)]
        for asked in story:
            client.answer(replace(asked, job=job))
        sums = server.of(SumGroups)[name][0]
        with pytest.raises(tp.TablePuppetError, match="SendGroups comes before SumGroups"):
            client.answer(replace(sums, job=job))
        groups = SendGroups(job=job, scan=sums.scan)
        client.answer(groups)
        with pytest.raises(tp.TablePuppetError, match="asked for again"):
            client.answer(groups)
        with pytest.raises(tp.TablePuppetError, match="masked among 3 owners"):
            client.answer(replace(sums, job=job, peers=sums.peers[:2]))
    with tp.Federation(bank()) as closed, pytest.raises(tp.TablePuppetError, match="merge_groups"):
        list(map(closed._clients[name].answer, story))


def test_masks_are_made_with_keys_of_clients_alone() -> None:
    for place in range(3):

        def change(client: str, asked: Any, place: int = place) -> Any:
            if not isinstance(asked, SumGroups) or client != f"payments[{(place + 1) % 3}]":
                return asked
            peers = [*asked.peers]
            peers[place] = replace(peers[place], tag=bytes(32))
            return replace(asked, peers=peers)

        with open_bank() as federation:
            Server(federation, change)
            with pytest.raises(tp.TablePuppetError, match="was not made by a client of this federation"):
                federation.explain(QUERY, label="y")


@pytest.mark.parametrize("least", [4, 5])
def test_groups_of_few_rows_are_told_to_no_other_owner(least: int) -> None:
    """Every owner has four rows of every group."""
    rules = Policy(merge_groups="extremes", minimum_rows=least)
    with tp.Federation(bank(), policies={"payments[1]": rules, "payments": rules}) as federation:
        if least == 4:
            federation.explain(QUERY, label="y")
            return
        with pytest.raises(tp.TablePuppetError, match="groups of fewer than 5 rows would be told"):
            federation.explain(QUERY, label="y")
