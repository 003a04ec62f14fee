"""The client's half: the keys of a block as its client knows them, and histograms and bits of its own rows.

In: histograms of nodes, and the splits that the server has for them. Out: objections: splits that come before those. It
keeps nothing between rounds but its keys: every check brings all sums that it needs. A block that is split among
several clients has its histograms summed first; whoever holds the sum (rounds.py) then does the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels, tree_checks
from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.splits import CACHED, SplitRules, Splits, search_splits
from tablepuppet.algorithms.boosting.tree_checks import NUMBER, SETS, Codes, Key, NewColumn, NewKey, Outline, Sums
from tablepuppet.errors import TransportError

Count = Callable[[int, Sums], Sums]  # of a tree and some columns: Σ(g, h) of every node and bin


class Split(msgspec.Struct, frozen=True):
    """A candidate: a key, and where missing values go."""

    key: Key
    to_left: bool = False


class Objection(msgspec.Struct, frozen=True):
    """A split that comes before the one in the outline; None: there is none, and that one is not a candidate."""

    tree: int
    node: int
    gain: float
    split: Split | None
    is_void: bool


@dataclass
class KeyBook:
    """The keys of a block, in the order in which they became known."""

    block: int
    columns: Columns
    has_missing: NDArray[np.bool_]
    rules: NDArray[np.float64]
    entries: list[Key] = field(default_factory=list)  # keys, or columns of them
    is_told: list[bool] = field(default_factory=list)  # by a client; else a union that the server made
    limit: int | None = None  # bits of a row that may be revealed
    reveals_columns: bool = False  # whether a column is revealed whole with its first split

    def __post_init__(self) -> None:
        self.keys: list[Key] = []
        self.numbers: dict[Key, int] = {}
        self.revealed = 0
        self._codes: dict[int, tuple[int, dict[bytes, list[int]]]] = {}  # by column: of so many keys
        self._columns: set[int] = set()  # of which something was revealed
        self._whole: set[int] = set()  # and of which everything was
        self._marks: dict[int, list[NDArray[np.bool_]]] = {}  # by column: of revealed keys, which codes go right
        for entry, is_told in zip(self.entries, self.is_told, strict=True):
            self._enter(entry, is_told)

    def add(self, entry: Key, *, is_told: bool) -> None:
        self.entries.append(entry)
        self.is_told.append(is_told)
        self._enter(entry, is_told)

    def _enter(self, entry: Key, is_told: bool) -> None:
        if is_told:
            self.revealed += self.bits(entry)
            self._columns.add(entry.column)
            if self.is_whole(entry):
                self._whole.add(entry.column)
            elif self.columns.kinds[entry.column] != NUMBER:
                self._marks.setdefault(entry.column, []).append(self.columns.right(entry))
        for key in self._list_keys(entry):
            self.numbers.setdefault(key, len(self.keys))
            self.keys.append(key)

    def _list_keys(self, entry: Key) -> list[Key]:
        if not self.is_whole(entry):
            return [entry]
        column, kind, size = entry.column, self.columns.kinds[entry.column], self.columns.size(entry.column)
        if kind == NUMBER:
            return [self.columns.missing_key(column), *(Key(column, border=b) for b in range(1, size - 1))]
        return [Key(column, left=(code,)) for code in range(size)] if kind == tree_checks.ONE_HOT else []

    def is_whole(self, entry: Key) -> bool:
        return entry.border == tree_checks.WHOLE

    def bits(self, entry: Key) -> int:
        if not self.is_whole(entry):
            return 1
        return tree_checks.digits_of(int(self.columns.kinds[entry.column]), self.columns.size(entry.column))

    def may_tell(self, entries: Sequence[Key]) -> bool:
        """Whether the limit allows to reveal these entries, too."""
        return self.limit is None or self.revealed + sum(map(self.bits, entries)) <= self.limit

    def key(self, number: int) -> Key:
        """The key of a number; an unknown number is refused."""
        if not 0 <= number < len(self.keys):
            raise TransportError(f"there is no key {number} in block {self.block}")
        return self.keys[number]

    def add_unions(self, unions: Sequence[tree_checks.Union]) -> None:
        """Sets that the server made of those it knows."""
        for union in unions:
            if not 0 <= union.column < len(self.columns.kinds) or int(self.columns.kinds[union.column]) not in SETS:
                raise TransportError("a union of categories is of a column that has none")
            codes, keys, width = self._known_codes(union.column)
            fits = union.rows.ndim == 2 and union.rows.dtype == np.uint8 and union.rows.shape[1] == width
            if not codes or not fits or union.keys != keys:
                raise TransportError("a union of categories does not fit the keys that are known")
            left = (code for row in {row.tobytes() for row in union.rows} for code in codes.get(row, ()))
            self.add(Key(union.column, left=tuple(sorted(left))), is_told=False)

    def _known_codes(self, column: int) -> tuple[dict[bytes, list[int]], int, int]:
        """The codes of a column as the server knows them: exact if the column was revealed whole, else by the revealed
        keys. Also the number of these keys, and the bytes of their marks."""
        if column in self._whole:
            return {bytes([code]): [code] for code in range(self.columns.size(column))}, 0, 1
        own = self._marks.get(column, [])
        count, codes = self._codes.get(column, (0, {}))
        if count != len(own):  # made anew after each new key
            codes = {}
            for code, row in enumerate(np.packbits(np.array(own).T, axis=1)):
                codes.setdefault(row.tobytes(), []).append(code)
            self._codes[column] = len(own), codes
        return codes, len(own), (len(own) + 7) // 8

    def add_new(self, objections: Sequence[Objection]) -> tuple[list[Objection], list[Key]]:
        """The objections that may be sent, and the keys, or columns, to reveal for them; these count as known now."""
        fresh: list[Key] = []
        kept = []
        for objection in objections:
            wanted = [] if objection.split is None else self._list_wanted(objection.split.key)
            if self.may_tell(wanted):
                kept.append(objection)
                fresh += wanted
                for own in wanted:
                    self.add(own, is_told=True)
        return kept, fresh

    def reveal_as(self, key: Key, sides: tree_checks.Codes) -> NewKey | NewColumn:
        """A key as it becomes known, by whether rows go right; or a column, by their bins."""
        column = key.column
        if self.is_whole(key):
            kind, has_missing = int(self.columns.kinds[column]), bool(self.has_missing[column])
            return NewColumn.of(column, kind, self.columns.size(column), has_missing, sides)
        return NewKey(column, self.columns.is_missing(key), np.packbits(sides))

    def is_complete(self, column: int, occurs: NDArray[np.int64]) -> bool:
        """Whether a column that was not revealed whole has nothing more to reveal: one value, or known borders only.
        `occurs`: the codes of training rows, ascending."""
        codes = occurs.tolist()
        if self.columns.kinds[column] != NUMBER:
            return len(codes) < 2
        values = [code for code in codes if code]
        first, last = (0, None) if len(values) < len(codes) else (1, -1)  # with missing values, without
        borders = {*values[:last], *(code - 1 for code in values[first:])} - {0}
        return all(Key(column, border=b) in self.numbers for b in borders)

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.revealed >= self.limit

    @property
    def _known_there(self) -> set[int]:
        """Columns whose best splits the server finds itself."""
        return self._whole if self.reveals_columns else set()

    def _list_wanted(self, key: Key) -> list[Key]:
        """The entries to reveal before a key is known: its whole column, if that is allowed.

        A sparse column is revealed whole even if others are not. Otherwise the server could not foresee which
        categories are light in a node, and every level would take a round.
        """
        wanted = [k for k in self.columns.needed_keys(key, self.has_missing) if k not in self.numbers]
        column = key.column
        is_due = self.reveals_columns or self.columns.kinds[column] in (tree_checks.SPARSE, tree_checks.RARE)
        if not wanted or not is_due or column in self._columns:
            return wanted
        every = [Key(column, border=tree_checks.WHOLE), *([key] if int(self.columns.kinds[column]) in SETS else [])]
        return every if self.may_tell(every) else wanted

    def objections(self, check: tree_checks.Check, count: Count) -> list[Objection]:
        """Of every node that is asked about: the best split, where it comes before the one that it has. The server has
        searched the columns that were revealed whole. The others are searched some at a time, so that their sums stay
        in the cache."""
        searched = check.columns.copy()
        searched[list(self._known_there)] = False
        numbers = np.flatnonzero(searched)
        found = []
        for number, outline in enumerate(check.trees):
            how = SplitRules(np.array(outline.unit), self.rules, outline.bounds, outline.least)
            splits = Splits.of(outline.asks, self.rules[2])
            sizes = np.cumsum(np.diff(self.columns.offsets)[numbers]) * len(outline.left)
            for own in np.split(numbers, np.flatnonzero(np.diff(sizes // CACHED)) + 1):
                if len(own):
                    search_splits(count(number, own), self.columns.take(own), own, how, splits)
            is_best = (splits.found[:, 0] >= 0) & (splits.gain >= outline.gain)
            is_own = outline.block == self.block
            for node in np.flatnonzero(outline.asks & (is_best | is_own)).tolist():
                objection = self._against(outline, number, node, self.best(splits, node))
                if objection is not None:
                    found.append(objection)
        return found

    def best(self, splits: Splits, place: int) -> tuple[float, Split] | None:
        column, at, to_left, _, _ = splits.found[place].tolist()
        if column < 0:
            return None
        gain, kind = float(splits.gain[place]), int(self.columns.kinds[column])
        if kind == NUMBER:
            return gain, Split(Key(column, border=at), bool(to_left))
        left = sorted(splits.order[place, :at].tolist()) if kind in SETS else [at]
        return gain, Split(Key(column, left=tuple(left)))

    def _against(self, outline: Outline, tree: int, node: int, best: tuple[float, Split] | None) -> Objection | None:
        have, block = float(outline.gain[node]), int(outline.block[node])
        if block == self.block:
            own = Split(self.key(int(outline.key[node])), bool(outline.to_left[node]))
            if best is not None and best[1] == own:
                return None
            is_set = int(self.columns.kinds[own.key.column]) in SETS and own.key.column not in self._known_there
            if is_set and not self.is_full and (best is None or best[0] < have):  # none of the sorted sets gains that
                return Objection(tree, node, 0.0 if best is None else best[0], None if best is None else best[1], True)
            if best is not None and (-best[0], best[1].key.column) <= (-have, own.key.column):
                return Objection(tree, node, *best, False)
            return None
        if best is None or best[0] < have or (best[0] == have and 0 <= block < self.block):
            return None
        return Objection(tree, node, *best, False)


def count_from(columns: Columns, sums: Sequence[Sums]) -> Count:
    """From sums of all columns, those of some."""
    ranges = np.split(np.arange(columns.bins), columns.offsets[1:-1])
    return lambda tree, numbers: sums[tree][:, np.concatenate([ranges[n] for n in numbers.tolist()])]


def add_up(outline: Outline, sums: Sums) -> Sums:
    """The histogram of every node, from those of its cells: the sum of its children's, which come after it."""
    for node in np.flatnonzero(outline.left >= 0)[::-1].tolist():
        np.add(sums[outline.left[node]], sums[outline.left[node] + 1], out=sums[node])
    return sums


@dataclass
class ClientHalf:
    """One part of a block."""

    book: KeyBook
    train: Codes  # (rows + 1, columns): the last row is the one that an outer join did not find
    held: Codes  # of rows that are held out

    def check(self, check: tree_checks.Check) -> tree_checks.Objections:
        """The objections of this block, which lies here alone, to some trees."""
        self.book.add_unions(check.unions)
        is_first = not self.book.revealed
        pairs = [self._unpack(outline) for outline in check.trees]

        def count(tree: int, numbers: Sums) -> Sums:
            return add_up(check.trees[tree], self._count(check.trees[tree], pairs[tree], numbers))

        kept, fresh = self.book.add_new(self.book.objections(check, count))
        changed = range(len(self._occurs)) if is_first else sorted({key.column for key in fresh})
        complete = [column for column in changed if self.book.is_complete(column, self._occurs[column])]
        return send_objections(self.book, kept, [self.reveal(key) for key in fresh], complete)

    @cached_property
    def _occurs(self) -> list[Sums]:
        """The codes that training rows have in each column; with 0, if any row, of training or not, has none."""
        found = [np.bincount(codes, minlength=1) for codes in self.train[:-1].T]
        for counts, is_missing in zip(found, self.book.has_missing, strict=True):
            counts[0] = is_missing
        return [np.flatnonzero(counts) for counts in found]

    @cached_property
    def _by_column(self) -> Codes:
        return np.ascontiguousarray(self.train.T)

    def histograms(self, check: tree_checks.Check) -> list[Sums]:
        """Σ (g, h) per node and bin, of every tree, where the node is a cell; else 0."""
        every = np.arange(len(self.book.columns.kinds))
        return [self._count(outline, self._unpack(outline), every) for outline in check.trees]

    def reveal(self, key: Key) -> NewKey | NewColumn:
        """Of every row whether it goes right, or the bin of a column."""
        codes = np.concatenate([self.train[:, key.column], self.held[:, key.column]])
        return self.book.reveal_as(key, codes if self.book.is_whole(key) else self.book.columns.right(key)[codes])

    def _unpack(self, outline: Outline) -> kernels.PairArrays:
        _check_outline(outline)
        cells = np.flatnonzero(outline.left < 0)
        assert outline.pairs is not None  # exchanges.py refuses it
        rows = len(self.train)
        counts = outline.pairs.counts.numbers(rows)
        size = int(counts.sum())
        if len(counts) != rows or counts.min(initial=0) < 0 or counts.max(initial=0) > len(cells):
            raise TransportError("sums are of rows or cells that there are not")
        own = [packed.numbers(size) for packed in (outline.pairs.cells, outline.pairs.g, outline.pairs.h)]
        if any(len(o) != size for o in own) or (size and not 0 <= own[0].min() <= own[0].max() < len(cells)):
            raise TransportError("sums are of rows or cells that there are not")
        return kernels.PairArrays(counts.astype(np.int32), cells[own[0]].astype(np.int32), *own[1:])

    def _count(self, outline: Outline, pairs: kernels.PairArrays, numbers: Sums) -> Sums:
        """Sums of the cells, over the bins of some columns."""
        columns = self.book.columns.take(numbers)
        out = np.zeros((len(outline.left), columns.bins, 2), np.int64)
        kernels.count_pairs(pairs, self._by_column[numbers], columns.offsets, out)
        return out


def send_objections(
    book: KeyBook, objections: Sequence[Objection], keys: list[NewKey | NewColumn], complete: Sequence[int] = ()
) -> tree_checks.Objections:
    """Objections as they travel, keys by their numbers."""
    none = Split(Key(-1))
    splits = [o.split or none for o in objections]
    return tree_checks.Objections(
        keys=keys,
        tree=np.array([o.tree for o in objections], np.int32),
        node=np.array([o.node for o in objections], np.int32),
        gain=np.array([o.gain for o in objections], np.float64),
        key=np.array([book.numbers.get(s.key, -1) for s in splits], np.int32),
        to_left=np.array([s.to_left for s in splits], np.bool_),
        is_void=np.array([o.is_void for o in objections], np.bool_),
        complete=list(complete),
    )


def _check_outline(outline: Outline) -> None:
    """Refuses an outline that is not a tree: every node but the first is a child of one before it."""
    inner = np.flatnonzero(outline.left >= 0)
    children = outline.left[inner]
    if len(inner) and ((children <= inner).any() or (children >= len(outline.left) - 1).any()):
        raise TransportError("the outline of a tree does not follow the protocol")
