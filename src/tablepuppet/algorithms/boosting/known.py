"""What the server knows of a block's rows: the bits of keys that were told, as coarse bins.

In: keys with a bit per row. Out: a code per row and column that tells apart what the keys do, and nothing finer; so the
server finds the best split among keys that it knows as a client does among all (kernels.best_split).

    numbers             code 0 missing, then 1 + the number of known borders below
    one against rest    code c: the c-th category that was told, 0 all others
    sorted categories   atoms: categories that no known set tells apart
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.bins import Codes, Columns
from tablepuppet.algorithms.boosting.exchange import KNOWN_ONE_HOT, NUMBER, ONE_HOT, SORTED, NewKey, Union
from tablepuppet.errors import TransportError

Sums = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Choice:
    """The split of a node: whose it is, which of its keys, and where missing values go."""

    gain: float
    block: int
    key: int
    to_left: bool = False
    left: tuple[int, ...] = ()  # atoms, of a set that has no key yet

    def comes_before(self, other: Choice | None) -> bool:
        """Larger gains first, then earlier blocks."""
        return other is None or (-self.gain, self.block) < (-other.gain, other.block)


@dataclass
class _Column:
    """What is known of one column."""

    kind: int
    codes: Codes
    missing: int = -1  # the key that says which numbers are missing
    borders: list[int] = field(default_factory=list)  # keys of numbers, ascending; of one-hot categories, as told
    above: list[int] = field(default_factory=list)  # rows above each border
    told: list[int] = field(default_factory=list)  # keys of sorted categories that clients told
    size: int = 1  # atoms
    keys: list[int] = field(default_factory=list)  # of sorted categories: all, told or made here
    by_set: dict[bytes, int] = field(default_factory=dict)  # of sorted categories: which atoms go right → the key


class KnownBlock:
    """One block."""

    def __init__(self, block: int, kinds: NDArray[np.uint8], rows: int, held: int) -> None:
        self.block, self.kinds = block, kinds
        self.rows, self.held = rows, held  # training rows (without the missed one), and held-out ones
        self.keys: list[tuple[int, bool]] = []  # column, and whether a client told it
        self.columns: dict[int, _Column] = {}
        self.sets: dict[int, NDArray[np.bool_]] = {}  # of keys of categories: for each code, whether it goes right
        self.unions: list[Union] = []  # that the client does not know of yet
        self._train, self._held = np.zeros((rows + 1, 0), np.uint8), np.zeros((held + 1, 0), np.uint8)
        self._layout = Columns.of([], [])

    @property
    def told(self) -> int:
        """Bits of each row that the server has been told."""
        return sum(is_told for _, is_told in self.keys)

    @property
    def active(self) -> list[int]:
        return sorted(self.columns)

    @property
    def layout(self) -> Columns:
        return self._layout

    @property
    def train(self) -> Codes:
        return self._train

    def learn(self, keys: list[NewKey]) -> None:
        """Takes in keys that a client told."""
        for new in keys:
            if not 0 <= new.column < len(self.kinds):
                raise TransportError("a key is of a column that there is not")
            size = self.rows + 1 + self.held
            if len(new.right) != (size + 7) // 8:
                raise TransportError("a key does not have a bit for every row")
            right = np.unpackbits(new.right, count=size).view(np.bool_)
            self._learn(len(self.keys), new, right)
            self.keys.append((new.column, True))
        if keys:
            self._stack()

    def _learn(self, number: int, new: NewKey, right: NDArray[np.bool_]) -> None:
        kind = int(self.kinds[new.column])
        if new.column not in self.columns:
            first = 1 if kind == NUMBER else 0
            self.columns[new.column] = _Column(kind, np.full(len(right), first, np.uint8))
        column = self.columns[new.column]
        if kind == NUMBER and new.is_missing:
            column.missing = number
            column.codes[right] = 0
        elif kind == NUMBER:
            right = right & (column.codes > 0)
            above = int(np.count_nonzero(right))
            place = sum(a > above for a in column.above)
            column.borders.insert(place, number)
            column.above.insert(place, above)
            column.codes[right] += 1
        elif kind == ONE_HOT:
            column.borders.append(number)
            column.codes[~right] = len(column.borders)
            self.sets[number] = np.array([c != len(column.borders) for c in range(256)])
        else:
            self._refine(column, number, right)

    def _refine(self, column: _Column, number: int, right: NDArray[np.bool_]) -> None:
        """Atoms that a new set cuts in two become two."""
        both = column.codes.astype(np.int64) * 2 + right
        found, codes = np.unique(both, return_inverse=True)
        if len(found) > 256:
            raise TransportError("a column of categories has more of them than its client said")
        parent, rest = found // 2, np.ones(256 - len(found), np.bool_)
        self.sets[number] = np.append((found & 1).astype(np.bool_), rest)
        if len(found) > column.size:
            for key in column.keys:
                self.sets[key] = np.append(self.sets[key][parent], rest)
        column.codes = codes.astype(np.uint8)
        column.size = len(found)
        column.told.append(number)
        column.keys.append(number)
        column.by_set = {}
        for key in column.keys:
            column.by_set.setdefault(self.sets[key].tobytes(), key)

    def _stack(self) -> None:
        """Codes of all known columns side by side."""
        known = [self.columns[c] for c in self.active]
        sizes = [len(c.borders) + (2 if c.kind == NUMBER else 1) if c.kind != SORTED else c.size for c in known]
        self._layout = Columns.of([KNOWN_ONE_HOT if c.kind == ONE_HOT else c.kind for c in known], sizes)
        stacked = np.stack([c.codes for c in known], axis=1)
        self._train = np.ascontiguousarray(stacked[: self.rows + 1])
        self._held = np.ascontiguousarray(
            np.concatenate([stacked[self.rows + 1 :], stacked[self.rows : self.rows + 1]])
        )

    def best(
        self,
        sums: Sums,
        unit: tuple[float, float],
        allowed: NDArray[np.bool_],
        rules: NDArray[np.float64],
        *,
        sets: bool,
    ) -> Choice | None:
        """The best split of a node among known keys; without `sets`, sorted categories are left out."""
        order = np.zeros(256, np.int64)
        may = allowed[self.active].astype(np.uint8)
        if not sets:
            may[self._layout.kinds == SORTED] = 0
        gain, place, at, to_left = kernels.best_split(
            sums, self._layout.offsets, self._layout.kinds, may, np.array(unit), rules, order
        )
        if place < 0:
            return None
        column = self.columns[self.active[place]]
        if column.kind == NUMBER:
            key = column.borders[at - 1] if at <= len(column.borders) else column.missing
            return None if key < 0 else Choice(gain, self.block, key, bool(to_left))
        if column.kind == ONE_HOT:
            return Choice(gain, self.block, column.borders[at - 1])
        return Choice(gain, self.block, -1 - self.active[place], left=tuple(sorted(order[:at].tolist())))

    def settled(self, choice: Choice) -> Choice:
        """A choice with a key: a set of atoms becomes a union that the client will be told of."""
        if choice.key >= 0:
            return choice
        number = -1 - choice.key
        column = self.columns[number]
        right = np.ones(256, np.bool_)
        right[list(choice.left)] = False
        known = column.by_set.get(right.tobytes())
        if known is not None:
            return Choice(choice.gain, self.block, known)
        marks = np.stack([self.sets[key][list(choice.left)] for key in column.told], axis=1).astype(np.uint8)
        self.unions.append(Union(number, marks))
        made = len(self.keys)
        self.sets[made], column.by_set[right.tobytes()] = right, made
        column.keys.append(made)
        self.keys.append((number, False))
        return Choice(choice.gain, self.block, made)

    def missing_key(self, key: int) -> int:
        """The key that says which values of a key's column are missing; −1: none."""
        return self.columns[self.keys[key][0]].missing

    def splits_by(self, choice: Choice, *, held: bool = False) -> tuple[Codes, int, Codes]:
        """Codes of training rows (then the missed one) or of held-out rows, the column of them that a choice looks at,
        and for each code whether it goes right."""
        number = self.keys[choice.key][0]
        column = self.columns[number]
        right = np.zeros(256, np.uint8)
        if column.kind == NUMBER:
            place = len(column.borders) if choice.key == column.missing else column.borders.index(choice.key)
            right[place + 2 :] = 1
            right[0] = not choice.to_left
        else:
            right[:] = self.sets[choice.key]
        return self._held if held else self._train, self.active.index(number), right
