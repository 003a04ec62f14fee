"""The ledger: past (or planned) releases about the rows of each table, and the ε that each observer learns.

In: releases, frozen data with a mechanism and how often it ran. Out: ε at δ per table and observer, lines of text,
and a refusal where a budget would be overdrawn. An ε never stands without unit, observer, δ, sampling and cap.

Two tables are neighbours where one base row's features are all zero in one of them, its keys and label staying: which
rows join is public. A second ε, for any other row in its place, stands with it.

An owner's account: the privacy of its tables that all jobs have spent, and the budget that ends it. In:
releases as they are about to happen, each under a name. Out: the account with the release in it, or PolicyError. A
release that happened before under the same name (the same noisy labels, asked for again) costs nothing new.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tablepuppet.errors import PolicyError, PrivacyError
from tablepuppet.privacy.accounting import Mechanism, composed_epsilon, replacement_epsilon
from tablepuppet.privacy.analyst import AnalystBudget, epsilon_left

Observer = Literal["everyone", "outsider", "server", "other clients"]
Scope = Literal["model", "own", "others", "leaves"]  # of an ε of features: it covers all parameters, or fewer
Sampling = Literal["poisson", "known", "none"]  # known: Poisson, but this observer knows the batches


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One mechanism on the rows of one table, seen by one observer."""

    what: Literal["label", "features", "predictions"]
    table: str
    observer: Observer
    mechanism: str
    epsilon: float | None = None  # of a pure mechanism, once per row; None: Gaussian
    noise: float = 0.0  # σ in units of the clipping norm
    steps: int = 0
    rate: float = 1.0  # Poisson rate of joined rows in a batch, or of base rows in a local step
    cap: int = 1  # joined rows per base row that the rate applies to
    multiplicity: int | None = None  # κ, or the largest multiplicity where there is no cap
    sampling: Sampling = "none"
    delta: float = 0.0
    partners: float = 0.0  # how far other tables' sums move for each joined row, in units of their noise
    scope: Scope = "model"
    subject: str = ""  # the column of subjects, all of whose rows under noise are the unit; "": a base row

    @property
    def unit(self) -> str:
        """The unit that ε protects."""
        return f"{self.subject or 'base row'} of {self.table}"

    def __post_init__(self) -> None:
        if self.rate < 1.0 and self.sampling == "none":
            raise PrivacyError(
                "only Poisson sampling amplifies privacy: fixed or shuffled batches are accounted in full"
            )

    def spent(self) -> float:
        """ε."""
        return _together([self])

    @property
    def gaussian(self) -> Mechanism:
        rate = self.rate if self.sampling == "poisson" else 1.0
        return Mechanism(self.noise, self.steps, rate, self.cap, self.partners)

    def line(self) -> str:
        whom = _OBSERVERS.get(self.observer, self.observer)
        if self.epsilon is not None:
            return (
                f"labels of {self.table}: ε = {self.epsilon:.4g} towards {whom}, "
                f"per row of {self.table}, δ = 0, drawn once ({self.mechanism})"
            )
        sampled = {
            "poisson": f"Poisson sampling at {self.rate:.3g}",
            "known": "sampling known to it, no amplification",
            "none": "no sampling",
        }[self.sampling]
        bound = "" if self.multiplicity is None else f" with at most {self.multiplicity:,} joined rows"
        return (
            f"{self.what} of {self.table}: ε = {self.spent():.4g}, δ = {self.delta:g} towards {whom}, "
            f"per {self.unit}{bound}; {self.steps:,} steps, σ = {self.noise:.4g}, {sampled} "
            f"({self.mechanism})" + (f"; {_SCOPES[self.scope]}" if self.what == "features" else "")
        )


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    releases: tuple[Release, ...] = ()

    def epsilon(self, what: str, table: str, observer: str) -> float:
        """ε of one kind of release about a table towards an observer; 0: nothing is released to it.

        A table that is joined with itself, or read twice, is released about several times: its rows pay for all.
        """
        return _together(
            [r for r in self.releases if (r.what, r.table) == (what, table) and r.observer in (observer, "everyone")]
        )

    def tables(self, what: str) -> list[str]:
        return sorted({r.table for r in self.releases if r.what == what})

    def after(self, share: float) -> "Ledger":
        """The ledger of what has been spent, after a share of all planned steps; labels are spent at once."""
        taken = [
            r if r.epsilon is not None else msgspec.structs.replace(r, steps=math.ceil(share * r.steps - 1e-9))
            for r in self.releases
        ]
        return Ledger(tuple(taken))

    def lines(self) -> list[str]:
        """The claims, one a line, and their sum where a table's rows pay for several."""
        lines = [release.line() for release in self.releases]
        for table in self.tables("features"):
            releases = [r for r in self.releases if (r.what, r.table, r.observer) == ("features", table, "outsider")]
            if releases:
                delta, mechanisms = releases[0].delta, tuple(r.gaussian for r in releases)
                is_trees = releases[0].scope == "leaves"
                what = "all its trees" if is_trees else "all tables' parameters"
                where = f"the features of one {releases[0].unit} are there or zero"
                if is_trees:
                    where = f"the joined rows of one {releases[0].unit} are in the sums or in none"
                lines.append(
                    f"released model, {what}: ε = {_together(releases):.4g}, δ = {delta:g} towards "
                    f"outsiders where {where}; ε = {replacement_epsilon(mechanisms, delta):.4g} where "
                    f"{'its features' if is_trees else 'they'} are any others"
                )
        for table in self.tables("predictions"):
            shown = [r for r in self.releases if r.table == table and r.observer == "server"]
            if any(r.what == "features" for r in shown):
                lines.append(
                    f"all that leaves of features of {table}: ε = {_together(shown):.4g}, "
                    f"δ = {min(r.delta for r in shown):g} towards the server and all other clients, per "
                    f"{shown[0].unit}: noisy predictions, and noisy updates of its own"
                )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with every ε, to be saved with results and checkpoints."""
        rows = [msgspec.to_builtins(r) | {"spent": r.spent()} for r in self.releases]
        return {"releases": rows}


def check_budget(ledger: Ledger, label: float | None, features: float | None) -> None:
    for what, limit, observer in (("label", label, "everyone"), ("features", features, "outsider")):
        for table in ledger.tables(what) if limit is not None else ():
            spent = ledger.epsilon(what, table, observer)
            if limit is not None and spent > limit * (1 + 1e-9):
                raise PrivacyError(
                    f"the budget of {what} is ε = {limit:g}, and {table} would spend ε = {spent:.4g} "
                    f"towards {_OBSERVERS[observer]}; take fewer epochs, more noise, or a larger budget"
                )


def _together(releases: Sequence[Release]) -> float:
    """ε of releases about the same rows."""
    pure = sum(r.epsilon for r in releases if r.epsilon is not None)
    noisy = [r for r in releases if r.epsilon is None]
    if not noisy:
        return pure
    return pure + composed_epsilon(tuple(r.gaussian for r in noisy), min(r.delta for r in noisy))


_OBSERVERS: dict[str, str] = {"everyone": "everyone", "outsider": "outsiders", "server": "the server"}
_SCOPES: dict[Scope, str] = {
    "model": "all tables' parameters",
    "own": "own table's parameters only",
    "others": "other tables' parameters only",
    "leaves": "all leaves of all trees",
}


class TableBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The most that all jobs may spend of one table; a table with a budget leaves under noise only."""

    label: float | None = None  # ε of labels, summed over different releases
    features: float | None = None  # ε of features towards outsiders, at delta
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    analyst: AnalystBudget | None = None  # ε of all that each asker sees of the table, at delta


class Spending(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One release about the rows of a table: labels (ε), features (noisy sums), or exact numbers of each row. Those are
    a model's scores, or a job's predictions in training."""

    table: str
    what: Literal["label", "features", "noisy predictions", "scores", "predictions", "analyst"]
    name: str  # reveals no value of any row
    epsilon: float = 0.0
    noise: float = 0.0
    steps: int = 0
    probability: float = 1.0
    joined: int = 1
    partners: float = 0.0
    numbers: int = 0
    columns: tuple[str, ...] = ()  # behind the numbers or the label; none: any
    asker: str = ""  # who sees the releases of an analyst's job
    period: str = ""  # of the analyst's budget

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(self.noise, self.steps, self.probability, self.joined, self.partners)


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    spendings: tuple[Spending, ...] = ()

    def knows(self, spending: Spending) -> bool:
        """Whether the very same was released before."""
        return any((s.table, s.what, s.name) == _place(spending) for s in self.spendings)

    def plus(self, *spendings: Spending) -> "Account":
        """The account after releases; for a job's predictions, the largest count."""
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

    def told_of_labels(self, table: str, columns: Sequence[str]) -> float:
        """ε of all releases of labels that some of these columns are behind."""
        wanted = set(columns)
        found = [s for s in self.spendings if (s.table, s.what) == (table, "label")]
        return sum(s.epsilon for s in found if not s.columns or wanted & set(s.columns))

    def spent(self, table: str, what: str, delta: float = 0.0) -> float:
        """ε of labels, ε at δ of features, or how many numbers each row has been scored by."""
        found = [s for s in self.spendings if (s.table, s.what) == (table, what)]
        if what in ("features", "noisy predictions"):
            return composed_epsilon(tuple(s.mechanism for s in found), delta)
        return sum(s.epsilon if what == "label" else float(s.numbers) for s in found)

    def left_for(self, spending: Spending, budget: TableBudget) -> float:
        """ε of a job that its asker may still have in its period."""
        payer = (spending.table, spending.asker, spending.period)
        asked = [s for s in self.spendings if s.what == "analyst" and (s.table, s.asker, s.period) == payer]
        if budget.analyst is None:
            return 0.0
        return epsilon_left(budget.analyst.epsilon, budget.delta, (s.noise for s in asked))

    def _check_analyst(self, spending: Spending, budget: TableBudget) -> None:
        left, rule = self.left_for(spending, budget), budget.analyst
        asked = composed_epsilon((spending.mechanism,), budget.delta)
        if rule is None or asked > left * (1 + 1e-9):
            limit = 0.0 if rule is None else rule.epsilon
            raise PolicyError(
                f"its policy refuses the request: of the analyst budget of {spending.table}, ε = {limit:g} a "
                f"{'month' if rule is None else rule.per}, {spending.asker} has ε = {left:.3g} left, and the job takes "
                f'ε = {asked:.3g}; ask for less, privacy={{"analyst": {{"epsilon": …}}}}, or wait until the period '
                f"{spending.period} is over (rule budget.{spending.table}.analyst)"
            )

    def check(self, spendings: Sequence[Spending], budget: TableBudget) -> None:
        """Refuses releases of one kind that would go past the owner's budget."""
        spending = spendings[0]
        what = spending.what
        if what == "analyst":
            self._check_analyst(spending, budget)
            return
        limit = budget.label if what == "label" else budget.features
        if limit is None or what == "noisy predictions" or all(self.knows(s) for s in spendings):
            return
        before = self.spent(spending.table, what, budget.delta)
        after = self.plus(*spendings).spent(spending.table, what, budget.delta)
        if after > limit * (1 + 1e-9):
            raise PolicyError(
                f"its policy refuses the request: the budget of {write_plural(what)} of {spending.table} is "
                f"ε = {limit:g} over all jobs, of which {before:.4g} is spent, and this job would bring it to "
                f"{after:.4g} (rule budget.{spending.table}.{what})"
            )


def _place(spending: Spending) -> tuple[str, str, str]:
    return spending.table, spending.what, spending.name


def without_noise(table: str, what: Literal["label", "features"]) -> PolicyError:
    """The refusal of a job that asks for something with a budget as it is."""
    return PolicyError(
        f"its policy refuses the request: {write_plural(what)} of {table} have a budget, and the job asks for them "
        f'without noise; train with privacy={{"{what}": {{"epsilon": …}}}} (rule budget.{table}.{what})'
    )


def write_plural(what: str) -> str:
    return "labels" if what == "label" else what
