"""Runs a workload: prepares its tables, trains every algorithm with every seed, keeps the run records."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from tablepuppet.report import RunRecord, read_record, record_of, to_json

Say = Callable[[str], None]


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
    if plan.is_private and workload.privacy is None:
        raise JobError(f"{workload.title} has no setting with privacy; run it without --private")
    folder = out / "tables" / workload.name
    with duckdb.connect() as connection:
        whole = workload.prepare(connection, data, folder)
        split = {name: halves(connection, path, folder) for name, path in whole.items()}
        tables: dict[str, Mapping[str, Any]] = {"whole": whole, "split": split}
        if workload.pooled is not None:
            tables["pooled"] = _pool(connection, workload.pooled, whole, folder)
    outcomes = []
    federations = {name: tp.Federation(held) for name, held in tables.items()}
    try:
        for entry in LINEUP:
            if is_possible(workload, entry, plan):
                held = "split" if entry.clients > 1 else "pooled" if is_pooled(workload, entry) else "whole"
                tuned = _tuned(workload, entry, federations, plan, out, say) if plan.searches else {}
                outcomes.append(_run_entry(workload, entry, federations[held], tuned, plan, out, say))
    finally:
        for federation in federations.values():
            federation.close()
    return outcomes


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


def _run_entry(
    workload: Workload,
    entry: Entry,
    federation: tp.Federation,
    tuned: Mapping[str, float],
    plan: Plan,
    out: Path,
    say: Say,
) -> Outcome:
    query = workload.pooled.query if workload.pooled is not None and entry is CENTRALISED else workload.query
    given = _arguments(workload, entry, plan) | dict(tuned)
    runs = []
    for seed in range(plan.seeds):
        file = _runs_folder(workload, out, plan) / f"{entry.key}-{seed}.json"
        record = _kept(file, query, given, seed) if plan.resumes else None
        if record is None:
            result = federation.train(query, seed=seed, **given)
            record = msgspec.structs.replace(record_of(result), name=entry.name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(to_json(record), encoding="utf-8")
        runs.append(record)
        figure = record.metrics["test"][workload.metric]
        chosen = ", ".join(f"{name} {value:g}" for name, value in tuned.items())
        say(f"{workload.title}: {entry.name}, seed {seed}: test {workload.metric} {figure:.5f} {chosen}".rstrip())
    return Outcome(entry, tuple(runs))


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
    settled = msgspec.structs.replace(job, options=job.blinded_options).over(record.data.train_rows)
    return record if record.job == msgspec.json.decode(msgspec.json.encode(settled)) else None


def _tuned(
    workload: Workload, entry: Entry, federations: Mapping[str, tp.Federation], plan: Plan, out: Path, say: Say
) -> dict[str, float]:
    """The value of the paper's grid with the lowest training objective; test rows have no say.

    SGD is searched once, as RFL-SGD-V: its curves are the same however tables are cut or expanded.
    """
    if entry.searched is None:
        return {}
    is_sgd = entry.searched == "learning_rate"
    searched = next(e for e in LINEUP if e.name == "RFL-SGD-V") if is_sgd else entry
    grid = workload.learning_rates if is_sgd else workload.rhos
    file = _runs_folder(workload, out, plan) / "search" / f"{searched.key}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    reached: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    federation = federations["split" if searched.clients > 1 else "whole"]
    for value in grid:
        if f"{value:g}" not in reached:
            given = _arguments(workload, searched, plan) | {entry.searched: value}
            reached[f"{value:g}"] = _objective(federation, workload.query, given)
            file.write_text(json.dumps(reached), encoding="utf-8")
            say(f"{workload.title}: {searched.name}, {entry.searched} {value:g}: objective {reached[f'{value:g}']:.6f}")
    return {entry.searched: float(min(reached, key=reached.__getitem__))}


def _objective(federation: tp.Federation, query: str, given: Mapping[str, Any]) -> float:
    """What training reaches; infinite where it diverges, which is a result, too."""
    try:
        return federation.train(query, seed=0, **given).objective
    except TrainingError as error:
        if "diverge" not in str(error):
            raise
        return math.inf
