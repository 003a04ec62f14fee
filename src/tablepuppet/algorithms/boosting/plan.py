"""Disclosures of boosted trees in words, the bits of a row that the server may learn, and advice.

In: a table mapping, its Shape and the job. Out: insights and exposures, as knowledge.py has them for other algorithms.
"""

from __future__ import annotations

import msgspec

from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.shape import BlockShape, Shape
from tablepuppet.errors import PrivacyError
from tablepuppet.formatting import plural
from tablepuppet.job import Job
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.plan.costs import Advice, Cost, cost, range_of
from tablepuppet.plan.knowledge import Exposure, Insight, common_insights, held_blocks, merging_insights, owners_of


def tree_insights(mapping: MappingSummary, shape: Shape, job: Job) -> list[Insight]:
    """Disclosures, party by party."""
    options = _as_boosting(job.options)
    server = common_insights(mapping, job)
    for block in shape.blocks:
        if block.is_split:
            values = f"up to {options.bins} values of each column"
            values = values if job.privacy.features is None else "the categories of its strings, and of numbers nothing"
            server.append(
                f"from each of the {len(block.parts)} clients of {block.name}, before training: {values}, from which "
                "common bins are made"
            )
            if options.is_random:
                continue
            masked = ", and of no single one (masked)" if block.is_masked else " and from each of them"
            server.append(
                f"summed over the clients of {block.name}{masked}: the slopes of the loss per bin of every column"
            )
    server.append(_of_rows(options))
    if options.is_random:
        server.append("how many bins each column has; how good a split is only the server finds, from bits and labels")
    else:
        server.append("how much the loss falls by the best splits of each table")
    found = [Insight("server", tuple(server))]
    held = held_blocks(job, mapping)
    for block, is_held in zip(shape.blocks, held, strict=True):
        learns = [
            f"which of its rows take part, and in how many joined rows (up to {block.most:,})",
            "slope and curvature of the loss at each of its rows, summed in each node of "
            f"all {plural(options.trees, 'tree')}; those "
            "of the first tree tell the labels of rows that are joined once"
            if not options.is_random
            else "which of its splits were drawn, by chance alone: nothing of labels or of other tables",
            f"the splits of {block.name}" + (", which stay there" if is_held else ""),
        ]
        found.append(Insight(owners_of(block), tuple(learns)))
    kept = [block.name for block, is_held in zip(shape.blocks, held, strict=True) if is_held]
    but = f", without the splits of {', '.join(kept)}" if kept else ""
    noise = ""
    if job.privacy.features is not None:
        noise = (
            "; borders are public, and the sums of its leaves carry noise, which the server adds and is trusted with"
        )
    return [*found, *merging_insights(mapping), Insight("anyone else", (f"the model, if it is released{but}{noise}",))]


def _of_rows(options: Boosting) -> str:
    """Describes the disclosure of rows."""
    if options.reveals_columns:
        return (
            f"of every column that a tree splits: which of up to {options.bins} bins, or categories, each row of its "
            "table lies in, test rows included; what bins and categories stand for is not told before the model is "
            'released (reveal="splits", or max_splits, reveals no more than the sides of splits that are used, in more '
            "rounds)"
        )
    most = "" if options.max_splits is None else f", at most {options.max_splits} of each table"
    return (
        f"for every distinct split that a tree uses{most}: which rows of its table go right, one bit each, test rows "
        "included (of strings with many rare categories, at once which rows have the same one); after many trees these "
        "bits are practically the binned table"
    )


def earlier_splits(job: Job, block: int) -> int:
    """The splits of a block in trees that there were before."""
    return 0 if job.warm_start is None else job.warm_start.blocks[block].splits


def tree_exposures(shape: Shape, given: AlgorithmOptions) -> list[Exposure]:
    """Per block: the bits of a row that the server may learn, against those that its bins have."""
    options = _as_boosting(given)
    found = []
    for block in shape.blocks:
        columns = block.numbers + block.strings
        if options.reveals_columns:
            whole = columns * options.bins.bit_length()
            found.append(Exposure(block.name, whole, whole))
        else:
            found.append(Exposure(block.name, most_told(block, options), columns * (options.bins - 1)))
    return found


def check_tree_exposure(shape: Shape, job: Job) -> None:
    """Refuses a private job whose bits let the server reconstruct rows, unless the job allows it."""
    if job.privacy.features is None or job.privacy.allow_reconstruction:
        return
    for block in tree_exposures(shape, job.options):
        if block.reconstructs:
            raise PrivacyError(
                f"block {block.block}: the server would be told {block.numbers:,} bits of a row, practically all that "
                "its bins have, whatever noise the model carries. Cap them with max_splits, or trust the server with "
                "them: allow_reconstruction = true"
            )


def most_told(block: BlockShape, options: Boosting) -> int:
    """The most bits of each row of a block that its owners reveal."""
    numbers = block.numbers * options.bins  # borders, and which are missing
    if not block.strings:
        return min(options.most_splits, numbers)
    if not options.is_random:  # sets are more than borders
        return options.most_splits
    columns = 1 + -(-options.most_categories // max(1, options.bins - 2))  # of a string, each with others and missing
    return min(options.most_splits, numbers + block.strings * (options.most_categories + 2 * columns))


def advise_trees(shape: Shape, given: AlgorithmOptions) -> Advice:
    """The cost of the trees: they have no other algorithm."""
    options = _as_boosting(given)
    takes = range_of(cost(shape, options.name, options, options.trees))
    if options.is_random:
        why = (
            f'splits="random" tells all bits in {takes}, and owners are told no slopes; as a tree is not grown where '
            "it gains, take more of them than of others"
        )
    elif not options.reveals_columns:
        why = f"the trees of the exact algorithm take {takes}"
    else:
        few = msgspec.structs.replace(options, reveal="splits")
        why = (
            f"the trees of the exact algorithm take {takes}, for an owner reveals a column once: few if the first tree "
            "splits every column, and one for each tree that follows until another splits the last of them; "
            'reveal="splits" discloses less for the same trees, in '
            f"{range_of(cost(shape, options.name, few, options.trees))}"
        )
    return Advice(options.name, f"{why} (docs/boosting.md)")


def trees_cost(shape: Shape) -> Cost:
    """The cost of boosted trees at defaults."""
    options = Boosting()
    return cost(shape, options.name, options, options.trees)


def trees_beside(shape: Shape) -> str:
    """The cost and disclosures of boosted trees, as an alternative to a model whose scores are sums."""
    return (
        f'model="boosted" learns interactions between tables: {Boosting().trees} trees take '
        f"{range_of(trees_cost(shape))}, "
        "and reveal to the server the bin of every row in each column that they split "
        "(docs/boosting.md)"
    )


def _as_boosting(options: AlgorithmOptions) -> Boosting:
    assert isinstance(options, Boosting)
    return options
