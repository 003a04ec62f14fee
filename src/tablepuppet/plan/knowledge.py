"""Who will learn what from a job, and how often: docs/privacy.md for the job at hand.

In: a table mapping, its Shape and the job. Out: one Insight per party, and the Exposure of each block. A prediction h
of a row is one equation in the row's d columns, so d of them reveal the row.

Custody: either the result or the block's owner alone keeps a block's trained parameters. In the second case the owner
can only train where the server never sees them (PolicyError otherwise).
"""

import re
from collections.abc import Sequence

import msgspec

from tablepuppet.algorithms.registry import algorithm_of, own_model
from tablepuppet.algorithms.shape import BlockShape, Exchanges, RunShape, Shape
from tablepuppet.errors import PolicyError, PrivacyError
from tablepuppet.formatting import plural
from tablepuppet.job import Job
from tablepuppet.join.groups import MergedGroups
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.privacy.options import KeyMode
from tablepuppet.sources.columns import STRING_KINDS
from tablepuppet.sources.history_queries import name_for_people
from tablepuppet.sql.bound import Scan

Ids = tuple[tuple[str, ...], ...]  # for each block and feature: "", or where its ids are known, "here" or by "tokens"
_QUOTED = re.compile(r'"(\w+)"')  # a quoted name that needs no quotes
_NAMED = 6  # features of a block that are listed by name


class Insight(msgspec.Struct, frozen=True):
    party: str
    learns: tuple[str, ...]


class Exposure(msgspec.Struct, frozen=True):
    """How many numbers the server may see that depend on one row, against the row's columns."""

    block: str
    numbers: int
    width: int

    @property
    def reconstructs(self) -> bool:
        return self.numbers >= self.width


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
    scans = mapping.bound.scans
    return [part.client for part in mapping.parts_of(block) if part.client in scans[part.scan].withholding]


def _refusal(client: str, why: str) -> PolicyError:
    return PolicyError(
        f"client {client}: its policy refuses the request: trained parameters do not leave this owner, and {why} "
        "(rule release_parameters)"
    )


def exchanges_of(job: Job, rows: int) -> Exchanges:
    """The exchanges of a job's algorithm with each part."""
    run = RunShape(
        epochs=job.epochs,
        rows=rows,
        batch_size=job.batch(rows),
        is_linear=job.model.spec.is_linear,
        is_private=job.privacy.features is not None,
        has_head=not job.model.is_sum,
    )
    return algorithm_of(job.options).exchanges(job.options, run)


def exposures(shape: Shape, job: Job) -> list[Exposure]:
    """Per block: the exact numbers that the server may see of its most exposed row, evaluation included, against d.

    Under sgd a row is asked for in every batch that contains one of its joined rows. A row that is held out in some of
    its joined rows is predicted with those too.
    """
    asked = exchanges_of(job, shape.joined)
    if asked.is_pooled:
        return [Exposure(block.name, block.width, block.width) for block in shape.blocks]
    found = []
    for block in shape.blocks:
        in_training, held_out = asked.row_showings(block.most), asked.evaluations
        is_in_both = any(part.is_in_both for part in block.parts)
        showings = in_training + held_out if is_in_both else max(in_training, held_out)
        found.append(Exposure(block.name, block.outputs * showings, block.width))
    return found


_TOO_MUCH = (
    "see {numbers:,} exact predictions of a row that has {width:,} encoded features, enough to reconstruct it, "
    'whatever noise the model carries. Take fewer rounds, use predictions = {{mode = "local", …}}, or trust the server '
    "with it"
)


def check_exposure(found: Sequence[Exposure], job: Job) -> None:
    """Refuses a private job that lets the server reconstruct rows, unless the job allows it."""
    privacy, own = job.privacy, own_model(job.model.spec)
    if privacy.features is None or privacy.predictions.mode == "local" or privacy.allow_reconstruction:
        return
    for block in found:
        if block.reconstructs:
            seen = (_TOO_MUCH if own is None else own.too_much).format(numbers=block.numbers, width=block.width)
            raise PrivacyError(f"block {block.block}: the server would {seen}: allow_reconstruction = true")


def common_insights(mapping: MappingSummary, job: Job) -> list[str]:
    """The server's knowledge before any algorithm begins: keys, labels, weights."""
    rows, noise = plural(mapping.seen_rows, "joined row"), job.privacy.label
    noised = "" if noise is None else f", noised by its owner (ε = {noise.epsilon:g} a row)"
    server = [_about_keys(mapping, job.privacy.keys), f"the label {mapping.bound.label} of {rows}{noised}"]
    server += [
        f"tokens of the groups of {scan.table}: which of them ({merged.shared:,}) several of its {len(scan.clients)} "
        "clients have; their figures pass it under masks that only a group's holder can take off"
        for scan, merged in merged_scans(mapping)
    ]
    if job.data.weight is not None:
        server.append(f"the sample weight {job.data.weight} of {rows}")
    split = [name for name in (job.split.test_where, job.split.validation_where) if name is not None]
    if split:
        server.append(f"for which label rows {' and '.join(split)} hold{'s' * (len(split) == 1)}")
    return server


def merged_scans(mapping: MappingSummary) -> list[tuple[Scan, MergedGroups]]:
    pairs = zip(mapping.bound.scans, mapping.merged, strict=False)
    return [(scan, merged) for scan, merged in pairs if merged is not None and merged.shared]


def merging_insights(mapping: MappingSummary) -> list[Insight]:
    """Insights of clients into each other where their groups are merged."""
    found = []
    for scan, merged in merged_scans(mapping):
        for client, held in merged.held.items():
            others = [name for name in scan.clients if name != client]
            whose = f"those of {others[0]} itself" if len(others) == 1 else f"their sums over {', '.join(others)}"
            extremes = ", and the least and greatest values of each" if scan.merges == "extremes" else ""
            learns = [f"which of its groups of {scan.table} others have too, and who holds them"]
            if held:
                learns.append(f"of {plural(held, 'group')} that it holds, the figures of others: {whose}{extremes}")
            found.append(Insight(f"client {client} (groups of {scan.table})", tuple(learns)))
    return found


def insights(mapping: MappingSummary, shape: Shape, job: Job, ids: Ids = ()) -> list[Insight]:
    """Who learns what, party by party."""
    asked = exchanges_of(job, shape.joined)
    algorithm = algorithm_of(job.options)
    sums = "the gradient and second moments" if job.options.sends_second_moments else algorithm.sums
    is_pooled = asked.is_pooled
    server = common_insights(mapping, job)
    server += [_about_features(mapping, block, job, ids) for block in shape.blocks if block.features]
    if is_pooled:
        server.append("every encoded feature of every row: the baseline pools them, in this process")
    else:
        noise = " (clipped and noised by its owner)" if job.privacy.predictions.mode == "local" else ""
        rounds = plural(max(asked.row_showings(block.most) for block in shape.blocks), "time")
        server.append(f"one prediction per train row and output{noise}, up to {rounds}")
        evaluated = plural(asked.evaluations, "time")
        server.append(f"one prediction per held-out row and output{noise}, up to {evaluated}")
        server += [
            f"{_whose(block)}, in every round: {sums} over {plural(block.width, 'column')}"
            for block in shape.blocks
            if block.is_split
        ]
    found = [Insight("server", tuple(server))]
    held = held_blocks(job, mapping, ids)
    for block, is_held in zip(shape.blocks, held, strict=True):
        learns = [f"which of its rows take part, and in how many joined rows (up to {block.most:,})"]
        if block.is_split and block.features:
            agreed = _statistics(mapping, block, job, ids, has_counts=False)
            learns.append(f"over all clients of {block.name}: {agreed}")
        if not is_pooled:
            if job.data.has_weights:
                learns.append("the weights of those joined rows, summed for each of its rows")
            slopes = plural(asked.row_steps(block.most), "time")
            learns.append(
                f"the derivative of the loss at each of its rows, up to {slopes}{_first_slopes(mapping, block, job)}"
            )
            shared = ", shared by its clients" if block.is_split else ""
            learns.append(f"the weights of {block.name}{shared}" + (", which stay there" if is_held else ""))
        found.append(Insight(owners_of(block), tuple(learns)))
    kept = [block.name for block, is_held in zip(shape.blocks, held, strict=True) if is_held]
    but = f", without the weights of {', '.join(kept)}" if kept else ""
    return [*found, *merging_insights(mapping), Insight("anyone else", (f"the model, if it is released{but}",))]


def _first_slopes(mapping: MappingSummary, block: BlockShape, job: Job) -> str:
    """How the first slopes reveal labels to clients without them: at equal predictions they differ by the label."""
    bound = mapping.bound
    holders = [set(bound.scans[branch.label_place.scan].clients) for branch in bound.branches]
    if all({part.client for part in block.parts} <= found and len(found) == 1 for found in holders):
        return ""
    noisy = "" if job.privacy.label is None else "noisy "
    return (
        f"; the first ones reveal the {noisy}label {bound.label} of each row that is joined once, and sums of "
        f"{noisy}labels of the others"
    )


def _about_keys(mapping: MappingSummary, mode: KeyMode) -> str:
    keys = ", ".join(sorted(_key_names(mapping)))
    if not keys:
        return "how many rows each table has"
    kept = {
        "hmac": f"tokens of {keys}: which rows match and how often, but no value; a client that leaks the "
        "clients' key reveals every value that can be guessed",
        "dh": f"tokens of {keys}, blinded by every client that has such keys: which rows match and how often, but no "
        "value; a client that leaks its secrets reveals its own keys and those that match them, and no others",
        "sha256": f"hashes of {keys}: which rows match, and by enumeration every value that can be guessed",
        "plain": f"the join keys {keys} as they are",
    }
    return kept[mode]


def _about_features(mapping: MappingSummary, block: BlockShape, job: Job, ids: Ids) -> str:
    """The server's knowledge of a block's columns before training, to make their encoders."""
    text = _list_features(mapping, block, ids, is_text=True)
    names = f"; from each of them the names of the categories of {text}" if block.is_masked and text else ""
    return f"{_whose(block)}, before training: {_statistics(mapping, block, job, ids, has_counts=True)}{names}"


def _statistics(mapping: MappingSummary, block: BlockShape, job: Job, ids: Ids, has_counts: bool) -> str:
    """The statistics for a block's encoders, or those that remain in the encoders: no counts."""
    numbers, text = (_list_features(mapping, block, ids, is_text) for is_text in (False, True))
    here, tokens = (_list_features(mapping, block, ids, is_text=True, where=where) for where in ("here", "tokens"))
    missing = "number of missing values" if has_counts else "presence of missing values"
    moments = "mean, spread and " if job.privacy.features is None else ""
    found = [f"the {moments}{missing} of {numbers}"] if numbers else []
    if text:
        found.append(f"the names{' and counts' * has_counts} of the categories of {text}")
    if here:
        found.append(f"how many ids there are in {here}, which stay with their owner")
    if tokens:
        found.append(f"tokens of the ids in {tokens}, without values or counts")
    return "; ".join(found)


def _list_features(mapping: MappingSummary, block: BlockShape, ids: Ids, is_text: bool, where: str = "") -> str:
    """The block's features of a kind, ids apart by where they are known: the first few by name."""
    number = next(n for n, b in enumerate(mapping.bound.blocks) if b.name == block.name)
    bound = mapping.bound.blocks[number]
    places = ids[number] if ids else ("",) * len(bound.features)
    named = zip(bound.features, bound.columns, places, strict=True)
    names = [name for name, column, place in named if (column.kind in STRING_KINDS) == is_text and place == where]
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _whose(block: BlockShape) -> str:
    """Whose statistics, gradients or parameters the server sees."""
    if not block.is_split:
        return f"from {owners_of(block)}"
    if not block.is_masked:
        return f"from each of the {len(block.parts)} clients of {block.name}"
    return f"summed over the {len(block.parts)} clients of {block.name}, and of no single one (masked)"


def owners_of(block: BlockShape) -> str:
    """The clients of a block, for a reader."""
    clients = [part.client for part in block.parts]
    who = f"client {clients[0]}" if len(clients) == 1 else f"{len(clients)} clients of {block.table}"
    return f"{who} ({block.name})"


def _key_names(mapping: MappingSummary) -> set[str]:
    names = set()
    for branch in mapping.bound.branches:
        for pair in branch.pairs:
            for side, column in ((pair.left, pair.left_column), (pair.right, pair.right_column)):
                relation = branch.relations[side]
                key = name_for_people(mapping.bound.scans[relation.scan].expressions[column])
                names.add(f"{relation.alias}." + _QUOTED.sub(r"\1", key))
    return names
