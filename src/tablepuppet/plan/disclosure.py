"""The disclosures of a run and their counts, predicted from messages' declarations (protocol/) before one is sent.

In: a mapping's sizes, a job and how often its algorithm asks (algorithms/shape.py). Out: the same account that the
meter counts (transport/meter.py), entry by entry: numbers of each row, or times where a disclosure is not by row.
Explain, the refusal rule and the report read it.

Custody: either the result or the block's owner alone keeps a block's trained parameters. In the second case the owner
can only train where the server never sees them (PolicyError otherwise).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.algorithms.shape import Exchanges, RunShape, Shape
from tablepuppet.errors import PolicyError
from tablepuppet.job import Job
from tablepuppet.join.groups import MergedGroups
from tablepuppet.join.keys import key_domains
from tablepuppet.join.mapping import MappingSummary, PartSummary
from tablepuppet.models.losses import Loss
from tablepuppet.privacy.options import KeyMode
from tablepuppet.transport.meter import DisclosureKey

if TYPE_CHECKING:
    from tablepuppet.plan.plan import Plan

Ids = tuple[tuple[str, ...], ...]  # for each block and feature: "", or where its ids are known, "here" or by "tokens"


def held_blocks(job: Job, mapping: MappingSummary, ids: Ids = ()) -> tuple[bool, ...]:
    """Whether each block's parameters stay with its owners, as do those of ids that only one owner knows."""
    blocks = range(len(mapping.bound.blocks))
    has_ids = ["here" in places for places in ids] or [False] * len(blocks)
    return tuple(not job.release or bool(_withholding(mapping, block)) or has_ids[block] for block in blocks)


def check_custody(job: Job, mapping: MappingSummary) -> None:
    """Refuses algorithms that would show the server parameters that an owner's policy keeps."""
    for number, block in enumerate(mapping.bound.blocks):
        keepers = _withholding(mapping, number)
        if keepers and algorithm_of(job.options).is_pooled:
            raise _refusal(keepers[0], f'algorithm="{job.algorithm}" fits them at the server; use another algorithm')
        if keepers and len(mapping.parts_of(number)) > 1:
            raise _refusal(
                keepers[0],
                f"table {block.table} has several owners, who agree on them through the server; "
                "give the table one owner, or ask this one to release them",
            )


def _withholding(mapping: MappingSummary, block: int) -> list[str]:
    """The clients of a block whose policy keeps the parameters."""
    scans = mapping.bound.scans
    return [part.client for part in mapping.parts_of(block) if part.client in scans[part.scan].withholding]


def _refusal(client: str, why: str) -> PolicyError:
    return PolicyError(
        f"client {client}: its policy refuses the request: trained parameters do not leave this owner, and {why} "
        "(rule release_parameters)"
    )


def exchanges_of(job: Job, loss: Loss, rows: int, epochs: int | None = None) -> Exchanges:
    """The exchanges of a job's algorithm with each part."""
    run = RunShape(
        epochs=job.epochs if epochs is None else epochs,
        rows=rows,
        batch_size=job.batch(rows),
        is_linear=job.model.spec.is_linear,
        is_private=job.privacy.features is not None,
        curvature_varies=not loss.is_quadratic and loss.outputs == 1,
        has_head=not job.model.is_sum,
    )
    return algorithm_of(job.options).exchanges(job.options, run)


class Account:
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


def setup_disclosures(mapping: MappingSummary, keys: KeyMode) -> dict[DisclosureKey, int]:
    """Row counts, keys and labels: a job of any kind begins with them."""
    account, bound = Account(), mapping.bound
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


def _of_groups(account: Account, client: str, scan: int, merged: MergedGroups, *, has_extremes: bool) -> None:
    held, subject = int(merged.held[client] > 0), f"scan {scan}"
    sent = int(merged.shared > merged.held[client])
    account.server(client, subject, group_tokens=1, magnitudes=int(merged.has_floats))
    account.server(client, subject, masked_group_sums=sent, masked_group_extremes=sent * has_extremes)
    account.client(client, subject, shared_groups=int(merged.shared > 0))
    account.client(client, subject, group_sums=held, group_extremes=held * has_extremes)


def statistics_disclosures(mapping: MappingSummary, shape: Shape) -> dict[DisclosureKey, int]:
    """The statistics for encoders."""
    account = Account()
    for part in mapping.parts:
        block, subject = shape.blocks[part.block], f"part {part.number}"
        account.client(part.client, subject, multiplicities=1)
        if block.is_masked:
            account.server(part.client, subject, category_names=1, sums=1 + (block.numbers > 0))
            account.client(part.client, subject, category_names=2)
        else:
            account.server(part.client, subject, statistics=1)
    return account.told


def training_disclosures(plan: Plan, epochs: int) -> dict[DisclosureKey, int]:
    """All disclosures of a training run of so many epochs, from its first key to its last parameter."""
    mapping, shape, job = plan.mapping, plan.shape, plan.job
    account = Account()
    account.told = setup_disclosures(mapping, job.privacy.keys) | statistics_disclosures(mapping, shape)
    asked = exchanges_of(job, plan.loss, mapping.train_rows, epochs)
    held = held_blocks(job, mapping, plan.ids)
    for part in mapping.parts:
        account.client(part.client, f"part {part.number}", encoders=1)
        if asked.is_pooled:
            features = 2 * shape.blocks[part.block].width
            account.server(part.client, f"part {part.number}", features=features)
        else:
            _of_part(account, part, plan, asked, is_held=held[part.block])
    return account.told


def _of_part(account: Account, part: PartSummary, plan: Plan, asked: Exchanges, *, is_held: bool) -> None:
    shape, job = plan.shape, plan.job
    block, subject = shape.blocks[part.block], f"part {part.number}"
    outputs = block.outputs
    algorithm = algorithm_of(job.options)
    declared = algorithm.disclosure(shape, job.options, block, 1)
    kind, steps = algorithm.figures, asked.steps
    curvature = outputs * (outputs + 1) // 2 if asked.curvature_is_full else int(not declared.curvature_follows)
    inner = steps * asked.inner if block.is_split else 0
    figure = int(asked.sums_figure and block.is_masked)
    account.client(
        part.client,
        subject,
        summed_weights=int(job.data.has_weights),
        signals=steps * outputs,
        curvatures=steps * asked.sends_curvature * curvature,
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
