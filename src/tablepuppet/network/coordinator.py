"""The coordinator: runs jobs one after another over the clients that are connected.

In: jobs that users submit. Out: news and results. A run that was under way when the coordinator died is
taken up again when it starts; one that ended because a client stayed away waits to be resumed.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tablepuppet import train as story
from tablepuppet.errors import JobError, RunInterruptedError, TablePuppetError
from tablepuppet.job import Job
from tablepuppet.mapping.engines import Ray
from tablepuppet.network.control import Failed, Kind, Waiting
from tablepuppet.network.journal import Journal, RunTransport
from tablepuppet.network.objects import to_frame
from tablepuppet.network.records import make_folder
from tablepuppet.network.runs import Run
from tablepuppet.prediction.cache import PredictionCache
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport.link import Link
from tablepuppet.transport.switchboard import Switchboard

log = logging.getLogger(__name__)
_KEPT = 50  # finished runs whose results stay


class Coordinator:
    """Jobs in, results out, one at a time."""

    def __init__(
        self, tables: Mapping[str, tuple[str, ...]], switchboard: Switchboard, folder: Path, patience: float
    ) -> None:
        self._tables, self._switchboard, self._patience = tables, switchboard, patience
        self._folder = folder / "runs"
        make_folder(self._folder)
        self._runs: dict[str, Run] = {}
        self._queue: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._current: Run | None = None
        self._prediction_cache = PredictionCache()
        self.rounds = self.bytes_up = self.bytes_down = 0
        self._take_up()
        self._worker = threading.Thread(target=self._work, name="coordinator", daemon=True)
        self._worker.start()

    # -- what users ask --------------------------------------------------------------------

    def submit(self, kind: Kind, asked: Any, *, resume: bool = False) -> Run:
        """Queues a run, or the interrupted run of the same job."""
        if isinstance(asked, Job) and isinstance(asked.engine, Ray) and (asked.engine.address or asked.engine.storage):
            raise JobError(
                "which Ray cluster and folder a server uses is the server's to say, by RAY_ADDRESS and TMPDIR where "
                'it runs; ask it for engine="ray" alone'
            )
        with self._lock:
            run = self._resumable(asked) if resume else None
            if run is None:
                if resume:
                    raise JobError("there is no interrupted run of this job; start it without resume")
                id = story.new_job_id()
                run = Run(id, kind, asked, self._folder / id if kind == "train" else None)
                self._runs[run.id] = run
            run.error = None
            run.stop.clear()
            run.move("queued")
            self._queue.put(run)
            self._trim()
            return run

    def run(self, id: str) -> Run:
        with self._lock:
            if id not in self._runs:
                raise JobError(f"there is no run {id[:16]!r}; `tablepuppet status` lists them")
            return self._runs[id]

    def cancel(self, id: str, *, keep: bool) -> Run:
        """Stops a run at its next step; without `keep` its checkpoints go."""
        run = self.run(id)
        run.keeps_state = keep
        run.stop.set()
        if run.state in ("queued", "interrupted") and not keep:
            run.move("cancelled", "cancelled by its user")
            self._switchboard.forget(run.id)
        return run

    def live(self) -> list[str]:
        """Runs that clients must not forget."""
        with self._lock:
            return [run.id for run in self._runs.values() if not run.is_over or run.state == "interrupted"]

    def status(self) -> dict[str, Any]:
        """Clients and runs, as a document."""
        connected = self._switchboard.connected()
        with self._lock:
            runs = [run.describe() for run in self._runs.values()]
        return {
            "connected": connected,
            "away": {client: round(seconds, 1) for client, seconds in self._switchboard.away().items()},
            "waited": {client: round(seconds, 3) for client, seconds in self._switchboard.waited.items()},
            "steps": self.rounds,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "runs": runs,
        }

    def close(self) -> None:
        """Interrupts the run under way, resumably, and ends."""
        self._queue.put(None)
        with self._lock:
            if self._current is not None:
                self._current.keeps_state = True
                self._current.stop.set()
        self._worker.join(timeout=30)

    # -- how runs go -----------------------------------------------------------------------

    def _take_up(self) -> None:
        """Runs of an earlier life: those under way go on, the others are remembered."""
        found = []
        for folder in self._folder.iterdir():
            try:
                found.append(Run.load(folder))
            except (TablePuppetError, OSError) as error:
                log.error("run %s cannot be read and is passed over: %s", folder.name, error)
        for run in sorted(found, key=lambda r: r.submitted):
            self._runs[run.id] = run
            if not run.is_over:
                log.info("run %s goes on from its journal", run.id)
                self._queue.put(run)

    def _resumable(self, asked: Any) -> Run | None:
        frame = to_frame(asked)
        same = [r for r in self._runs.values() if r.state == "interrupted" and to_frame(r.asked) == frame]
        return max(same, key=lambda r: r.submitted, default=None)

    def _trim(self) -> None:
        over = sorted((r for r in self._runs.values() if r.is_over), key=lambda r: r.submitted)
        for run in over[: max(0, len(over) - _KEPT)]:
            run.remove()
            del self._runs[run.id]

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            if run.state == "cancelled":
                continue
            with self._lock:
                self._current = run
            log.info("run %s (%s) begins", run.id, run.kind)
            try:
                self._execute(run)
            except RunInterruptedError as error:
                is_dropped = run.stop.is_set() and not run.keeps_state
                run.error = Failed(error="RunInterruptedError", message=f"run {run.id}: {error}")
                run.move("cancelled" if is_dropped else "interrupted", str(error))
                log.warning("run %s is %s: %s", run.id, run.state, error)
            except TablePuppetError as error:
                run.error = Failed(error=type(error).__name__, message=str(error))
                run.move("failed", str(error))
                log.warning("run %s failed: %s", run.id, error)
            except Exception as error:
                log.exception("run %s failed", run.id)
                run.error = Failed(
                    error="TrainingError", message=f"internal error ({type(error).__name__}); see the server's log"
                )
                run.move("failed", run.error.message)
            finally:
                with self._lock:
                    self._current = None
                if run.id not in self.live():
                    self._switchboard.forget(run.id)

    def _execute(self, run: Run) -> None:
        journal = None if run.journal is None else Journal(run.journal)
        run.move("running")
        try:
            outcome = self._outcome(run, self._link(run, journal))
        finally:
            if journal is not None:
                journal.close()
        run.result = to_frame(outcome)
        run.move("finished")
        log.info("run %s is finished", run.id)

    def _outcome(self, run: Run, link: Link) -> Any:
        if run.kind == "predict":
            asked = run.asked
            given = (asked["model"], asked["query"], self._tables, link)
            return story.predict(*given, cache=self._prediction_cache, **asked["options"])
        if run.kind == "profile":
            return story.profile(run.asked["query"], run.asked["label"], self._tables, link)
        if run.kind == "evaluate":
            return story.evaluate(run.asked["model"], run.asked["job"], self._tables, link)
        assert isinstance(run.asked, Job)
        if run.kind == "explain":
            return story.explain(run.asked, self._tables, link, run.id)
        return story.train(run.asked, self._tables, link, run.end_round, run.id)

    def _link(self, run: Run, journal: Journal | None) -> Link:
        def on_waiting(clients: dict[str, float]) -> None:
            run.waiting = {client: round(seconds, 1) for client, seconds in clients.items()}
            run.state = "waiting" if clients else "running"
            for client, seconds in clients.items():
                log.warning("run %s waits for client %s, at most %.0f s", run.id, client, seconds)
            run.tell(Waiting(clients=run.waiting))

        def on_step(step: int, down: Mapping[str, Sequence[Frame]], up: Mapping[str, Sequence[Frame]]) -> None:
            run.steps = step
            self.rounds += 1
            self.bytes_down += sum(f.size for frames in down.values() for f in frames)
            self.bytes_up += sum(f.size for frames in up.values() for f in frames)

        transport = RunTransport(
            run.id, self._switchboard, journal, self._patience, on_waiting, run.stop.is_set, on_step
        )
        return Link(transport, wire=run.asked.wire if isinstance(run.asked, Job) else "float64")
