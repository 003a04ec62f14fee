"""The coordinator's hold on the process that computes runs: started when needed, watched, ended, started again.

In: a run and its line to the clients. Out: its outcome as a frame, or an error. A process that exceeds its memory, or
its time between two questions, is killed; one that dies is noticed at once. Either
is a `RunDiedError`, and the next run gets a new process.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tablepuppet.errors import DisconnectedError, RunInterruptedError, TablePuppetError, TrainingError, error_class
from tablepuppet.network import run_worker as w
from tablepuppet.network.control import Finished, Round
from tablepuppet.network.run_transport import RunTransport, join_frames, split_frames
from tablepuppet.network.run_worker import Pipe
from tablepuppet.network.runs import Run
from tablepuppet.protocol.codec import Frame
from tablepuppet.sql.bound import partitions_of

log = logging.getLogger(__name__)
_PROGRAM = "import sys; from tablepuppet.network.run_worker import main; main(*map(int, sys.argv[1:]))"
_PAGE = resource.getpagesize()
_LOOK = 0.2  # seconds between two checks of a process that computes
_GRACE = 20.0  # seconds that a stopped run may take to notice


class RunDiedError(TablePuppetError):
    """The process of a run is gone; `is_final`: it would die again; `is_orderly`: somebody ended it."""

    def __init__(self, reason: str, *, is_final: bool = False, is_orderly: bool = False) -> None:
        self.is_final, self.is_orderly = is_final, is_orderly
        super().__init__(reason)


class RunProcess:
    """One process at a time, for one run at a time."""

    def __init__(self, memory: int, seconds: float) -> None:
        self.memory, self._seconds = memory, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def do(self, run: Run, tables: Mapping[str, tuple[str, ...]], transport: RunTransport) -> Frame:
        """The outcome of a run."""
        try:
            pipe = self.start()
            by = partitions_of(tables)
            begin = w.Begin(
                run=run.id,
                kind=run.kind,
                tables={table: (list(clients), by.get(table, ())) for table, clients in tables.items()},
                asker=run.owner,
                readers=run.readers,
                is_draft=run.is_draft,
                signatures=run.signatures,
            )
            pipe.send(begin, [run.asked])
            return self._serve(pipe, run, transport)
        except DisconnectedError:
            raise self._death() from None
        except RunDiedError:
            raise
        except (Exception, KeyboardInterrupt):
            self.close()
            raise

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def start(self) -> Pipe:
        """A process that waits for a run: the present one, unless it has grown too large."""
        if self._pipe is not None and self._process is not None and self._process.poll() is None:
            if self._resident_bytes() < self.memory // 2:
                return self._pipe
            log.info("the process of runs holds %.1f GiB and is replaced", self._resident_bytes() / 2**30)
        self.close()
        level = logging.getLogger("tablepuppet").getEffectiveLevel()
        own, other = multiprocessing.Pipe()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(other.fileno()), str(self.memory), str(level)],
                stdin=subprocess.PIPE,  # which ends when we do
                pass_fds=[other.fileno()],
                start_new_session=True,  # no key press in our terminal is meant for it
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._pipe = Pipe(own, w.FROM_WORKER)
        return self._pipe

    def _serve(self, pipe: Pipe, run: Run, transport: RunTransport) -> Frame:
        stopped: RunInterruptedError | None = None
        while True:
            self._await(pipe, run)
            said, frames = pipe.receive()
            if isinstance(said, w.Ask):
                if said.accepts:
                    transport.accept()
                given = split_frames(said.clients, frames)
                try:
                    answers = transport.exchange(given, wait=said.wait)
                except RunInterruptedError as error:
                    stopped = error
                    pipe.send(w.Interrupt(reason=str(error)))
                else:
                    counts, every = join_frames(answers)
                    pipe.send(w.Answers(clients=counts), every)
            elif isinstance(said, Round):
                run.end_round(said, frames[0])
            elif isinstance(said, w.Logged):
                logging.getLogger(said.logger).log(said.level, "%s", said.message)
            elif isinstance(said, Finished):
                return frames[0]
            else:
                raise stopped or error_class(said.error, TrainingError)(said.message)

    def _await(self, pipe: Pipe, run: Run) -> None:
        """Waits for a word; a process that takes too much, or too long, is killed."""
        began, stopped = time.monotonic(), None
        while not pipe.is_readable(_LOOK):
            now = time.monotonic()
            if self._resident_bytes() > self.memory:
                self.close()
                raise RunDiedError(w.too_much_memory(self.memory), is_final=True)
            if now - began > self._seconds:
                self.close()
                raise RunDiedError(
                    f"the run computed for {self._seconds:.0f} s without asking any client; make the query smaller, or "
                    "let the server give runs more time (`compute` under [server])",
                    is_final=True,
                )
            if run.stop.is_set():
                stopped = stopped or now
                if now - stopped > _GRACE:
                    self.close()
                    raise RunInterruptedError("the run was stopped while it computed")

    def _resident_bytes(self) -> int:
        """Bytes of memory that the process alone has; 0 where the system does not report it."""
        assert self._process is not None
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()
        except OSError:
            return 0
        return (int(pages[1]) - int(pages[2])) * _PAGE

    def _death(self) -> RunDiedError:
        code = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(5)
        self.close()
        how = f"exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = signal.Signals(-code).name
        return RunDiedError(f"its process died ({how})", is_orderly=code == -signal.SIGTERM)
