"""Runs a workload: prepares its tables, trains every algorithm with every seed, keeps the run records."""

from __future__ import annotations

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
from tablepuppet.errors import JobError
from tablepuppet.report import RunRecord, read_record, record_of, to_json

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of a workload is run."""

    seeds: int = 3
    epochs: int = 10
    searches: bool = False  # the paper's grid instead of our defaults
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
                outcomes.append(_run_entry(workload, entry, federations[held], plan, out, say))
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


def _run_entry(workload: Workload, entry: Entry, federation: tp.Federation, plan: Plan, out: Path, say: Say) -> Outcome:
    query = workload.pooled.query if workload.pooled is not None and entry is CENTRALISED else workload.query
    given = _arguments(workload, entry, plan)

    def train(seed: int, **more: Any) -> tp.Result:
        return federation.train(query, seed=seed, **given, **more)

    tuned = _search(workload, entry, train) if plan.searches else {}
    runs = []
    for seed in range(plan.seeds):
        record = msgspec.structs.replace(record_of(train(seed, **tuned)), name=entry.name)
        file = _runs_folder(workload, out, plan) / f"{entry.key}-{seed}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(to_json(record), encoding="utf-8")
        runs.append(record)
        figure = record.metrics["test"][workload.metric]
        chosen = ", ".join(f"{name} {value:g}" for name, value in tuned.items())
        say(f"{workload.title}: {entry.name}, seed {seed}: test {workload.metric} {figure:.5f} {chosen}".rstrip())
    return Outcome(entry, tuple(runs))


def _search(workload: Workload, entry: Entry, train: Callable[..., tp.Result]) -> dict[str, float]:
    """The value of the paper's grid with the lowest training objective; test rows have no say."""
    if entry.searched is None:
        return {}
    grid = workload.learning_rates if entry.searched == "learning_rate" else workload.rhos
    reached = []
    for value in grid:
        try:
            reached.append((train(0, **{entry.searched: value}).objective, value))
        except tp.TablePuppetError as error:
            # A value of the grid may diverge; that is a result, and the others remain.
            if "diverge" not in str(error):
                raise
    return {entry.searched: min(reached)[1]}
