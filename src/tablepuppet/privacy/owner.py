"""An owner's account: what all jobs together have spent of its tables' privacy, and the budget that ends it.

In: releases as they are about to happen, each under a name. Out: the account with the release in it, or PolicyError.
A release that happened before under the same name (the same noisy labels, asked for again) costs nothing new.
"""

from __future__ import annotations

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
    """One release about the rows of a table: labels (ε), features (noisy sums), or a model's scores (numbers a row)."""

    table: str
    what: Literal["label", "features", "scores"]
    name: str  # no value of any row can be told from it
    epsilon: float = 0.0
    noise: float = 0.0
    steps: int = 0
    probability: float = 1.0
    numbers: int = 0


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that was released, in order."""

    spendings: tuple[Spending, ...] = ()

    def knows(self, spending: Spending) -> bool:
        """Whether the very same was released before."""
        return any((s.table, s.what, s.name) == (spending.table, spending.what, spending.name) for s in self.spendings)

    def plus(self, spending: Spending) -> Account:
        """The account after a release."""
        return self if self.knows(spending) else Account((*self.spendings, spending))

    def spent(self, table: str, what: str, delta: float = 0.0) -> float:
        """ε of labels, ε at δ of features, or how many numbers each row has been scored by."""
        found = [s for s in self.spendings if (s.table, s.what) == (table, what)]
        if what == "features":
            return composed_epsilon(tuple(Mechanism(s.noise, s.steps, s.probability) for s in found), delta)
        return sum(s.epsilon if what == "label" else float(s.numbers) for s in found)

    def check(self, spending: Spending, budget: TableBudget) -> None:
        """Refuses a release that would go past the owner's budget."""
        what = spending.what
        limit = budget.label if what == "label" else budget.features
        if limit is None or self.knows(spending):
            return
        before = self.spent(spending.table, what, budget.delta)
        after = self.plus(spending).spent(spending.table, what, budget.delta)
        if after > limit * (1 + 1e-9):
            raise PolicyError(
                f"its policy refuses the request: the budget of {_PLURAL[what]} of {spending.table} is ε = {limit:g} "
                f"over all jobs, of which {before:.4g} is spent, and this job would bring it to {after:.4g} "
                f"(rule budget.{spending.table}.{what})"
            )


def without_noise(table: str, what: Literal["label", "features"]) -> PolicyError:
    """The refusal of a job that asks for something with a budget as it is."""
    return PolicyError(
        f"its policy refuses the request: {_PLURAL[what]} of {table} have a budget, and the job asks for them without "
        f'noise; train with privacy={{"{what}": {{"epsilon": …}}}} (rule budget.{table}.{what})'
    )


_PLURAL = {"label": "labels", "features": "features", "scores": "scores"}
