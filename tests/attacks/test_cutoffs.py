"""Cutoffs of a history: closed by default, sealed from the server, and only those that both owners agreed to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.sql.test_history import PAIRS, make_tables, write_policies

import tablepuppet as tp
from tablepuppet.exchanges.history import Cutoffs, HoldCutoffs, SendCutoffs
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.owner.policy import Policy
from tablepuppet.protocol.codec import Frame, decode, encode

SQL = "SELECT t.x, (SELECT count(*) FROM results r WHERE r.k = t.k AND r.day < t.ts) AS n, t.y FROM task t"
TASK = '[tables.task]\nfeatures = ["x"]\nlabels = ["y"]\nkeys = ["k"]\n'


def _train(federation: tp.Federation) -> Any:
    return federation.train(SQL, label="y", model="linear", test_fraction=0.0)


def test_moments_leave_only_where_their_owner_grants_them(tmp_path: Path) -> None:
    closed, granted = tmp_path / "closed.toml", tmp_path / "open.toml"
    closed.write_text(TASK)
    granted.write_text(TASK + 'cutoffs = ["ts"]\n')
    with (
        tp.Federation(make_tables(), policies={"task": closed}) as federation,
        pytest.raises(tp.TablePuppetError, match="column ts may not"),
    ):
        _train(federation)
    closed.write_text(TASK.replace('["k"]', '["k", "ts"]'))
    with (
        tp.Federation(make_tables(), policies={"task": closed}) as federation,
        pytest.raises(tp.TablePuppetError, match=r'cutoffs = \["ts"\]'),
    ):
        _train(federation)
    with tp.Federation(make_tables(), policies={"task": granted}) as federation:
        assert _train(federation).converged


class _Altering:
    """Stands between a federation and its clients, and may change each request."""

    def __init__(self, federation: tp.Federation, alter: Callable[[Any], Any] = lambda request: request) -> None:
        self._inner, self._alter = federation._transport, alter
        self.answers: list[Any] = []
        federation._transport = self  # type: ignore[assignment]

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        changed = {c: [encode(self._alter(decode(f, REQUESTS))) for f in own] for c, own in frames.items()}
        found = self._inner.exchange(changed, wait=wait)
        self.answers += [decode(frame, RESPONSES) for own in found.values() for frame in own]
        return found

    def accept(self) -> None:
        self._inner.accept()

    def close(self) -> None:
        self._inner.close()


def test_the_server_cannot_read_cutoffs() -> None:
    with tp.Federation(make_tables()) as federation:
        between = _Altering(federation)
        _train(federation)
    (sealed,) = [answer.sealed for answer in between.answers if isinstance(answer, Cutoffs)]
    days = make_tables()["task"]["ts"].drop_null().unique().cast("int32").to_numpy()
    assert not any(int(day).to_bytes(4, "little") in sealed for day in days)


@pytest.mark.parametrize("change", ["place", "twice", "other list", "scan"])
def test_other_cutoffs_than_agreed_are_refused(change: str) -> None:
    def alter(request: Any) -> Any:
        if isinstance(request, SendCutoffs) and change == "place":
            return msgspec.structs.replace(request, place=1)
        if isinstance(request, SendCutoffs) and change == "scan":
            return msgspec.structs.replace(request, scan=request.scan + 7)
        if isinstance(request, HoldCutoffs) and change == "other list":
            flipped = bytes([request.sealed[0][0][0] ^ 1]) + request.sealed[0][0][1:]
            return msgspec.structs.replace(request, sealed=[[flipped]])
        if isinstance(request, HoldCutoffs) and change == "twice":
            return msgspec.structs.replace(request, sealed=[*request.sealed, *request.sealed])
        return request

    with tp.Federation(make_tables()) as federation:
        _Altering(federation, alter)
        with pytest.raises(tp.TablePuppetError, match=r"outside its contract|are refused"):
            _train(federation)


@pytest.mark.parametrize("closed", ["task", "results"])
def test_keys_go_with_cutoffs_only_where_both_owners_grant_pairs(closed: str, tmp_path: Path) -> None:
    texts = PAIRS | {closed: PAIRS[closed].replace('pairs = ["k"]\n', "")}

    def add_keys(request: Any) -> Any:
        if not isinstance(request, ProposeContract) or request.contract.scans[0].table != closed:
            return request
        (scan,) = request.contract.scans
        names = [column.expression for column in scan.columns]
        key = names.index('"k"' if closed == "task" else '"tablepuppet key 0"')
        moments = tuple(msgspec.structs.replace(m, keys=(key,)) for m in scan.moments)
        scan = msgspec.structs.replace(scan, moments=moments)
        return msgspec.structs.replace(request, contract=msgspec.structs.replace(request.contract, scans=(scan,)))

    with tp.Federation(make_tables(), policies=write_policies(tmp_path, texts)) as federation:
        assert list(_train(federation).plan.mapping.cutoffs.values()) == [8]
        _Altering(federation, add_keys)
        with pytest.raises(tp.TablePuppetError, match=rf"client {closed}: .*rule tables.{closed}.pairs"):
            _train(federation)


@pytest.mark.parametrize("days", [(100, 101), (100,)], ids=["a day apart", "one"])
def test_an_owner_that_minds_single_rows_refuses_differences_of_cutoffs(days: Sequence[int]) -> None:
    tables = make_tables()
    moments = np.datetime64("2020-01-01") + np.resize(np.array(days), 120)
    tables["task"] = tables["task"].set_column(1, "ts", pa.array(moments))
    with tp.Federation(tables) as federation:
        assert list(_train(federation).plan.mapping.cutoffs.values()) == [len(days)]
    with (
        tp.Federation(tables, policies={"results": Policy(minimum_rows=20)}) as federation,
        pytest.raises(tp.TablePuppetError, match="cannot tell how few rows"),
    ):
        _train(federation)
