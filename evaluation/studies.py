"""One study: from files to its table, figures and report, and to the files that docs/figures keeps."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.figures import Beginning

from evaluation import flights, mimic, movielens, walmart, yelp
from evaluation.corrections import corrections
from evaluation.embedding import encoder_name
from evaluation.factor import factor
from evaluation.figures import Study, write_figures
from evaluation.running import STEP, Outcome, Plan, has_runs, run_settings, saved_outcomes
from evaluation.seen import seen
from evaluation.tables import KeptLines, WorkloadTable, distance_table, workload_table
from evaluation.workload import Workload
from tablepuppet.errors import JobError
from tablepuppet.output_files import write_whole
from tablepuppet.report.page import write_report

WORKLOADS = {
    workload.name: workload
    for workload in (
        movielens.LINEAR,
        movielens.NEURAL,
        mimic.MIMIC,
        yelp.ORIGINAL,
        yelp.GENERATED,
        yelp.REVIEWS,
        flights.FLIGHTS,
        walmart.WALMART,
    )
}
MEASURED = ("movielens-factor", "movielens-seen", "boosting")  # CPU seconds are among their figures
STUDIES = (*MEASURED, "corrections", "figures")  # with tables of their own


def run_study(name: str, asked: argparse.Namespace) -> None:
    """What the command line asks for under one name."""
    beginning = Beginning()
    if name in WORKLOADS:
        _run_workload(WORKLOADS[name], asked, beginning)
    elif name == "corrections":
        for which, table in corrections().items():
            keep(asked.out, f"correction-{which}", "python -m evaluation corrections", table, beginning)
    elif name == "figures":
        _all_figures(asked.out)
    else:
        _run_measured(name, asked, beginning)


def plans(workload: Workload, asked: argparse.Namespace) -> list[Plan]:
    """Without privacy, with it, or both."""
    wants_search = workload.searches if asked.search is None else asked.search
    settings = (False, True) if asked.both and workload.privacy is not None else (asked.private,)
    return [
        Plan(
            seeds=asked.seeds,
            epochs=asked.epochs,
            searches=wants_search and not is_private,  # every try of a search would have to be paid for
            resumes=asked.resume,
            only=frozenset(asked.only),
            is_private=is_private,
        )
        for is_private in settings
    ]


def keep(out: Path, name: str, command: str, table: WorkloadTable, beginning: Beginning) -> None:
    """A table as a page, and as a file of docs/figures."""
    text = table.markdown()
    (out / f"{name}.md").write_text(text, encoding="utf-8")
    print(text, flush=True)
    given = {"command": command, "provenance": asdict(beginning.provenance())}
    document = json.dumps(given | asdict(table), indent=2, ensure_ascii=False) + "\n"
    write_whole(out / f"evaluation-{name}.json", lambda path: path.write_text(document, encoding="utf-8"), "a table")


def _run_workload(workload: Workload, asked: argparse.Namespace, beginning: Beginning) -> None:
    settings = plans(workload, asked)
    if asked.reuse:
        found = [saved_outcomes(workload, asked.out, plan) for plan in settings]
    elif workload is yelp.GENERATED:
        data = yelp.generate(asked.yelp_rows, asked.yelp_size, asked.out / "yelp_generated")
        found = run_settings(workload, data, asked.out, settings, _say)
    else:
        found = run_settings(workload, _folder(asked.data, workload), asked.out, settings, _say)
    for plan, outcomes in zip(settings, found, strict=True):
        _show(workload, outcomes, asked.out, plan, beginning)


def _show(workload: Workload, outcomes: Sequence[Outcome], out: Path, plan: Plan, beginning: Beginning) -> None:
    name = workload.name + ("-private" if plan.is_private else "")
    command = f"python -m evaluation {workload.name}" + " --private" * plan.is_private
    table = workload_table(workload, outcomes)
    if workload.has_texts:
        table = replace(table, text=[*table.text, f"Reviews are vectors of {encoder_name()}."])
    keep(out, name, command, table, beginning)
    if workload is movielens.LINEAR and not plan.is_private:
        keep(out, f"{name}-distances", command, distance_table(workload, outcomes), beginning)
    write_figures([Study(workload, plan.is_private, outcomes)], out / "figures", f"{workload.name}-")
    page = write_report(out / f"{name}.html", [outcome.runs[0] for outcome in outcomes])
    print(f"report: {page}")


def _run_measured(name: str, asked: argparse.Namespace, beginning: Beginning) -> None:
    lines = KeptLines(asked.out, name, asked.resume or asked.reuse, _say)
    if name == "boosting":
        from evaluation.boosting import boosting  # here: it loads LightGBM

        if asked.data is None:
            raise JobError("boosting needs --data, the folder of the original data")
        for which, table in boosting(asked.data, lines):
            keep(asked.out, f"boosting-{which}", "python -m evaluation boosting", table, beginning)
        return
    study = {"movielens-factor": factor, "movielens-seen": seen}[name]
    keep(
        asked.out, name, f"python -m evaluation {name}", study(_folder(asked.data, movielens.LINEAR), lines), beginning
    )


def _all_figures(out: Path) -> None:
    """The paper's figures with a panel for every workload whose runs are in the folder."""
    studies = [
        Study(workload, is_private, saved_outcomes(workload, out, Plan(is_private=is_private)))
        for workload in WORKLOADS.values()
        for is_private in (False, True)
        if has_runs(workload, out, Plan(is_private=is_private))
    ]
    for file in write_figures(studies, out / "figures"):
        print(f"figure: {file}")


def _folder(data: Path | None, workload: Workload) -> Path:
    if data is None:
        raise JobError(f"{workload.title} needs --data, the folder of its original files")
    return data / workload.folder if (data / workload.folder).is_dir() else data


def _say(text: str) -> None:
    print(f"{STEP}{text}", flush=True)
