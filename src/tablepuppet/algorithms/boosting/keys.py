"""The keys of a block as its client knows them, and which splits come before those of the server.

In: histograms of nodes, and the splits that the server has for them. Out: objections. A block that is split among
several clients has its histograms summed first; whoever holds the sum then does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.bins import Columns, Key, Splits
from tablepuppet.algorithms.boosting.exchange import (
    NUMBER,
    ONE_HOT,
    SETS,
    SPARSE,
    Check,
    Complete,
    Outline,
    Union,
)
from tablepuppet.errors import TransportError

Sums = NDArray[np.int64]
Counted = tuple[int, int, Sums]  # columns first ≤ f < last, and Σ(g, h) of every node per bin of theirs


@dataclass(frozen=True, slots=True)
class Split:
    """A candidate: a key, and where missing values go."""

    key: Key
    to_left: bool = False


@dataclass(frozen=True, slots=True)
class Objection:
    """A split that comes before the one in the outline; None: there is none, and that one is not a candidate."""

    tree: int
    node: int
    gain: float
    split: Split | None
    is_void: bool


@dataclass
class KeyBook:
    """What each key of a block means, in the order in which they became known."""

    block: int
    columns: Columns
    has_missing: NDArray[np.bool_]
    rules: NDArray[np.float64]
    keys: list[Key] = field(default_factory=list)
    is_told: list[bool] = field(default_factory=list)  # by a client; else a union that the server made
    limit: int | None = None  # keys that may be told

    def __post_init__(self) -> None:
        self.numbers: dict[Key, int] = {}
        self.told = 0
        self._codes: dict[int, tuple[int, dict[bytes, list[int]]]] = {}  # by column: of so many keys
        self._right: dict[int, NDArray[np.bool_]] = {}  # by key, as far as somebody looked
        self._marks: dict[int, list[NDArray[np.bool_]]] = {}  # by column: of keys that were told, which codes go right
        for number, (key, is_told) in enumerate(zip(self.keys, self.is_told, strict=True)):
            self._enter(number, key, is_told)

    def add(self, key: Key, *, is_told: bool) -> int:
        """The number of a new key."""
        self.keys.append(key)
        self.is_told.append(is_told)
        return self._enter(len(self.keys) - 1, key, is_told)

    def _enter(self, number: int, key: Key, is_told: bool) -> int:
        if is_told:
            self.told += 1
            if self.columns.kinds[key.column] != NUMBER:
                self._marks.setdefault(key.column, []).append(self.columns.right(key))
        return self.numbers.setdefault(key, number)

    def key(self, number: int) -> Key:
        """What a number stands for; one that stands for nothing is refused."""
        if not 0 <= number < len(self.keys):
            raise TransportError(f"there is no key {number} in block {self.block}")
        return self.keys[number]

    def right(self, number: int) -> NDArray[np.bool_]:
        """For each possible code of a key's column, whether it goes right."""
        found = self._right.get(number)
        if found is None:
            found = self._right[number] = self.columns.right(self.key(number))
        return found

    def goes_right(self, split: Split) -> NDArray[np.bool_]:
        """For each possible code of a split's column, whether it goes right."""
        right = self.columns.right(split.key)
        if self.columns.kinds[split.key.column] == NUMBER:
            right[0] = not split.to_left
        return right

    def add_unions(self, unions: Sequence[Union]) -> None:
        """Sets that the server made of those it knows."""
        for union in unions:
            if not 0 <= union.column < len(self.columns.kinds) or int(self.columns.kinds[union.column]) not in SETS:
                raise TransportError("a union of categories is of a column that has none")
            own = self._marks.get(union.column, [])
            fits = union.rows.ndim == 2 and union.rows.dtype == np.uint8 and union.rows.shape[1] == (len(own) + 7) // 8
            if not own or not fits or union.keys != len(own):
                raise TransportError("a union of categories does not fit the keys that are known")
            codes = self._codes_by_marks(union.column, own)
            left = (code for row in {row.tobytes() for row in union.rows} for code in codes.get(row, ()))
            self.add(Key(union.column, left=tuple(sorted(left))), is_told=False)

    def _codes_by_marks(self, column: int, own: Sequence[NDArray[np.bool_]]) -> dict[bytes, list[int]]:
        """The codes of a column by what its told keys say of them, packed; made anew once there is one key more."""
        count, codes = self._codes.get(column, (0, {}))
        if count != len(own):
            codes = {}
            for code, row in enumerate(np.packbits(np.array(own).T, axis=1)):
                codes.setdefault(row.tobytes(), []).append(code)
            self._codes[column] = len(own), codes
        return codes

    def has_room(self, objections: Sequence[Objection]) -> bool:
        """Whether all of them may be told."""
        wanted = sum(len(self._wanted(o.split.key)) for o in objections if o.split is not None)
        return self.limit is None or self.told + wanted <= self.limit

    def news(self, objections: Sequence[Objection], ahead: Sequence[Key] = ()) -> tuple[list[Objection], list[Key]]:
        """The objections that may be told, and the keys that must be for them, and those that are `ahead` of them as
        far as there is room; they are known from now on."""
        fresh: list[Key] = []
        kept = []
        for objection in objections:
            if objection.split is None:
                kept.append(objection)
                continue
            if self._tell(objection.split.key, fresh):
                kept.append(objection)
        for key in ahead:
            self._tell(key, fresh)
        return kept, fresh

    def _tell(self, key: Key, fresh: list[Key]) -> bool:
        """Whether a key is known, from now on if need be."""
        wanted = self._wanted(key)
        if self.limit is not None and self.told + len(wanted) > self.limit:
            return False
        for own in wanted:
            self.add(own, is_told=True)
            fresh.append(own)
        return True

    def completed(self, column: int, occurs: NDArray[np.int64]) -> Complete | None:
        """A column, if all splits that can ever be found in it are known, or made of sets that are; `occurs` are the
        codes that training rows have, ascending."""
        kind, codes = self.columns.kinds[column], occurs.tolist()
        if kind == NUMBER:
            values = [code for code in codes if code]
            borders = values[: None if len(values) < len(codes) else -1]
            is_complete = all(Key(column, border=b) in self.numbers for b in borders)
            return Complete(column, np.zeros((0, 0), np.uint8)) if is_complete else None
        own = self._marks.get(column, [])
        marks = np.stack(own, axis=1) if own else np.zeros((256, 0), np.bool_)
        if kind == ONE_HOT:
            told = codes[:1] if len(codes) == 2 else codes  # of two, the second is what the first is not
            is_complete = len(codes) < 2 or all(Key(column, left=(code,)) in self.numbers for code in told)
        else:  # 255: what nobody knows must be apart, too
            apart = np.packbits(marks[[*codes, 255]], axis=1)
            is_complete = len(codes) < 2 or len(np.unique(apart, axis=0)) == len(apart)
        return Complete(column, np.packbits(marks[codes], axis=1)) if is_complete else None

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.told >= self.limit

    def _wanted(self, key: Key) -> list[Key]:
        """Keys that must be told before a key is known. The first of sparse categories tells them all apart, where it
        may: which of them are light in a node nobody could foresee else, and every level would be a round."""
        wanted = [k for k in self._needed(key) if k not in self.numbers]
        if not wanted or self.columns.kinds[key.column] != SPARSE or key.column in self._marks:
            return wanted
        size = self.columns.size(key.column)
        codes, digits = np.arange(size), range(size.bit_length())  # a code that nobody knows has every digit
        sets = [Key(key.column, left=tuple(np.flatnonzero((codes >> d) & 1 == 0).tolist())) for d in digits]
        every = list(dict.fromkeys([*sets, *wanted]))
        return every if self.limit is None or self.told + len(every) <= self.limit else wanted

    def _needed(self, key: Key) -> list[Key]:
        """A key, after the one that says which values of its column are missing, where some are."""
        column = key.column
        if self.columns.kinds[column] != NUMBER or not self.has_missing[column]:
            return [key]
        missing = Key(column, border=self.columns.size(column) - 1)
        return [missing] if key == missing else [missing, key]

    def objections(self, check: Check, counted: Sequence[Iterable[Counted]]) -> list[Objection]:
        """Of every node that is asked about: the best split, where it comes before the one that it has."""
        found = []
        allowed = check.columns.astype(np.uint8)
        for number, (outline, groups) in enumerate(zip(check.trees, counted, strict=True)):
            asked = np.flatnonzero(outline.asks)
            bounds = outline.bounds[asked] if len(outline.bounds) else outline.bounds
            how = (outline.unit, self.rules, bounds, outline.light[asked], asked)
            splits, sets, own = Splits.none(len(asked), self.rules), self._own_sets(outline), {}
            for first, last, sums in groups:
                splits.search(sums, self.columns.between(first, last), allowed[first:last], *how, first)
                for node, column in sets.items():
                    if first <= column < last:
                        start, stop = self.columns.offsets[column : column + 2] - self.columns.offsets[first]
                        own[node] = sums[node, start:stop].copy()
            is_best = (splits.found[:, 0] >= 0) & (splits.gain >= outline.gain[asked])
            is_own = outline.block[asked] == self.block
            for place in np.flatnonzero(is_best | is_own).tolist():
                node = int(asked[place])
                objection = self._against(outline, number, node, self.best(splits, place), own.get(node))
                if objection is not None:
                    found.append(objection)
        return found

    def _own_sets(self, outline: Outline) -> dict[int, int]:
        """The nodes that are asked about and split by sets of this block, and their columns."""
        nodes = np.flatnonzero(outline.asks & (outline.block == self.block))
        columns = [self.key(number).column for number in outline.key[nodes].tolist()]
        return {n: c for n, c in zip(nodes.tolist(), columns, strict=True) if int(self.columns.kinds[c]) in SETS}

    def best(self, splits: Splits, place: int) -> tuple[float, Split] | None:
        """The gain and the split that were found for a node."""
        column, at, to_left, _, _ = splits.found[place].tolist()
        if column < 0:
            return None
        gain, kind = float(splits.gain[place]), int(self.columns.kinds[column])
        if kind == NUMBER:
            return gain, Split(Key(column, border=at), bool(to_left))
        left = sorted(splits.order[place, :at].tolist()) if kind in SETS else [at]
        return gain, Split(Key(column, left=tuple(left)))

    def _against(
        self, outline: Outline, tree: int, node: int, best: tuple[float, Split] | None, sums: Sums | None
    ) -> Objection | None:
        have, block = float(outline.gain[node]), int(outline.block[node])
        if block == self.block:
            own = Split(self.key(int(outline.key[node])), bool(outline.to_left[node]))
            if best is not None and best[1] == own:
                return None
            if sums is not None and not self.is_full and not self._is_candidate(own, outline, node, sums):
                return Objection(tree, node, 0.0 if best is None else best[0], None if best is None else best[1], True)
            if best is not None and best[0] >= have:
                return Objection(tree, node, *best, False)
            return None
        if best is None or best[0] < have or (best[0] == have and 0 <= block < self.block):
            return None
        return Objection(tree, node, *best, False)

    def _is_candidate(self, split: Split, outline: Outline, node: int, own: Sums) -> bool:
        """Whether a set is what sorting the categories of a node could give, whose sums are these: the first few."""
        least = outline.light[node] if self.columns.kinds[split.key.column] == SPARSE else self.rules[5]
        present = np.flatnonzero((own[:, 1] > 0) & (own[:, 1] * outline.unit[1] >= least))
        if not set(split.key.left) <= set(present.tolist()):
            return False
        ratio = own[present, 0] * outline.unit[0] / (own[present, 1] * outline.unit[1] + self.rules[4])
        order = present[np.argsort(ratio, kind="stable")]
        return set(order[: len(split.key.left)].tolist()) == set(split.key.left)


def node_sums(outline: Outline, cells: Sums) -> Sums:
    """The histogram of every node: a cell's own, or the sum of its children's."""
    from tablepuppet.algorithms.boosting import kernels  # here: it loads the compiler

    sums = np.empty((len(outline.left), *cells.shape[1:]), np.int64)
    kernels.add_children(kernels.fixed_type(outline.left), kernels.fixed_type(cells), sums)
    return sums
