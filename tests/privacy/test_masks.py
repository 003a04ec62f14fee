"""Masks: they cancel in the sum over all parts, hide every single summand, and never serve twice."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import scipy.stats
from msgspec.structs import replace

from tablepuppet.errors import PrivacyError, TransportError
from tablepuppet.owner.state import Sealing
from tablepuppet.privacy.masks import MaskKey, Masks, check_key, mask_key, new_private
from tablepuppet.protocol.base import Masked, Partial, Predictions
from tablepuppet.training.server import UnionOperator, sum_parts

SHARED = b"s" * 32


def block(parties: int, job: str = "job", shared: bytes = SHARED) -> tuple[list[bytes], list[MaskKey]]:
    privates = [new_private() for _ in range(parties)]
    return privates, [mask_key(p, shared, job, f"client{i}", i) for i, p in enumerate(privates)]


def among(keys: Sequence[MaskKey], private: bytes, part: int) -> Masks:
    for key in keys:
        check_key(key, SHARED, "job")
    return Masks.of(keys, private, b"job", part)


def masks(parties: int) -> list[Masks]:
    privates, keys = block(parties)
    return [among(keys, private, part) for part, private in enumerate(privates)]


@pytest.mark.parametrize("parties", [2, 3, 7])
def test_the_masks_of_all_parts_cancel(parties: int) -> None:
    values = [np.random.default_rng(i).integers(-(2**58), 2**58, (4, 3)) for i in range(parties)]
    sent = [m.masked(v, 5) for m, v in zip(masks(parties), values, strict=True)]
    total = np.sum([s.view(np.uint64) for s in sent], axis=0, dtype=np.uint64).view(np.int64)
    assert np.array_equal(total, np.sum(values, axis=0))


def test_all_but_one_summand_say_nothing() -> None:
    sent = [m.masked(np.zeros(20_000, np.int64), 0) for m in masks(3)]
    some = (sent[0].view(np.uint64) + sent[1].view(np.uint64)).view(np.uint8)
    assert scipy.stats.chisquare(np.bincount(some, minlength=256)).pvalue > 1e-8
    assert scipy.stats.chisquare(np.bincount(sent[0].view(np.uint8), minlength=256)).pvalue > 1e-8


def test_every_answer_has_a_mask_of_its_own() -> None:
    first, *_ = masks(3)
    zeros = np.zeros(100, np.int64)
    assert not (first.masked(zeros, 0) == first.masked(zeros, 1)).any()
    assert not (masks(3)[0].masked(zeros, 0) == first.masked(zeros, 0)).any()  # keys are made anew


def test_whole_numbers_have_a_mask_of_their_own_each_time() -> None:
    parts = [Sealing("job", f"client{n}", n, SHARED) for n in range(3)]
    for part in parts:
        part.meet([other.offer() for other in parts])
    zeros = [np.zeros(50, np.int64)]
    first, second = (part.seal_integers(zeros)[0] for part in 2 * parts[:1])
    assert not (first == second).any()


def test_a_key_that_no_client_vouches_for_is_refused() -> None:
    privates, keys = block(3)
    server = mask_key(new_private(), b"not the clients' secret" * 2, "job", "client1", 1)
    with pytest.raises(PrivacyError, match="not made by a client"):
        among([keys[0], server, keys[2]], privates[0], 0)
    for other in ({"client": "client9"}, {"part": 7}):
        with pytest.raises(PrivacyError, match="not made by a client"):
            among([keys[0], msgspec.structs.replace(keys[1], **other), keys[2]], privates[0], 0)


def test_a_key_of_another_job_or_given_twice_is_refused() -> None:
    privates, keys = block(3)
    _, earlier = block(3, job="an earlier job")
    with pytest.raises(PrivacyError, match="not made by a client"):
        among([keys[0], earlier[1], keys[2]], privates[0], 0)
    with pytest.raises(PrivacyError, match="each once"):
        among([keys[0], keys[1], keys[1]], privates[0], 0)
    with pytest.raises(PrivacyError, match="each once"):
        among(keys[1:], privates[0], 0)


def test_a_sum_is_of_answers_at_one_scale_and_of_one_shape() -> None:
    first = Masked(values=[np.ones((2, 1), np.int64)], exponents=[0], scales=[3], kinds=["<f8"])
    assert sum_parts([first, first])[0].shape == (2, 1)
    lies: list[dict[str, Any]] = [
        {"scales": [4]},
        {"scales": []},
        {"values": [np.ones((1, 2), np.int64)]},
        {"values": [np.ones((2, 1), np.int64)] * 2},
        {"values": []},
    ]
    for changed in lies:
        for answers in ([first, replace(first, **changed)], [first, first, replace(first, **changed)]):
            with pytest.raises(TransportError, match="do not answer alike"):
                sum_parts(answers)
    plain, predicted = Partial(values=[np.ones((2, 1))]), Predictions(values=np.ones((2, 1)), products=np.ones(1))
    wrong: list[Any] = [Partial(values=[np.ones((3, 1))]), Partial(values=plain.values * 2), predicted]
    for one in wrong:
        with pytest.raises(TransportError, match="do not answer alike"):
            sum_parts([plain, one])


def test_each_part_of_a_masked_sum_has_a_key_in_its_own_name() -> None:
    parts = [SimpleNamespace(block=0, number=n, client=name) for n, name in enumerate("ab")]
    keys = [MaskKey(part.client, part.number, bytes(32), b"") for part in parts]

    def keep(*given: MaskKey | None) -> dict[int, MaskKey]:
        operator: Any = SimpleNamespace(parts=parts, is_masked=[True], keys={})
        UnionOperator.keep_keys(operator, {n: [SimpleNamespace(key=key)] for n, key in enumerate(given)})
        return dict(operator.keys)

    assert keep(*keys) == dict(enumerate(keys))
    with pytest.raises(PrivacyError, match="client b shares no secret"):
        keep(keys[0], None)
    for wrong in (keys[0], replace(keys[1], client="a"), replace(keys[1], part=2)):
        with pytest.raises(TransportError, match="client b offers a key for masks in another's name"):
            keep(keys[0], wrong)
