"""Who learns what from boosted trees, in words, how many bits of a row the server may be told, and what is advised.

In: a table mapping, its Shape and the job. Out: insights and exposures, as knowledge.py has them for other algorithms.
"""

from __future__ import annotations

import msgspec

from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.shape import Shape
from tablepuppet.formatting import plural
from tablepuppet.job import Job
from tablepuppet.mapping.mapping import MappingSummary
from tablepuppet.plan.costs import Advice, Cost, cost, spelled
from tablepuppet.plan.disclosure import Account, held_blocks, setup_disclosures
from tablepuppet.plan.knowledge import Exposure, Insight, common_insights, merging_insights, owners_of
from tablepuppet.transport.meter import Told


def tree_insights(mapping: MappingSummary, shape: Shape, job: Job) -> list[Insight]:
    """Who learns what, party by party."""
    options = _own(job.options)
    most = "" if options.max_splits is None else f", at most {options.max_splits} of each table"
    server = common_insights(mapping, job)
    for block in shape.blocks:
        if block.is_split:
            server.append(
                f"from each of the {len(block.parts)} clients of {block.name}, before training: up to {options.bins} "
                "values of each column, from which common bins are made"
            )
            masked = ", and of no single one (masked)" if block.is_masked else " and from each of them"
            server.append(
                f"summed over the clients of {block.name}{masked}: the slopes of the loss per bin of every column"
            )
    server.append(
        f"for every distinct split that a tree uses{most}: which rows of its table go right, one bit each, test rows "
        "included (of strings with many rare categories, at once which rows have the same one); after many trees these "
        "bits are practically the binned table"
    )
    server.append("how much the loss falls by the best splits of each table")
    found = [Insight("server", tuple(server))]
    held = held_blocks(job, mapping)
    for block, is_held in zip(shape.blocks, held, strict=True):
        learns = [
            f"which of its rows take part, and in how many joined rows (up to {block.most:,})",
            f"slope and curvature of the loss at each of its rows, summed in each node of {_checked(options)}; those "
            "of the first tree tell the labels of rows that are joined once",
            f"the splits of {block.name}" + (", which stay there" if is_held else ""),
        ]
        found.append(Insight(owners_of(block), tuple(learns)))
    kept = [block.name for block, is_held in zip(shape.blocks, held, strict=True) if is_held]
    but = f", without the splits of {', '.join(kept)}" if kept else ""
    return [*found, *merging_insights(mapping), Insight("anyone else", (f"the model, if it is released{but}",))]


def _checked(options: Boosting) -> str:
    if options.checks == "strict":
        return f"all {plural(options.trees, 'tree')}"
    return f"one tree in {options.every}"


def tree_disclosures(mapping: MappingSummary, shape: Shape, job: Job) -> dict[Told, int]:
    """What a run tells whom, from its first key to the last split; of checks and splits, at most so many."""
    account, options, held = Account(), _own(job.options), held_blocks(job, mapping)
    account.told = setup_disclosures(mapping, job.privacy.keys)
    for part in mapping.parts:
        block, subject = shape.blocks[part.block], f"part {part.number}"
        shared = int(block.is_split)
        account.client(part.client, subject, multiplicities=1, node_sums=options.most_checks)
        account.server(
            part.client,
            subject,
            sketches=shared,
            figure=1 + shared,
            sums=options.most_checks * shared,
            splits=options.most_splits + earlier_splits(job, part.block),
            parameters=int(not held[part.block]),
        )
    return account.told


def earlier_splits(job: Job, block: int) -> int:
    """The splits of a block in trees that there were before."""
    return 0 if job.warm_start is None else job.warm_start.blocks[block].splits


def tree_exposures(shape: Shape, given: AlgorithmOptions) -> list[Exposure]:
    """Per block: the bits of a row that the server may be told, against those that its bins have."""
    options = _own(given)
    found = []
    for block in shape.blocks:
        borders = (block.numbers + block.strings) * (options.bins - 1)
        all_of_them = (
            borders + block.numbers if not block.strings else options.most_splits
        )  # sets are more than borders
        found.append(Exposure(block.name, min(options.most_splits, all_of_them), borders))
    return found


def advise_trees(shape: Shape, given: AlgorithmOptions) -> Advice:
    """How often to check: trees have no other algorithm."""
    options = _own(given)
    strict, lazy = (
        cost(shape, options.name, msgspec.structs.replace(options, checks=checks), options.trees)
        for checks in ("strict", "lazy")
    )
    return Advice(
        options.name,
        f'checks="strict" grows the trees of the exact algorithm in about {strict.rounds} rounds, {spelled(strict)} '
        f'on US-UK; checks="lazy", every={options.every} takes about {lazy.rounds} rounds, {spelled(lazy)}, tells the '
        "server of fewer splits, and is nearly as good (docs/boosting.md)",
    )


def trees_cost(shape: Shape) -> Cost:
    """What boosted trees would cost at defaults."""
    options = Boosting()
    return cost(shape, options.name, options, options.trees)


def trees_beside(shape: Shape) -> str:
    """What boosted trees would cost, and tell, beside a model whose scores are sums."""
    options = Boosting()
    strict, lazy = (cost(shape, options.name, Boosting(checks=checks), options.trees) for checks in ("strict", "lazy"))
    return (
        f'model="boosted" learns what tables say together: {options.trees} trees take about {strict.rounds} rounds, '
        f'{spelled(strict)} on US-UK (checks="lazy": {lazy.rounds} rounds, {spelled(lazy)}), and tell the server one '
        "bit of every row for each of their splits (docs/boosting.md)"
    )


def _own(options: AlgorithmOptions) -> Boosting:
    assert isinstance(options, Boosting)
    return options
