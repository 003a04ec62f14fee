"""python -m evaluation WORKLOAD… --data FOLDER: prepares, trains, and writes tables, figures and a report.

    python -m evaluation movielens-linear --data /path/to/data
    python -m evaluation all --data /path/to/data --seeds 3 --epochs 10
    python -m evaluation boosting --data /path/to/data
    python -m evaluation movielens-factor --data /path/to/data
    python -m evaluation movielens-seen --data /path/to/data
    python -m evaluation corrections
    python -m evaluation figures

FOLDER holds one folder per data set (movielens1m, mimic3demo, …), or is that of the one workload asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from evaluation import flights, mimic, movielens, walmart, yelp
from evaluation.corrections import corrections
from evaluation.factor import factor
from evaluation.figures import Study, write_figures
from evaluation.lineup import LINEUP
from evaluation.running import Outcome, Plan, has_runs, run_workload, saved_outcomes
from evaluation.seen import seen
from evaluation.tables import WorkloadTable, workload_table
from evaluation.workload import Workload
from tablepuppet.bench.figures import Beginning
from tablepuppet.errors import JobError, TablePuppetError
from tablepuppet.report import write_report

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


_MOVIELENS = {"movielens-factor": factor, "movielens-seen": seen}
_STUDIES = ("boosting", *_MOVIELENS, "corrections", "figures")  # with tables of their own


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    made = argparse.ArgumentParser(
        prog="python -m evaluation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("workloads", nargs="+", choices=[*WORKLOADS, "all", *_STUDIES], metavar="WORKLOAD")
    made.add_argument("--data", type=Path, help="the folder of the original data")
    made.add_argument("--out", type=Path, default=Path("evaluation-results"), help="where results are written")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--epochs", type=int, default=10)
    made.add_argument(
        "--search",
        action=argparse.BooleanOptionalAction,
        help="search the paper's grid of learning rates and ρ (where nothing is said: if the workload does)",
    )
    made.add_argument(
        "--only", nargs="+", default=[], choices=[e.name for e in LINEUP], metavar="ALGORITHM", help="not all of them"
    )
    made.add_argument("--private", action="store_true", help="with the paper's privacy for labels and features")
    made.add_argument("--resume", action="store_true", help="keep the runs of the same jobs that are in --out")
    made.add_argument("--reuse", action="store_true", help="tables, figures and report from runs that are in --out")
    made.add_argument("--yelp-rows", type=int, default=20_000, help="reviews of the generated Yelp data")
    made.add_argument("--yelp-size", type=int, default=384, help="numbers in an embedding of the generated Yelp data")
    return made


def main() -> int:
    """Runs what the command line asks for; 2 where the input is wrong."""
    asked = parser().parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        for name in dict.fromkeys(asked.workloads):
            if name in ("corrections", "all"):
                _write(asked.out / "corrections.md", corrections())
            if name == "boosting":
                _boosting(asked)
            if name in _MOVIELENS:
                beginning = Beginning()
                found = _MOVIELENS[name](_folder(asked.data, movielens.LINEAR))
                _keep(asked.out, name, f"python -m evaluation {name}", found, beginning)
            for workload in _chosen(name, asked.data):
                both = name == "all" and not asked.private and workload.privacy is not None
                for is_private in (False, True) if both else (asked.private,):
                    _study(workload, _plan(workload, asked, is_private=is_private), asked)
            if name in ("figures", "all"):
                _all_figures(asked.out)
    except TablePuppetError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


def _boosting(asked: argparse.Namespace) -> None:
    from evaluation.boosting import boosting  # here: it loads LightGBM

    if asked.data is None:
        raise JobError("boosting needs --data, the folder of the original data")
    _write(asked.out / "boosting.md", boosting(asked.data, asked.out, resumes=asked.resume, reuses=asked.reuse))


def _plan(workload: Workload, asked: argparse.Namespace, *, is_private: bool) -> Plan:
    wants_search = workload.searches if asked.search is None else asked.search
    return Plan(
        seeds=asked.seeds,
        epochs=asked.epochs,
        searches=wants_search and not is_private,  # every try of a search would have to be paid for
        resumes=asked.resume,
        only=frozenset(asked.only),
        is_private=is_private,
    )


def _study(workload: Workload, plan: Plan, asked: argparse.Namespace) -> None:
    """One workload from its files to its page, or from runs that are there."""
    beginning = Beginning()
    if asked.reuse:
        _show(workload, saved_outcomes(workload, asked.out, plan), asked.out, plan, beginning)
        return
    if workload is yelp.GENERATED:
        data = yelp.generate(asked.yelp_rows, asked.yelp_size, asked.out / "yelp_generated")
    else:
        data = _folder(asked.data, workload)
    _show(workload, run_workload(workload, data, asked.out, plan, _say), asked.out, plan, beginning)


def _chosen(name: str, data: Path | None) -> list[Workload]:
    """A workload by its name; with "all", those whose data are there."""
    if name in _STUDIES:
        return []
    if name != "all":
        return [WORKLOADS[name]]
    there = [w for w in WORKLOADS.values() if w is yelp.GENERATED or (data is not None and (data / w.folder).is_dir())]
    for workload in WORKLOADS.values():
        if workload not in there:
            print(f"{workload.title}: left out, there is no folder {workload.folder}")
    return there


def _folder(data: Path | None, workload: Workload) -> Path:
    if data is None:
        raise JobError(f"{workload.title} needs --data, the folder of its original files")
    return data / workload.folder if (data / workload.folder).is_dir() else data


def _say(text: str) -> None:
    print(text, flush=True)


def _show(workload: Workload, outcomes: list[Outcome], out: Path, plan: Plan, beginning: Beginning) -> None:
    name = workload.name + ("-private" if plan.is_private else "")
    command = f"python -m evaluation {workload.name}" + " --private" * plan.is_private
    _keep(out, name, command, workload_table(workload, outcomes), beginning)
    write_figures([Study(workload, plan.is_private, outcomes)], out / "figures", f"{workload.name}-")
    page = write_report(out / f"{name}.html", [outcome.runs[0] for outcome in outcomes])
    print(f"report: {page}")


def _keep(out: Path, name: str, command: str, table: WorkloadTable, beginning: Beginning) -> None:
    """A table as a page, and as a file of docs/figures."""
    _write(out / f"{name}.md", table.markdown())
    given = {"command": command, "provenance": asdict(beginning.provenance())}
    text = json.dumps(given | asdict(table), indent=2, ensure_ascii=False) + "\n"
    (out / f"evaluation-{name}.json").write_text(text, encoding="utf-8")


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


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
