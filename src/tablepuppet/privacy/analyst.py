"""Analyst budgets: an owner's limit on the ε that each asker spends of a table in a period, and the noise of a job.

Two tables are neighbours where one base row is there or is not, with its keys, features and label; or all rows of
one subject. A job releases sums over joined rows, of which that unit changes `rows` × `cap`. All of them carry
Gaussian noise, and form one Gaussian mechanism of noise σ: a part with a share s of the job has σ/√s, for Σ s/σ² =
1/σ².

In: an owner's budget, a job's ε. Out: the deviations of its noise, and its cost. Nothing here draws.
"""

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tablepuppet.privacy.accounting import Mechanism, composed_epsilon, gaussian_noise

Part = Literal["sizes", "partners", "metrics", "model"]
# The share of a job's ε for each part; an explanation costs as much as its sizes, and the rules of partners.
SHARES: dict[str, dict[Part, float]] = {
    "explain": {"sizes": 0.04, "partners": 0.01},
    "train": {"sizes": 0.04, "partners": 0.01, "metrics": 0.15, "model": 0.8},
    "evaluate": {"partners": 0.05, "metrics": 0.95},
}


class AnalystBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ε that each asker may spend of one table in a period; then it begins anew."""

    epsilon: float
    per: Literal["day", "week", "month"] = "month"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 100:
            raise ValueError("analyst.epsilon must lie in (0, 100]")

    def period(self, now: datetime) -> str:
        """The name of the period that a moment is in, in UTC.

        >>> AnalystBudget(epsilon=1.0, per="week").period(datetime(2026, 1, 1))
        '2026-W01'
        """
        return now.strftime({"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}[self.per])


class AnalystTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The agreed terms of one job: the table that pays, how much, and for which parts."""

    table: str
    epsilon: float  # of training and all that it shows
    delta: float
    shares: dict[Part, float]  # the parts that this job releases, and their shares
    subject: str = ""  # the column of subjects, all of whose rows are the unit; "": a base row
    rows: int = 1  # rows of the job's query that one base row or subject changes
    cap: Annotated[int, Meta(ge=1)] = 1  # joined rows that each of them is in, at the most: others are left out
    fits: Annotated[int, Meta(ge=1)] = 1  # models of a search that share ε
    ahead: Annotated[int, Meta(ge=0)] = 0  # how many of them are still to come after this job

    @property
    def noise(self) -> float:
        """σ of all that this job releases, in units of a base row's effect."""
        return self._noise(sum(self.shares.values()))

    def _noise(self, share: float) -> float:
        return gaussian_noise(self.epsilon, self.delta, 1, 1.0) * math.sqrt(self.fits / share)

    def deviation(self, part: Part, norm: float = 1.0) -> float:
        """The deviation of the noise on a part's sums; a joined row contributes a vector of this length at most."""
        return self._noise(self.shares[part]) * self.rows * self.cap * norm

    def leaf_noise(self, trees: int) -> float:
        """Of every tree, in units of a joined row's contribution."""
        return self.deviation("model") * math.sqrt(trees)

    def epsilon_of(self, *parts: Part) -> float:
        """The cost of some parts as one release; none: of all parts."""
        share = sum(self.shares[part] for part in parts or self.shares)
        return composed_epsilon((Mechanism(self._noise(share), 1),), self.delta)

    def lines(self) -> list[str]:
        """The cost in words."""
        each = ", ".join(f"{part} {self.epsilon_of(part):.3g}" for part in self.shares)
        unit = f"one {self.subject} of {self.table}, with all rows," if self.subject else f"a row of {self.table}"
        later = "" if sum(self.shares.values()) > 0.99 else f"; training costs ε = {self.epsilon:.3g}"
        later += "" if self.fits == 1 else f"; all {self.fits:,} models of the search cost ε = {self.epsilon:.3g}"
        return [
            f"analyst budget of {self.table}: this costs ε = {self.epsilon_of():.3g} at δ = {self.delta:g} ({each}), "
            f"for {unit} that is there or is not, in at most {self.rows * self.cap:,} joined rows{later}"
        ]


def epsilon_left(limit: float, delta: float, noises: Iterable[float]) -> float:
    """The ε of a job that spends what others, Gaussian mechanisms of such noise, have left of a limit."""
    left = 1.0 / gaussian_noise(limit, delta, 1, 1.0) ** 2 - sum(1.0 / noise**2 for noise in noises)
    return composed_epsilon((Mechanism(1.0 / math.sqrt(left), 1),), delta) if left > 1e-12 else 0.0
