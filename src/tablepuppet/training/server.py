"""The paper's operators: the join (LoJ), and the union (LoU): one block's clients as if they were one.

Join: gather the blocks' predictions, compute over joined rows (expand, the algorithm's join step, collapse: its server
half), scatter the result. One outer round of Algorithm 1 (run.py).

Union. Outer loop: scatter the join operator's arrays to the clients that hold the rows, gather their predictions in row
order. Inner loop: while clients answer with partial results, sum them, apply the algorithm's union step to the sum, and
send the outcome to all. The blocks' inner loops run side by side, so that a round of all blocks is one round.

Where a block's sums are masked, only the sum can be read. All clients first agree on its scale: one that fits the
largest float and still resolves the smallest. All that the server learns of a single part is the power of two above its
largest entry.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tablepuppet.algorithms.base import BlockAnswer, BlockUpdate
from tablepuppet.algorithms.shape import POWER_ROUNDS
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import PrivacyError, TransportError
from tablepuppet.exchanges.start import MultiplyGram
from tablepuppet.exchanges.steps import Seal
from tablepuppet.join.mapping import Part, TableMapping
from tablepuppet.privacy.masks import LARGEST, MaskKey, from_integers
from tablepuppet.privacy.options import Privacy
from tablepuppet.protocol.base import Combined, Masked, Message, Partial, Predictions
from tablepuppet.transport.link import Link
from tablepuppet.transport.meter import Phase

_MARGIN = 4  # doublings that a scale leaves for the next sum
_SLACK = 12  # bits of 59 or so that a sum may leave unused


def wanted_scales(answers: Sequence[Masked]) -> list[int]:
    """E of each array, for the sum to fit this time and most likely the next; none where nothing is masked."""
    found = [a.exponents for a in answers]
    if len({len(e) for e in found}) > 1:
        raise TransportError("the clients of one table do not answer alike")
    return [min(max(column) + _MARGIN, LARGEST) for column in zip(*found, strict=True)]


def is_settled(answers: Sequence[Any]) -> bool:
    """Whether the answers of a block can be summed: all at one scale, which is neither too small nor too coarse."""
    masked = [a for a in answers if isinstance(a, Masked)]
    if not masked or len(masked) < len(answers):
        return True  # predictions, plain summands, or a run that diverges
    wanted = wanted_scales(masked)
    scales = masked[0].scales
    if any(a.scales != scales for a in masked) or len(scales) != len(wanted):
        return False
    return all(scale - want + _MARGIN <= _SLACK for scale, want in zip(scales, wanted, strict=True))


def sum_parts(answers: Sequence[Any]) -> list[Array]:
    """Σ over the parts of a block, in their order."""
    if all(isinstance(a, Masked) for a in answers):
        return _unmask(answers)
    if any(isinstance(a, Masked) for a in answers):  # the others have no finite number to mask, nor has the sum
        return next([np.full_like(v, np.nan) for v in a.values] for a in answers if isinstance(a, Partial))
    shapes = [[v.shape for v in a.values] if isinstance(a, Partial) else None for a in answers]
    if any(own is None or own != shapes[0] for own in shapes):
        raise TransportError("the clients of one table do not answer alike")
    total = [v.copy() for v in answers[0].values]
    for other in answers[1:]:
        for t, v in zip(total, other.values, strict=True):
            t += v
    return total


def _unmask(answers: Sequence[Masked]) -> list[Array]:
    """The masks cancel, which leaves the sum of the integers."""
    first = answers[0]
    shapes = [v.shape for v in first.values]
    if len(shapes) != len(first.kinds) or any(
        [v.shape for v in a.values] != shapes or a.scales != first.scales for a in answers
    ):
        raise TransportError("the clients of one table do not answer alike")
    totals = []
    for place, (scale, kind) in enumerate(zip(first.scales, first.kinds, strict=True)):
        total = first.values[place].view(np.uint64).copy()
        for other in answers[1:]:
            total += other.values[place].view(np.uint64)
        totals.append(from_integers(total.view(np.int64), scale, len(answers)).astype(kind))
    return totals


UnionStep = Callable[[int, list[Array]], list[Array]]


class UnionOperator:
    """Speaks with the clients of every block."""

    def __init__(
        self, link: Link, job: str, mapping: TableMapping, outputs: int | Sequence[int], privacy: Privacy | None = None
    ) -> None:
        self.link = link
        self.job = job
        self.blocks = [mapping.parts_of(i) for i in range(len(mapping.bound.blocks))]
        self.outputs = [outputs] * len(self.blocks) if isinstance(outputs, int) else list(outputs)  # of each block
        masks = (lambda clients: False) if privacy is None else privacy.masks
        self.is_masked = [masks(len({p.client for p in block})) for block in self.blocks]
        self.keys: dict[int, MaskKey] = {}  # of the parts of masked blocks

    @property
    def parts(self) -> list[Part]:
        return [part for block in self.blocks for part in block]

    def ask(self, message: Callable[[Part], Message | Sequence[Message]], phase: Phase) -> dict[int, list[Any]]:
        """One round: a message (or several) to every part; answers by part number."""
        return self.exchange([(part, message(part)) for part in self.parts], phase)

    def run(self, updates: Sequence[BlockUpdate | None], union_step: UnionStep) -> list[BlockAnswer]:
        """One outer round: scatter, inner rounds where clients must agree, gather; None: a block is not asked."""
        asked = [(b, k, u) for b, k, u in zip(self.blocks, self.outputs, updates, strict=True) if u is not None]
        scattered = [(part, self._cut(part, update)) for block, _, update in asked for part in block]
        pending = self.exchange(scattered, "training")
        answers: dict[int, list[Any]] = {}
        while pending:
            answers |= {n: a for n, a in pending.items() if isinstance(a[0], Predictions)}
            if answers.keys() >= pending.keys():
                break
            requests: list[tuple[Part, Message]] = []
            pending = self._settle(pending, "training")
            for number, block in enumerate(self.blocks):
                answered = [pending[p.number][0] for p in block if p.number in pending]
                if not any(isinstance(a, Partial | Masked) for a in answered):
                    continue
                with _naming(block):
                    total = sum_parts(answered)
                    scales = wanted_scales([a for a in answered if isinstance(a, Masked)])
                values = union_step(number, total)
                requests += [(p, Combined(job=self.job, part=p.number, values=values, scales=scales)) for p in block]
            pending = self.exchange(requests, "training")
        return [self._gather(block, width, answers) for block, width, _ in asked]

    def keep_keys(self, opened: dict[int, list[Any]]) -> None:
        """The keys that the parts of masked blocks offered; every one of them must have."""
        for part in self.parts:
            if not self.is_masked[part.block]:
                continue
            key = opened[part.number][0].key
            if key is None:
                raise PrivacyError(
                    f"client {part.client} shares no secret with the other clients, without which sums over "
                    "them cannot be masked; give every client the same secret file (`tablepuppet certs secret` makes "
                    "one), or train with privacy = {secure_aggregation = false}"
                )
            if (key.client, key.part) != (part.client, part.number):
                raise TransportError(
                    f"client {part.client} offers a key for masks in another's name; ask its owner, and until then "
                    "leave its tables out"
                )
            self.keys[part.number] = key

    def peers(self, part: Part) -> list[MaskKey]:
        """The keys of all parts of a masked block."""
        return [self.keys[p.number] for p in self.blocks[part.block] if p.number in self.keys]

    def masked_sums(self, message: Callable[[Part], Message]) -> dict[int, list[Array]]:
        """By masked block: the sum of its clients' answers."""
        masked = [number for number, is_masked in enumerate(self.is_masked) if is_masked]
        answers = self.exchange([(p, message(p)) for number in masked for p in self.blocks[number]], "setup")
        answers = self._settle(answers, "setup")
        found = {}
        for number in masked:
            with _naming(self.blocks[number]):
                found[number] = sum_parts([answers[p.number][0] for p in self.blocks[number]])
        return found

    def largest_curvatures(self, widths: Sequence[int]) -> list[float]:
        """The largest eigenvalue of each block's T_iᵀ diag(G_i) T_i, by power iteration over its clients.

        Sums over clients make it the same however the block is split.
        """
        vectors = [np.ones((width, 1)) for width in widths]
        lengths = [0.0] * len(widths)
        for _ in range(POWER_ROUNDS):
            units = [v / max(float(np.linalg.norm(v)), 1e-300) for v in vectors]
            requests = [
                (part, MultiplyGram(job=self.job, part=part.number, vector=units[part.block])) for part in self.parts
            ]
            answers = self._settle(self.exchange(requests, "setup"), "setup")
            vectors = [
                sum_parts([answers[p.number][0] for p in b])[0] if b else v
                for b, v in zip(self.blocks, units, strict=True)
            ]
            lengths = [float(np.linalg.norm(v)) for v in vectors]
        return lengths

    def _settle(self, answers: dict[int, list[Any]], phase: Phase) -> dict[int, list[Any]]:
        """The answers, those of masked blocks at one scale: asked for once more where they were not."""
        again: list[tuple[Part, Message]] = []
        for block in self.blocks:
            answered = [answers[p.number][0] for p in block if p.number in answers]
            with _naming(block):
                scales = None if is_settled(answered) else wanted_scales(answered)
            if scales is not None:
                again += [(p, Seal(job=self.job, part=p.number, scales=scales)) for p in block]
        return answers | self.exchange(again, phase)

    def _cut(self, part: Part, update: BlockUpdate) -> Message:
        """The block's arrays, cut to one client's rows."""
        inside = part.train if update.rows is None else _within(update.rows, part.train)
        arrays: dict[str, Any] = {name: None if v is None else v[inside] for name, v in update.per_row.items()}
        if update.wants_rows:
            wanted = update.next_rows
            own = None if wanted is None else wanted[_within(wanted, part.train)]
            first = part.train.start
            arrays["next_rows"] = own if own is None or not first else own - own.dtype.type(first)
        return update.kind(job=self.job, part=part.number, **arrays, **update.common)

    def _gather(self, block: Sequence[Part], width: int, answers: dict[int, list[Any]]) -> BlockAnswer:
        received: list[Predictions] = [answers[p.number][0] for p in block]
        if not received:
            return BlockAnswer(np.zeros((0, width)), np.zeros(0))
        values = received[0].values if len(received) == 1 else np.concatenate([r.values for r in received])
        return BlockAnswer(values.astype(np.float64, copy=False), received[0].products, block[0].client)

    def exchange(
        self, requests: Sequence[tuple[Part, Message | Sequence[Message]]], phase: Phase
    ) -> dict[int, list[Any]]:
        if not requests:
            return {}
        several = [(part, [given] if isinstance(given, Message) else given) for part, given in requests]
        sent = [(part, message) for part, messages in several for message in messages]
        answers: dict[int, list[Any]] = {}
        received = self.link.ask_each([(part.client, message) for part, message in sent], phase)
        for (part, _), answer in zip(sent, received, strict=True):
            answers.setdefault(part.number, []).append(answer)
        return answers


def clients_of(parts: Sequence[Part]) -> str:
    names = sorted({part.client for part in parts})
    return f"client {names[0]}" if len(names) == 1 else f"clients {', '.join(names)}"


@contextmanager
def _naming(parts: Sequence[Part]) -> Iterator[None]:
    """Adds the clients' names to an error in the joint answers of some parts."""
    try:
        yield
    except TransportError as error:
        raise TransportError(f"{clients_of(parts)}: {error}; one of them does not tell the truth") from None


def _within(rows: RowNumbers, inside: slice) -> slice:
    """Where the (ascending) row numbers of a part lie in a list of rows."""
    if not len(rows) or (inside.start <= rows[0] and rows[-1] < inside.stop):
        return slice(0, len(rows))
    return slice(*np.searchsorted(rows, [inside.start, inside.stop]).tolist())
