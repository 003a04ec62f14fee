"""A federation of processes: the same verbs, and a running coordinator does the work.

A user's end: it submits jobs, follows them and gets their results, over one connection per question.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa

from tablepuppet import train as story
from tablepuppet.api.federation import Federation
from tablepuppet.errors import DisconnectedError, JobError, TablePuppetError, TransportError, error_class
from tablepuppet.formatting import printable
from tablepuppet.job import Job
from tablepuppet.models.modules import Builder, Named
from tablepuppet.network import control as c
from tablepuppet.network.control import from_frame, to_frame
from tablepuppet.network.settings import read_federation
from tablepuppet.plan.plan import Plan
from tablepuppet.prediction.model import Model
from tablepuppet.protocol.codec import Frame
from tablepuppet.protocol.contract import Contract
from tablepuppet.protocol.evidence import Signature, read_asker_key, sign_contract
from tablepuppet.training.result import Result, RoundEvent
from tablepuppet.transport.envelopes import Goodbye
from tablepuppet.transport.flight import TOO_MANY, Connection, Party

log = logging.getLogger(__name__)
_CONTRACT = msgspec.json.Decoder(Contract)
_MAX_MESSAGE = 10_000  # characters of a message of the server, which quotes queries
OnRound = Callable[[RoundEvent], None]


class ConnectedFederation(Federation):
    """Tables of clients in processes of their own; a running coordinator does the work."""

    def __init__(self, path: str | Path, *, asker_key: str | Path | None = None) -> None:
        settings = read_federation(path)
        self._tables, self._clients = settings.tables, {}
        if asker_key is None and settings.user is not None and settings.user.asker_key is not None:
            asker_key = settings.path(settings.user.asker_key)
        self._asker_key = None if asker_key is None else read_asker_key(asker_key)
        self._address = settings.server.address
        name, identity = settings.user_identity()
        if identity is not None:
            identity.check()
        self._party = Party(name, "user", identity)
        self._limit = settings.server.limit
        self._patience = settings.server.wait

    def submit(
        self, query: str, label: str = "", *, share: Sequence[str] = (), resume: bool = False, **options: Any
    ) -> str:
        """Hands in a job as `train` would and does not wait for it; the run's name.

        `share`: other users who may wait for the result too.
        """
        model, algorithm = options.pop("model", "auto"), options.pop("algorithm", None)
        with self._make_job(query, label, model, algorithm, options) as job:
            asked = to_frame(job)
        signatures = self._sign("train", asked, share)
        given = c.Submit(kind="train", resume=resume, follows=False, readers=tuple(share), signatures=signatures)
        answer, _ = self._ask_server(given, [asked])
        return str(answer.run)

    def wait(self, run: str, *, on_round: OnRound | None = None) -> Result:
        """The result of a run that was handed in, now or long ago; to stop waiting does not stop the run."""
        connection = self._connect()
        connection.stream.send(c.Follow(run=run, rounds=on_round is not None))
        return cast(Result, self._hear(connection, run, on_round, stops=False))

    def cancel(self, run: str, *, keep: bool = False) -> None:
        """Stops a run; its checkpoints go, unless they are kept to resume it."""
        self._ask_server(c.Cancel(run=run, keep=keep))

    def resume(self, run: str) -> None:
        """Continues an interrupted run, by its name; `wait` gives its result."""
        self._ask_server(c.Resume(run=run))

    def status(self) -> dict[str, Any]:
        """Which clients are connected, which runs there are, and how far they are."""
        _, frames = self._ask_server(c.AskStatus())
        return dict(from_frame(frames[0]))

    def close(self) -> None:
        """Does nothing: the coordinator and its clients keep running."""

    def _explain(self, job: Job) -> Plan:
        return cast(Plan, self._do("explain", job))

    def _train(self, job: Job, on_round: OnRound | None, resume: bool) -> Result:
        return cast(Result, self._do("train", job, resume=resume, on_round=on_round))

    def _predict(self, model: Model, query: str, **options: Any) -> pa.Table:
        return self._do("predict", {"model": model, "query": query, "options": options})

    def _ask(self, question: story.Question, **given: Any) -> Any:
        return self._do(question, given)

    def _name_modules(self, model: Any, options: dict[str, Any]) -> AbstractContextManager[Named]:
        _refuse_builder(model if callable(model) else None)
        return super()._name_modules(model, options)

    def _offer_modules(self, model: Model, builder: Builder | None, head: Any) -> AbstractContextManager[None]:
        _refuse_builder(builder or model.builder)
        return super()._offer_modules(model, None, head)

    def _do(self, kind: c.Kind, asked: Any, *, resume: bool = False, on_round: OnRound | None = None) -> Any:
        """Submits a job and waits for its outcome, over as many connections as that takes.

        Interrupted from the keyboard, the run is stopped at its next step, and can be resumed.
        """
        given = to_frame(asked)
        signatures = self._sign(kind, given, ())
        connection = self._connect()
        submitted = c.Submit(kind=kind, resume=resume, rounds=on_round is not None, signatures=signatures)
        connection.stream.send(submitted, [given])
        return self._hear(connection, "", on_round)

    def _sign(self, kind: c.Kind, asked: Frame, readers: Sequence[str]) -> dict[str, Signature]:
        """Signs the contracts that owners will be asked to agree to, if there is a key, once they match the request."""
        key = self._asker_key
        if key is None:
            return {}
        connection = self._connect()
        connection.stream.send(c.Submit(kind=kind, rounds=False, is_draft=True, readers=tuple(readers)), [asked])
        drafts = [_CONTRACT.decode(text) for text in self._hear(connection, "", None)]
        wanted = kind if kind in ("train", "explain", "profile", "predict") else "evaluate"
        job = from_frame(asked, (Job, Model))
        for contract in drafts:
            is_so = contract.asker == self._party.name and contract.purpose in (wanted, "explain")
            is_so &= contract.readers == tuple(readers)
            if isinstance(job, Job):
                is_so &= _has_noise(contract, job)
            if not is_so:
                raise TransportError(
                    "the server wants another contract signed than this job's: its asker, readers, purpose or noise "
                    "differ; ask whoever runs it"
                )
        return {contract.hash: sign_contract(contract, key) for contract in drafts}

    def _hear(self, connection: Connection, run: str, on_round: OnRound | None, *, stops: bool = True) -> Any:
        """News of a run until its last; `stops`: whether a key press stops the run too."""
        seen = 0
        try:
            while True:
                try:
                    news, frames = connection.stream.receive()
                except DisconnectedError:
                    connection.close()
                    if not run:
                        raise
                    connection = self._reconnect(run, rounds=on_round is not None)
                    continue
                if isinstance(news, c.Accepted):
                    run = news.run
                elif isinstance(news, c.Round):
                    if on_round is not None and news.round > seen:
                        on_round(from_frame(frames[0]))
                    seen = max(seen, news.round)
                elif isinstance(news, c.Waiting):
                    if news.approval:
                        log.warning("%s", printable(news.approval, most=_MAX_MESSAGE))
                    for client, seconds in news.clients.items():
                        log.warning(
                            "waiting for client %s, at most %.0f s; its owner runs `tablepuppet join`", client, seconds
                        )
                elif isinstance(news, c.Finished):
                    return from_frame(frames[0])
                elif isinstance(news, c.Failed):
                    raise _error(news)
                elif not isinstance(news, Goodbye):  # it comes back, or is waited for in vain
                    raise TransportError(f"the server sent a {type(news).__name__} out of turn")
        except KeyboardInterrupt:
            connection.close()
            if run and stops:
                self.cancel(run, keep=True)
            raise
        finally:
            connection.close()

    def _ask_server(self, question: Any, given: Sequence[Frame] = ()) -> tuple[Any, list[Frame]]:
        connection = self._connect()
        try:
            connection.stream.send(question, given)
            answer, frames = connection.stream.receive()
        finally:
            connection.close()
        if isinstance(answer, c.Failed):
            raise _error(answer)
        return answer, frames

    def _connect(self) -> Connection:
        """A connection; where this user holds as many as it may, its turn is waited for."""

        def dial() -> Connection:
            connection = Connection(self._address, self._party, c.TO_USER, c.user_protocol())
            connection.stream.allow(self._limit)
            return connection

        return self._retry(dial, lambda error: TOO_MANY in str(error))

    def _reconnect(self, run: str, *, rounds: bool) -> Connection:
        """The server is gone: it is waited for as long as it would wait for a client."""

        def follow() -> Connection:
            connection = self._connect()
            connection.stream.send(c.Follow(run=run, rounds=rounds))
            return connection

        log.warning("the server is gone; waiting for it for at most %.0f s", self._patience)
        try:
            return self._retry(follow, lambda error: True)
        except DisconnectedError as error:
            raise TransportError(
                f"the server did not come back within {self._patience:.0f} s; run {run} can be resumed once it does"
            ) from error

    def _retry(self, attempt: Callable[[], Connection], can_help: Callable[[DisconnectedError], bool]) -> Connection:
        """The first attempt that succeeds; the error of the last, once patience is over or waiting cannot help."""
        until, pause = time.monotonic() + self._patience, 0.2
        while True:
            try:
                return attempt()
            except DisconnectedError as error:
                if time.monotonic() > until or not can_help(error):
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 5.0)


def _refuse_builder(builder: Builder | None) -> None:
    if builder is not None:
        raise JobError('a builder of torch modules cannot travel to other processes; use model="mlp"')


def _error(failed: c.Failed) -> TablePuppetError:
    return error_class(failed.error, TransportError)(printable(failed.message, keep="\n", most=_MAX_MESSAGE))


def _has_noise(contract: Contract, job: Job) -> bool:
    """Whether a contract has the noise that a job asks for; an analyst's budget brings that on features."""
    asked, terms = job.privacy, contract.analyst
    is_so = (contract.label_privacy, contract.prediction_privacy) == (asked.label, asked.predictions)
    if terms is None or asked.analyst is None:
        return is_so and contract.feature_privacy == asked.features and terms is None and asked.analyst is None
    return is_so and all(getattr(terms, n) == getattr(asked.analyst, n) for n in ("epsilon", "delta", "cap", "fits"))
