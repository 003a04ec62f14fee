"""An owner's account: what all jobs together have spent of its tables' privacy, and the budget that ends it.

In: releases as they are about to happen, each under a name. Out: the account with the release in it, or PolicyError.
A release that happened before under the same name (the same noisy labels, asked for again) costs nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from tablepuppet.errors import PolicyError
from tablepuppet.privacy.accounting import Mechanism, composed_epsilon


class TableBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The most that all jobs together may spend of one table; what has a budget leaves under noise only."""

    label: float | None = None  # ε of labels, summed over different releases
    features: float | None = None  # ε of features towards outsiders, at delta
    delta: float = 1e-5


class Spending(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One release about the rows of a table: labels (ε), features (noisy sums), or exact numbers of each row, which are
    a model's scores, or a job's predictions in training."""

    table: str
    what: Literal["label", "features", "noisy predictions", "scores", "predictions"]
    name: str  # no value of any row can be told from it
    epsilon: float = 0.0
    noise: float = 0.0
    steps: int = 0
    probability: float = 1.0
    joined: int = 1
    partners: float = 0.0
    numbers: int = 0
    columns: tuple[str, ...] = ()  # behind the numbers; none: any

    @property
    def mechanism(self) -> Mechanism:
        """Noisy sums, as the accountant counts them."""
        return Mechanism(self.noise, self.steps, self.probability, self.joined, self.partners)


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that was released, in order."""

    spendings: tuple[Spending, ...] = ()

    def knows(self, spending: Spending) -> bool:
        """Whether the very same was released before."""
        return any((s.table, s.what, s.name) == _place(spending) for s in self.spendings)

    def plus(self, *spendings: Spending) -> Account:
        """The account after releases; of a job's predictions, the most that it was told."""
        found = self.spendings
        for spending in spendings:
            earlier = [s for s in found if _place(s) == _place(spending)]
            if spending.what == "predictions" and max((s.numbers for s in earlier), default=0) < spending.numbers:
                found = (*(s for s in found if _place(s) != _place(spending)), spending)
            elif not earlier and spending.what != "predictions":
                found = (*found, spending)
        return self if found == self.spendings else Account(found)

    def shown(self, table: str, columns: Sequence[str], but: str = "") -> int:
        """How many exact numbers of each row have left that some of these columns are behind, in all jobs but one."""
        wanted = set(columns)
        return sum(
            s.numbers
            for s in self.spendings
            if s.table == table
            and s.what in ("scores", "predictions")
            and s.name != but
            and (not s.columns or not wanted or wanted & set(s.columns))
        )

    def spent(self, table: str, what: str, delta: float = 0.0) -> float:
        """ε of labels, ε at δ of features, or how many numbers each row has been scored by."""
        found = [s for s in self.spendings if (s.table, s.what) == (table, what)]
        if what in ("features", "noisy predictions"):
            return composed_epsilon(tuple(s.mechanism for s in found), delta)
        return sum(s.epsilon if what == "label" else float(s.numbers) for s in found)

    def check(self, spendings: Sequence[Spending], budget: TableBudget) -> None:
        """Refuses releases of one kind that would go past the owner's budget."""
        spending = spendings[0]
        what = spending.what
        limit = budget.label if what == "label" else budget.features
        if limit is None or what == "noisy predictions" or all(self.knows(s) for s in spendings):
            return
        before = self.spent(spending.table, what, budget.delta)
        after = self.plus(*spendings).spent(spending.table, what, budget.delta)
        if after > limit * (1 + 1e-9):
            raise PolicyError(
                f"its policy refuses the request: the budget of {_PLURAL[what]} of {spending.table} is ε = {limit:g} "
                f"over all jobs, of which {before:.4g} is spent, and this job would bring it to {after:.4g} "
                f"(rule budget.{spending.table}.{what})"
            )


def _place(spending: Spending) -> tuple[str, str, str]:
    return spending.table, spending.what, spending.name


def without_noise(table: str, what: Literal["label", "features"]) -> PolicyError:
    """The refusal of a job that asks for something with a budget as it is."""
    return PolicyError(
        f"its policy refuses the request: {_PLURAL[what]} of {table} have a budget, and the job asks for them without "
        f'noise; train with privacy={{"{what}": {{"epsilon": …}}}} (rule budget.{table}.{what})'
    )


_PLURAL = {
    "label": "labels",
    "features": "features",
    "noisy predictions": "noisy predictions",
    "scores": "scores",
    "predictions": "predictions",
}
