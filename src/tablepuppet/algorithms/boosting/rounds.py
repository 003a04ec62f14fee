"""Rounds of boosted trees: one block's clients as if they were one.

A block's only client finds its objections itself. Several clients send their histograms, which are summed (under masks,
if the block's sums are). The objections are then found here, and one more round asks for the bits of new keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import messages
from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.client import KeyBook, Objection, add_up, count_from, send_objections
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.plan import LeafPlan
from tablepuppet.algorithms.boosting.random_splits import Drawable
from tablepuppet.algorithms.boosting.tree_checks import Bins, Check, Codes, Key, NewColumn, NewKey, Objections
from tablepuppet.errors import TransportError
from tablepuppet.join.mapping import Part
from tablepuppet.protocol.base import Message
from tablepuppet.sources.binning import merged_bins, public_bins
from tablepuppet.training.server import UnionOperator, clients_of

_BITS = 1 << 29  # of an answer, that is 64 MB; more are sent in further rounds


@dataclass
class TreeRounds:
    """Speaks with the clients of every block about trees."""

    union: UnionOperator
    options: Boosting
    names: Sequence[str]
    is_outer: Sequence[bool]
    signs: Sequence[list[int]]
    before: messages.GrownTrees | None = None
    leaves: LeafPlan | None = None
    books: dict[int, KeyBook] = field(default_factory=dict)  # of blocks that several parts share
    drawable: list[Drawable] = field(default_factory=list)  # by block, where splits are drawn

    def start(self, outputs: int) -> tuple[list[NDArray[np.uint8]], list[list[NewKey]]]:
        """Bins at every part; the kinds of each block's columns, and the bits of splits of earlier trees."""
        shared = self._shared_bins()

        def start(part: Part) -> Message:
            return messages.StartTrees(
                job=self.union.job,
                part=part.number,
                algorithm=self.options,
                block=part.block,
                name=self.names[part.block],
                outputs=outputs,
                is_outer=self.is_outer[part.block],
                clients=len(self.union.blocks[part.block]),
                bins=shared.get(part.block),
                signs=self.signs[part.block],
                before=self._before(part.block),
                peers=self.union.peers(part),
            )

        started = self.union.ask(start, "setup")
        kinds, earlier = [], []
        for number, block in enumerate(self.union.blocks):
            answers = [cast("messages.TreesStarted", started[p.number][0]) for p in block]
            earlier.append(self._earlier(number, block, [a.right for a in answers]))
            kinds.append(answers[0].kinds if answers else np.zeros(0, np.uint8))
            if self.options.is_random:
                self.drawable.append(_drawable(answers, self.options))
            elif len(block) > 1:
                self.books[number] = self._book(number, shared[number], answers)
        return kinds, earlier

    def _before(self, block: int) -> list[messages.SplitRule] | str:
        """The splits of earlier trees, as a block's client needs them."""
        if self.before is None:
            return []
        own = self.before.blocks[block]
        return self.before.model if own.is_held else own.rules

    def _earlier(self, number: int, block: Sequence[Part], revealed: Sequence[list[NDArray[np.uint8]]]) -> list[NewKey]:
        """The bits of earlier splits, in order of the block's rows."""
        count = 0 if self.before is None or not block else self.before.blocks[number].splits
        if any(len(own) != count for own in revealed):
            raise TransportError(f"{clients_of(block)} do not answer every split of the model")
        every = [_join_codes(block, [NewKey(0, False, own[k]) for own in revealed]) for k in range(count)]
        return [NewKey(0, False, np.packbits(own)) for own in every]

    def tell(self, keys: Sequence[list[Key]]) -> list[list[NewKey | NewColumn]]:
        """The bits of keys that were drawn, by block: in one round, unless a message would be very large."""
        found: list[list[NewKey | NewColumn]] = [[] for _ in keys]
        while any(len(own) < len(wanted) for own, wanted in zip(found, keys, strict=True)):
            some = {}
            for number, (own, wanted) in enumerate(zip(found, keys, strict=True)):
                rows = max((p.rows + 1 + len(p.test_rows) for p in self.union.blocks[number]), default=1)
                some[number] = wanted[len(own) : len(own) + max(1, _BITS // rows)]
            for number, revealed in self._bits(some).items():
                found[number] += revealed
        return found

    def ask(self, checks: Sequence[Sequence[Check]]) -> list[Objections]:
        """One round of all blocks that are asked; and another if several clients of a block must reveal bits."""
        job = self.union.job
        asked = [
            (
                part,
                (messages.SumTrees if part.block in self.books else messages.CheckTrees)(
                    job=job, part=part.number, check=check
                ),
            )
            for block, own in zip(self.union.blocks, checks, strict=True)
            for part, check in zip(block if own else (), own, strict=True)
        ]
        answers = self.union.exchange(asked, "training")
        found: dict[int, Objections] = {}
        pending: dict[int, tuple[list[Objection], list[Key]]] = {}
        for number, block in enumerate(self.union.blocks):
            if not checks[number]:
                found[number] = send_objections(_NOBODY, [], [])
            elif number in self.books:
                pending[number] = self._objections(number, checks[number][0], [answers[p.number][0] for p in block])
            else:
                found[number] = cast("messages.TreeObjections", answers[block[0].number][0]).found
        bits = self._bits({number: keys for number, (_, keys) in pending.items()})
        for number, (kept, _) in pending.items():
            found[number] = send_objections(self.books[number], kept, bits[number])
        return [found[number] for number in range(len(self.union.blocks))]

    def _shared_bins(self) -> dict[int, list[Bins]]:
        """The bins that the parts of a block have in common, from sketches of their columns."""
        shared = [p for block in self.union.blocks if len(block) > 1 for p in block]
        given = [(p, messages.SketchFeatures(job=self.union.job, part=p.number)) for p in shared]
        answers = self.union.exchange(given, "setup")
        bins = {}
        for number, block in enumerate(self.union.blocks):
            if len(block) > 1:
                sketches = [cast("messages.FeatureSketches", answers[p.number][0]).columns for p in block]
                if len({len(s) for s in sketches}) > 1:
                    raise TransportError(f"{clients_of(block)} hold vectors of different lengths; make them equal")
                columns = list(zip(*sketches, strict=True))
                if self.leaves is None:
                    bins[number] = merged_bins(columns, self.options.bin_rules)
                else:
                    bins[number] = public_bins(columns, self.leaves.bounds[number], self.options.bins)
        return bins

    def _book(self, number: int, bins: Sequence[Bins], started: Sequence[messages.TreesStarted]) -> KeyBook:
        layout = Columns.of([b.kind for b in bins], [b.size for b in bins], self.signs[number])
        has_missing = np.any([s.has_missing for s in started], axis=0)
        limits = [s.limit for s in started if s.limit is not None]
        limit, reveals_columns = min(limits, default=None), all(s.reveals_columns for s in started)
        return KeyBook(number, layout, has_missing, self.options.rules, [], [], limit, reveals_columns)

    def _objections(self, number: int, check: Check, answers: Sequence[Message]) -> tuple[list[Objection], list[Key]]:
        book = self.books[number]
        book.add_unions(check.unions)
        sums = [cast("messages.TreeSums", a).values for a in answers]
        shapes = {tuple(v.shape for v in own) for own in sums}
        if len(shapes) > 1:
            raise TransportError(f"{clients_of(self.union.blocks[number])} answer with sums of different sizes")
        per_node = []
        for outline, own in zip(check.trees, zip(*sums, strict=True), strict=True):
            every = np.zeros((len(outline.left), *own[0].shape[1:]), np.int64)
            with np.errstate(over="ignore"):  # masks wrap around
                every[outline.left < 0] = np.sum(np.stack(own), axis=0)
            per_node.append(add_up(outline, every))
        return book.add_new(book.objections(check, count_from(book.columns, per_node)))

    def _reveal_as(self, number: int, key: Key, sides: Codes) -> NewKey | NewColumn:
        book = self.books.get(number)
        if book is not None:
            return book.reveal_as(key, sides)
        return NewKey(key.column, self.drawable[number].layout.is_missing(key), np.packbits(sides))

    def _bits(self, keys: dict[int, list[Key]]) -> dict[int, list[NewKey | NewColumn]]:
        """The bits of new keys that the server asks for, put together in order of the block's rows."""
        asked = [
            (p, messages.RevealKeys(job=self.union.job, part=p.number, keys=own))
            for number, own in keys.items()
            if own
            for p in self.union.blocks[number]
        ]
        answers = self.union.exchange(asked, "training")
        found = {}
        for number, own in keys.items():
            block = self.union.blocks[number]
            revealed = [cast("messages.RevealedKeys", answers[p.number][0]).keys for p in block] if own else []
            sides = [_join_codes(block, [keys_[k] for keys_ in revealed]) for k in range(len(own))]
            found[number] = [self._reveal_as(number, key, side) for key, side in zip(own, sides, strict=True)]
        return found


def _join_codes(block: Sequence[Part], revealed: Sequence[NewKey | NewColumn]) -> Codes:
    """The sides of a block's rows, from its parts' answers: training rows, the missed one, held-out rows."""
    train, held = [], []
    missed = np.zeros(1, np.uint8)
    for part, key in zip(block, revealed, strict=True):
        rows, others = part.rows, len(part.test_rows)
        count = rows + 1 + others
        sent = key.digits if isinstance(key, NewColumn) else key.right
        if sent.shape[-1] != (count + 7) // 8:
            raise TransportError(f"client {part.client} does not tell a bit for every row")
        own = key.codes(count) if isinstance(key, NewColumn) else np.unpackbits(key.right, count=count)
        train.append(own[:rows])
        missed = own[rows : rows + 1]
        held.append(own[rows + 1 :])
    return np.concatenate([*train, missed, *held])


def _drawable(answers: Sequence[messages.TreesStarted], options: Boosting) -> Drawable:
    """The data from which a block's keys are drawn; its clients have the same bins. Without a cap, all trees draw no
    more keys than owners reveal."""
    if not answers:
        return Drawable(Columns.of([], []), np.zeros(0, np.bool_))
    layout = Columns.of(answers[0].kinds.tolist(), answers[0].sizes.tolist())
    limits = [a.limit for a in answers if a.limit is not None]
    limits = limits if options.max_splits is not None else [n for n in limits if n < options.most_splits]
    return Drawable(layout, np.any([a.has_missing for a in answers], axis=0), min(limits, default=None))


_NOBODY = KeyBook(-1, Columns.of([], []), np.zeros(0, np.bool_), np.zeros(8))
