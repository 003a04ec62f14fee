"""The report's last section: the exact job, and where it ran."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

from tablepuppet.algorithms.registry import BY_NAME
from tablepuppet.report.markup import code, table
from tablepuppet.report.record import RunRecord

NEURAL = ("hidden", "activation", "dropout", "dtype", "module")


def job_toml(job: dict[str, Any]) -> str:
    """A job as a job file: the names are those of the Python arguments, options beside them.

    >>> print(job_toml({"query": "SELECT 1", "label": "y", "options": {"type": "newton", "memory": 8}}))
    query = '''
    SELECT 1
    '''
    label = "y"
    memory = 8
    """
    options = {name: value for name, value in job.get("options", {}).items() if name != "type"}
    options |= job.get("loss_options", {})
    # What describes a network is refused where there is none.
    left_out = {"query", "options", "loss_options", *(() if job.get("model") in ("mlp", "module") else NEURAL)}
    if job.get("engine") == {"name": "local"}:
        left_out.add("engine")
    plain = {name: value for name, value in job.items() if name not in left_out}
    name = str(job.get("algorithm"))
    lines = [f"query = '''\n{textwrap.dedent(str(job['query'])).strip()}\n'''"]
    # TOML has no null. Left out, a name takes its default, which is None for all but batch_size.
    lines += [f"{name} = {_value(value)}" for name, value in (plain | options).items() if value is not None]
    if name in BY_NAME and BY_NAME[name].uses_batches and job.get("batch_size") is None:
        lines.append("# full batches: batch_size=None, from Python")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers, booleans and lists read alike in TOML


def environment(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """How to run it again, and what it ran on."""
    parts = []
    for run, name in zip(runs, names, strict=True):
        rows = [[escape(k), escape(v)] for k, v in {"created": run.created, **run.environment}.items()]
        body = (
            "<p>The job file; the same data, job and seed give the same model bit for bit.</p>"
            + code(job_toml(run.job))
            + table(["Environment", ""], rows, text_columns=2)
        )
        parts.append(f"<details{' open' * (len(runs) == 1)}><summary>{escape(name)}</summary>{body}</details>")
    return "".join(parts)
