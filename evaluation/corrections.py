"""Where the paper needs correcting, shown by experiment on small data made here.

1. The printed ADMM update diverges when its θ-step is solved exactly; the sharing form converges.
2. Predictions are not protected by post-processing: as many of them as a row has columns solve for it.
3. Label noise drawn anew for every joined copy averages out; drawn once per row it does not.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd

import tablepuppet as tp
from evaluation.tables import WorkloadTable
from tablepuppet.errors import TrainingError
from tablepuppet.training.result import RoundEvent

QUERY = """
    SELECT s.c1, s.x1, s.x2, l.c2, l.x3, l.x4, r.c3, r.x5, r.x6, s.y
    FROM s JOIN l ON s.a = l.a JOIN r ON s.b = r.b
"""

VARIANTS: tuple[Literal["published", "sharing"], ...] = ("published", "sharing")


def corrections(rows: int = 20_000, seed: int = 0) -> dict[str, WorkloadTable]:
    """All three, by name."""
    return {"update": divergence(rows, seed), "rows": leak(seed), "labels": copies(seed)}


def three_tables(rows: int, seed: int) -> dict[str, pd.DataFrame]:
    """A star of three tables whose columns are correlated across tables, and a number to predict."""
    random = np.random.default_rng(seed)
    left, right = max(2, rows // 40), max(2, rows // 25)
    of_l, of_r = random.normal(size=(left, 2)), random.normal(size=(right, 2))
    a, b = random.integers(0, left, rows), random.integers(0, right, rows)
    own = 0.7 * of_l[a] + 0.7 * of_r[b] + 0.4 * random.normal(size=(rows, 2))
    y = own @ [1.0, -0.5] + of_l[a] @ [0.7, 0.3] + of_r[b] @ [-0.6, 0.2] + 0.5 * random.normal(size=rows)

    def letters(count: int) -> list[str]:
        return [str(letter) for letter in random.choice(list("uvw"), count)]

    return {
        "s": pd.DataFrame({"a": a, "b": b, "c1": letters(rows), "x1": own[:, 0], "x2": own[:, 1], "y": y}),
        "l": pd.DataFrame({"a": np.arange(left), "c2": letters(left), "x3": of_l[:, 0], "x4": of_l[:, 1]}),
        "r": pd.DataFrame({"b": np.arange(right), "c3": letters(right), "x5": of_r[:, 0], "x6": of_r[:, 1]}),
    }


def divergence(rows: int, seed: int) -> WorkloadTable:
    """The objective gap of both updates, epoch by epoch."""
    epochs = (1, 2, 5, 10, 20, 30)
    with tp.Federation(three_tables(rows, seed)) as federation:

        def history(algorithm: Any) -> list[float]:
            seen: list[float] = []

            def keep(event: RoundEvent) -> None:
                if event.record is not None:
                    seen.append(event.record.objective)

            try:
                federation.train(
                    QUERY, label="y", model="linear", algorithm=algorithm, epochs=max(epochs), on_round=keep
                )
            except TrainingError:
                seen.append(float("inf"))  # the run noticed that it diverges, and stopped
            return seen

        best = min(history("centralized"))
        # A fixed ρ and no averaging on both sides: only the printed factor differs.
        lines = {
            f"{variant}, ρ = {rho:g}": history(
                tp.Admm(variant=variant, rho=rho, adapt=False, relax=1.0, memory=0, tolerance=0.0)
            )
            for rho in (0.2, 1.0)
            for variant in VARIANTS
        }
        lines["sharing, our defaults"] = history(tp.Admm())
    found = [[name, *(_gap(values, epoch, best) for epoch in epochs)] for name, values in lines.items()]
    said = f"Squared loss, three tables with strings and numbers, N = {rows:,}."
    return WorkloadTable("The printed ADMM update", [said], ["objective gap after epoch", *map(str, epochs)], found)


def _gap(values: list[float], epoch: int, best: float) -> str:
    value = values[min(epoch, len(values)) - 1]
    return "stopped: diverges" if not np.isfinite(value) else f"{max(value - best, 0.0):.0e}"


def leak(seed: int, columns: int = 52, rows: int = 200) -> WorkloadTable:
    """Least squares on a row's predictions, with noise on every θ: the row comes out as it went in."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, columns))
    lines = []
    for rounds in (10, 26, 51, 52, 60):
        # θ as a client under DP-SGD would release it: noise in every round; h = Xθ is what the server is sent.
        theta = np.cumsum(random.normal(0, 1.0, (columns, rounds)), axis=1)
        solved = np.linalg.lstsq(theta.T, (features @ theta).T, rcond=None)[0].T
        error = float(np.max(np.abs(solved - features)))
        lines.append([f"{rounds}", f"{error:.0e}"])
    said = f"{columns} columns, noise on θ in every round, exact predictions h = Xθ."
    return WorkloadTable(
        "Predictions give rows away", [said], ["rounds", "largest error of a recovered feature"], lines
    )


def copies(seed: int, rows: int = 20_000) -> WorkloadTable:
    """Labels recovered by averaging the noisy copies of one row: λ = 0.5, which is ε = 2√2/λ = 5.657 for one copy."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, rows)
    exact = np.eye(2)[label]
    lines = []
    for fan_out in (1, 2, 6, 20):
        noisy = exact[:, None, :] + random.laplace(0, 0.5 / np.sqrt(2), (rows, fan_out, 2))
        fresh = float((noisy.mean(axis=1).argmax(axis=1) == label).mean())
        once = float((noisy[:, 0].argmax(axis=1) == label).mean())
        lines.append([f"{fan_out}", f"{fresh:.1%}", f"{once:.1%}"])
    said = "Laplace noise (λ = 0.5) on one-hot labels of two classes, averaged over the copies of a row, then argmax."
    head = ["copies of a row", "labels recovered, noise per copy", "noise once per row"]
    return WorkloadTable("Label noise per joined copy", [said], head, lines)
