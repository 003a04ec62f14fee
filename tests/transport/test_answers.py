"""What a lying client answers is refused by name and field, before anything is made of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.errors import TransportError
from tablepuppet.exchanges.features import FeatureNames, FeatureStatistics
from tablepuppet.exchanges.keys import Keys
from tablepuppet.exchanges.labels import DescribeLabels, Labels, LabelSummary, SendWeights, Weights
from tablepuppet.exchanges.parts import Encoded, Evaluation, Parameters
from tablepuppet.exchanges.prediction import Identifiers, Scores
from tablepuppet.exchanges.proposal import Agreement
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES, check_answer
from tablepuppet.exchanges.schema import CountRows, RowCount, ScanSchema, TableSchema
from tablepuppet.exchanges.start import Started
from tablepuppet.exchanges.steps import Seal
from tablepuppet.protocol.base import Done, Masked, Message, Partial, Predictions
from tablepuppet.protocol.bounds import Known, WrongError
from tablepuppet.protocol.codec import Frame, decode, encode
from tablepuppet.transport.link import AnswerChecks, Transport

QUERY = "SELECT o.x, o.z, i.price, i.kind, o.y FROM orders o JOIN items i ON o.item = i.item"
Lie = Callable[[Any], Message]


class Liar:
    """Stands where client `who` stands, and changes its n-th answer of a kind."""

    def __init__(self, inner: Transport, who: str, kind: type, lie: Lie, nth: int = 1) -> None:
        self._inner, self._who, self._kind, self._lie, self._left = inner, who, kind, lie, nth
        self.accepted = 0

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        answers = self._inner.exchange(frames, wait=wait)
        if self._who in answers:
            answers[self._who] = [self._changed(frame) for frame in answers[self._who]]
        return answers

    def _changed(self, frame: Frame) -> Frame:
        answer = decode(frame, RESPONSES)
        if not isinstance(answer, self._kind):
            return frame
        self._left -= 1
        return encode(self._lie(answer), frame.wire) if self._left == 0 else frame

    def accept(self) -> None:
        self.accepted += 1

    def close(self) -> None:
        self._inner.close()


def data() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    item = rng.integers(0, 12, 90)
    y = np.where(rng.normal(size=90) + 0.2 * item > 1, "late", "early")
    orders = pa.table({"item": item, "x": rng.normal(size=90), "z": rng.normal(size=90), "y": y})
    items = pa.table({"item": np.arange(12), "price": rng.normal(size=12), "kind": [f"k{i % 3}" for i in range(12)]})
    return {"orders": [orders[:50], orders[50:]], "items": items}


def broken_keys(keys: Keys) -> Message:
    """Tokens whose numbers point far outside their dictionary."""
    column = keys.columns.column(0).combine_chunks()
    outside = pa.array(np.full(len(column), 10**6, np.int32))
    bad = pa.DictionaryArray.from_arrays(outside, column.dictionary, safe=False)
    return replace(keys, columns=pa.table({keys.columns.column_names[0]: bad}))


def first(column: Any, **given: Any) -> list[Any]:
    return [replace(column[0], **given), *column[1:]]


def last(column: Any, **given: Any) -> list[Any]:
    return [*column[:-1], replace(column[-1], **given)]


def shortened(table: pa.Table, size: int) -> pa.Table:
    """Tokens of so many bytes."""
    columns = [column.combine_chunks() for column in table.columns]
    tokens = [pa.array([bytes([n]) * size for n in range(len(c.dictionary))], pa.binary(size)) for c in columns]
    found = [pa.DictionaryArray.from_arrays(c.indices, t) for c, t in zip(columns, tokens, strict=True)]
    return pa.table(dict(zip(table.column_names, found, strict=True)))


def untold(keys: pa.Table) -> pa.Table:
    """Keys as they are, where tokens are due."""
    return pa.table({keys.column_names[0]: pa.array(range(keys.num_rows))})


LIES: list[tuple[str, type, Lie, str]] = [
    ("items", TableSchema, lambda a: replace(a, columns=a.columns * 5000), "TableSchema.columns"),
    ("items", TableSchema, lambda a: replace(a, stamp=bytes(2000)), "TableSchema.stamp"),
    ("items", ScanSchema, lambda a: replace(a, columns=a.columns[:-1]), "ScanSchema.columns"),
    ("items", ScanSchema, lambda a: replace(a, stability={"items": 2**40}), r"ScanSchema\.stability"),
    ("items", RowCount, lambda a: RowCount(rows=-1), "RowCount.rows"),
    ("items", RowCount, lambda a: RowCount(rows=2**50), "RowCount.rows"),
    ("items", RowCount, lambda a: RowCount(rows=a.rows + 1), "Keys.rows"),
    ("items", Keys, lambda a: replace(a, rows=a.rows + 5), "Keys.rows"),
    ("items", Keys, lambda a: replace(a, columns=a.columns[:-2]), "Keys.columns"),
    ("items", Keys, lambda a: replace(a, columns=pa.table({})), "Keys.columns"),
    ("items", Keys, broken_keys, "Keys.columns"),
    ("items", Keys, lambda a: replace(a, columns=pa.table({"c": pa.array(range(12))})), "Keys.columns"),
    ("orders[0]", Keys, lambda a: replace(a, order=a.order[::-1].copy()), "Keys.order"),
    ("orders[0]", Keys, lambda a: replace(a, order=a.order[:-1].copy()), "Keys.order"),
    ("orders[0]", Keys, lambda a: replace(a, order=None), "Keys.order"),
    ("orders[0]", LabelSummary, lambda a: replace(a, classes=["a", "a"]), "LabelSummary.classes"),
    ("orders[0]", LabelSummary, lambda a: replace(a, classes=[str(i) for i in range(20000)]), "LabelSummary.classes"),
    ("orders[0]", LabelSummary, lambda a: replace(a, missing=-1), "LabelSummary.missing"),
    ("orders[0]", Labels, lambda a: replace(a, values=a.values[:-1].copy()), "Labels.values"),
    ("orders[0]", Labels, lambda a: replace(a, values=a.values + 9), "Labels.values"),
    ("orders[0]", Labels, lambda a: replace(a, values=a.values + 0.5), "Labels.values"),
    ("orders[0]", Labels, lambda a: replace(a, values=a.values + 1e300), "Labels.values"),
    ("orders[0]", Labels, lambda a: replace(a, is_test=a.is_test[:3].copy()), "Labels.is_test"),
    ("items", FeatureStatistics, lambda a: replace(a, columns=a.columns[:1]), "FeatureStatistics.columns"),
    (
        "items",
        FeatureStatistics,
        lambda a: replace(a, columns=first(a.columns, mean=np.array([np.nan]))),
        "columns.mean",
    ),
    ("items", FeatureStatistics, lambda a: replace(a, columns=first(a.columns, weight=-1.0)), r"columns\S*\.weight"),
    ("items", FeatureStatistics, lambda a: replace(a, columns=first(a.columns, weight=1e9)), r"columns\S*\.weight"),
    (
        "items",
        FeatureStatistics,
        lambda a: replace(a, columns=first(a.columns, spread=np.array([-1.0]))),
        "columns.spread",
    ),
    (
        "items",
        FeatureStatistics,
        lambda a: replace(a, columns=[a.columns[0], replace(a.columns[1], weights=np.ones(2))]),
        "columns.weights",
    ),
    ("items", Encoded, lambda a: Encoded(width=10**9), "Encoded.width"),
    ("items", Started, lambda a: replace(a, width=10**9), "Started.width"),
    ("items", Started, lambda a: replace(a, figures={"x": float("nan")}), "Started.figures"),
    ("items", Predictions, lambda a: replace(a, values=a.values[:-1].copy()), "Predictions.values"),
    ("items", Predictions, lambda a: replace(a, values=a.values.T.copy()), "Predictions.values"),
    ("items", Predictions, lambda a: replace(a, values=np.full_like(a.values, np.nan)), "Predictions.values"),
    ("items", Predictions, lambda a: replace(a, products=np.full_like(a.products, np.inf)), "Predictions.products"),
    ("items", Evaluation, lambda a: replace(a, test=a.test[:-1].copy()), "Evaluation.test"),
    ("items", Evaluation, lambda a: replace(a, norm=float("nan")), "Evaluation.norm"),
    ("items", Evaluation, lambda a: replace(a, norm=-1.0), "Evaluation.norm"),
    ("items", Parameters, lambda a: replace(a, values=np.full_like(a.values, np.nan)), "Parameters.values"),
    ("items", Parameters, lambda a: replace(a, values=a.values[:-1].copy()), "Parameters.values"),
    ("items", Parameters, lambda a: Done(), "Done is no answer to Release"),
    ("items", Parameters, lambda a: replace(a, values=a.values * 2), "Parameters.values have another norm"),
    ("items", Predictions, lambda a: replace(a, values=a.values + 1e200), "Predictions.values"),
    ("items", Predictions, lambda a: replace(a, products=np.ones(6)), "Predictions.products"),
    ("items", Predictions, lambda a: Done(), "Done is no answer"),
    ("items", Keys, lambda a: replace(a, check=b""), "Keys.check"),
    ("items", Agreement, lambda a: replace(a, contract=""), "Agreement.contract"),
    ("orders[0]", Partial, lambda a: Partial(values=[]), "Partial.values"),
    ("orders[0]", Partial, lambda a: Partial(values=[a.values[0][:-1].copy()]), "Partial.values"),
    ("orders[0]", Partial, lambda a: Partial(values=[a.values[0] * np.nan]), "Partial.values"),
    ("orders[0]", Partial, lambda a: Partial(values=[a.values[0]] * 4), "Partial.values are 4 arrays"),
    ("orders[0]", Partial, lambda a: Partial(values=[a.values[0], np.ones((1, 2))]), "no curvature of the part's"),
    ("orders[0]", Labels, lambda a: replace(a, values=np.full(50, np.inf)), "Labels.values hold infinity"),
    ("orders[0]", Labels, lambda a: replace(a, values=a.values * np.nan), "Labels.values are missing in 50 rows"),
    ("orders[0]", Labels, lambda a: replace(a, values=a.values - 1), "no class of 2"),
    ("orders[0]", Labels, lambda a: replace(a, values=a.values + 1), "no class of 2"),
    ("orders[0]", Labels, lambda a: replace(a, is_validation=a.is_test), "Labels.is_validation names rows that are"),
    ("orders[0]", Labels, lambda a: replace(a, is_validation=~a.is_test[1:]), "Labels.is_validation has shape"),
    ("orders[0]", Labels, lambda a: replace(a, folds=np.zeros(50, np.int16)), "Labels.folds hold a number that is no"),
    ("orders[0]", LabelSummary, lambda a: replace(a, missing=51), "LabelSummary.missing is 51, more than there can be"),
    ("orders[0]", LabelSummary, lambda a: replace(a, classes=["a", 1.0]), "LabelSummary.classes mix texts and numbers"),
    ("orders[0]", LabelSummary, lambda a: replace(a, kind="boolean"), "LabelSummary.classes of a boolean label"),
    ("items", FeatureStatistics, lambda a: replace(a, columns=a.columns[::-1]), "columns are of other types than"),
    ("items", FeatureStatistics, lambda a: replace(a, columns=first(a.columns, mean=np.ones(2))), "where 1 are due"),
    ("items", FeatureStatistics, lambda a: replace(a, columns=first(a.columns, mean=np.ones(1) * 1e200)), "too large"),
    ("items", FeatureStatistics, lambda a: replace(a, columns=first(a.columns, missing=-1.0)), r"columns\S*\.missing"),
    (
        "items",
        FeatureStatistics,
        lambda a: replace(a, columns=first(a.columns, missing=5.0)),
        r"columns.missing is \d+, more",
    ),
    ("items", FeatureStatistics, lambda a: replace(a, columns=first(a.columns, spread=np.ones(2))), "columns.spread"),
    ("items", FeatureStatistics, lambda a: replace(a, columns=last(a.columns, categories=["k0"] * 3)), "twice"),
    (
        "items",
        FeatureStatistics,
        lambda a: replace(a, columns=last(a.columns, missing=1.0)),
        r"columns.weights is \d+, more",
    ),
    ("items", FeatureStatistics, lambda a: replace(a, columns=last(a.columns, missing=99.0)), "columns.missing is 99"),
    ("items", FeatureStatistics, lambda a: FeatureNames(columns=a.columns), "come with figures where none were asked"),
    ("items", Encoded, lambda a: Encoded(width=a.width + 1), "Encoded.width is 5 where these encoders make 4 columns"),
    ("items", Started, lambda a: replace(a, width=a.width + 1), "Started.width is 5 where the part has 4 columns"),
    ("items", Predictions, lambda a: replace(a, products=np.array([-1.0])), "products begin with a negative square"),
    ("items", Predictions, lambda a: replace(a, products=np.ones(0)), "Predictions.products are 0 numbers"),
    ("items", Evaluation, lambda a: replace(a, train=a.test), "Evaluation.train is not what was asked for"),
    (
        "items",
        Evaluation,
        lambda a: replace(a, test=a.test * np.nan),
        "Evaluation.test holds numbers that are not finite",
    ),
    ("items", Parameters, lambda a: replace(a, values=a.values.T.copy()), "Parameters.values has shape"),
    ("items", Keys, lambda a: replace(a, columns=untold(a.columns)), "not tokens of 16 bytes"),
    ("items", Keys, lambda a: replace(a, columns=shortened(a.columns, 15)), "not tokens of 16 bytes"),
    ("items", Keys, lambda a: replace(a, columns=shortened(a.columns, 32)), "not tokens of 16 bytes"),
    ("items", Predictions, lambda a: replace(a, products=np.array([-1e-9])), "products begin with a negative square"),
]
# What the server's half of an algorithm notices.
NOTICED: list[tuple[str, type, Lie, str]] = [
    ("items", Started, lambda a: replace(a, figures={"curvature": 1.0, "other": 2.0}), "other figures|figures"),
]
OBJECTED: list[tuple[str, Callable[[Any], Any], str]] = [
    ("a tree", lambda f: replace(f, tree=f.tree + 9), "found.tree is none"),
    ("a node", lambda f: replace(f, node=f.node + 99), "found.node is none"),
    ("a node twice", lambda f: _doubled(f), "found.node is objected to twice"),
    ("a key", lambda f: replace(f, key=f.key + 300), "found.key is none"),
    ("no key", lambda f: replace(f, key=f.key * 0 - 1), "found.key is missing"),
    ("void", lambda f: replace(f, is_void=~f.is_void), "found.is_void is said of a split"),
    ("a small gain", lambda f: replace(f, gain=f.gain * 0), "found.gain is not positive"),
    ("a large gain", lambda f: replace(f, gain=f.gain * 1000), "claims a gain that its split does not have"),
    ("a column", lambda f: replace(f, keys=_changed(f.keys, column=77)), "found.keys.column is none"),
    ("bits", lambda f: replace(f, keys=_changed(f.keys, right=np.zeros(1, np.uint8))), "found.keys.right has shape"),
    ("missing", lambda f: replace(f, keys=[replace(k, is_missing=True) for k in f.keys * 2]), "found.keys.is_missing"),
    ("a size", lambda f: replace(f, keys=_changed(f.keys, size=1)), "found.keys.size is below 2"),
    ("a large size", lambda f: replace(f, keys=_changed(f.keys, size=257)), "found.keys.size is below 2, or more"),
    ("a kind", lambda f: replace(f, keys=_changed(f.keys, kind=2)), "found.keys.column is of another kind"),
    ("digits", lambda f: replace(f, keys=_changed(f.keys, digits=np.zeros((8, 1), np.uint8))), "digits has shape"),
    ("bins", lambda f: replace(f, keys=[_changed_bins(k) for k in f.keys]), "NewColumn.digits holds a bin that"),
    ("a column twice", lambda f: replace(f, keys=f.keys * 2), "found.keys.column is of another kind, or was told"),
    ("complete", lambda f: replace(f, complete=[77]), "found.complete names a column that is none"),
]


def _changed_bins(key: Any) -> Any:
    """A column whose rows all lie in a bin beyond the last."""
    return replace(key, digits=np.full_like(key.digits, 255))


def _changed(keys: list[Any], **given: Any) -> list[Any]:
    return [replace(keys[0], **given), *keys[1:]]


def _doubled(found: Any) -> Any:
    arrays = {
        n: np.concatenate([getattr(found, n)] * 2) for n in found.__struct_fields__ if n not in ("keys", "complete")
    }
    return replace(found, **arrays)


@pytest.mark.parametrize(("what", "lie", "says"), OBJECTED, ids=[what for what, _, _ in OBJECTED])
def test_a_lie_about_splits_of_trees_is_refused(what: str, lie: Callable[[Any], Any], says: str) -> None:
    with tp.Federation(data()) as federation:
        objects = Liar(
            federation._transport, "items", trees.TreeObjections, lambda a: trees.TreeObjections(found=lie(a.found))
        )
        federation._transport = objects  # type: ignore[assignment]
        reveal = "splits" if what in ("bits", "missing", "a large gain") else "columns"
        with pytest.raises(tp.TablePuppetError, match=f"client items.*{says}"):
            federation.train(QUERY, label="y", algorithm="boosting", trees=2, depth=3, reveal=reveal)


@pytest.mark.one_in(30)
@pytest.mark.parametrize(("who", "kind", "lie", "says"), NOTICED + LIES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_lie_is_refused_by_client_and_field(who: str, kind: type, lie: Lie, says: str) -> None:
    with tp.Federation(data()) as federation:
        federation._transport = Liar(federation._transport, who, kind, lie)  # type: ignore[assignment]
        with pytest.raises(tp.TablePuppetError, match=f"client {re.escape(who)}[ :].*{says}"):
            train_plainly(federation)


def train_plainly(federation: tp.Federation) -> None:
    federation.train(QUERY, label="y", algorithm="admm", epochs=2, privacy={"secure_aggregation": False})


class Listener:
    """Stands between a server and its clients, and remembers each client's answers with what they answer."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.heard: dict[str, list[tuple[Message, Any]]] = {}

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        answers = self._inner.exchange(frames, wait=wait)
        for client, given in answers.items():
            asked = [decode(frame, REQUESTS) for frame in frames[client]]
            told = [decode(frame, RESPONSES) for frame in given]
            self.heard.setdefault(client, []).extend(zip(asked, told, strict=True))
        return answers

    def accept(self) -> None:
        self._inner.accept()

    def close(self) -> None:
        self._inner.close()

    def believes(self, who: str, kind: type, lie: Lie) -> str:
        """Why a client's answers are refused if its first one of a kind is a lie; "": they are not."""
        known, has_lied = Known(most_rows=10**6), False
        for request, honest in self.heard[who]:
            is_lie = isinstance(honest, kind) and not has_lied
            has_lied |= is_lie
            try:
                told = decode(encode(lie(honest)), RESPONSES) if is_lie else honest
                check_answer(request, told, known)
            except WrongError as wrong:
                return f"{type(told).__name__}.{wrong.field} {wrong.what}"
            except TransportError as error:
                return str(error)
        assert has_lied
        return ""


def test_every_lie_is_refused_by_field_and_what_is_honest_is_not() -> None:
    with tp.Federation(data()) as federation:
        federation._transport = listener = Listener(federation._transport)  # type: ignore[assignment]
        train_plainly(federation)
    missed = []
    for who, kind, lie, says in LIES:
        assert not listener.believes(who, kind, lambda honest: honest)
        if not re.search(says.replace(r"\.", "."), found := listener.believes(who, kind, lie)):
            missed.append((who, kind, says, found))
    assert not missed


PLAIN: dict[str, Callable[[int], Any]] = {
    "nothing": pa.nulls,
    "lists": lambda n: pa.array([[1, 2]] * n),
    "no bytes": lambda n: pa.array([b""] * n, pa.binary(0)),
    "texts": lambda n: pa.array(["a"] * n),
    "a dictionary": lambda n: pa.array(["a"] * n).dictionary_encode(),
    "times": lambda n: pa.array(np.arange(n)).cast(pa.timestamp("ns", tz="Nowhere/Bad")),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_key_values_of_another_kind_than_described_are_refused_by_client(kind: str) -> None:
    """They ended in an error of the join, which named nobody and showed a key."""

    def lie(keys: Keys) -> Message:
        names = keys.columns.column_names
        return replace(keys, columns=pa.table({name: PLAIN[kind](keys.rows) for name in names}))

    with tp.Federation(data()) as federation:
        federation._transport = Liar(federation._transport, "items", Keys, lie)  # type: ignore[assignment]
        with pytest.raises(tp.TablePuppetError, match=r"client items .*Keys.columns are .* described as integer"):
            federation.train(QUERY, label="y", epochs=1, privacy={"keys": "plain"})


@pytest.mark.parametrize(("name", "keys"), [("c7", "plain"), ("x", "hmac"), ("x", "dh")])
def test_keys_under_another_name_are_refused_by_client(name: str, keys: str) -> None:
    with tp.Federation(data()) as federation:
        liar = Liar(federation._transport, "items", Keys, lambda a: replace(a, columns=_named(a.columns, name)))
        federation._transport = liar  # type: ignore[assignment]
        with pytest.raises(tp.TablePuppetError, match=r"client items .*Keys.columns are not those"):
            federation.train(QUERY, label="y", epochs=1, privacy={"keys": keys})


def _named(table: pa.Table, name: str) -> pa.Table:
    return table.rename_columns([name] * table.num_columns)


def test_keys_that_change_between_rounds_are_noticed() -> None:
    """The same question within a job has the same answer."""
    checks = AnswerChecks()
    request = CountRows(job="j", scan=0)
    asked, answer = encode(request), LabelSummary(kind="number", missing=3)
    question = DescribeLabels(job="j", scan=0, column=1)
    checks.round({"a": [asked]}, {"a": [encode(RowCount(rows=4))]}, {"a": [request]}, {"a": [RowCount(rows=4)]})
    sent = {"a": [encode(question)]}
    checks.round(sent, {"a": [encode(answer)]}, {"a": [question]}, {"a": [answer]})
    other = replace(answer, missing=2)
    with pytest.raises(tp.TablePuppetError, match="client a answers DescribeLabels otherwise than before"):
        checks.round(sent, {"a": [encode(other)]}, {"a": [question]}, {"a": [other]})
    checks.close("j")
    checks.round(sent, {"a": [encode(other)]}, {"a": [question]}, {"a": [other]})


def test_a_single_number_that_changes_between_rounds_is_noticed() -> None:
    checks, question = AnswerChecks(), SendWeights(job="j", scan=0, column=1)
    for last, is_same in ((3.0, True), (3.0, True), (3.5, False)):
        answer = Weights(values=np.array([1.0, 2.0, last]))
        told: Any = ({"a": [encode(question)]}, {"a": [encode(answer)]}, {"a": [question]}, {"a": [answer]})
        if is_same:
            checks.round(*told)
            continue
        with pytest.raises(tp.TablePuppetError, match="client a answers SendWeights otherwise than before"):
            checks.round(*told)


def test_a_small_message_that_unpacks_to_gigabytes_is_refused_before_it_does() -> None:
    honest = encode(Scores(values=np.zeros((1000, 1))), "float64+zstd")
    assert decode(honest, RESPONSES, 8000).values.shape == (1000, 1)
    with pytest.raises(tp.TablePuppetError, match="more than the 7,999 bytes"):
        decode(honest, RESPONSES, 7999)
    wide = encode(Scores(values=np.zeros((1000, 1))), "float32")
    with pytest.raises(tp.TablePuppetError, match="more than the 7,999 bytes"):
        decode(wide, RESPONSES, 7999)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_table_that_is_compressed_inside_its_stream_is_refused(compression: str) -> None:
    table = pa.table({"c0": np.zeros(10_000), "c1": pa.array(["x"] * 10_000).dictionary_encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    stream = sink.getvalue().to_pybytes()
    frame = encode(Identifiers(columns=pa.table({})))
    header = frame.header.replace(bytes([len(frame.buffers[0])]), b"\xcd" + len(stream).to_bytes(2, "big"))
    if header == frame.header:  # sizes beyond 127 are written otherwise
        before = len(frame.buffers[0])
        header = frame.header.replace(b"\xcc" + bytes([before]), b"\xcd" + len(stream).to_bytes(2, "big"))
    with pytest.raises(tp.TablePuppetError, match="compressed inside"):
        decode(Frame(header, [stream]), RESPONSES)


@pytest.mark.parametrize("shape", [(0, 10**30), (2**40, 2**40), (-1,), (1,) * 100])
def test_shapes_that_no_array_has_are_refused(shape: tuple[int, ...]) -> None:
    values = [0, "<f8", [min(size, 2**63) for size in shape], "<f8"]
    header = bytes([0]) + msgspec.msgpack.encode({"type": "Scores", "values": values})
    with pytest.raises(tp.TablePuppetError, match="does not follow the protocol"):
        decode(Frame(header, [b""]), RESPONSES)


def test_masked_sums_have_the_shapes_and_scales_that_were_asked_for() -> None:
    request = Seal(job="j", part=0, scales=[3, 5])
    honest = Masked(
        values=[np.zeros((2,), np.int64), np.zeros((4,), np.int64)],
        exponents=[1, 2],
        scales=[3, 5],
        kinds=["<f8", "<f8"],
    )

    def judge(answer: Masked) -> None:
        known = Known(most_rows=10**6)
        part = known.part(request)
        part.summed, part.shapes = "counts", [(2,), (4,)]
        check_answer(request, answer, known)

    judge(honest)
    judge(replace(honest, values=[], scales=[]))  # nothing fits these scales
    lies: list[tuple[dict[str, Any], str]] = [
        ({"scales": [3, 6]}, "are not those that were named"),
        ({"scales": [5, 3]}, "are not those that were named"),
        ({"scales": [3]}, "are not as many as there are arrays"),
        ({"exponents": [1]}, "are not as many as there are arrays"),
        ({"values": honest.values[:1]}, "are not as many as there are scales"),
        ({"values": honest.values[::-1]}, "shape"),
        ({"values": [v.astype(np.float64) for v in honest.values]}, "elements of type float64"),
        ({"values": [], "scales": [], "kinds": ["<f8"], "exponents": [1]}, "are 1 arrays where 2 are due"),
    ]
    for changed, why in lies:
        with pytest.raises(WrongError, match=why):
            judge(replace(honest, **changed))
