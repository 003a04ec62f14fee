"""Runs a workload: prepares its tables, trains every algorithm with every seed, keeps the run records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import msgspec

import tablepuppet as tp
from evaluation.lineup import LINEUP, Entry
from evaluation.workload import Workload, halves
from tablepuppet.report import RunRecord, record_of, to_json

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of a workload is run."""

    seeds: int = 3
    epochs: int = 10
    searches: bool = False  # the paper's grid instead of our defaults
    privacy: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of one algorithm on one workload, one per seed, with what the paper's link model makes of them."""

    entry: Entry
    runs: tuple[RunRecord, ...]
    shared_bytes: tuple[int, ...]  # per seed: bytes of all clients in training, which share the server's link


def run_workload(workload: Workload, data: Path, out: Path, plan: Plan, say: Say) -> list[Outcome]:
    """Every algorithm of the lineup that the model allows."""
    folder = out / "tables" / workload.name
    with duckdb.connect() as connection:
        whole = workload.prepare(connection, data, folder)
        split = {name: halves(connection, path, folder) for name, path in whole.items()}
    outcomes = []
    federations = {1: tp.Federation(whole), 2: tp.Federation(split)}
    try:
        for entry in LINEUP:
            if is_possible(workload, entry, plan):
                outcomes.append(_run_entry(workload, entry, federations[entry.clients], plan, out, say))
    finally:
        for federation in federations.values():
            federation.close()
    return outcomes


def is_possible(workload: Workload, entry: Entry, plan: Plan) -> bool:
    """Newton is for generalised linear models, and not under privacy for features."""
    is_private = plan.privacy is not None and entry.algorithm != "centralized"
    return entry.algorithm != "newton" or (workload.model != "mlp" and not is_private)


def _run_entry(workload: Workload, entry: Entry, federation: tp.Federation, plan: Plan, out: Path, say: Say) -> Outcome:
    given: dict[str, Any] = {"epochs": plan.epochs, "batch_size": workload.batch_size, "l2": workload.l2}
    if entry.algorithm == "centralized":
        given.pop("epochs")
    elif plan.privacy is not None:
        given["privacy"] = plan.privacy
    given |= workload.options

    def train(seed: int, **more: Any) -> tp.Result:
        return federation.train(
            workload.query,
            label=workload.label,
            model=workload.model,
            algorithm=entry.algorithm,
            seed=seed,
            **given,
            **more,
        )

    tuned = _search(workload, entry, train) if plan.searches else {}
    runs, shared = [], []
    for seed in range(plan.seeds):
        result = train(seed, **tuned)
        record = msgspec.structs.replace(record_of(result), name=entry.name)
        suffix = "-private" if plan.privacy is not None else ""
        file = out / "runs" / f"{workload.name}{suffix}" / f"{entry.key}-{seed}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(to_json(record), encoding="utf-8")
        runs.append(record)
        shared.append(result.traffic.bytes)
        figure = record.metrics["test"][workload.metric]
        chosen = ", ".join(f"{name} {value:g}" for name, value in tuned.items())
        say(f"{workload.title}: {entry.name}, seed {seed}: test {workload.metric} {figure:.5f} {chosen}".rstrip())
    return Outcome(entry, tuple(runs), tuple(shared))


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
