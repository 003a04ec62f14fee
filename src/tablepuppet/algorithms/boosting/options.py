"""Options of boosted trees."""

import warnings
from math import ceil, log2
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.bins import BinRules
from tablepuppet.algorithms.options import AlgorithmOptions, Count, Tolerance

_DEEPEST, _DEEPEST_BY_LEAVES = 15, 100
_LEAVES, _RANDOM_LEVELS = 31, 6  # of a tree whose size is left open
_FINEST = 255  # bins
_EVERY = 5  # of no effect any more
_MOST_CATEGORIES = 8_000
Share = Annotated[float, Meta(gt=0.0, le=1.0)]
_LIGHT_ROWS = 9.5  # of a node, that a sorted category must be worth, rounded: ten


class Boosting(AlgorithmOptions, frozen=True, tag="boosting"):
    """Gradient-boosted trees over the join, equal to the exact algorithm on the joined table (docs/boosting.md).

    - `trees`, `learning_rate`: how many, and their weight; `forest`: the mean of trees on the first derivatives.
    - `leaves` (31) and `depth` (no limit): trees grow where they gain most, as in LightGBM. With `depth` alone they
      grow level by level, as in XGBoost.
    - `min_leaf_rows` (20), `l2` (0), `min_child_weight` (0.001), `min_gain`: limits of a leaf and a split. Without
      `leaves` the first three are 1.
    - `bins`, `min_bin_rows`: bins of a number, and the joined rows of each.
    - `categories` (8,000, or `bins` below 255): of a string; `min_category_weight`: lighter ones go right unsorted.
    - `subsample`, `feature_fraction`: shares of rows and features per tree.
    - `monotone`: features in which scores never fall (1) or never rise (−1).
    - `bits`: the precision of derivatives.
    - `splits`: "best", or "random": drawn from the seed, one round for any number of trees.
    - `reveal`: "columns": an owner reveals a column's bins once a tree splits it; "splits": only the sides of splits in
      use.
    - `max_splits`: the most splits that one table's owner reveals; implies "splits".

    `tells` is an earlier name of `reveal`. `checks`, `every` and fewer than 16 `bits` have no effect, and warn.

    >>> Boosting(trees=50, depth=6).trees
    50
    """

    name: ClassVar[str] = "boosting"
    trees: Annotated[int, Meta(ge=1, le=100_000)] = 100
    learning_rate: Share = 0.1
    depth: Count | None = None
    leaves: Annotated[int, Meta(ge=2, le=2**_DEEPEST)] | None = None
    bins: Annotated[int, Meta(ge=2, le=_FINEST)] = 255
    min_bin_rows: Count = 3
    l2: Tolerance | None = None
    min_child_weight: Tolerance | None = None
    min_leaf_rows: Count | None = None
    min_gain: Tolerance = 1e-12
    min_category_weight: Tolerance | None = None
    categories: Annotated[int, Meta(ge=2, le=_MOST_CATEGORIES)] | None = None
    subsample: Share = 1.0
    feature_fraction: Share = 1.0
    monotone: dict[str, int] = msgspec.field(default_factory=dict)
    forest: bool = False
    bits: Literal[4, 8, 16, 32] = 16
    splits: Literal["best", "random"] = "best"
    checks: Literal["strict", "lazy"] = "strict"
    every: Count = _EVERY
    reveal: Literal["columns", "splits"] = "columns"
    tells: Literal["columns", "splits"] | None = None
    max_splits: Count | None = None

    def __post_init__(self) -> None:
        self._read_old_words()
        deepest = _DEEPEST if self.leaf_limit is None else _DEEPEST_BY_LEAVES
        self._check(self.levels <= deepest, f"depth must lie in 1..{deepest}")
        self._check(
            all(s in (-1, 1) for s in self.monotone.values()), "monotone must be 1 (never falls) or -1 for each"
        )
        if self.is_random:
            self._check(self.leaves is None, "leaves splits where a tree gains most; random splits have a depth only")
            self._check(self.least_rows == 1, "min_leaf_rows bounds splits that are searched; random ones are not")
            self._check(not self.monotone, "monotone chooses splits that keep an order; random ones are not chosen")
        is_varied = self.is_random or self.subsample < 1 or self.feature_fraction < 1 or self.trees == 1
        self._check(
            not self.forest or is_varied, "the trees of a forest differ by subsample or feature_fraction below 1"
        )

    def _read_old_words(self) -> None:
        """Options of earlier versions, with what they mean now."""
        if self.tells is not None:
            self._replace_old("tells", f'write reveal="{self.tells}"', reveal=self.tells, tells=None)
        if self.checks == "lazy":
            self._replace_old("checks", "leave it out: all trees are strict", checks="strict")
        if self.every != _EVERY:
            self._replace_old("every", "leave it out: it has no effect", every=_EVERY)
        if self.bits < 16:
            self._replace_old("bits", "write 16, which is used, or 32", bits=16)

    def _replace_old(self, name: str, advice: str, **values: Any) -> None:
        warnings.warn(f"the option {name}={getattr(self, name)!r} is old: {advice}", FutureWarning, stacklevel=5)
        for field, value in values.items():
            msgspec.structs.force_setattr(self, field, value)

    def resolve_defaults(self, *, is_linear: bool, is_private: bool) -> Self:
        size: dict[str, Any] = {"depth": self.levels, "leaves": self.leaf_limit, "min_leaf_rows": self.least_rows}
        return msgspec.structs.replace(self, **size, l2=self.penalty, min_child_weight=self.least_weight)

    @property
    def levels(self) -> int:
        whole = _RANDOM_LEVELS if self.leaf_limit is None else min(_DEEPEST_BY_LEAVES, self.leaf_limit - 1)
        return self.depth or whole

    @property
    def leaf_limit(self) -> int | None:
        """The leaves of a tree that grows where it gains most; None: it grows level by level."""
        return _LEAVES if self.leaves is None and self.depth is None and not self.is_random else self.leaves

    def _choose(self, given: float | None, by_leaves: float, by_levels: float) -> float:
        """A rule that was given, or the usual one of how trees grow."""
        return given if given is not None else by_levels if self.leaf_limit is None else by_leaves

    @property
    def penalty(self) -> float:
        """λ of a leaf."""
        return self._choose(self.l2, 0.0, 1.0)

    @property
    def least_weight(self) -> float:
        return self._choose(self.min_child_weight, 1e-3, 1.0)

    @property
    def least_rows(self) -> int:
        """The least joined rows of a leaf, by its share of the Σh of the node above."""
        return int(self._choose(self.min_leaf_rows, 20, 1))

    @property
    def is_random(self) -> bool:
        return self.splits == "random"

    @property
    def most_leaves(self) -> int:
        whole = int(2**self.levels)
        return min(whole, self.leaf_limit or whole)

    @property
    def searched_leaves(self) -> int:
        """The leaves that a tree would have if all that are searched were split: growth by leaves looks beyond them."""
        return min(int(2**self.levels), 2 * (self.leaf_limit or 2**self.levels))

    @property
    def deep_levels(self) -> int:
        """The levels that a tree has most often: growth by leaves takes a few more than a balanced tree."""
        return min(self.levels, ceil(1.5 * log2(self.most_leaves)))

    @property
    def rate(self) -> float:
        return 1 / self.trees if self.forest else self.learning_rate

    @property
    def most_splits(self) -> int:
        """Distinct splits that a table's owner reveals at most: those of all nodes, and some that others outdo."""
        if self.max_splits is not None:
            return self.max_splits
        if self.is_random:  # each with the one that marks missing values
            return 2 * self.trees * (self.most_leaves - 1)
        return 4 * self.trees * self.searched_leaves

    @property
    def reveals_columns(self) -> bool:
        """Whether a column is revealed whole once a tree splits it."""
        return self.reveal == "columns" and self.max_splits is None and not self.is_random

    @property
    def most_checks(self) -> int:
        """Requests about trees that a client answers at the most."""
        if self.is_random:
            return self.most_splits  # a request is about one of them at least
        return 3 * (self.levels + 2) * (self.trees + 1)

    @property
    def rules(self) -> NDArray[np.float64]:
        """In order: λ, the least Σh of a side, the least gain. Of sorted categories: the increase of λ, their
        smoothing, the least Σh of one, and of how many rows that is at least, also for a rare one. The least rows of a
        side."""
        given = self.min_category_weight
        least = [0.0, _LIGHT_ROWS, _LIGHT_ROWS] if given is None else [given, 0.0, 0.0]
        return np.array([self.penalty, self.least_weight, self.min_gain, 10.0, 10.0, *least, self.least_rows])

    @property
    def bin_rules(self) -> BinRules:
        return BinRules(self.bins, self.most_categories, self.min_bin_rows)

    @property
    def most_categories(self) -> int:
        """The largest number of distinct categories of a string."""
        return self.categories or (_MOST_CATEGORIES if self.bins == _FINEST else self.bins)
