"""How often an algorithm asks a part for something: what its declaration says (`Algorithm.exchanges`).

Disclosures (plan/disclosure.py), noise for predictions (plan/private.py) and a contract's limits (client/keeper.py)
are counted from it.
"""

from __future__ import annotations

from dataclasses import dataclass

POWER_ROUNDS = 12  # products with second moments that bound the curvature for plain descent


@dataclass(frozen=True, slots=True)
class RunShape:
    """What the number of messages depends on."""

    epochs: int
    rows: int  # joined rows that are trained on
    batch_size: int | None
    is_linear: bool
    is_private: bool = False
    curvature_varies: bool = False


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Messages of one part in a run of so many epochs."""

    epochs: int
    batches: int = 1  # steps of an epoch
    has_opening: bool = False  # predictions are asked for once before the first step
    has_start: bool = False  # …and come with the start
    inner: int = 1  # sums between two steps, where a table has several clients
    sends_curvature: bool = False
    evaluates_train: bool = False  # train rows are predicted again to be measured
    power_rounds: int = 0
    sums_figure: bool = False  # where sums are masked, one more for the first step
    is_pooled: bool = False

    @property
    def steps(self) -> int:
        return 0 if self.is_pooled else self.epochs * self.batches

    @property
    def evaluations(self) -> int:
        """After every epoch, and in the end."""
        return 0 if self.is_pooled else self.epochs + 1

    def train_showings(self, again: int = 0) -> int:
        """How often predictions of train rows leave; `again`: steps that are taken once more."""
        return (
            self.steps + again + self.has_opening + self.has_start + (self.evaluations if self.evaluates_train else 0)
        )

    def row_showings(self, multiplicity: int, again: int = 0) -> int:
        """How often a row of that multiplicity is predicted at most, as a train row."""
        return self.train_showings(again) - self.steps + self.row_steps(multiplicity)

    def row_steps(self, multiplicity: int) -> int:
        """How many steps a row of that multiplicity is in: no more batches of an epoch than it has joined rows."""
        return 0 if self.is_pooled else self.epochs * min(max(1, multiplicity), self.batches)

    @property
    def showings(self) -> int:
        """How often predictions leave, of train rows or of held-out rows."""
        return self.train_showings() + self.evaluations
