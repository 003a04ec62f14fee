"""Every key, mask, order and name that is derived from a secret changes with each thing that it is said to be for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.exchanges import groups, history
from tablepuppet.exchanges.groups import SendGroups, SumGroups
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.blinding import blinding_key
from tablepuppet.owner.labels import LabelNoise
from tablepuppet.owner.owner_files import use_of
from tablepuppet.owner.releases import score_name, start_name
from tablepuppet.owner.row_sets import order_bits
from tablepuppet.owner.split import Split, fold_numbers
from tablepuppet.owner.tokens import id_tokens, job_key, key_check
from tablepuppet.privacy.labels import uniform_numbers
from tablepuppet.privacy.masks import Masks, mask_key
from tablepuppet.privacy.options import FeaturePrivacy, LabelPrivacy, PredictionPrivacy, Rounding
from tablepuppet.protocol.columns import CategoryEncoder, ColumnInfo, NumberEncoder
from tablepuppet.protocol.contract import BlockTerms, Column, Contract, Moments, ScanTerms, fingerprint

ONE = np.ones(1)
RED, BLUE = (CategoryEncoder(categories=[name], has_missing=False, has_other=False) for name in ("red", "blue"))
NUMBER = NumberEncoder(mean=ONE, scale=ONE, fill=ONE, has_missing=False)
ROWS = np.arange(8, dtype=np.uint64).reshape(4, 2)
MOMENTS = Moments("orders", "day", "visits", ("b",), column=2, keys=(3,))
PRIVATE, PEER, OTHER = (bytes([n] * 32) for n in (3, 4, 5))


def mask(private: bytes, peer: bytes, salt: bytes, part: int, peers_part: int, counter: int) -> Any:
    keys = [mask_key(private, b"s", "j", "a", part), mask_key(peer, b"s", "j", "b", peers_part)]
    return Masks.of(keys, private, salt, part).masked(np.zeros(4, np.int64), counter).tolist()


def tag(shared: bytes, job: str, client: str, part: int, private: bytes) -> bytes:
    return mask_key(private, shared, job, client, part).tag


def drawn(secret: bytes, release: str, rows: Any, labels: Any) -> Any:
    return uniform_numbers(secret, release, rows, labels).tolist()


def release(secret: bytes, name: str, label: str, identity: str, classes: Any, **privacy: Any) -> str:
    told: list[str] = []
    noise = LabelNoise(LabelPrivacy(**privacy), secret, name, ROWS, told.append, label, identity)
    noise.add_to(np.zeros(4), classes)
    return told[0]


def fold(key: bytes, seed: int, offset: int) -> Any:
    return fold_numbers(64, Split(offset, seed, 0.0, key=key), 5, "row", None, None).tolist()


def group_fold(key: bytes, seed: int) -> Any:
    column = pa.chunked_array([[str(n) for n in range(64)]])
    named = column, ColumnInfo("g", "string")
    return fold_numbers(64, Split(0, seed, 0.0, key=key), 5, "group", named, None).tolist()


def group_secret(secret: bytes, job: str, scan: int, contract: str, digest: bytes, use: bytes) -> bytes:
    own: Any = SimpleNamespace(secret=secret, agreed=lambda job: SimpleNamespace(hash=contract))
    found: Any = SimpleNamespace(digest=lambda: digest)
    return groups._secret(own, SendGroups(job=job, scan=scan), found, use)


def group_mask(holders: list[int], commitments: list[bytes], scales: list[int], digest: bytes) -> Any:
    """The masks of one client over groups that it shares with another."""
    own: Any = SimpleNamespace(secret=b"x", key=b"k" * 32, agreed=lambda job: SimpleNamespace(hash="c"))
    sums = np.zeros((2, 1), np.int64)
    found: Any = SimpleNamespace(digest=lambda: digest, words=lambda *given: (sums, sums))
    asked = SendGroups(job="j", scan=1)
    secrets = [groups._secret(own, asked, found, b"key"), OTHER]
    peers = [mask_key(s, b"k" * 32, "j groups 1", name, -1) for s, name in zip(secrets, "ab", strict=True)]
    given = {"holders": np.array(holders, np.int32), "rows": np.zeros(2, np.int32)}
    request = SumGroups(job="j", scan=1, place=0, peers=peers, commitments=commitments, scales=scales, **given)
    return groups._mask(own, found, request)[1].tolist()


def sealed(key: bytes, job: str, **terms: Any) -> bytes:
    own: Any = SimpleNamespace(key=key)
    given = MOMENTS if not terms else Moments(**{name: terms.get(name, getattr(MOMENTS, name)) for name in FIELDS})
    return history._cipher(own, job).encrypt(b"moments", history._bind(given))


def pair(key: bytes, job: str, value: int, place: int) -> Any:
    own: Any = SimpleNamespace(shared_key=key)
    column = pa.chunked_array([[value]]), ColumnInfo("k", "integer")
    return history._tokens(own, job, [column] * (place + 1))[place].to_pylist()


FIELDS = MOMENTS.__struct_fields__
SCAN, BLOCK = ScanTerms(0, "t", (Column("x", ("feature",)),), None), BlockTerms("t", 0, (0,))
THETA = np.array([[1.0], [2.0]])
# A function, what it is given, and what may not be the same with another of these.
DERIVED: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
    (lambda **g: blinding_key(**g).private_bytes_raw(), {"secret": b"s", "job": "ab", "domain": "c"}, {}),
    (lambda **g: blinding_key(**g).private_bytes_raw(), {"secret": b"s", "job": "a", "domain": "bc"}, {"job": "ab"}),
    (job_key, {"shared": b"s", "job": "a"}, {}),
    (lambda **g: key_check(job_key(**g)), {"shared": b"s", "job": "a"}, {}),
    (tag, {"shared": b"s", "job": "a", "client": "b", "part": 1, "private": PRIVATE}, {"private": PEER}),
    (
        mask,
        {"private": PRIVATE, "peer": PEER, "salt": b"a", "part": 1, "peers_part": 2, "counter": 0},
        {"private": OTHER, "peer": OTHER, "part": 0},
    ),
    (order_bits, {"key": b"k", "scan": "t", "seed": 1, "offset": 8, "rows": 4}, {"rows": None}),
    (
        lambda names, **g: id_tokens(pa.array(names), **g).tolist(),
        {"names": ["x"], "key": b"k", "domain": "d"},
        {"names": ["y"]},
    ),
    (
        drawn,
        {"secret": b"s", "release": "r", "rows": ROWS, "labels": np.zeros(4)},
        {"rows": ROWS + np.uint64(1), "labels": np.ones(4)},
    ),
    (
        release,
        {"secret": b"s", "name": "t", "label": "y", "identity": "key id", "classes": [0.0, 1.0], "epsilon": 1.0},
        {"classes": [0.0, 2.0], "epsilon": 2.0},
    ),
    (
        lambda **privacy: release(b"s", "t", "y", "i", None, **privacy),
        {"epsilon": 1.0, "mechanism": "bins", "bounds": (0.0, 1.0), "bins": 16},
        {"epsilon": 2.0, "mechanism": "laplace", "bounds": (0.0, 2.0), "bins": 17},
    ),
    (fold, {"key": b"k", "seed": 1, "offset": 0}, {"offset": 8}),
    (group_fold, {"key": b"k", "seed": 1}, {}),
    (
        group_secret,
        {"secret": b"s", "job": "j", "scan": 1, "contract": "c", "digest": b"d", "use": b"key"},
        {},
    ),
    (
        group_mask,
        {"holders": [0, 1], "commitments": [b"a" * 32, b"b" * 32], "scales": [3], "digest": b"d"},
        {"holders": [1, 1], "commitments": [b"a" * 32, b"c" * 32], "scales": [4]},
    ),
    (
        sealed,
        {"key": b"k", "job": "j", "table": "orders", "expression": "day", "history": "visits", "clients": ("b",)},
        {"clients": ("b", "c")},
    ),
    (pair, {"key": b"k", "job": "j", "value": 7, "place": 0}, {}),
    (
        lambda encoders, spec, outputs, theta: score_name((encoders, spec, outputs), theta),
        {"encoders": [RED], "spec": ModelSpec(), "outputs": 1, "theta": THETA},
        {"encoders": [BLUE], "spec": ModelSpec(kind="mlp"), "theta": THETA + 1e-9},
    ),
    (
        fingerprint,
        {"encoders": [RED, NUMBER], "theta": THETA, "spec": ModelSpec(), "outputs": 1},
        {"encoders": [RED, RED], "spec": ModelSpec(kind="mlp"), "theta": THETA + 1e-9},
    ),
    (start_name, {"features": ["x"], "weights": [{"": [1.0]}]}, {"features": ["y"], "weights": [{"": [2.0]}]}),
    (
        lambda key, name, value: Rounding(20, key).number(name, value, 1e-9),
        {"key": b"k", "name": "rmse", "value": 0.5},
        {},
    ),
    (
        lambda **given: use_of(Contract(label="y", **given)),
        {
            **{"asker": "ann", "readers": (), "purpose": "train", "scans": (SCAN,), "blocks": (BLOCK,)},
            **{"label_privacy": None, "feature_privacy": None, "prediction_privacy": PredictionPrivacy()},
            **{"keys": "hmac", "most_keys": 0, "allow_reconstruction": False},
        },
        {
            **{"readers": ("bob",), "purpose": "explain", "scans": (SCAN, SCAN), "blocks": ()},
            **{"label_privacy": LabelPrivacy(epsilon=1.0), "feature_privacy": FeaturePrivacy(epsilon=1.0)},
            **{"prediction_privacy": PredictionPrivacy(mode="local", epsilon=1.0)},
            **{"keys": "plain", "allow_reconstruction": True},
        },
    ),
]


def another(value: Any) -> Any:
    return value + (b"2" if isinstance(value, bytes) else "2" if isinstance(value, str) else 1)


@pytest.mark.parametrize("case", range(len(DERIVED)))
def test_what_is_derived_depends_on_all_that_it_is_for(case: int) -> None:
    derive, given, others = DERIVED[case]
    first = derive(**given)
    assert np.array_equal(derive(**given), first)
    for name, value in given.items():
        changed = others[name] if name in others else another(value)
        if changed is not None:
            assert not np.array_equal(derive(**(given | {name: changed})), first), name


def test_the_owner_of_a_history_opens_what_was_sealed_for_it_whatever_number_a_column_has_there() -> None:
    there = Moments("orders", "day", "visits", ("b",), column=-1, keys=(0,))
    assert sealed(b"k", "j") == sealed(b"k", "j", column=-1, keys=(0,))
    assert history._bind(there) == history._bind(MOMENTS)
