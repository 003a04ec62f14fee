"""The cost of a tree, from facts before training: rows, kinds of columns and joined rows; never their values.

A block has S columns, or splits, to reveal. Every checked tree asks for some of them, most often for some that are
known by now. After K wishes S·(1 − e^(−K/S)) of them are revealed; a tree that finds no new ones takes one round. A
block that has revealed everything is not asked any more. Two things are unknown before training: when a tree first
splits by a weak column, and how many values an integer or a string has. So the chance that a block is asked falls
gradually, not at some tree. A column's kind decides how likely it is weak: likely with two values, unlikely with many.
The constants were measured in runs (docs/decisions/0120-a-column-is-disclosed-once.md).
"""

import math

import msgspec

from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.shape import BlockShape, PartShape, RoundTraffic, Shape, count_round

_NODE = 40  # bytes that a node takes, down and up
_KEY, _ANSWER = 24, 70  # bytes of a split that is asked for by name, and of a revealed one, without its rows' bits
_BIN = 16  # bytes of Σg and Σh
_SPARE = 3  # bits of a derivative that few rows need
_CLASS = 1  # bits of a first derivative, which zstd leaves of labels that are classes: all scores are still equal
_COUNT = 5  # bits of a pair's row and of how many joined rows it has
_INTEGERS, _CATEGORIES = 30, 8  # splits that hold all of a column's information, most often
_FIRST, _LATER = 1.5, 0.16  # splits that a tree asks a block for, by inner node
_ROWS_OF_LEAF = 100  # joined rows, fewer of which have no leaf of their own, most often
_SLOW = 300  # wishes of a block of few splits, before it has revealed the last one
_OF_FIRST = 0.75  # of the first tree's rows, that a round is about: branches end
_MENDED, _EARLY = 0.35, 0.4  # of a tree, that rounds which mend are about; and more of it in the first few
_LATE_PAIRS, _EARLY_PAIRS = 0.08, 0.35  # of the pairs of rows and cells that chance would make, in late trees and early
_STEEP = 2  # how suddenly a block is no longer asked
_POOR_BOOLEAN, _POOR_STRING, _POOR_NUMBER = 0.8, 0.15, 0.015  # how likely a column is weak, by its kind
_OF_COLUMNS = 0.35  # columns that a later tree asks a block for, by inner node
_SOON, _WAIT = 40, 420  # wishes of a block, before a tree splits by the last of its columns: any, or one of little use
_SPLITS_APART = 2.25  # times more or fewer rounds than estimated, where splits are revealed and not columns
_STEEPLY = 4  # how suddenly a block whose columns are revealed is no longer asked
_NUMBER_BITS, _CATEGORY_BITS = 8, 5  # of a column's bin numbers, most often
_DITHER = (math.sqrt(5) - 1) / 2

# CPU seconds (docs/performance.md).
_SORTED = 150e-9  # of a number of a table: its bin, once
_ROW, _SIDE, _RECORDED = 20e-9, 6e-9, 40e-9  # of a joined row in a tree; on each level; where the model is measured
_READ = 1.8e-9  # of a bin that a level reads
_LEAF, _DRAWN_LEAF = 100e-6, 20e-6
_GATHERED, _PAIR_COLUMN = 30e-9, 4e-9  # of a joined row in a check; and of a row and a cell, for each column
_NODE_COLUMN = 9e-6  # of a node that a check is about, for each column: its best split
_RECORDS = 10  # of a run


class _Rounds(msgspec.Struct, frozen=True):
    """The rounds of one tree, and what one of them is about on average."""

    times: int
    asked: list[float]  # by block: how likely it is asked
    cells: int
    together: float
    share: float  # of the tree
    new: list[float]  # by block: columns, or splits, that all of them reveal
    is_first: bool = False  # of the first tree


def tree_rounds(shape: Shape, options: Boosting, tree: int) -> list[RoundTraffic]:
    """Where clients share a block, bits take rounds of their own."""
    if options.is_random:
        return _all_bits(shape, options) if tree == 0 else []
    one = _find_rounds(shape, options, tree)
    if one is None:
        return []
    sizes, bits, bit_rounds = [], [], one.times if one.is_first else 1
    for block, is_asked, new in zip(shape.blocks, one.asked, one.new, strict=True):
        for part in block.parts:
            down, up = _sizes(shape, options, block, part, one)
            bytes_of_bits, about = new * _answer(part, _bits(block, options)), is_asked * one.share
            if block.is_split and new >= 0.5 * bit_rounds:
                bits.append((part.client, 0.0, bytes_of_bits / bit_rounds))
            sizes.append((part.client, about * down, about * up + (not block.is_split) * bytes_of_bits / one.times))
    return [count_round(sizes, one.times), *([count_round(bits, bit_rounds)] if bits else [])]


def tree_round_range(shape: Shape, options: Boosting, estimate: int) -> tuple[int, int]:
    """How many rounds a run takes, at least and at most; `estimate`: from shapes alone.

    A tree takes one round, and another whenever columns are revealed first. So there are at most as many more rounds as
    columns, twice as many if clients share them. A block of more columns than it can reveal at the first root is asked
    again.
    """
    if options.is_random:
        return estimate, estimate
    if not options.reveals_columns:
        return math.floor(estimate / _SPLITS_APART), math.ceil(estimate * _SPLITS_APART)
    columns = sum(_things(block, options) * (2 if block.is_split else 1) for block in shape.blocks)
    is_one_round = all(_things(block, options) <= shape.outputs for block in shape.blocks)
    return 1 if is_one_round else min(2, options.trees), options.trees + columns


def tree_seconds(shape: Shape, options: Boosting, tree: int) -> float:
    """CPU seconds of the tree of this number, without messages: the server's growth and the owners' checks."""
    columns = {block.name: block.numbers + block.strings for block in shape.blocks}
    binned = _SORTED * sum((p.rows + p.test_rows) * columns[b.name] for b, p in shape.parts) * (tree == 0)
    records = min(1.0, _RECORDS / options.trees)
    sampled, levels = options.subsample * shape.joined, options.deep_levels
    rows = shape.joined * (shape.outputs * (_ROW + _SIDE * levels) + records * _RECORDED)
    if options.is_random:
        return binned + rows + shape.outputs * _DRAWN_LEAF * options.most_leaves
    read = sum(
        columns[b.name] * sum(min(sampled / 2, b.rows * 2.0 ** (level - 1)) for level in range(levels))
        for b in shape.blocks
    )
    leaves = min(options.most_leaves, sampled / _ROWS_OF_LEAF)
    grown = shape.outputs * (_READ * read + _LEAF * leaves)
    one = _find_rounds(shape, options, tree)
    return binned + rows + grown + (0.0 if one is None else one.times * _check_seconds(shape, options, one))


def _check_seconds(shape: Shape, options: Boosting, one: _Rounds) -> float:
    """CPU seconds of a round, for the server and all who are asked."""
    seconds = 0.0
    for block, is_asked in zip(shape.blocks, one.asked, strict=True):
        columns = block.numbers + block.strings
        for part in block.parts:
            pairs, _ = _pairs(options, part, one.cells, one.together)
            counted = columns * (_PAIR_COLUMN * pairs + _NODE_COLUMN * 2 * one.cells)
            gathered = _GATHERED * options.subsample * part.joined
            seconds += is_asked * one.share * shape.outputs * (gathered + counted)
    return seconds


def _find_rounds(shape: Shape, options: Boosting, tree: int) -> _Rounds | None:
    """The first tree has a round a level; growth by leaves has a few more levels than a balanced tree. Columns that are
    revealed whole take fewer, as the same columns split several levels. A block's first column is revealed at the root.
    """
    outputs, most, blocks = shape.outputs, max(1, options.searched_leaves // 2), shape.blocks
    new = [_count_told(b, options, outputs, tree + 1) - _count_told(b, options, outputs, tree) for b in blocks]
    if tree == 0 and options.reveals_columns:
        columns = max(1, sum(block.numbers + block.strings for block in blocks))
        times = min(options.deep_levels, round(1.3 + math.log2(columns) / 2))
        again = [(1 + (times - 1) * (_things(block, options) > 1)) / times for block in blocks]
        cells = round((1 + most * (times - 1)) / times)
        return _Rounds(times, again, cells, _together(0), _OF_FIRST, new, is_first=True)
    if tree == 0:
        times = options.deep_levels
        cells = round(sum(min(2**level, most) for level in range(times)) / times)
        return _Rounds(times, [1.0] * len(blocks), cells, _together(0), _OF_FIRST, new, is_first=True)
    asked = [_ask_chance(block, options, outputs, tree) for block in blocks]
    is_asked, chance = 1 - math.prod(1 - a for a in asked), tree * _DITHER % 1
    if is_asked < (chance if options.reveals_columns else 0.5):
        return None
    asked = [a / is_asked for a in asked] if options.reveals_columns else asked
    more = 1 - math.exp(-sum(new) / 2) + sum(new) / 40  # rounds that mend
    mended = min(1.0, (_MENDED + _EARLY * math.exp(-tree / 5)) / max(more, 0.2))
    times = 1 + math.floor(more + chance)
    return _Rounds(times, asked, most, _together(tree), (1 + (times - 1) * mended) / times, new)


def _all_bits(shape: Shape, options: Boosting) -> list[RoundTraffic]:
    """Of splits that are drawn: those of all trees at once."""
    draws = options.trees * (options.most_leaves - 1)
    columns = max(1, sum(block.width for block in shape.blocks))
    sizes = []
    for block in shape.blocks:
        splits = _splits(block, options)
        used = splits * (1 - math.exp(-draws * block.width / columns / splits))
        used = used if options.max_splits is None else min(used, options.max_splits)
        sizes += [(p.client, _KEY * used, used * _answer(p, 1.0)) for p in block.parts]
    return [count_round(sizes)]


def _together(tree: int) -> float:
    """The share of the pairs of rows and cells that chance would make: later trees split more by a row's values."""
    return _LATE_PAIRS + _EARLY_PAIRS * math.exp(-tree / 30)


def _things(block: BlockShape, options: Boosting) -> int:
    """S: the columns of a block, or their splits."""
    return max(1, block.numbers + block.strings) if options.reveals_columns else _splits(block, options)


def _bits(block: BlockShape, options: Boosting) -> float:
    if not options.reveals_columns:
        return 1.0
    return (_NUMBER_BITS * block.numbers + _CATEGORY_BITS * block.strings) / _things(block, options)


def _answer(part: PartShape, bits: float) -> float:
    """Bytes that reveal a column, or a split, by so many bits of every row."""
    return _ANSWER + bits * (part.rows + part.test_rows + 1) / 8


def _splits(block: BlockShape, options: Boosting) -> int:
    """The number of a block's splits, estimated from the kinds of its columns."""
    most = max(1, min(options.bins, sum(part.rows for part in block.parts)) - 1)
    others = block.numbers - block.integers - block.booleans
    few = block.integers * min(most, _INTEGERS) + block.strings * min(most, _CATEGORIES)
    return max(1, others * most + few + block.booleans)


def _wishes(options: Boosting, outputs: int, checked: int) -> float:
    """K: the columns, or splits, that so many checked trees ask a block for, known ones among them."""
    nodes = math.sqrt(outputs) * (options.searched_leaves - 1)  # trees of one time are alike
    later = _OF_COLUMNS if options.reveals_columns else _LATER
    return nodes * (_FIRST + later * (checked - 1)) if checked else 0.0


def _count_told(block: BlockShape, options: Boosting, outputs: int, checked: int) -> float:
    things = _things(block, options)
    revealed = things * (1 - math.exp(-_wishes(options, outputs, checked) / things))
    return revealed if options.max_splits is None else min(revealed, options.max_splits)


def _ask_chance(block: BlockShape, options: Boosting, outputs: int, checked: int) -> float:
    """How likely it is that a block is still asked."""
    things, wishes = _things(block, options), _wishes(options, outputs, checked)
    if options.reveals_columns:
        if things == 1:
            return 0.0
        of_number = max(_POOR_NUMBER, min(_POOR_BOOLEAN, 4 / max(1, block.rows) ** 2))  # few rows: columns part alike
        kinds = (
            (_POOR_BOOLEAN, block.booleans),
            (_POOR_STRING, block.strings),
            (of_number, block.numbers - block.booleans),
        )
        rich = math.prod((1 - poor) ** count for poor, count in kinds)
        soon = _SOON + things * math.log(1.5 * things)  # where all columns are as good: until each was wished for
        late = max(soon, _WAIT)
        return sum(p / (1 + (wishes / at) ** _STEEPLY) for p, at in ((rich, soon), (1 - rich, late)))
    if block.is_split:
        return 1.0
    return 1 / (1 + (wishes / (things * math.log(2 * things) + _SLOW)) ** _STEEP)


def _pairs(options: Boosting, part: PartShape, cells: int, together: float) -> tuple[float, float]:
    """Pairs of a row and a cell of a tree, and the joined rows of each."""
    joined = part.joined * options.subsample
    rows = min(part.rows, joined)
    places = max(1.0, rows * cells)
    by_chance = places * (1 - math.exp(-joined / places))
    pairs = joined if part.joined <= part.rows else rows + together * max(0.0, by_chance - rows)
    return pairs, max(1.0, joined / max(1.0, pairs))


def _sizes(shape: Shape, options: Boosting, block: BlockShape, part: PartShape, one: _Rounds) -> tuple[float, float]:
    cells = one.cells
    pairs, fan = _pairs(options, part, cells, one.together)
    is_once, varies = part.joined <= part.rows, shape.curvature_varies or shape.outputs > 1
    each = _CLASS if one.is_first and varies else max(2, options.bits - _SPARE)
    per_h = 0 if one.is_first or not varies else each if is_once else each + 2
    bits = math.log2(cells) + each + per_h + (1 if is_once and options.subsample == 1 else _COUNT) + 2 * math.log2(fan)
    down = shape.outputs * pairs * bits / 8
    if block.is_split:
        return down, shape.outputs * cells * (_splits(block, options) + 2 * block.width) * _BIN
    return down, 2 * cells * _NODE * shape.outputs
