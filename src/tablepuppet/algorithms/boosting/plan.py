"""Disclosures of boosted trees in words, the bits of a row that the server may learn, advice, and feature privacy.

In: a table mapping, its Shape and the job. Out: insights and exposures, as knowledge.py has them for other algorithms.

Trees whose splits are drawn have noise on their leaves. In: a job, a table mapping, the loss. Out: `OwnNoise`: the
mechanisms and releases of every table, the noise, and the bounds, public, that borders lie between. Nothing here reads
a feature.
"""

import math
from collections import Counter

import msgspec
import numpy as np

from tablepuppet.algorithms.algorithm import OwnNoise
from tablepuppet.algorithms.boosting.fixed_point import LeafNoise
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.shape import BlockShape, Shape
from tablepuppet.errors import PrivacyError
from tablepuppet.formatting import plural
from tablepuppet.job import Job
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.models.losses import Loss
from tablepuppet.plan.costs import Advice, Cost, cost, range_of
from tablepuppet.plan.knowledge import Exposure, Insight, common_insights, held_blocks, merging_insights, owners_of
from tablepuppet.privacy.accounting import Mechanism, composed_noise
from tablepuppet.privacy.ledger import Release
from tablepuppet.sources.columns import STRING_KINDS


def tree_insights(mapping: MappingSummary, shape: Shape, job: Job) -> list[Insight]:
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


Bounds = list[tuple[float, float] | None]
_LOOSE = 2.5  # the clip of a number's slopes, in units of a typical one
_LOGISTIC = 3.0  # s: p² + (3p(1 − p))² ≤ 1 for every p
_PART = 3.0  # of C, that s·h is at the most with other losses


class LeafPlan(msgspec.Struct, frozen=True):
    """The noise and bounds of trees under feature privacy."""

    noise: LeafNoise
    bounds: list[Bounds]  # public, by block and feature


def plan_leaves(job: Job, mapping: MappingSummary, loss: Loss, slope: float, weight: float) -> OwnNoise:
    """The noise on a run's leaves, and its privacy cost. `slope`: of a typical row; `weight`: the largest of any."""
    trees, bounds = _as_boosting(job.options).trees, public_bounds(job, mapping)
    noise = leaf_noise(job, mapping, loss, slope, weight)
    is_for_analyst = job.privacy.analyst is not None  # whose terms give the cost, and sizes are noisy
    return OwnNoise(trees, [] if is_for_analyst else leaf_releases(job, mapping, noise), LeafPlan(noise, bounds))


def leaf_noise(job: Job, mapping: MappingSummary, loss: Loss, slope: float, weight: float) -> LeafNoise:
    """The least noise that keeps the rows of every table within ε; or the job's own, in units of the clip."""
    features, trees = job.privacy.features, _as_boosting(job.options).trees
    assert features is not None
    clip = features.clip or weight * _slope_bound(mapping, loss, slope)
    is_logistic = loss.task == "binary" and loss.bound == 0.25
    curvature = weight * loss.bound
    noise = features.noise
    if noise is None:
        assert features.epsilon is not None
        most = max(joined_rows(mapping).values(), default=1)
        noise = most * composed_noise(features.epsilon, features.delta, (Mechanism(1.0, trees),))
    scale = _LOGISTIC * clip / weight if is_logistic else clip / (_PART * curvature)
    return LeafNoise(clip=clip, scale=scale, curvature=curvature, deviation=noise * clip)


def _slope_bound(mapping: MappingSummary, loss: Loss, slope: float) -> float:
    """The clip of the slope of a row of weight one: its largest value, or one above the usual; from labels alone."""
    channel = mapping.label.channel
    if loss.task == "binary":
        ends = np.array([0.0, 1.0]) if channel is None else channel.unbiased(np.array([0.0, 1.0]))
        return float(np.abs([*ends, *(1.0 - ends)]).max())
    if loss.task == "classes" and channel is None:
        return math.sqrt(2.0)
    return _LOOSE * slope


def joined_rows(mapping: MappingSummary) -> dict[str, int]:
    """κ of every table: joined rows that one of its rows is in at most, over all that read it."""
    found: Counter[str] = Counter()
    for number, block in enumerate(mapping.blocks):
        for table in mapping.tables_of(number):
            found[table] += max(1, block.most)
    return dict(sorted(found.items()))


def leaf_releases(job: Job, mapping: MappingSummary, noise: LeafNoise) -> list[Release]:
    """The model's releases to outsiders: for each table one for each tree, or group of trees of all classes."""
    features = job.privacy.features
    assert features is not None
    return [
        Release(
            what="features",
            table=table,
            observer="outsider",
            mechanism="noisy sums of leaves, added by the server; splits are drawn from public borders",
            noise=noise.deviation / (noise.clip * most),
            steps=_as_boosting(job.options).trees,
            multiplicity=most,
            delta=features.delta,
            scope="leaves",
        )
        for table, most in joined_rows(mapping).items()
    ]


def public_bounds(job: Job, mapping: MappingSummary) -> list[Bounds]:
    """By block and feature: the bounds of its borders; None: a string."""
    assert job.privacy.features is not None
    found: list[Bounds] = []
    for block in mapping.bound.blocks:
        own: Bounds = []
        for name, column in zip(block.features, block.columns, strict=True):
            known = job.privacy.features.bounds_of(name)
            if column.kind not in STRING_KINDS and known is None:
                raise PrivacyError(
                    f"feature {name} is a number, and borders would be read from the data, outside the promise of "
                    f'privacy.features; give public bounds, features = {{bounds = {{"{name}" = [low, high]}}}}'
                )
            own.append(None if column.kind in STRING_KINDS else known)
        found.append(own)
    return found
