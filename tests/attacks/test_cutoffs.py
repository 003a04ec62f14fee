"""Cutoffs of a history: closed by default, sealed from the server, and only those that both owners agreed to."""

from __future__ import annotations

import datetime
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


HONEST = (
    "(SELECT avg(r.points) FROM results r WHERE r.k = t.k AND r.day < t.ts)",
    "(SELECT max(r.points) FROM results r WHERE r.k = t.k AND r.day < t.ts AND r.day >= t.ts - INTERVAL 90 DAY)",
    "(SELECT regr_slope(r.points, date_diff('day', t.ts, r.day)) FROM results r WHERE r.k = t.k AND r.day < t.ts)",
    "(SELECT r.points FROM results r WHERE r.k = t.k AND r.day < t.ts ORDER BY r.day DESC LIMIT 1)",
    "(SELECT avg(r.points) FROM results r WHERE r.day < t.ts)",
)
ASOF = "SELECT t.x, r.points AS h, t.y FROM task t ASOF LEFT JOIN results r ON r.k = t.k AND r.day <= t.ts"


def _with_moments(days: Sequence[int], keys: int | None = None) -> dict[str, pa.Table]:
    """The tables with other moments, of all keys or of some alone."""
    tables = make_tables()
    moments = pa.array(np.datetime64("2020-01-01") + np.resize(np.array(days), 120))
    task = tables["task"].set_column(1, "ts", moments)
    tables["task"] = task if keys is None else task.set_column(0, "k", pa.array(np.arange(120) // 40 % keys))
    return tables


def _train_item(tables: Mapping[str, pa.Table], item: str, least: int = 5, **options: Any) -> Any:
    rules = Policy(minimum_rows=least)
    sql = item if item.startswith("SELECT") else f"SELECT t.x, {item} AS h, t.y FROM task t"
    with tp.Federation(tables, policies={"results": rules}) as federation:
        return federation.train(sql, label="y", **{"model": "linear", "test_fraction": 0.0, **options})


@pytest.mark.parametrize("least", [5, 10])
@pytest.mark.parametrize("item", [*HONEST, ASOF])
def test_histories_of_many_rows_train_where_an_owner_minds_single_rows(item: str, least: int) -> None:
    assert _train_item(make_tables(), item, least).converged


DAY = "r.day < t.ts AND r.day >= t.ts - INTERVAL 1 DAY"


@pytest.mark.parametrize(
    ("days", "keys", "item", "match"),
    [
        ((100, 101), None, HONEST[0], "round the moments"),
        ((100,), None, f"(SELECT sum(r.points) FROM results r WHERE r.k = t.k AND {DAY})", "round the moments"),
        ((100,), None, f"(SELECT sum(r.points) FILTER (WHERE {DAY}) FROM results r WHERE r.k = t.k)", "round the"),
        ((100,), None, "(SELECT sum(r.points) FROM results r WHERE r.k = t.k AND r.day = t.ts)", "distinct rows"),
        ((100,), None, f"(SELECT sum(CASE WHEN {DAY} THEN r.points ELSE 0 END) FROM results r)", "how few rows"),
        ((0, 30, 60, 90, 120, 150), 3, HONEST[1], "few rows of results are most"),
        ((0, 30, 60, 90, 120, 150), 3, HONEST[3].replace("DESC ", ""), "few rows of results are most"),
        ((150,), 3, ASOF, "few rows of results are most"),
        ((0, 60), None, "(SELECT max(r.points) FROM results r WHERE r.day < t.ts)", "distinct rows"),
        ((0, 60), None, "(SELECT r.points FROM results r WHERE r.day < t.ts ORDER BY r.day LIMIT 1)", "distinct rows"),
        ((0, 60), None, "(SELECT mode(r.points) FROM results r WHERE r.day < t.ts)", "distinct rows"),
        (
            (100,),
            None,
            "(SELECT sum(r.points * pow(0, abs(date_diff('day', r.day, t.ts)))) FROM results r WHERE r.k = t.k "
            "AND r.day < t.ts)",
            "how few rows",
        ),
        (
            (100,),
            None,
            "(SELECT count(*) FROM results r WHERE r.k = t.k AND date_diff('day', r.day, t.ts) < 3)",
            "how few rows",
        ),
    ],
)
def test_cutoffs_that_single_rows_out_are_refused(days: Sequence[int], keys: int | None, item: str, match: str) -> None:
    tables = _with_moments(days, keys)
    assert _train_item(tables, item, 1).converged
    with pytest.raises(tp.TablePuppetError, match=match):
        _train_item(tables, item)


def test_jobs_whose_cutoffs_differ_by_few_rows_are_refused() -> None:
    with tp.Federation(_with_moments((60, 120)), policies={"results": Policy(minimum_rows=5)}) as federation:
        text = (
            "SELECT t.x, (SELECT avg(r.points) FROM results r WHERE r.k = t.k AND r.day < t.ts{}) AS h, t.y FROM task t"
        )

        def train(later: str) -> Any:
            return federation.train(text.format(later), label="y", model="linear", test_fraction=0.0)

        for later in ("", "", " + INTERVAL 30 DAY", " - INTERVAL 20 DAY"):
            assert train(later).converged
        for later in (" - INTERVAL 1 DAY", " + INTERVAL 2 DAY", " - INTERVAL 22 DAY"):
            with pytest.raises(tp.TablePuppetError, match="differ from those of an earlier agreed job"):
                train(later)


@pytest.mark.parametrize("value", ["mode(r.place)", "arg_max(r.place, r.day)"])
def test_a_name_of_one_row_does_not_leave_however_many_cutoffs_see_it(value: str) -> None:
    tables = _with_moments((0, 30, 60, 90, 120, 150))
    rows = tables["results"].to_pylist()
    own = [row for row in rows if row["k"] == 7]
    own[0] |= {"day": datetime.date(2019, 9, 1), "place": "Rumpelstilz"}
    kept = [row for row in rows if row["k"] != 7] + own[:1]
    tables["results"] = pa.Table.from_pylist(kept, schema=tables["results"].schema)
    item = f"(SELECT {value} FROM results r WHERE r.k = t.k AND r.day < t.ts)"
    for least, is_told in ((1, True), (5, False)):
        result = _train_item(tables, item, least, model="linear")
        told = str(result.coefficients())
        assert ("Rumpelstilz" in told) == is_told
