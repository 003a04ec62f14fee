"""Runs a workload: prepares its tables, trains every algorithm with every seed, keeps the run records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import msgspec

import tablepuppet as tp
from evaluation.lineup import CENTRALISED, LINEUP, Entry
from evaluation.sources import write
from evaluation.workload import Pooled, Workload, halves
from tablepuppet.errors import JobError, TrainingError
from tablepuppet.job import make_job
from tablepuppet.output_files import write_whole
from tablepuppet.report.record import RunRecord, read_record, to_json
from tablepuppet.report.recording import record_of

Say = Callable[[str], None]
STEP = "· "  # begins the line that a command prints when a run has ended
KEPT = " (kept)"  # ends the line of a run that was there


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of a workload is run."""

    seeds: int = 3
    epochs: int = 10
    searches: bool = False  # the paper's grid instead of our defaults
    resumes: bool = False  # runs of the same job that are there already are kept
    is_private: bool = False  # the workload's privacy instead of none
    only: frozenset[str] = frozenset()  # names of algorithms; none: all


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of one algorithm on one workload, one per seed."""

    entry: Entry
    runs: tuple[RunRecord, ...]


def run_workload(workload: Workload, data: Path, out: Path, plan: Plan, say: Say) -> list[Outcome]:
    """Every algorithm of the lineup that the model allows."""
    return run_settings(workload, data, out, [plan], say)[0]


def run_settings(workload: Workload, data: Path, out: Path, plans: Sequence[Plan], say: Say) -> list[list[Outcome]]:
    """One workload in several settings, without and with privacy: its tables and its baseline are made once."""
    if any(plan.is_private for plan in plans) and workload.privacy is None:
        raise JobError(f"{workload.title} has no setting with privacy; run it without --private")
    folder = out / "tables" / workload.name
    with duckdb.connect() as connection:
        whole = workload.prepare(connection, data, folder)
        split = {name: halves(connection, path, folder) for name, path in whole.items()}
        tables: dict[str, Mapping[str, Any]] = {"whole": whole, "split": split}
        if workload.pooled is not None:
            tables["pooled"] = _pool(connection, workload.pooled, whole, folder)
    federations = {name: tp.Federation(held) for name, held in tables.items()}
    try:
        settings: list[list[Outcome]] = []
        for plan in plans:
            run = _Run(workload, plan, _runs_folder(workload, out, plan), federations, say)
            settings.append(run.outcomes(settings[0][0] if settings else None))
        return settings
    finally:
        for federation in federations.values():
            federation.close()


def steps(workload: Workload, plan: Plan) -> int:
    """How many runs a plan has, those of its search included: each says one line."""
    entries = [entry for entry in LINEUP if is_possible(workload, entry, plan)]
    sgd = len(workload.learning_rates) * any(entry.searched == "learning_rate" for entry in entries)
    rho = len(workload.rhos) * sum(entry.searched == "rho" for entry in entries)
    return plan.seeds * len(entries) + (sgd + rho) * plan.searches


def saved_outcomes(workload: Workload, out: Path, plan: Plan) -> list[Outcome]:
    """The runs that an earlier command left in the folder, as if they had just ended."""
    folder = _runs_folder(workload, out, plan)
    outcomes = []
    for entry in LINEUP:
        files = sorted(folder.glob(f"{entry.key}-[0-9]*.json"))
        if files:
            outcomes.append(Outcome(entry, tuple(read_record(file) for file in files)))
    if not outcomes or outcomes[0].entry is not CENTRALISED:
        raise JobError(f"{folder} holds no runs of {workload.name} with their baseline; run it without --reuse first")
    return outcomes


def has_runs(workload: Workload, out: Path, plan: Plan) -> bool:
    """Whether an earlier command left the baseline's runs, beside which others can be shown."""
    return any(_runs_folder(workload, out, plan).glob(f"{CENTRALISED.key}-[0-9]*.json"))


def _runs_folder(workload: Workload, out: Path, plan: Plan) -> Path:
    return out / "runs" / (workload.name + ("-private" if plan.is_private else ""))


def is_pooled(workload: Workload, entry: Entry) -> bool:
    """Whether the baseline is one network over the materialised join."""
    return entry is CENTRALISED and workload.pooled is not None


def is_possible(workload: Workload, entry: Entry, plan: Plan) -> bool:
    """Newton is for generalised linear models; under privacy there are neither Newton nor the VFL baselines."""
    if plan.only and entry.name not in plan.only and entry is not CENTRALISED:
        return False
    if plan.is_private and entry is not CENTRALISED:
        return entry.algorithm in ("sgd", "admm")
    return entry.algorithm != "newton" or workload.model != "mlp"


def _pool(
    connection: duckdb.DuckDBPyConnection, pooled: Pooled, whole: Mapping[str, Path], folder: Path
) -> dict[str, Path]:
    for name, path in whole.items():
        file = str(path).replace("'", "''")
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{file}')")
    table = write(connection, pooled.table, folder / "pooled.parquet")
    return {pooled.label_table: whole[pooled.label_table], "pooled": table}


def _arguments(workload: Workload, entry: Entry, plan: Plan) -> dict[str, Any]:
    """What `train` is given, besides the seed and what was searched for."""
    given: dict[str, Any] = {"label": workload.label, "model": workload.model, "l2": workload.l2}
    algorithm = "sgd" if is_pooled(workload, entry) else entry.algorithm
    if algorithm.endswith("sgd"):
        given |= {"batch_size": workload.batch_size, **workload.sgd}
    if algorithm != "centralized":
        given["epochs"] = plan.epochs
    if plan.is_private and entry is not CENTRALISED:
        given["privacy"] = workload.privacy
    return {"algorithm": algorithm, **given}


@dataclass(frozen=True, slots=True)
class _Run:
    """A workload in one setting."""

    workload: Workload
    plan: Plan
    folder: Path  # of its records
    federations: Mapping[str, tp.Federation]
    say: Say
    tried: dict[str, dict[float, RunRecord | None]] = field(default_factory=dict)  # by algorithm; None: it diverges

    def outcomes(self, baseline: Outcome | None) -> list[Outcome]:
        """Of every algorithm; the baseline's are those of another setting, where there is one."""
        entries = [entry for entry in LINEUP if is_possible(self.workload, entry, self.plan)]
        return [self._outcome(e, baseline.runs if baseline is not None and e is CENTRALISED else ()) for e in entries]

    def _outcome(self, entry: Entry, made: Sequence[RunRecord]) -> Outcome:
        tuned, first = self._tuned(entry) if self.plan.searches else ({}, None)
        given = _arguments(self.workload, entry, self.plan) | tuned
        there = dict(enumerate(made)) | ({0: first} if first is not None else {})
        runs = []
        for seed in range(self.plan.seeds):
            record, is_new = self._record(f"{entry.key}-{seed}", entry, given, seed, there.get(seed))
            runs.append(record)
            figure = record.metrics["test"][self.workload.metric]
            chosen = "".join(f" {name} {value:g}" for name, value in tuned.items())
            end = "" if is_new else KEPT
            self.say(
                f"{self._title()}: {entry.name}, seed {seed}: test {self.workload.metric} {figure:.5f}{chosen}{end}"
            )
        return Outcome(entry, tuple(runs))

    def _title(self) -> str:
        return self.workload.title + (", with privacy" if self.plan.is_private else "")

    def _record(
        self, name: str, entry: Entry, given: Mapping[str, Any], seed: int, made: RunRecord | None = None
    ) -> tuple[RunRecord, bool]:
        """The record of one run, and whether it was trained just now; kept in a file, whole or not at all."""
        query = self.workload.query
        if self.workload.pooled is not None and entry is CENTRALISED:
            query = self.workload.pooled.query
        file = self.folder / f"{name}.json"
        kept = made or (_kept(file, query, given, seed) if self.plan.resumes else None)
        record = kept
        if record is None:
            held = "split" if entry.clients > 1 else "pooled" if is_pooled(self.workload, entry) else "whole"
            result = self.federations[held].train(query, seed=seed, **given)
            record = msgspec.structs.replace(record_of(result), name=entry.name)
        text = to_json(record)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, lambda path: path.write_text(text, encoding="utf-8"), "a run")
        return record, kept is None

    def _tuned(self, entry: Entry) -> tuple[dict[str, float], RunRecord | None]:
        """The value of the paper's grid with the lowest training objective (test rows have no say), and its run.

        SGD is searched once, as RFL-SGD-V: its curves are the same however tables are cut or expanded.
        """
        if entry.searched is None:
            return {}, None
        is_sgd = entry.searched == "learning_rate"
        searched = next(e for e in LINEUP if e.name == "RFL-SGD-V") if is_sgd else entry
        if searched.name not in self.tried:
            grid = self.workload.learning_rates if is_sgd else self.workload.rhos
            self.tried[searched.name] = {value: self._try(searched, entry.searched, value) for value in grid}
        tried = {value: record for value, record in self.tried[searched.name].items() if record is not None}
        if not tried:
            raise TrainingError(f"{self._title()}: {entry.name} diverges with every {entry.searched} of the grid")
        best = min(tried, key=lambda value: _objective(tried[value]))
        return {entry.searched: best}, tried[best] if searched is entry else None

    def _try(self, entry: Entry, option: str, value: float) -> RunRecord | None:
        given = _arguments(self.workload, entry, self.plan) | {option: value}
        try:
            record, is_new = self._record(f"search/{entry.key}-{value:g}", entry, given, 0)
        except TrainingError as error:  # to diverge is a result, too
            if "diverge" not in str(error):
                raise
            record, is_new = None, True
        reached = math.inf if record is None else _objective(record)
        end = "" if is_new else KEPT
        self.say(f"{self._title()}: {entry.name}, {option} {value:g}: objective {reached:.6f}{end}")
        return record


def _objective(record: RunRecord) -> float:
    return math.inf if record.objective is None else record.objective


def _kept(file: Path, query: str, given: Mapping[str, Any], seed: int) -> RunRecord | None:
    """The record of a run that an earlier command left, if it was of this very job."""
    if not file.exists():
        return None
    record = read_record(file)
    options = {name: value for name, value in given.items() if name not in ("label", "model", "algorithm")}
    job = make_job(
        query,
        label=given["label"],
        model=given["model"],
        algorithm=given["algorithm"],
        given={**options, "seed": seed},
    )
    settled = job.replace(options=job.options_for_run).over(record.data.train_rows)
    return record if record.job == msgspec.json.decode(msgspec.json.encode(settled.arguments())) else None
