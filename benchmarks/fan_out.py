"""python -m benchmarks.fan_out --out FILE: CPU time and memory of newton against fan-out, three tables of one size.

In: the tables' rows, fan-outs. Out: a table for docs/factorised.md. Each row of it is measured in a process of its own,
so that its peak of memory is its own. CPU seconds are those of `train` with its default options.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from benchmarks.figures import Beginning
from tablepuppet import Federation
from tablepuppet.output_files import write_whole

ROWS = 100_000
FAN_OUTS = (1, 10, 100, 300, 1_000, 3_000, 30_000)
LABELS = {"linear": "y", "logistic": "p", "poisson": "c"}
QUERY = "SELECT a.{}, a.x, a.v, b.z, b.t, c.w, c.s FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
HEAD = ("fan-out", "joined rows", "walk", *(f"{model}, CPU s" for model in LABELS), "peak MB")
TEXT = ("Three tables of 100,000 rows, `a JOIN b JOIN c`; each row finds so many rows of the next table.",)


def make_tables(rows: int, fan_out: int) -> dict[str, pa.Table]:
    """Three tables in a chain, with effects of the keys that tables share."""
    rng = np.random.default_rng(fan_out)
    keys = max(1, rows // fan_out)

    def table(**features: Any) -> dict[str, Any]:
        shared = {name: rng.permutation(np.arange(rows) % keys) for name in ("k", "m")}
        return shared | {name: rng.normal(size=rows) for name in features}

    a, b, c = table(x=0, v=0), table(z=0, t=0), table(w=0, s=0)
    effect = rng.normal(size=keys)
    b["z"] += 0.7 * effect[b["k"]]
    score = 0.8 * a["x"] - 0.3 * a["v"] + 0.5 * effect[a["k"]]
    a |= {"y": score + rng.normal(size=rows), "p": (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(int)}
    a |= {"c": rng.poisson(np.exp(0.5 * score))}
    return {"a": pa.table(a), "b": pa.table(b), "c": pa.table(c)}


def measure(rows: int, fan_out: int) -> list[str]:
    """One row of the table."""
    tables, taken, plan = make_tables(rows, fan_out), [], None
    with Federation(tables) as federation:
        for model, label in LABELS.items():
            began = time.process_time()
            plan = federation.train(QUERY.format(label), label=label, model=model, progress=False).plan
            taken.append(f"{time.process_time() - began:.1f}")
    assert plan is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [f"{fan_out:,}", f"{plan.mapping.joined_rows:.1e}", plan.mapping.walk, *taken, f"{peak:.0f}"]


def main(
    out: Annotated[Path | None, typer.Option(help="Write the table as JSON.")] = None,
    rows: Annotated[int, typer.Option(help="Of each table.")] = ROWS,
    one: Annotated[int | None, typer.Option(help="Measure this fan-out here, and print its row.")] = None,
) -> None:
    """Measure newton against fan-out."""
    if one is not None:
        print(json.dumps(measure(rows, one)))
        return
    beginning, found = Beginning(), []
    for fan_out in FAN_OUTS:
        words = [sys.executable, "-m", "benchmarks.fan_out", "--one", str(fan_out), "--rows", str(rows)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout))
        print(*found[-1], sep="\t")
    if out is not None:
        command = "python -m benchmarks.fan_out" + (f" --rows {rows}" if rows != ROWS else "")
        document = {"command": command, "provenance": asdict(beginning.provenance()), "text": TEXT, "head": HEAD}
        text = json.dumps(document | {"rows": found}, indent=2, ensure_ascii=False) + "\n"
        write_whole(out, lambda file: file.write_text(text, encoding="utf-8"), "the figures")


if __name__ == "__main__":
    typer.run(main)
