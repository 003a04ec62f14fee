"""Boosted trees: as they are kept, and the messages about them: bins, checks, and the splits that a model is made of.

A tree has a topology, values of leaves, and for each inner node whose key it asks. The owner knows a key's rule (a
column and a border, or a set of categories). The server may hold it too, once it is released.

The server learns the bins of a part's rows, a column at a time (`NewColumn`), or one bit of each row per split
(`NewKey`). It also learns how good splits are (docs/boosting.md).
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.tree_checks import Bins, Check, Key, NewColumn, NewKey, Objections, Union
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.protocol.base import MOST_CLIENTS, Discloses, Message, PartRequest, ScanRequest
from tablepuppet.protocol.bounds import MOST_CLASSES


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes in order, children after their parents; of a leaf `left` is −1."""

    left: list[int]  # the right child follows
    block: list[int]
    key: list[int]
    to_left: list[bool]  # where missing numbers go
    gain: list[float]
    value: list[float]  # of leaves; 0 for inner nodes
    cover: list[float]  # Σ h
    missing: list[int] = []  # once training is over: the key that says which values are missing; −1: none is

    def __repr__(self) -> str:
        return f"Tree(splits: {len(self.splits):,})"

    @property
    def splits(self) -> list[int]:
        return [n for n, left in enumerate(self.left) if left >= 0]


def compact(
    trees: Sequence[Sequence[Tree]], missing_key: Callable[[int, int], int], blocks: int
) -> tuple[tuple[tuple[Tree, ...], ...], list[list[int]]]:
    """Trees whose keys are numbered anew, as they occur in them; and by block the keys' old numbers.

    `missing_key`: of a block and a key, the key that says which values of its column are missing, or −1.
    """
    used: list[dict[int, None]] = [{} for _ in range(blocks)]  # in the trees' order, not that of their disclosure
    for tree in (t for group in trees for t in group):
        for node in tree.splits:
            block, key = tree.block[node], tree.key[node]
            used[block] |= {k: None for k in (missing_key(block, key), key) if k >= 0}
    keys = [list(found) for found in used]
    numbers = [{-1: -1} | {key: new for new, key in enumerate(found)} for found in keys]

    def renumber(tree: Tree) -> Tree:
        pairs = [(b, k) if b >= 0 else None for b, k in zip(tree.block, tree.key, strict=True)]
        key = [-1 if p is None else numbers[p[0]][p[1]] for p in pairs]
        missing = [-1 if p is None else numbers[p[0]][missing_key(*p)] for p in pairs]
        return replace(tree, key=key, missing=missing)

    return tuple(tuple(renumber(tree) for tree in group) for group in trees), keys


def shift_keys(tree: Tree, by: Sequence[int]) -> Tree:
    """A tree whose keys come after so many of each block's."""
    pairs = list(zip(tree.block, tree.key, tree.missing, strict=True))
    key = [k + by[b] if b >= 0 else k for b, k, _ in pairs]
    return replace(tree, key=key, missing=[m + by[b] if m >= 0 else m for b, _, m in pairs])


class NumberSketch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """At most as many values as there are bins, each with the weight of those around it."""

    values: Array
    weights: Array


class CategorySketch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The categories that occur, in order, and their weights."""

    categories: list[str]
    weights: Array
    is_cut: bool = False  # whether the owner left names out that few rows hold


Sketch = NumberSketch | CategorySketch


class _OfTrees(PartRequest, frozen=True):
    """About trees that the server has grown."""

    check: Annotated[Check, Discloses("node sums", is_per_row=True)]


class _OfRows(ScanRequest, frozen=True):
    """A request about rows of a scan; row −1 has no value."""

    columns: list[int]
    rows: RowNumbers


class SketchFeatures(PartRequest, frozen=True):
    """Sum up the columns of a part, so that the clients of its block can share bins. → FeatureSketches"""


class FeatureSketches(Message, frozen=True):
    columns: Annotated[list[Sketch], Discloses("sketches")]


class StartTrees(PartRequest, frozen=True):
    """Put the part's columns in bins, the given ones or its own. → TreesStarted"""

    algorithm: Boosting
    block: int
    name: str  # the block's
    outputs: Annotated[int, Meta(ge=1, le=MOST_CLASSES)]
    is_outer: bool  # whether joined rows may have no row here
    clients: Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]  # how many parts the block has
    bins: list[Bins] | None = None
    signs: list[int] = msgspec.field(default_factory=list)  # of columns that leaves are monotone in; none: any
    before: "list[SplitRule] | str" = msgspec.field(default_factory=list)  # splits of earlier trees, or the held model
    peers: list[MaskKey] = msgspec.field(default_factory=list)


class TreesStarted(Message, frozen=True):
    kinds: Annotated[NDArray[np.uint8], Discloses("figure")]  # of each column: numbers, or which categories
    # Where bins were given, or splits are drawn; else nothing
    has_missing: Annotated[NDArray[np.bool_], Discloses("figure")]
    limit: Annotated[int, Meta(ge=0)] | None = None  # bits of a row that the client will reveal
    reveals_columns: bool = False  # whether it reveals a column whole, once a tree splits it
    # Of earlier splits, as NewKey has it
    right: Annotated[list[NDArray[np.uint8]], Discloses("splits", is_per_row=True)] = msgspec.field(
        default_factory=list
    )
    # Of drawn splits: bins
    sizes: Annotated[NDArray[np.int64], Discloses("figure")] = msgspec.field(
        default_factory=lambda: np.zeros(0, np.int64)
    )


class CheckTrees(_OfTrees, frozen=True):
    """Verify these trees: which of your splits are better? → TreeObjections"""


class TreeObjections(Message, frozen=True):
    found: Annotated[Objections, Discloses("splits", is_per_row=True)]


class SumTrees(_OfTrees, frozen=True):
    """Send Σ(g, h) per bin of your rows in the cells of these trees. → TreeSums"""


class TreeSums(Message, frozen=True):
    # Of each tree; under masks, where the block's sums are
    values: Annotated[list[NDArray[np.int64]], Discloses("sums")]


class RevealKeys(PartRequest, frozen=True):
    """Reveal where rows go at these splits, or the bins of these columns. → RevealedKeys"""

    keys: list[Key]


class RevealedKeys(Message, frozen=True):
    keys: Annotated[list[NewKey | NewColumn], Discloses("splits", is_per_row=True)]


class SplitRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The question of a trained model's split; a row goes right if the answer is yes.

    Numbers: is x > border, or missing? (`border` None: is it missing?) Categories: is it none of `left`? A missing one
    goes left with `null_left`, and one that is not in `known` with `other_left`.
    """

    feature: int
    entry: int = 0  # of a vector
    is_number: bool = True
    border: float | None = None
    left: list[str] = []
    null_left: bool = False
    other_left: bool = False
    known: list[str] = []  # where other_left


def splits_name(rules: Sequence[SplitRule]) -> str:
    """The name of a table's splits in contracts and accounts; equal splits have equal names."""
    return hashlib.sha256(msgspec.msgpack.encode(list(rules))).hexdigest()


class GrownBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table's part of earlier trees: the rules of their splits, or that its owners hold them."""

    name: str
    features: list[str]
    rules: list[SplitRule]
    splits: int
    is_held: bool = False


class GrownTrees(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A boosted model that more trees are added to."""

    model: str  # under which owners hold their parts
    start: list[float]  # the constant that its scores begin with
    trees: list[list[Tree]]
    blocks: list[GrownBlock]

    @property
    def names(self) -> dict[str, str]:
        """The name of each table's splits; empty where its owners hold them."""
        return {block.name: "" if block.is_held else splits_name(block.rules) for block in self.blocks}


class ReleaseSplits(PartRequest, frozen=True):
    """Send the columns and thresholds of these splits. → Splits"""

    unions: list[Union]  # keys that were made after the last check
    keys: list[int]


class Splits(Message, frozen=True):
    rules: Annotated[list[SplitRule], Discloses("parameters")]


class HoldSplits(PartRequest, frozen=True):
    """Keep the columns and thresholds of these splits, as your part of a model. → Done"""

    unions: list[Union]
    keys: list[int]
    block: int
    features: list[str]


class AskRows(_OfRows, frozen=True):
    """Which of these rows, and of one without any value, go right at each of these splits? → RowBits"""

    rules: Annotated[list[SplitRule], Discloses("model")]


class AskOwnRows(_OfRows, frozen=True):
    """The same, at the splits of a model's part that you hold. → RowBits"""

    model: str
    name: str


class RowBits(Message, frozen=True):
    right: Annotated[NDArray[np.uint8], Discloses("splits")]  # (splits, (rows + 1) / 8)
