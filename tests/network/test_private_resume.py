"""A private run that is interrupted: no value ever gets two noises, and the account counts the run once."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.privacy.test_runs import BOUNDS, QUERY, Tap, tables

import tablepuppet as tp
from tablepuppet.algorithms.admm.client import AdmmUpdate
from tablepuppet.algorithms.base import PrivateGradient
from tablepuppet.algorithms.sgd.rounds import SgdUpdate
from tablepuppet.client import Client
from tablepuppet.exchanges.parts import Evaluate, Release
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.exchanges.schema import CloseJob
from tablepuppet.network.member import IdempotentClient
from tablepuppet.network.run_store import RunStore
from tablepuppet.owner.owner_log import OwnerLog
from tablepuppet.owner.state import Checkpoint, Kept, Part, Sealing, SealState
from tablepuppet.owner.tables import ClientTables
from tablepuppet.privacy.gaussian import GradientPrivacy, secure_generator
from tablepuppet.protocol.base import Failure, Message, Predictions
from tablepuppet.protocol.codec import Frame, decode, encode
from tablepuppet.sources.source import open_source
from tablepuppet.transport.envelopes import Request

RUN = "0123456789abcdef"


JOBS: dict[str, dict[str, Any]] = {
    "sgd": {"algorithm": "sgd", "batch_size": None},
    "admm": {"algorithm": "admm"},
    "admm of a network": {"algorithm": "admm", "model": "mlp", "hidden": (3,)},
}


def requests(job: str = "sgd") -> list[Message]:
    """What a server asks the users' client in a private run."""
    asked: list[Any] = []
    with tp.Federation(tables(), key=b"k" * 32) as federation:
        tap = Tap(federation)
        inner = tap.exchange

        def exchange(frames: Any, **given: Any) -> Any:
            asked.extend(decode(f, REQUESTS) for f in frames.get("users", ()))
            return inner(frames, **given)

        tap.exchange = exchange  # type: ignore[method-assign]
        privacy = {"features": {"epsilon": 2.0, "cap": 5, "bounds": BOUNDS}, "allow_reconstruction": True}
        federation.train(QUERY, label="late", epochs=4, privacy=privacy, **JOBS[job])
    return [
        type(r)(**{f: RUN if f == "job" else getattr(r, f) for f in r.__struct_fields__})
        for r in asked
        if not isinstance(r, CloseJob)
    ]


def keeper(folder: Path, store: RunStore) -> IdempotentClient:
    held = ClientTables({"users": open_source(tables()["users"], "users")})
    log = OwnerLog(folder / "log.jsonl", anchor=folder / "head")
    return IdempotentClient(Client("users", held, key=b"k" * 32, log=log), store)


def answer(kept: IdempotentClient, step: int, request: Message) -> list[Frame]:
    return list(kept.answer(Request(run=RUN, step=step, after=step - 1), [encode(request)]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("job", JOBS)
def test_a_step_that_is_asked_again_after_a_crash_has_the_noise_it_had(tmp_path: Path, job: str) -> None:
    asked = requests(job)
    store = RunStore(tmp_path)
    kept = keeper(tmp_path, store)
    seen = []
    for step, request in enumerate(asked, 1):
        first = answer(kept, step, request)
        store.close()
        store = RunStore(tmp_path)
        kept = keeper(tmp_path, store)  # the client dies after every answer, and starts anew
        again = answer(kept, step, request)
        assert [f.header for f in first] == [f.header for f in again]
        for one, other in zip(first, again, strict=True):
            assert [bytes(b) for b in one.buffers] == [bytes(b) for b in other.buffers]
        found = decode(first[0], RESPONSES)
        assert not isinstance(found, Failure), found
        if isinstance(found, Predictions):
            seen.append(found.values)
    store.close()
    assert len(seen) == 4
    assert all(not np.array_equal(a, b) for a, b in pairwise(seen))
    spendings = OwnerLog(tmp_path / "log.jsonl").account.spendings
    # one training, counted once (admm's own steps and other tables' are two figures), and the model: by its name
    # and, if it is linear, as weights that another training may begin with
    given = 1 if "network" in job else 2
    assert [s.what for s in spendings] == ["features"] * (1 if job == "sgd" else 2) + ["scores"] * given
    assert [s.numbers for s in spendings[-given:]] == [0] * given
    assert len({s.name for s in spendings[-given:]}) == given


@pytest.mark.parametrize("job", JOBS)
def test_a_resumed_client_gives_no_more_noisy_gradients_than_were_counted(tmp_path: Path, job: str) -> None:
    asked = requests(job)
    update = next(r for r in asked if isinstance(r, SgdUpdate | AdmmUpdate))
    training = [r for r in asked if not isinstance(r, Evaluate | Release)]
    with closing(RunStore(tmp_path)) as store:
        kept = keeper(tmp_path, store)
        for step, request in enumerate(training, 1):
            answer(kept, step, request)
    with closing(RunStore(tmp_path)) as store:
        found = decode(answer(keeper(tmp_path, store), len(training) + 1, update)[0], RESPONSES)
    assert isinstance(found, Failure)
    assert f"covers {4 if job == 'sgd' else 80} noisy gradients" in found.message


def test_all_that_a_checkpoint_holds_of_a_part_is_the_parts_again() -> None:
    """A count that began anew would let a row be shown twice as often, or take twice as many noisy steps."""
    private = PrivateGradient(GradientPrivacy(clip=1.0, noise=1.0), secure_generator())
    part = Part(cast("Any", None))
    part.setup = cast("Any", SimpleNamespace(private=private))
    part.sealing = Sealing("j", "a", 0, b"k" * 32)
    kept = Kept(np.ones(2), is_restored=True)
    found = Checkpoint("state", kept, SealState(b"p" * 32, 3, {"step": [4]}), 5, 6, 7, {"step": 8}, "run")
    part.restore(found)
    again = part.checkpoint(found.asked, found.run)
    for name in Checkpoint.__struct_fields__:
        assert getattr(again, name) is getattr(found, name) or getattr(again, name) == getattr(found, name), name
