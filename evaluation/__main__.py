"""python -m evaluation STUDY… --data FOLDER: prepares, trains, and writes tables, figures and a report.

    python -m evaluation all --data /path/to/data
    python -m evaluation movielens-linear --data /path/to/data --seeds 3 --epochs 10
    python -m evaluation boosting --data /path/to/data
    python -m evaluation movielens-factor --data /path/to/data
    python -m evaluation movielens-seen --data /path/to/data
    python -m evaluation corrections
    python -m evaluation figures

FOLDER holds one folder per data set (movielens1m, mimic3demo, …), or is that of the one workload asked for.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evaluation.lineup import LINEUP
from evaluation.studies import STUDIES, WORKLOADS, run_study
from evaluation.whole import run_all
from tablepuppet.errors import TablePuppetError


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    made = argparse.ArgumentParser(
        prog="python -m evaluation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("workloads", nargs="+", choices=[*WORKLOADS, "all", *STUDIES], metavar="STUDY")
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
    made.add_argument("--without", nargs="+", default=[], choices=[*WORKLOADS, *STUDIES], help="studies that all omits")
    made.add_argument("--private", action="store_true", help="with the paper's privacy for labels and features")
    made.add_argument("--both", action="store_true", help="without privacy and with it, the baseline once")
    made.add_argument("--resume", action="store_true", help="keep the runs of the same jobs that are in --out")
    made.add_argument("--reuse", action="store_true", help="tables, figures and report from runs that are in --out")
    made.add_argument("--yelp-rows", type=int, default=20_000, help="reviews of the generated Yelp data")
    made.add_argument("--yelp-size", type=int, default=384, help="numbers in an embedding of the generated Yelp data")
    return made


def main() -> int:
    """Runs what the command line asks for; 2 where the input is wrong, 1 where a part of everything failed."""
    asked = parser().parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    try:
        for name in dict.fromkeys(asked.workloads):
            if name == "all":
                asked.both = not asked.private
                failed += run_all(asked)
            else:
                run_study(name, asked)
    except TablePuppetError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
