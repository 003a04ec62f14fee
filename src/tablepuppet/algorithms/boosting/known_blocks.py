"""The server's knowledge of a block's rows: the bits of revealed keys, as coarse bins.

In: keys with a bit per row, and whole columns. Out: a code per row and column, exactly as fine as the keys. So the
server finds the best split among its known keys as a client does among all (splits.py).

    numbers             code 0 missing, then 1 + the number of known borders below
    one against rest    code c: the c-th revealed category, 0 all others
    sorted categories   atoms: categories that no known set separates

A column that was revealed whole has its client's own codes.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import neg

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import tree_checks
from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.kernels import NodeSplits
from tablepuppet.algorithms.boosting.splits import SplitRules, Splits, search_splits
from tablepuppet.algorithms.boosting.tree_checks import NUMBER, ONE_HOT, SETS, Codes, NewColumn, NewKey, Sums, Union
from tablepuppet.arrays import pieces
from tablepuppet.errors import TransportError


class Choice(msgspec.Struct, frozen=True):
    """The split of a node: whose it is, which of its keys, and where missing values go."""

    gain: float
    block: int
    key: int
    to_left: bool = False
    left: tuple[int, ...] = ()  # atoms, of a set that has no key yet
    sums: tuple[int, int] | None = None  # Σg and Σh of the left side, where the server counted them

    def comes_before(self, other: "Choice | None") -> bool:
        """Larger gains first, then earlier blocks."""
        return other is None or (-self.gain, self.block) < (-other.gain, other.block)


@dataclass
class _Column:
    kind: int
    place: int  # among the columns of known codes
    missing: int = -1  # the key that says which numbers are missing
    borders: list[int] = field(default_factory=list)  # keys of numbers, ascending; of one-hot categories, as revealed
    above: list[int] = field(default_factory=list)  # rows above each border
    size: int = 1  # atoms
    revealed: list[int] = field(default_factory=list)  # keys of sorted categories that clients revealed
    keys: list[int] = field(default_factory=list)  # of sorted categories: all, revealed or made here
    by_set: dict[bytes, int] = field(default_factory=dict)  # of sorted categories: which atoms go right → the key
    marks: NDArray[np.bool_] | None = None  # of sorted categories: (atoms, revealed keys), whether it goes right
    is_whole: bool = False  # codes are those of the client

    @property
    def bins(self) -> int:
        if self.kind in SETS or self.is_whole:
            return self.size
        return len(self.borders) + (2 if self.kind == NUMBER else 1)


class KnownBlock:
    """One block. `codes` has a row for each training row, one that an outer join did not find, and held-out rows."""

    def __init__(
        self,
        block: int,
        kinds: NDArray[np.uint8],
        rows: int,
        held: int,
        owner: str = "its client",
        signs: Sequence[int] = (),
    ) -> None:
        self.block, self.kinds, self.owner = block, kinds, owner
        self.signs = [*signs, *[0] * (len(kinds) - len(signs))]  # of columns that leaves are monotone in
        self.rows, self.held = rows, held  # training rows (without the missed one), and held-out ones
        self.keys: list[tuple[int, bool]] = []  # column, and whether a client revealed it
        self.revealed = 0  # bits of each row that clients revealed
        self.columns: dict[int, _Column] = {}
        self.sets: dict[int, NDArray[np.bool_]] = {}  # of keys of categories: for each code, whether it goes right
        self.unions: list[Union] = []  # that the client does not know of yet
        self.complete: set[int] = set()  # columns whose splits are all known, or made of known ones
        self.codes = np.zeros((rows + 1 + held, 0), np.uint8)  # with room for columns to come
        self.layout = Columns.of([], [])
        self._active: list[int] = []  # known columns, ascending

    def learn(self, keys: Sequence[NewKey | NewColumn]) -> None:
        size = len(self.codes)
        apart: dict[int, Codes] = {}  # columns whose codes lie side by side while keys are taken in
        for new in keys:
            column = self._column(new.column)
            if isinstance(new, NewColumn):
                apart.pop(new.column, None)
                self._learn_whole(new, column)
                continue
            if new.column not in apart:
                apart[new.column] = np.ascontiguousarray(self.codes[:, column.place])
            right = np.unpackbits(new.right, count=size).view(np.bool_)
            self._learn(len(self.keys), new, column, apart[new.column], right)
            self.keys.append((new.column, True))
            self.revealed += 1
        for number, codes in apart.items():
            self.codes[:, self.columns[number].place] = codes
        if keys:
            known = [self.columns[number] for number in self._active]
            kinds = [tree_checks.KNOWN_ONE_HOT if c.kind == ONE_HOT and not c.is_whole else c.kind for c in known]
            self.layout = Columns.of(kinds, [c.bins for c in known], [self.signs[n] for n in self._active])

    def _learn_whole(self, new: NewColumn, column: _Column) -> None:
        if column.kind != new.kind or column.is_whole or column.borders or column.keys or column.missing >= 0:
            raise self._wrong("column", "is of another kind, or was told before", "NewColumn")
        codes = new.codes(len(self.codes))
        bound = codes if new.kind == NUMBER else codes[: self.rows + 1]  # a held-out row may have another category
        if bound.max(initial=0) >= new.size:
            raise self._wrong("digits", "holds a bin that there is not", "NewColumn")
        first = len(self.keys)
        column.is_whole, column.size = True, new.size
        if new.kind == NUMBER:
            if new.has_missing:
                column.missing = first
            else:
                np.maximum(codes, 1, out=codes)
            column.borders = list(range(first + 1, first + new.keys))
        elif new.kind == ONE_HOT:
            column.borders = list(range(first, first + new.keys))
            self.sets |= {key: np.arange(256) != code for code, key in enumerate(column.borders)}
        self.codes[:, column.place] = codes
        self.keys += [(new.column, True)] * new.keys
        self.revealed += new.bits_of_a_row
        self.complete.add(new.column)

    def is_complete(self, allowed: NDArray[np.bool_]) -> bool:
        """Whether its client can have nothing against a split that was searched among these columns here."""
        return self.complete.issuperset(np.flatnonzero(allowed).tolist())

    def _column(self, number: int) -> _Column:
        if number not in self.columns:
            count, kind = len(self.columns), int(self.kinds[number])
            place = sum(other < number for other in self._active)
            if count == self.codes.shape[1]:
                more = np.zeros((len(self.codes), min(len(self.kinds), max(1, 2 * count))), np.uint8)
                more[:, :count] = self.codes
                self.codes = more
            for other in self._active[place:]:
                self.columns[other].place += 1
            self.codes[:, place + 1 : count + 1] = self.codes[:, place:count].copy()
            self.codes[:, place] = 1 if kind == NUMBER else 0
            self.columns[number] = _Column(kind, place)
            self._active.insert(place, number)
        return self.columns[number]

    def _wrong(self, field: str, what: str, message: str = "NewKey") -> TransportError:
        return TransportError(f"{self.owner} tells of a split what cannot be: {message}.{field} {what}")

    def _learn(self, number: int, new: NewKey, column: _Column, codes: Codes, right: NDArray[np.bool_]) -> None:
        if column.kind == NUMBER and new.is_missing:
            column.missing = number
            codes *= ~right
        elif column.is_whole and column.kind not in SETS:
            raise self._wrong("column", "was told whole before")
        elif column.kind == NUMBER:
            right &= codes > 0
            above = int(np.count_nonzero(right))
            place = bisect_left(column.above, -above, key=neg)  # they fall
            if (right < (codes > place + 1)).any() or (right & (codes <= place)).any():
                raise self._wrong("right", "is no border of the same numbers as those before")
            column.borders.insert(place, number)
            column.above.insert(place, above)
            codes += right
        elif column.kind == ONE_HOT:
            if (codes[~right] > 0).any():
                raise self._wrong("right", "holds rows of a category that was told before")
            column.borders.append(number)
            codes[...] = np.where(right, codes, np.uint8(len(column.borders)))
            self.sets[number] = np.arange(256) != len(column.borders)
        elif column.is_whole:
            self._name_whole(column, number, codes, right)
        else:
            self._split_atoms(column, number, codes, right)

    def _name_whole(self, column: _Column, number: int, codes: Codes, right: NDArray[np.bool_]) -> None:
        sides = np.bincount(codes * np.uint16(2) + right, minlength=512).reshape(256, 2) > 0
        if sides.all(axis=1).any():
            raise self._wrong("right", "parts rows of one category")
        self.sets[number] = ~sides[:, 0]
        column.keys.append(number)
        column.by_set.setdefault(self.sets[number].tobytes(), number)

    def _split_atoms(self, column: _Column, number: int, codes: Codes, right: NDArray[np.bool_]) -> None:
        """Atoms that a new set cuts in two become two."""
        found = np.flatnonzero(np.bincount(codes * np.uint16(2) + right, minlength=512))
        if len(found) > 256:
            raise self._wrong("right", "tells apart more categories than a column can have")
        parent, rest = found // 2, np.ones(256 - len(found), np.bool_)
        self.sets[number] = np.append((found & 1).astype(np.bool_), rest)
        if len(found) > column.size:
            for key in column.keys:
                self.sets[key] = np.append(self.sets[key][parent], rest)
            renumbered = np.zeros(512, np.uint8)
            renumbered[found] = np.arange(len(found))
            codes[...] = renumbered[codes * np.uint16(2) + right]
            column.size = len(found)
        column.revealed.append(number)
        column.keys.append(number)
        column.by_set = {}
        for key in column.keys:
            column.by_set.setdefault(self.sets[key].tobytes(), key)
        column.marks = np.stack([self.sets[key] for key in column.revealed], axis=1)

    def best(
        self, count: Callable[[slice], Sums], step: int, allowed: NDArray[np.bool_], how: SplitRules, *, sets: bool
    ) -> Splits:
        """The best split of each of some nodes among known keys, whose sums are counted for so many columns at a time;
        without `sets`, sorted categories are left out whose order is not known."""
        may = allowed[self._active]
        if not sets:
            may[np.isin(self.layout.kinds, SETS) & ~np.isin(self._active, list(self.complete))] = False
        found = Splits.of(np.ones(len(how.least), np.bool_), how.rules[2])
        numbers = np.where(may, np.arange(len(may)), -1)
        for own in pieces(len(may), step):
            search_splits(count(own), self.layout.take(own), numbers[own], how, found)
        return found

    def choice(self, splits: Splits, node: int) -> Choice | None:
        place, at, to_left, g, h = splits.found[node].tolist()
        if place < 0:
            return None
        gain, number = float(splits.gain[node]), self._active[place]
        column = self.columns[number]
        if column.kind == NUMBER:
            key = column.borders[at - 1] if at <= len(column.borders) else column.missing
            return None if key < 0 else Choice(gain, self.block, key, bool(to_left), sums=(g, h))
        if column.kind == ONE_HOT:
            key = column.borders[at if column.is_whole else at - 1]
            return Choice(gain, self.block, key, sums=(g, h))
        return Choice(gain, self.block, -1 - number, left=tuple(splits.order[node, :at].tolist()), sums=(g, h))

    def give_key(self, choice: Choice) -> Choice:
        """A choice with a key: a set of atoms becomes a union, which is sent to the client later."""
        if choice.key >= 0:
            return choice
        number = -1 - choice.key
        column = self.columns[number]
        right = np.ones(256, np.bool_)
        right[list(choice.left)] = False
        known = column.by_set.get(right.tobytes())
        if known is None:
            marks = np.array(choice.left, np.uint8)[:, None]  # codes, where their client knows them too
            if not column.is_whole:
                assert column.marks is not None
                marks = np.packbits(column.marks[list(choice.left)], axis=1)
            self.unions.append(Union(number, len(column.revealed), marks))
            known = len(self.keys)
            self.sets[known], column.by_set[right.tobytes()] = right, known
            column.keys.append(known)
            self.keys.append((number, False))
        return Choice(choice.gain, self.block, known, sums=choice.sums)

    def is_set(self, key: int) -> bool:
        return int(self.kinds[self.keys[key][0]]) in SETS if key >= 0 else True

    def sign(self, key: int) -> int:
        """Whether leaves are to rise (1) or fall (−1) with the values of a key's column."""
        return self.signs[self.keys[key][0]]

    def missing_key(self, key: int) -> int:
        """The key that says which values of a key's column are missing; −1: none."""
        return self.columns[self.keys[key][0]].missing

    def splits_by(self, choices: Sequence[Choice]) -> NodeSplits:
        """Of each choice the column of codes that it looks at, and for each code whether it goes right."""
        right = np.zeros((len(choices), 256), np.uint8)
        places = np.empty(len(choices), np.int64)
        for own, (k, choice) in zip(right, enumerate(choices), strict=True):
            column = self.columns[self.keys[choice.key][0]]
            places[k] = column.place
            if column.kind == NUMBER:
                border = len(column.borders) if choice.key == column.missing else column.borders.index(choice.key)
                own[border + 2 :] = 1
                own[0] = not choice.to_left
            else:
                own[:] = self.sets[choice.key]
        return NodeSplits(places, right)
