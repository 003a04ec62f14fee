"""A federation of processes: the same verbs, and a running coordinator does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from tablepuppet import train as story
from tablepuppet.api.federation import Federation
from tablepuppet.api.model_verbs import with_start
from tablepuppet.errors import JobError
from tablepuppet.job import Job, make_job
from tablepuppet.models.modules import Builder
from tablepuppet.plan.plan import Plan
from tablepuppet.prediction.model import Model
from tablepuppet.training.result import Result, RoundEvent


class ConnectedFederation(Federation):
    """Tables of clients in processes of their own; a running coordinator does the work."""

    def __init__(self, path: str | Path, *, asker_key: str | Path | None = None) -> None:
        # Certificates and Arrow Flight, a tenth of a second and 17 MB: nobody else needs them.
        from tablepuppet.network.coordinator_client import CoordinatorClient
        from tablepuppet.network.settings import read_federation

        settings = read_federation(path)
        self._tables = settings.tables
        self._clients = {}
        self._coordinator = CoordinatorClient(settings, asker_key)

    def status(self) -> dict[str, Any]:
        """Which clients are connected, which runs there are, and how far they are."""
        return self._coordinator.status()

    def cancel(self, run: str) -> None:
        """Stops a run; its checkpoints go."""
        self._coordinator.cancel(run)

    def resume(self, run: str) -> None:
        """Continues an interrupted run, by its name; `wait` gives its result."""
        self._coordinator.resume(run)

    def submit(
        self, query: str, label: str = "", *, share: Sequence[str] = (), resume: bool = False, **options: Any
    ) -> str:
        """Hands in a job as `train` would and does not wait for it; the run's name.

        `share`: other users who may wait for the result too.
        """
        model, algorithm = options.pop("model", "auto"), options.pop("algorithm", None)
        job = make_job(query, label=label, model=model, algorithm=algorithm, given=with_start(options))
        return self.submit_job(job, share=share, resume=resume)

    def submit_job(self, job: Job, *, share: Sequence[str] = (), resume: bool = False) -> str:
        """Hands in a job that is made already; the run's name."""
        return self._coordinator.submit("train", job, resume=resume, readers=share)

    def wait(self, run: str, *, on_round: Callable[[RoundEvent], None] | None = None) -> Result:
        """The result of a run that was handed in; to stop waiting does not stop the run."""
        return cast(Result, self._coordinator.wait(run, on_round=on_round))

    def close(self) -> None:
        """Does nothing: the coordinator and its clients keep running."""

    def _explain(self, job: Job) -> Plan:
        return cast(Plan, self._coordinator.do("explain", job))

    def _train(self, job: Job, on_round: Callable[[RoundEvent], None] | None, resume: bool) -> Result:
        return cast(Result, self._coordinator.do("train", job, resume=resume, on_round=on_round))

    def _predict(self, model: Model, query: str, **options: Any) -> pa.Table:
        return self._coordinator.do("predict", {"model": model, "query": query, "options": options})

    def _ask(self, question: story.Question, **given: Any) -> Any:
        return self._coordinator.do(question, given)

    @contextmanager
    def _offer_builder(self, name: str, builder: Builder | None) -> Iterator[None]:
        if builder is not None:
            raise JobError('a builder of torch modules cannot travel to other processes; use model="mlp"')
        yield
