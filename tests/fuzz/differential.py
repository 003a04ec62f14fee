"""One case against the oracle: the same answer, or a refusal in words."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from tests.fuzz.oracle import L2, pooled_answer
from tests.fuzz.queries import Case

import tablepuppet as tp

Verdict = Literal["equal", "refused", "invalid SQL"]


class DifferenceError(AssertionError):
    """An answer that is not SQL's, or an error that is not ours."""


def judge(case: Case) -> tuple[Verdict, str]:
    """What became of a case, and the refusal if it is one; raises DifferenceError where it is wrong."""
    expected = pooled_answer(case)
    if expected is None:
        return "invalid SQL", ""
    try:
        rows, objective = _train(case)
    except tp.TablePuppetError as refusal:
        text = str(refusal)
        if "internal error" in text:
            raise DifferenceError(f"a raw error: {text}\n{case}") from refusal
        return "refused", text
    except Exception as error:
        raise DifferenceError(f"a raw error: {type(error).__name__}: {error}\n{case}") from error
    if rows != expected.rows:
        raise DifferenceError(f"{rows} joined rows, and DuckDB has {expected.rows}\n{case}")
    if abs(objective - expected.objective) > 1e-6 * max(1.0, abs(expected.objective)):
        raise DifferenceError(f"an objective of {objective}, and the least is {expected.objective}\n{case}")
    return "equal", ""


def _train(case: Case) -> tuple[int, float]:
    """Joined rows and objective of a federation that never pools its tables."""
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.toml")
        policy.write_text('merge_groups = "extremes"\n')
        policies: dict[str, str | Path] = dict.fromkeys(case.tables, policy) if case.merges else {}
        with tp.Federation(case.tables, policies=policies) as federation:
            result = federation.train(
                case.sql, label="y", model="linear", algorithm="newton", test_fraction=0.0, standardize=False, l2=L2
            )
    return result.plan.mapping.train_rows, result.objective
