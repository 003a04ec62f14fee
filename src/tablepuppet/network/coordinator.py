"""The coordinator: runs jobs one after another over the clients that are connected, users in turn.

In: jobs that users submit. Out: news and results, to the user who asked and to nobody else. A run computes in a process
of its own (runs.py); this one only carries messages and keeps the journal. Interrupted runs:

- A run under way when the coordinator ended or died is continued when it starts again.
- A run that ended because a client stayed away waits to be resumed.
- A run whose process died twice is set aside.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from tablepuppet import train as story
from tablepuppet.errors import ApprovalError, JobError, RunInterruptedError, TablePuppetError, TransportError
from tablepuppet.memory import memory_limit
from tablepuppet.network.control import Failed, Submit, Waiting
from tablepuppet.network.run_store import Key, RunStore, StoreError, is_out_of_room, read_earlier_runs
from tablepuppet.network.run_transport import GivesWayError, Journal, RunTransport, TimeSlice
from tablepuppet.network.runs import Card, Run, RunDiedError, RunProcess, RunQueue
from tablepuppet.network.settings import FederationSettings
from tablepuppet.protocol.codec import Frame
from tablepuppet.protocol.evidence import TreeHead
from tablepuppet.transport.envelopes import Envelope
from tablepuppet.transport.switchboard import Switchboard, WaitRules

log = logging.getLogger(__name__)
_HEADS: Key = ("", "heads", 0)  # a record of no run
_MAX_FINISHED_RUNS = 50  # finished runs of one user whose results stay
_MAX_QUEUED_RUNS = 100  # runs of one user that wait
_MAX_DEATHS = 2  # of a run's processes, after which it is set aside
_ASK_AGAIN = (1.0, 30.0)  # seconds between two checks for a person's approval: at first, and later on
_APPROVAL = 30 * 86400.0  # seconds until a run without approval fails
_MEMORY_SHARE = 0.7  # of the memory, for the process of a run
_OF_A_USER = 16  # times less is for the inputs and results of one user's runs


class Heads(Envelope, frozen=True):
    """On the disk: the newest head of each client's log."""

    heads: dict[str, TreeHead]


class Coordinator:
    """Jobs in, results out, one at a time."""

    def __init__(self, settings: FederationSettings, switchboard: Switchboard) -> None:
        self._settings, self._switchboard = settings.server, switchboard
        self._tables, self._administrators = settings.tables, frozenset(settings.administrators)
        self._folder = settings.path(settings.server.state)
        self._store = RunStore(self._folder)
        self._runs: dict[str, Run] = {}
        self._queue = RunQueue()
        self._lock = threading.RLock()
        self._current: Run | None = None
        self._is_closing = False
        self._process = RunProcess(self._settings.memory or int(_MEMORY_SHARE * memory_limit()), self._settings.compute)
        self.most_held = self._process.memory // _OF_A_USER  # bytes of one user's runs
        self.trouble = ""  # the reason why the coordinator does not work
        self.rounds = self.bytes_up = self.bytes_down = 0
        self._keep_heads()
        self._take_up()
        self._worker = threading.Thread(target=self._work, name="coordinator", daemon=True)
        self._worker.start()

    def submit(self, submitted: Submit, asked: Frame, user: str = "") -> Run:
        """Queues a run, or the interrupted run of the same user and job."""
        if submitted.resume:
            with self._lock:
                every = [r for r in self._runs.values() if r.state == "interrupted" and r.owner == user]
            same = [r for r in every if r.asked == asked]
            if not same:
                raise JobError("there is no interrupted run of this job; start it without resume")
            return self.resume(max(same, key=lambda r: r.submitted).id, user)
        id = story.new_job_id()
        lasts = submitted.kind == "train" and not submitted.is_draft
        run = Run(id, submitted.kind, asked, self._store if lasts else None, owner=user, readers=submitted.readers)
        run.is_draft, run.signatures = submitted.is_draft, submitted.signatures
        try:
            self._enqueue(run)
        except TransportError:
            run.remove()
            raise
        return run

    def resume(self, id: str, user: str | None = None) -> Run:
        """Queues an interrupted run again; it resumes at its last step."""
        run = self._own_run(id, user)
        if run.state != "interrupted":
            raise JobError(f"run {run.id} is {run.state}; only an interrupted run can be resumed")
        run.check_protocol()
        run.error, run.deaths, run.keeps_state = None, 0, False
        run.stop.clear()
        self._enqueue(run)
        return run

    def _enqueue(self, run: Run) -> None:
        whose = run.owner or "yours"
        with self._lock:
            waiting = [r for r in self._runs.values() if r.owner == run.owner and not r.is_over and r is not run]
        if len(waiting) >= _MAX_QUEUED_RUNS:
            raise JobError(f"{len(waiting)} runs of {whose} wait already; let some of them end first")
        held = sum(r.size for r in waiting) + run.asked.size
        if held > self.most_held:
            raise JobError(
                f"what runs of {whose} were given takes {held:,} bytes, more than the {self.most_held:,} that the "
                "server has for it; send less, or let some of them end first"
            )
        run.move("queued", waits=lambda: False)  # outside the lock, for a disk may be slow
        with self._lock:
            self._runs[run.id] = run
            self._queue.put(run)
            self._trim()

    def run(self, id: str, user: str | None = None) -> Run:
        """A run; for a user, one that it may see."""
        with self._lock:
            found = self._runs.get(id)
        if found is None or not (user is None or found.is_of(user) or user in self._administrators):
            raise JobError(f"there is no run {id[:16]!r} of yours; `tablepuppet status` lists them")
        return found

    def cancel(self, id: str, *, keep: bool, user: str | None = None) -> Run:
        """Stops a run at its next step; without `keep` its checkpoints go."""
        run = self._own_run(id, user)
        run.keeps_state = keep
        run.stop.set()
        is_aside = run.state in ("queued", "interrupted") or (run.state == "waiting" and run is not self._current)
        if is_aside and not keep:
            run.move("cancelled", "cancelled by its user", waits=lambda: False)
            self._switchboard.forget(run.id)
        return run

    def _own_run(self, id: str, user: str | None) -> Run:
        run = self.run(id, user)
        if user is not None and user != run.owner and user not in self._administrators:
            raise JobError(f"run {run.id} is of {run.owner}, who alone can stop it or resume it, or an administrator")
        return run

    def live(self) -> list[str]:
        """Runs that clients must not forget."""
        with self._lock:
            return [run.id for run in self._runs.values() if not run.is_over or run.state == "interrupted"]

    def status(self, user: str | None = None) -> dict[str, Any]:
        """Clients and runs, as a document; a user sees its own runs, and how many others there are. Bytes count rows
        exactly, and are for administrators."""
        connected = self._switchboard.list_connected()
        with self._lock:
            every = list(self._runs.values())
        sees_all = user is None or user in self._administrators
        seen = [r for r in every if sees_all or r.is_of(str(user))]
        counted = {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down}
        return {
            **({"process": self._process.pid} if user is None else {}),
            "connected": connected,
            "away": {client: round(seconds, 1) for client, seconds in self._switchboard.away().items()},
            "waited": {client: round(seconds, 3) for client, seconds in self._switchboard.waited.items()},
            "steps": self.rounds,
            **(counted if sees_all else {}),
            "trouble": self.trouble,
            "others": sum(not r.is_over for r in every) - sum(not r.is_over for r in seen),
            "runs": [run.describe() for run in seen],
        }

    def health(self) -> str:
        """The coordinator's trouble; "ok" where it has none."""
        if not self._worker.is_alive():
            return "no run is worked on any more"
        if is_out_of_room(self._folder):
            return "the disk is full"
        return self.trouble or "ok"

    def prepare(self) -> None:
        """Starts the process of runs before there is one: it takes seconds to load."""
        with self._lock:
            if self._current is None:
                self._process.start()

    def close(self) -> None:
        """Ends; the run under way resumes when the coordinator starts again."""
        self._is_closing = True
        self._queue.close()
        with self._lock:
            if self._current is not None:
                self._current.keeps_state = True
                self._current.stop.set()
        self._worker.join(timeout=30)
        self._process.close()
        self._store.close()

    def _keep_heads(self) -> None:
        """Reads the heads of clients' logs that an earlier process received, and writes down those to come."""
        earlier = self._folder / "heads.json"  # of an earlier release
        try:
            kept = self._store.read(_HEADS, Heads)
            if kept is not None:
                self._switchboard.heads |= kept[0].heads
            elif earlier.exists():
                self._switchboard.heads |= msgspec.json.decode(earlier.read_bytes(), type=dict[str, TreeHead])
        except (OSError, StoreError, msgspec.MsgspecError):
            raise TransportError(
                f"the heads of clients' logs in {self._folder} cannot be read; restore the folder, or move it away: "
                "its runs must then be started again, and a log that was deleted meanwhile is not noticed"
            ) from None

        def write() -> None:
            try:
                self._store.write({_HEADS: (Heads(heads=dict(self._switchboard.heads)), ())})
            except StoreError as error:  # the next one is written with this one
                log.error("the head of a client's log cannot be written down: %s", error)

        self._switchboard.on_head = write

    def _take_up(self) -> None:
        """Runs of an earlier life: those under way go on, the others are remembered."""
        found = []
        for id, card in read_earlier_runs(self._folder / "runs", Card):
            Run.from_card(id, self._store, *card).save()
        for id in self._store.runs():
            try:
                read = self._store.read((id, "card", 0), Card)
            except TablePuppetError as error:  # whatever is wrong with one of them, the others go on
                log.error("run %s cannot be read and is passed over: %s", id, error)
                continue
            if read is None:
                self._store.forget(id)
            else:
                found.append(Run.from_card(id, self._store, *read))
        for run in sorted(found, key=lambda r: r.submitted):
            self._runs[run.id] = run
            if run.is_over:
                continue
            try:
                run.check_protocol()
            except TransportError as error:
                self._fail(run, error)
                continue
            log.info("run %s goes on from its journal", run.id)
            self._queue.put(run)
        self._trim()

    def _trim(self) -> None:
        """Forgets the oldest finished runs of each user who has many, or whose runs take more than their memory."""
        newest = sorted(self._runs.values(), key=lambda r: (not r.is_over, r.submitted), reverse=True)
        held: Counter[str] = Counter()
        kept: Counter[str] = Counter()
        for run in newest:
            held[run.owner] += run.size
            if not run.is_over:
                continue
            kept[run.owner] += 1
            is_last = kept[run.owner] == 1
            if kept[run.owner] > _MAX_FINISHED_RUNS or (held[run.owner] > self.most_held and not is_last):
                held[run.owner] -= run.size
                run.remove()
                del self._runs[run.id]

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            if run.is_over or self._is_closing:
                continue
            with self._lock:
                self._current = run
            if not run.approval:  # one that waits for a person is tried every few seconds
                log.info("run %s (%s) of %s begins", run.id, run.kind, run.owner or "nobody")
            try:
                self._work_on(run)
            except Exception as error:  # a run must not end the service, whatever is wrong
                log.exception("run %s failed", run.id)
                run.state, run.message = "failed", f"internal error ({type(error).__name__}); see the server's log"
            finally:
                with self._lock:
                    self._current = None
                    self._trim()
                if run.id not in self.live():
                    self._switchboard.forget(run.id)
                self._store.tidy()

    def _work_on(self, run: Run) -> None:
        """A run, to its end; its process may die once."""
        while True:
            try:
                self._execute(run)
            except RunDiedError as error:
                if self._goes_on(run, error):
                    continue
                self._set_aside(run, error)
            except GivesWayError as error:
                log.warning("run %s: %s", run.id, error)
                run.move("queued", str(error), waits=self._waits_for_room)
                self._queue.put(run)
            except RunInterruptedError as error:
                self._interrupt(run, error)
            except ApprovalError as error:
                self._await_approval(run, error)
            except TablePuppetError as error:
                self._fail(run, error)
            return

    def _goes_on(self, run: Run, error: RunDiedError) -> bool:
        """Whether a run whose process is gone gets another one; a process that somebody ended does not count."""
        log.error("run %s: %s", run.id, error)
        if self._is_closing or error.is_final or run.store is None:
            return False
        if not error.is_orderly:
            run.deaths += 1
            run.save(self._waits_for_room)
        return run.deaths < _MAX_DEATHS

    def _set_aside(self, run: Run, error: RunDiedError) -> None:
        """Ends a run that would bring its process down again; it can be resumed once the cause is removed."""
        times = f" {run.deaths} times" if run.deaths >= _MAX_DEATHS else ""
        message = f"the run is set aside: {error}{times}"
        if run.store is None:
            self._fail(run, JobError(message))
        else:
            self._interrupt(run, RunInterruptedError(f"{message}. To try again: tablepuppet resume {run.id}"))

    def _await_approval(self, run: Run, error: ApprovalError) -> None:
        """Sets a run aside that waits for a person, and tries again in a while; it holds nothing until then."""
        self._switchboard.forget(run.id)
        self._store.write({}, remove=[(run.id, "step")], waits=self._waits_for_room)  # nothing was read: it begins anew
        waited = time.time() - run.submitted
        if waited > _APPROVAL:
            self._fail(run, ApprovalError(f"{error}; nobody did within {_APPROVAL / 86400:.0f} days"))
            return
        is_news, run.approval = run.approval != str(error), str(error)
        run.move("waiting", str(error), waits=self._waits_for_room)
        if is_news:
            log.info("run %s waits for approval", run.id)
            run.publish(Waiting(clients={}, approval=run.approval))
        again = threading.Timer(min(max(_ASK_AGAIN[0], waited / 10), _ASK_AGAIN[1]), self._queue.put, (run,))
        again.daemon = True
        again.start()

    def _interrupt(self, run: Run, error: RunInterruptedError) -> None:
        if self._is_closing and run.store is not None:
            log.info("run %s goes on when the server starts again", run.id)
            return
        is_dropped = run.stop.is_set() and not run.keeps_state
        message = "the run was cancelled" if is_dropped else str(error)
        run.error = Failed(error="RunInterruptedError", message=f"run {run.id}: {message}")
        run.move("cancelled" if is_dropped else "interrupted", message, waits=self._waits_for_room)
        log.warning("run %s is %s: %s", run.id, run.state, message)

    def _fail(self, run: Run, error: TablePuppetError) -> None:
        run.error = Failed(error=type(error).__name__, message=str(error))
        run.move("failed", str(error), waits=self._waits_for_room)
        log.warning("run %s failed: %s", run.id, error)

    def _waits_for_room(self) -> bool:
        """Whether a full disk is waited for: until the coordinator closes."""
        self.trouble = "the disk is full"
        return not self._is_closing

    def _execute(self, run: Run) -> None:
        journal = None if run.store is None else Journal(run.store, run.id)
        run.move("running", waits=self._waits_for_room)
        self.trouble = ""
        run.result = self._process.do(run, self._tables, self._transport(run, journal))
        run.move("finished", waits=self._waits_for_room)
        log.info("run %s is finished", run.id)

    def _transport(self, run: Run, journal: Journal | None) -> RunTransport:
        def on_waiting(clients: dict[str, float]) -> None:
            run.waiting = {client: round(seconds, 1) for client, seconds in clients.items()}
            run.state = "waiting" if clients else "running"
            for client, seconds in clients.items():
                log.warning("run %s waits for client %s, at most %.0f s", run.id, client, seconds)
            run.publish(Waiting(clients=run.waiting))

        def on_step(step: int, down: Mapping[str, Sequence[Frame]], up: Mapping[str, Sequence[Frame]]) -> None:
            run.steps = step
            self.rounds += 1
            self.bytes_down += sum(f.size for frames in down.values() for f in frames)
            self.bytes_up += sum(f.size for frames in up.values() for f in frames)

        settings = self._settings
        if run.turn is None:
            others_wait = partial(self._queue.has_any, besides=run.owner)
            run.turn = TimeSlice(settings.turn, settings.compute, self._queue.has_any, settings.share, others_wait)
        rules = WaitRules(settings.wait, on_waiting, is_cancelled=run.stop.is_set)
        return RunTransport(run.id, self._switchboard, journal, rules, run.turn, on_step)
