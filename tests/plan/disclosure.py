"""The disclosures of a run and their counts, predicted from messages' declarations (protocol/): the meter's oracle.

In: a plan, and how many epochs its run had. Out: the same account that the meter counts (transport/meter.py), entry by
entry: numbers of each row, or times where a disclosure is not by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.plan import earlier_splits
from tablepuppet.algorithms.boosting.random_splits import Drawable, Draws
from tablepuppet.algorithms.boosting.tree_checks import NUMBER
from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.algorithms.shape import Exchanges, Shape
from tablepuppet.job import Job
from tablepuppet.join.groups import MergedGroups
from tablepuppet.join.mapping import MappingSummary, PartSummary
from tablepuppet.plan.knowledge import exchanges_of, held_blocks
from tablepuppet.plan.plan import Plan
from tablepuppet.privacy.options import KeyMode
from tablepuppet.sql.bound import key_domains
from tablepuppet.transport.meter import DisclosureKey


def expect_disclosures(plan: Plan, epochs: int | None = None) -> dict[DisclosureKey, int]:
    """The disclosures of a run of `epochs` epochs (the job's unless given) to each party, as the meter counts them.

    Checks and splits of boosted trees depend on the data: these are upper bounds.
    """
    if isinstance(plan.job.options, Boosting):
        return _expect_of_trees(plan.mapping, plan.shape, plan.job, plan.job.options)
    return _expect_of_sums(plan, epochs or plan.job.epochs)


class _Account:
    """Disclosures under construction."""

    def __init__(self) -> None:
        self.told: dict[DisclosureKey, int] = {}

    def server(self, client: str, subject: str, **numbers: int) -> None:
        self._add(client, subject, "server", numbers)

    def client(self, client: str, subject: str, **numbers: int) -> None:
        self._add(client, subject, "client", numbers)

    def _add(self, client: str, subject: str, to: Any, numbers: dict[str, int]) -> None:
        for name, count in numbers.items():
            if count:
                what = {"held_out_predictions": "held-out predictions"}.get(name, name.replace("_", " "))
                told = DisclosureKey(client, subject, what, to)
                self.told[told] = self.told.get(told, 0) + count


def _expect_setup(mapping: MappingSummary, keys: KeyMode) -> dict[DisclosureKey, int]:
    """Row counts, keys and labels: a job of any kind begins with them."""
    account, bound = _Account(), mapping.bound
    if keys == "dh":
        owners: dict[int, set[str]] = {}
        for (holder, _), domain in key_domains(bound).items():
            owners.setdefault(domain, set()).update(bound.scans[holder].clients)
        for clients in owners.values():
            for client in clients if len(clients) > 1 else ():
                account.client(client, "", blinded_keys=len(clients) - 1)
                account.server(client, "", key_tokens=len(clients) - 1)
    for number, scan in enumerate(bound.scans):
        for client in scan.clients:
            order = int(len(scan.clients) > 1)
            account.server(client, f"scan {number}", row_count=1, key_tokens=1, row_order=order)
            account.server(client, f"scan {number}", cutoff_count=len(bound.moment_uses.get(number, ())))
            account.client(client, f"scan {number}", cutoffs=int(number in bound.moments))
            merged = mapping.merged[number] if mapping.merged else None
            if merged is not None:
                _of_groups(account, client, number, merged, has_extremes=scan.merges == "extremes")
    for place in dict.fromkeys(branch.label_place for branch in bound.branches):
        for client in bound.scans[place.scan].clients:
            subject = f"scan {place.scan}"
            account.server(client, subject, label_classes=1, labels=1, split=1, weights=int(place.weight >= 0))
            account.client(
                client, subject, label_classes=int(mapping.label.kind == "class" and not mapping.label.negatives)
            )
    return account.told


def _of_groups(account: _Account, client: str, scan: int, merged: MergedGroups, *, has_extremes: bool) -> None:
    held, subject = int(merged.held[client] > 0), f"scan {scan}"
    sent = int(merged.shared > merged.held[client])
    account.server(client, subject, group_tokens=1, magnitudes=int(merged.has_floats))
    account.server(client, subject, masked_group_sums=sent, masked_group_extremes=sent * has_extremes)
    account.client(client, subject, shared_groups=int(merged.shared > 0))
    account.client(client, subject, group_sums=held, group_extremes=held * has_extremes)


def _expect_statistics(mapping: MappingSummary, shape: Shape) -> dict[DisclosureKey, int]:
    """The statistics for encoders."""
    account = _Account()
    for part in mapping.parts:
        block, subject = shape.blocks[part.block], f"part {part.number}"
        account.client(part.client, subject, multiplicities=1)
        if block.is_masked:
            account.server(part.client, subject, category_names=1, sums=1 + (block.numbers > 0))
            account.client(part.client, subject, category_names=2)
        else:
            account.server(part.client, subject, statistics=1)
    return account.told


def _expect_of_sums(plan: Plan, epochs: int) -> dict[DisclosureKey, int]:
    """All disclosures of a training run of so many epochs, from its first key to its last parameter."""
    mapping, shape, job = plan.mapping, plan.shape, plan.job
    account = _Account()
    account.told = _expect_setup(mapping, job.privacy.keys) | _expect_statistics(mapping, shape)
    asked = exchanges_of(job.replace(epochs=epochs), mapping.train_rows)
    held = held_blocks(job, mapping, plan.ids)
    for part in mapping.parts:
        account.client(part.client, f"part {part.number}", encoders=1)
        if asked.is_pooled:
            features = 2 * shape.blocks[part.block].width
            account.server(part.client, f"part {part.number}", features=features)
        else:
            _of_part(account, part, plan, asked, is_held=held[part.block])
    return account.told


def _of_part(account: _Account, part: PartSummary, plan: Plan, asked: Exchanges, *, is_held: bool) -> None:
    shape, job = plan.shape, plan.job
    block, subject = shape.blocks[part.block], f"part {part.number}"
    outputs = block.outputs
    algorithm = algorithm_of(job.options)
    kind, steps = algorithm.figures, asked.steps
    curvatures = 0
    if algorithm.takes_turns:
        curvatures = steps * outputs * (outputs + 1) // 2
    elif algorithm.requires_curvature and shape.curvature_varies:  # newton's follows from slopes, of rows joined once
        follows = algorithm.takes_trees and shape.slopes_tell_curvature and block.is_identity
        curvatures = 0 if follows else steps
    inner = steps * asked.inner if block.is_split else 0
    is_summed = (
        algorithm.figures_by(job.options, is_linear=shape.is_linear) == "summed" and job.privacy.features is None
    )
    figure = int(is_summed and block.is_masked)
    account.client(
        part.client,
        subject,
        summed_weights=int(job.data.has_weights),
        signals=steps * outputs,
        curvatures=curvatures,
        agreed_values=inner,
    )
    account.server(
        part.client,
        subject,
        figure=int(bool(kind.__struct_fields__) and (kind.is_public or not block.is_masked)),
        sums=inner + figure + asked.power_rounds,
        predictions=asked.train_showings * outputs,
        held_out_predictions=asked.evaluations * outputs,
        norms=steps + asked.has_opening + asked.evaluations,
        parameters=int(not is_held),
    )


def _expect_of_trees(mapping: MappingSummary, shape: Shape, job: Job, options: Boosting) -> dict[DisclosureKey, int]:
    """A run's disclosures by recipient, from its first key to the last split; checks and splits are upper bounds."""
    account, held = _Account(), held_blocks(job, mapping)
    account.told = _expect_setup(mapping, job.privacy.keys)
    told = _count_drawn_splits(shape, job, options)
    for part in mapping.parts:
        block, subject = shape.blocks[part.block], f"part {part.number}"
        shared = int(block.is_split)
        checks = 0 if options.is_random else options.most_checks
        account.client(part.client, subject, multiplicities=1, node_sums=checks)
        account.server(
            part.client,
            subject,
            sketches=shared,
            figure=3 if options.is_random else 1 + shared,
            sums=checks * shared,
            splits=(options.most_splits if told is None else told[part.block]) + earlier_splits(job, part.block),
            parameters=int(not held[part.block]),
        )
    return account.told


def _count_drawn_splits(shape: Shape, job: Job, options: Boosting) -> list[int] | None:
    """By block: how many splits are revealed, if borders are public and no column is text. Else None: the number
    depends on the data, or on names."""
    if job.privacy.features is None or any(block.strings for block in shape.blocks):
        return None
    blocks = []
    for block in shape.blocks:
        layout = Columns.of([NUMBER] * block.numbers, [options.bins + 1] * block.numbers)
        blocks.append(Drawable(layout, np.ones(block.numbers, np.bool_), options.max_splits))
    return [len(keys) for keys in Draws(blocks, options, job.seed, range(options.trees)).keys]
