"""Random joins, and a federation of boosting halves over them without any transport."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.algorithms.boosting.central import Central, Column

from tablepuppet.algorithms.boosting.bins import Columns, category_bins, further_bins, number_bins
from tablepuppet.algorithms.boosting.client import ClientHalf, KeyBook, add_up, count_from, send_objections
from tablepuppet.algorithms.boosting.fixed_point import Labels
from tablepuppet.algorithms.boosting.known_blocks import KnownBlock
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.random_splits import Drawable, DrawnServer, Draws
from tablepuppet.algorithms.boosting.rows import BlockIndex
from tablepuppet.algorithms.boosting.server import BoostingServer, HeldRows
from tablepuppet.algorithms.boosting.tree_checks import Bins, CategoryBins, Check, Codes, Key, NewColumn, Objections
from tablepuppet.models.losses import Logistic, Loss, Squared
from tablepuppet.models.losses.classes import Softmax


@dataclass
class Table:
    """A block: p of training and held-out joined rows, and columns (values, is_category)."""

    train: NDArray[np.int32]
    held: NDArray[np.int32]
    rows: int
    columns: list[tuple[NDArray[np.float64], bool]]
    parts: int = 1
    signs: list[int] = field(default_factory=list)  # of columns that leaves are monotone in


@dataclass
class Join:
    """A joined table."""

    tables: list[Table]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    loss: Loss


def draw_join(rng: np.random.Generator) -> Join:
    """One-to-one, one-to-many, many-to-many, outer and copied tables; UNION ALL is any order of rows."""
    count, held = int(rng.integers(20, 300)), int(rng.integers(1, 50))
    tables: list[Table] = []
    for _ in range(int(rng.integers(1, 4))):
        kind = int(rng.integers(0, 4))
        rows = count if kind == 0 else int(rng.integers(2, max(3, count // 3)))
        index = np.arange(count) if kind == 0 else rng.integers(0, rows, count)
        if kind == 1:
            index = np.sort(index)
        held_index = rng.integers(0, max(2, rows // 2), held)
        if kind == 3 and rng.random() < 0.6:
            index = np.where(rng.random(count) < 0.2, -1, index)
            held_index = np.where(rng.random(held) < 0.2, -1, held_index)
        columns = []
        held_rows = max(2, rows // 2)
        for _ in range(int(rng.integers(1, 4))):
            values, is_category = _column(rng, rows + held_rows)
            columns.append((values, is_category))
        table = Table(index.astype(np.int32), held_index.astype(np.int32), rows, columns, int(rng.choice([1, 1, 2, 5])))
        tables.append(table)
        if rng.random() < 0.25:  # the same table again: exact ties between blocks
            tables.append(replace(table, parts=1))
    signal = sum((_first(t) for t in tables), np.zeros(count)) + rng.normal(size=count)
    if len(tables) > 1:
        signal = signal + _first(tables[0]) * _first(tables[1])
    which = int(rng.integers(0, 3))
    loss: Loss = (Squared(), Logistic(), Softmax(3))[which]
    partition_specs = [np.median(signal)] if which == 1 else np.quantile(signal, [0.3, 0.7])
    labels = signal if which == 0 else np.searchsorted(partition_specs, signal).astype(np.float64)
    weights = rng.integers(0, 4, count).astype(np.float64) if rng.random() < 0.3 else None
    return Join(tables, labels, weights, loss)


def draw_plain_join(rng: np.random.Generator) -> Join:
    """Two tables of few distinct values, and labels of few: ties are many, and soon nothing is left to tell."""
    count, tables = int(rng.integers(60, 200)), []
    for _ in range(2):
        rows = int(rng.integers(10, 40))
        index, held = rng.integers(-1 if rng.random() < 0.2 else 0, rows, count), rng.integers(0, 8, 12)
        columns = []
        for codes, is_category in ((3, True), (2, True), (7, True), (3, False)):
            values = rng.integers(0, codes, rows + 8).astype(np.float64)
            is_missing = rng.random(len(values)) < (0.2 if rng.random() < 0.3 else 0.0)
            columns.append((np.where(is_missing, np.nan, values), is_category))
        tables.append(Table(index.astype(np.int32), held.astype(np.int32), rows, columns))
    which = int(rng.integers(0, 2))
    return Join(tables, rng.integers(0, 3 - which, count).astype(np.float64), None, (Squared(), Logistic())[which])


def bind_signs(rng: np.random.Generator, join: Join) -> None:
    """Leaves are monotone in some columns of numbers, where there is one score."""
    for table in join.tables:
        drawn = rng.integers(-1, 2, len(table.columns)).tolist()
        signs = [0 if is_category else sign for (_, is_category), sign in zip(table.columns, drawn, strict=True)]
        table.signs = signs if any(signs) and join.loss.outputs == 1 else []


def _column(rng: np.random.Generator, rows: int) -> tuple[NDArray[np.float64], bool]:
    kind = int(rng.integers(0, 4))
    many = int(rng.integers(2, 60 if kind == 3 else 12))
    values = rng.normal(size=rows) if kind == 0 else rng.integers(0, many, rows).astype(np.float64)
    if rng.random() < 0.4:
        values = np.where(rng.random(rows) < 0.2, np.nan, values)
    return values, kind >= 2


def _first(table: Table) -> NDArray[np.float64]:
    values = np.append(np.nan_to_num(table.columns[0][0][: table.rows]), 0.0)
    return np.asarray(values[table.train])


@dataclass
class Block:
    """A block at its clients."""

    bins: list[Bins]
    layout: Columns
    train: NDArray[np.uint8]  # all rows of the block, and the missed one
    held: NDArray[np.uint8]
    book: KeyBook  # what each key means
    parts: list[ClientHalf]
    starts: list[int]
    held_starts: list[int]


def open_block(number: int, table: Table, options: Boosting) -> Block:
    """Bins, codes and halves of a block's clients."""
    weight = np.bincount(table.train[table.train >= 0], minlength=table.rows).astype(np.float64)
    bins: list[Bins] = []
    codes: list[NDArray[np.uint8]] = []
    further: list[CategoryBins] = []
    for place, (values, is_category) in enumerate(table.columns):
        if is_category:
            found, inverse = np.unique(values[: table.rows][~np.isnan(values[: table.rows])], return_inverse=True)
            counts = np.bincount(inverse, minlength=len(found)).astype(np.float64)
            given = ([str(int(v)) for v in found], counts, options.bins)
            named = category_bins(*given)
            own: Bins = named
            codes.append(_category_codes(values, named))
            further += further_bins(place, *given, options.most_categories)
        else:
            own = number_bins(values[: table.rows], weight, options.bins, options.min_bin_rows)
            codes.append(own.codes(values))
        bins.append(own)
    codes += [_category_codes(table.columns[own.further_of][0], own) for own in further]
    bins += further
    both = np.stack(codes, axis=1)
    layout = Columns.of([b.kind for b in bins], [b.size for b in bins], table.signs)
    train = np.vstack([both[: table.rows], np.zeros((1, len(bins)), np.uint8)])
    held = both[table.rows :]
    is_outer = bool((table.train < 0).any() or (table.held < 0).any())
    has_missing = (both == 0).any(axis=0) | is_outer
    starts = [table.rows * k // table.parts for k in range(table.parts)]
    held_starts = [len(held) * k // table.parts for k in range(table.parts)]

    def book() -> KeyBook:
        return KeyBook(
            number,
            layout,
            has_missing,
            options.rules,
            limit=options.max_splits,
            reveals_columns=options.reveals_columns,
        )

    parts = []
    for k in range(table.parts):
        stop = [*starts, table.rows][k + 1]
        own_rows = np.vstack([train[starts[k] : stop], train[-1:]])
        own_held = held[held_starts[k] : [*held_starts, len(held)][k + 1]]
        parts.append(ClientHalf(book(), own_rows, own_held))
    return Block(bins, layout, train, held, book(), parts, starts, held_starts)


def _category_codes(values: NDArray[np.float64], bins: CategoryBins) -> NDArray[np.uint8]:
    names = {float(c): i + 1 for i, c in enumerate(bins.categories)}
    other = len(bins.categories) + 1 if bins.has_other else 255
    return np.array([0 if np.isnan(v) else names.get(v, other) for v in values], np.uint8)


def answer(block: Block, checks: list[Check]) -> Objections:
    """What a block's clients answer, sums over several of them added up first."""
    if len(block.parts) == 1:
        return block.parts[0].check(checks[0])
    for book in (block.book, *(half.book for half in block.parts)):
        book.add_unions(checks[0].unions)
    sums = [half.histograms(check) for half, check in zip(block.parts, checks, strict=True)]
    total = [np.sum(own, axis=0) for own in zip(*sums, strict=True)]
    per_node = [add_up(outline, own) for outline, own in zip(checks[0].trees, total, strict=True)]
    kept, fresh = block.book.add_new(block.book.objections(checks[0], count_from(block.book.columns, per_node)))
    for half in block.parts:
        for key in fresh:
            half.book.add(key, is_told=True)
    known = [block.book.reveal_as(key, _sides(block, key)) for key in fresh]
    return send_objections(block.book, kept, known)


def _sides(block: Block, key: Key) -> Codes:
    """Where rows go, or their bins, from what the block's parts tell."""
    rows, missed, held = [], None, []
    for half in block.parts:
        new, count = half.reveal(key), len(half.train) + len(half.held)
        own = new.codes(count) if isinstance(new, NewColumn) else np.unpackbits(new.right, count=count)
        size = len(half.train) - 1
        rows.append(own[:size])
        missed = own[size : size + 1]
        held.append(own[size + 1 :])
    assert missed is not None
    return np.concatenate([*rows, missed, *held])


def train(join: Join, options: Boosting, seed: int = 0) -> tuple[BoostingServer, list[Block], int]:
    """Trees over the join, and how many rounds they took."""
    blocks = [open_block(i, table, options) for i, table in enumerate(join.tables)]
    outputs = join.loss.outputs
    given: dict[str, Any] = {}
    if options.is_random:
        drawable = [Drawable(b.layout, book_of(b).has_missing, options.max_splits) for b in blocks]
        given = {"draws": Draws(drawable, options, seed, range(options.trees))}
    server = (DrawnServer if given else BoostingServer)(
        **given,
        options=options,
        loss=join.loss,
        labels=Labels(join.labels, None, join.weights),
        indices=[_index(t.train, t.rows) for t in join.tables],
        blocks=[
            KnownBlock(i, b.layout.kinds, t.rows, len(b.held), signs=t.signs)
            for i, (b, t) in enumerate(zip(blocks, join.tables, strict=True))
        ],
        starts=[b.starts for b in blocks],
        scores=np.zeros((len(join.labels), outputs), order="F"),
        held=[
            HeldRows(
                [_index(t.held, len(b.held)) for b, t in zip(blocks, join.tables, strict=True)],
                np.zeros((len(join.tables[0].held), outputs), order="F"),
            )
        ],
        seed=seed,
    )
    rounds = 0
    for number, block in enumerate(blocks if given else []):
        for half in (block.book, *(half.book for half in block.parts)):
            for key in given["draws"].keys[number]:
                half.add(key, is_told=True)
        server.blocks[number].learn(
            [block.book.reveal_as(key, _sides(block, key)) for key in given["draws"].keys[number]]
        )

    def ask(checks: list[list[Check]]) -> list[Objections]:
        nonlocal rounds
        rounds += 1
        return [
            answer(block, own) if own else send_objections(book_of(block), [], [])
            for block, own in zip(blocks, checks, strict=True)
        ]

    for _ in range(options.trees):
        server.grow(ask)
    for known, block in zip(server.blocks, blocks, strict=True):  # sets that were made after the last round
        book_of(block).add_unions(known.unions)
    return server, blocks, rounds


def book_of(block: Block) -> KeyBook:
    """What the keys of a block mean."""
    return block.parts[0].book if len(block.parts) == 1 else block.book


def _index(numbers: NDArray[np.int32], rows: int) -> BlockIndex:
    is_identity = len(numbers) == rows and bool((numbers == np.arange(rows)).all())
    is_sorted = bool((numbers >= 0).all() and (np.diff(numbers) >= 0).all())
    return BlockIndex.of(rows, None if is_identity else numbers, is_sorted=is_sorted)


def central(join: Join, blocks: list[Block], options: Boosting) -> Central:
    """The oracle on the same bins."""
    columns = [
        Column(
            i,
            f,
            block.train[table.train, f].astype(np.int64),
            block.layout.size(f),
            not hasattr(bins, "borders"),
            int(block.layout.signs[f]),
            getattr(bins, "sparsity", 0) == 2,
            getattr(bins, "further_of", -1) >= 0,
        )
        for i, (block, table) in enumerate(zip(blocks, join.tables, strict=True))
        for f, bins in enumerate(block.bins)
    ]
    scores = np.zeros((len(join.labels), join.loss.outputs), order="F")
    return Central(columns, options, join.loss, join.labels, join.weights, scores)


def splits_by_path(server: BoostingServer, blocks: list[Block]) -> list[list[dict[tuple[int, ...], Any]]]:
    """The trees as the oracle writes them."""
    found = []
    for group in server.trees:
        own = []
        for tree in group:
            paths: dict[int, tuple[int, ...]] = {0: ()}
            splits: dict[tuple[int, ...], Any] = {}
            for node, left in enumerate(tree.left):
                if left < 0:
                    continue
                paths[left], paths[left + 1] = (*paths[node], 0), (*paths[node], 1)
                block = blocks[tree.block[node]]
                key = book_of(block).keys[tree.key[node]]
                right = block.layout.right(key)[: block.layout.size(key.column)].astype(np.uint8)
                if block.layout.kinds[key.column] == 0:
                    right[0] = 1 - tree.to_left[node]
                splits[paths[node]] = (tree.block[node], key.column, right.tobytes(), tree.gain[node])
            own.append(splits)
        found.append(own)
    return found
