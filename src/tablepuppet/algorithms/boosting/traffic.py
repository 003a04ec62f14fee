"""What a tree costs, from what is known before training: rows, kinds of columns and joined rows; never their values.

A block has so many columns, or splits, to tell. Every checked tree asks for some of them, most often for some that are
known by now: after K wishes S·(1 − e^(−K/S)) of S are told, and a tree that finds no new ones takes one round. A block
that has told all is not asked any more. When a tree first splits by a column that says little, and how many values an
integer or a string has, nobody knows before training, so that a block is counted as asked less and less, not until some
tree. The constants are those of runs (docs/decisions/0099-what-a-tree-costs-before-it-is-grown.md and
0120-a-column-is-told-once.md).
"""

from __future__ import annotations

import math

from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.shape import BlockShape, PartShape, Shape, Wave

_NODE = 40  # bytes that a node takes, down and up
_KEY = 8  # bytes of a split that is asked for by name
_BIN = 16  # bytes of Σg and Σh
_SPARE = 3  # bits of a derivative that few rows need
_REST = 4  # bits of what rounding leaves of h where it follows from g
_COUNT = 5  # bits of a pair's row and of how many joined rows it has
_INTEGERS, _CATEGORIES = 30, 8  # splits of a column that hold all it can tell, most often
_FIRST, _LATER = 1.5, 0.16  # splits that a tree asks a block for, by inner node
_SLOW = 300  # wishes of a block of few splits, before it has told the last one
_OF_FIRST = 0.75  # of the first tree's rows, that a round is about: branches end
_MENDED, _EARLY = 0.35, 0.4  # of a tree, that rounds which mend are about; and more of it in the first few
_LATE_PAIRS, _EARLY_PAIRS = 0.08, 0.35  # of the pairs of rows and cells that chance would make, in late trees and early
_STEEP = 2  # how suddenly a block is no longer asked
_WAIT, _WAIT_EACH = 170, 2.5  # wishes of a block, before a tree splits by the last of its columns
_STEEPLY = 4  # how suddenly a block whose columns are told is no longer asked
_NUMBER_BITS, _CATEGORY_BITS = 8, 5  # that tell a column's bins apart, most often
_DITHER = (math.sqrt(5) - 1) / 2


def tree_waves(shape: Shape, options: Boosting, tree: int) -> list[Wave]:
    """The rounds of the tree of this number."""
    if options.is_random:
        return _all_bits(shape, options) if tree == 0 else []
    if tree == 0:
        return _first_tree(shape, options)
    if options.checks == "lazy" and tree % options.every:
        return []
    before = tree if options.checks == "strict" else tree // options.every  # trees that were checked
    asked = [_asked(block, options, shape.outputs, before) for block in shape.blocks]
    if 1 - math.prod(1 - a for a in asked) < 0.5:
        return []
    new = [
        _told(block, options, shape.outputs, before + 1) - _told(block, options, shape.outputs, before)
        for block in shape.blocks
    ]
    whole = _round(shape, options, asked, options.most_leaves // 2, _together(tree), 1.0, new)
    if options.checks == "lazy":
        return whole
    found = sum(new)
    more = 1 - math.exp(-found / 2) + found / 40  # rounds that mend
    times = math.floor(more + tree * _DITHER % 1)
    share = (_MENDED + _EARLY * math.exp(-tree / 5)) / max(more, 0.2)
    mending = _round(
        shape, options, asked, options.most_leaves // 2, _together(tree), min(1.0, share), [0.0] * len(new)
    )
    return [*whole, *(wave for _ in range(times) for wave in mending)]


def _first_tree(shape: Shape, options: Boosting) -> list[Wave]:
    """One round a level, of which growth by leaves has a few more than a balanced tree; fewer, where columns are told
    whole, for the same columns split several levels."""
    levels = min(options.levels, math.ceil(1.5 * math.log2(options.most_leaves)))
    if options.tells_columns:
        levels = min(levels, round(2 + math.log2(max(1, sum(b.numbers + b.strings for b in shape.blocks))) / 2))
    new = [_told(block, options, shape.outputs, 1) / levels for block in shape.blocks]
    asked = [1.0] * len(new)
    cells = [min(2**level, max(1, options.most_leaves // 2)) for level in range(levels)]
    return [w for k in cells for w in _round(shape, options, asked, k, _together(0), _OF_FIRST, new)]


def _all_bits(shape: Shape, options: Boosting) -> list[Wave]:
    """Of splits that are drawn: those of all trees at once."""
    draws = options.trees * (options.most_leaves - 1)
    columns = max(1, sum(block.width for block in shape.blocks))
    sizes = []
    for block in shape.blocks:
        splits = _splits(block, options)
        told = splits * (1 - math.exp(-draws * block.width / columns / splits))
        told = told if options.max_splits is None else min(told, options.max_splits)
        sizes += [(p.client, _KEY * told, told * (p.rows + p.test_rows + 1) / 8) for p in block.parts]
    return [_wave(sizes)]


def _together(tree: int) -> float:
    """Of the pairs of rows and cells that chance would make: later trees are split more by what a row has itself."""
    return _LATE_PAIRS + _EARLY_PAIRS * math.exp(-tree / 30)


def _things(block: BlockShape, options: Boosting) -> int:
    """S: what a block can tell: its columns, or their splits."""
    return max(1, block.numbers + block.strings) if options.tells_columns else _splits(block, options)


def _bits(block: BlockShape, options: Boosting) -> float:
    """Of a row, that tell a column, or a split."""
    if not options.tells_columns:
        return 1.0
    return (_NUMBER_BITS * block.numbers + _CATEGORY_BITS * block.strings) / _things(block, options)


def _splits(block: BlockShape, options: Boosting) -> int:
    """The splits of a block, as far as the kinds of its columns say."""
    most = max(1, min(options.bins, sum(part.rows for part in block.parts)) - 1)
    others = block.numbers - block.integers - block.booleans
    few = block.integers * min(most, _INTEGERS) + block.strings * min(most, _CATEGORIES)
    return max(1, others * most + few + block.booleans)


def _wishes(options: Boosting, outputs: int, checked: int) -> float:
    """K: the splits that so many checked trees ask a block for, known ones among them."""
    nodes = math.sqrt(outputs) * (options.most_leaves - 1)  # trees of one time are alike
    return nodes * (_FIRST + _LATER * (checked - 1)) if checked else 0.0


def _told(block: BlockShape, options: Boosting, outputs: int, checked: int) -> float:
    things = _things(block, options)
    told = things * (1 - math.exp(-_wishes(options, outputs, checked) / things))
    return told if options.max_splits is None else min(told, options.max_splits)


def _asked(block: BlockShape, options: Boosting, outputs: int, checked: int) -> float:
    """How likely it is that a block is still asked."""
    if block.is_split and not options.tells_columns:
        return 1.0
    things, wishes = _things(block, options), _wishes(options, outputs, checked)
    if options.tells_columns:
        return 1 / (1 + (wishes / (_WAIT + _WAIT_EACH * things)) ** _STEEPLY)
    return 1 / (1 + (wishes / (things * math.log(2 * things) + _SLOW)) ** _STEEP)


def _round(
    shape: Shape,
    options: Boosting,
    asked: list[float],
    cells: int,
    together: float,
    share: float,
    new: list[float],
) -> list[Wave]:
    """A round that is about this share of a tree; where clients share a block, it takes one more, for bits."""
    sizes, bits = [], []
    for block, is_asked, keys in zip(shape.blocks, asked, new, strict=True):
        for part in block.parts:
            down, up = _sizes(shape, options, block, part, max(1, cells), together)
            told = keys * _bits(block, options) * (part.rows + part.test_rows + 1) / 8
            if block.is_split and keys >= 0.5:
                bits.append((part.client, 0.0, told))
            sizes.append((part.client, is_asked * share * down, is_asked * share * up + (not block.is_split) * told))
    return [_wave(sizes), _wave(bits)] if bits else [_wave(sizes)]


def _sizes(
    shape: Shape, options: Boosting, block: BlockShape, part: PartShape, cells: int, together: float
) -> tuple[float, float]:
    """Bytes down and up of one part."""
    joined = part.joined * options.subsample
    rows = min(part.rows, joined)
    places = max(1.0, rows * cells)
    is_once = part.joined <= part.rows
    by_chance = places * (1 - math.exp(-joined / places))
    pairs = joined if is_once else rows + together * max(0.0, by_chance - rows)
    fan = max(1.0, joined / max(1.0, pairs))
    each = max(2, options.bits - _SPARE)
    per_h = (_REST if is_once else each + 2) if shape.curvature_varies or shape.outputs > 1 else 0
    others = 1 - block.width / max(1, sum(b.width for b in shape.blocks))  # whose turns the owner does not know
    bits = (
        others * math.log2(cells)
        + each
        + per_h
        + (1 if is_once and options.subsample == 1 else _COUNT)
        + 2 * math.log2(fan)
    )
    down = shape.outputs * pairs * bits / 8
    if block.is_split:
        return down, shape.outputs * cells * (_splits(block, options) + 2 * block.width) * _BIN
    return down, 2 * cells * _NODE * shape.outputs


def _wave(sizes: list[tuple[str, float, float]]) -> Wave:
    by_client: dict[str, float] = {}
    for client, down, up in sizes:
        by_client[client] = by_client.get(client, 0.0) + down + up
    down, up = sum(d for _, d, _ in sizes), sum(u for _, _, u in sizes)
    return Wave(times=1, down=down, up=up, slowest=max(by_client.values(), default=0.0), messages=2 * len(sizes))
