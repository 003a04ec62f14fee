"""FactorisedRows: the joined rows of one side as the trees that make them. Memory and work follow the tables.

In: for each branch a tree and its marked root rows, for each block the rows that it has in every branch. Out: exactly
the results of walks over all joined rows, had they been written down: counts, the loss and its derivatives, products
with directions. Branches of UNION ALL are added up. Any joined row is found by its number, so some can be drawn for all
else (`sample`): metrics of ranks, batches, trees.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.base import LossSums
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import MappingError
from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.factorised.tree import Tree
from tablepuppet.join.factorised.walk import TreeLoss, differentiate_branches
from tablepuppet.join.join import JoinedSide
from tablepuppet.join.joined_rows import AnyRows, JoinedRows, Pass, Work
from tablepuppet.join.row_index import IndexFacts, RowIndex
from tablepuppet.join.tree_join import TreeSide, draw_numbers
from tablepuppet.models.losses import Loss
from tablepuppet.models.losses.base import Separable, Square

_NO_WALK = 'this needs each joined row, and walk="factorised" has none; train with walk="drawn"'
SAMPLE = 1_000_000  # joined rows that are drawn for results that are no sums


class FactorisedRows(AnyRows, frozen=True):
    """The joined rows of a side, none of which is held."""

    side: JoinedSide  # all branches are trees
    trees: tuple[Tree, ...]  # of the branches
    labels: Array  # per row of the label table
    weights: Array | None = None  # likewise; None: all one
    seed: int = 0  # of random draws
    cluster: Cluster | None = None  # whose workers share the frequencies of a walk
    state: dict[Loss, list[TreeLoss]] = msgspec.field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.side.rows

    @cached_property
    def indices(self) -> tuple[IndexFacts, ...]:
        counts = self.collapse(np.ones(len(self.labels)))
        rows = [column.rows for column in self.side.columns]
        pairs = zip(rows, counts, strict=False)
        return tuple(IndexFacts(n, is_partial=float(own.sum()) < self.rows) for n, own in pairs)

    def collapse(self, per_label: Array) -> list[Array]:
        """collapse_i of a number per row of the label table, (n_i, 1)."""
        square = Separable(Square())
        return self._add_branches(
            TreeLoss(tree, square, self._of_roots(branch, per_label)).count() for branch, tree in enumerate(self.trees)
        )

    def label_counts(self) -> RowNumbers:
        return self.side.label_counts()

    def collapsed_weights(self) -> list[Array] | None:
        return None if self.weights is None else self.collapse(self.weights)

    def differentiate(self, loss: Loss, per_row: Sequence[Array], intercept: float) -> LossSums:
        """The loss and its derivatives at scores Σ h_i + intercept."""
        if loss not in self.state:
            self.state.clear()
            self.state[loss] = self._separate(loss)
        scores = [self._expand(branch, per_row, intercept) for branch in range(len(self.trees))]
        found = differentiate_branches(self.state[loss], scores, self.cluster)
        roots = [tree.root for tree in self.trees]
        return LossSums(
            loss=sum(own.loss for own in found),
            residual=sum(float(own.slopes[root].sum()) for own, root in zip(found, roots, strict=True)),
            bend=sum(float(own.curvatures[root].sum()) for own, root in zip(found, roots, strict=True)),
            slopes=self._add_branches(own.slopes for own in found),
            curvatures=self._add_branches(own.curvatures for own in found),
        )

    def multiply(self, block: int, direction: Array) -> list[Array]:
        """collapse_i of one block's expanded direction, (n_i, 1), with weights: squared loss's Hessian times it."""
        ones = np.ones(len(self.labels)) if self.weights is None else self.weights
        per_row: list[Array] = [np.zeros((column.rows, 1)) for column in self.side.columns[: self.side.blocks]]
        per_row[block] = direction
        found = []
        for branch, tree in enumerate(self.trees):
            loss = TreeLoss(tree, Separable(Square()), self._of_roots(branch, ones))
            found.append(loss.differentiate(self._expand(branch, per_row, 0.0)).slopes)
        return self._add_branches(found)

    def _separate(self, loss: Loss) -> list[TreeLoss]:
        parts = loss.separate(self.labels)
        if parts is None:
            raise MappingError(f'{loss.name} loss has no sums over a join tree; train with walk="materialised"')
        weights = np.ones(len(self.labels)) if self.weights is None else self.weights
        found = []
        for branch, tree in enumerate(self.trees):
            numbers = [parts.scale, parts.shift, parts.linear, parts.constant]
            own = [None if per_label is None else self._of_roots(branch, per_label) for per_label in numbers]
            found.append(TreeLoss(tree, Separable(parts.core, *own), self._of_roots(branch, weights)))
        return found

    def _of_roots(self, branch: int, per_label: Array) -> Array:
        """A number of the label's row for each root row of a branch; 0 for those of other sides."""
        side, column = self._branch(branch), self.side.columns[self.side.label]
        becomes, out = column.becomes[branch], np.zeros(side.join.sizes[side.join.root])
        numbers = side.roots if becomes is None else becomes[side.roots]
        is_there = numbers >= 0  # others make no joined row
        out[side.roots[is_there]] = per_label[numbers[is_there]]
        return out

    def _branch(self, number: int) -> TreeSide:
        branch = self.side.branches[number]
        assert isinstance(branch, TreeSide)
        return branch

    def _expand(self, branch: int, per_row: Sequence[Array], intercept: float) -> list[Array]:
        """h of a branch's relations; the intercept goes with the root's."""
        join = self._branch(branch).join
        scores = [np.zeros(size + 1) for size in join.sizes]
        scores[join.root] += intercept
        for column, values in zip(self.side.columns, per_row, strict=False):
            own, becomes = scores[column.relations[branch]], column.becomes[branch]
            known = np.append(np.asarray(values)[:, 0], 0.0)  # the last: no row
            if becomes is None:
                own[:-1] += known[: len(own) - 1]
            else:
                own += known[becomes]
        return scores

    def _add_branches(self, of_branches: Iterable[list[Array]]) -> list[Array]:
        """Values of the branches' relations, as the blocks' rows have them."""
        out = [np.zeros((column.rows, 1)) for column in self.side.columns[: self.side.blocks]]
        for branch, per_relation in enumerate(of_branches):
            for total, column in zip(out, self.side.columns, strict=False):
                values, becomes = per_relation[column.relations[branch]], column.becomes[branch]
                if becomes is None:
                    total[: len(values) - 1, 0] += values[:-1]
                    continue
                is_there = becomes >= 0  # no two rows of a branch become one
                total[becomes[is_there], 0] += values[is_there]
        return out

    def walk_all(self, work: Work, per_row: Sequence[Array], columns: Sequence[Array]) -> Pass:
        raise MappingError(_NO_WALK)

    def allocate(self, name: str, outputs: int, dtype: type[np.floating[Any]] = np.float64) -> None:
        raise MappingError(_NO_WALK)

    def iterate_sorted(self, name: str) -> Iterator[Array]:
        raise MappingError(_NO_WALK)

    def look_up(self, joined: NDArray[np.int64]) -> tuple[list[RowNumbers], Array, Array | None]:
        found = self._numbers(joined)
        rows = found[self.side.label]
        weights = None if self.weights is None else self.weights[rows]
        return found[: self.side.blocks], self.labels[rows], weights

    @cached_property
    def sample(self) -> JoinedRows:
        """Joined rows, each drawn for itself, over all rows of the blocks; all of them once, if they are as few."""
        everyone = np.arange(self.rows) if self.rows <= SAMPLE else draw_numbers(self.rows, SAMPLE, self.seed)
        numbers = self._numbers(everyone)
        indices = [RowIndex.of(own, column.rows) for own, column in zip(numbers, self.side.columns, strict=True)]
        blocks = tuple(indices[: self.side.blocks])
        return JoinedRows(len(everyone), blocks, indices[self.side.label], self.labels, weights=self.weights)

    def fetch(self) -> JoinedRows:
        return self.sample

    def _numbers(self, joined: NDArray[np.int64]) -> list[RowNumbers]:
        """p_i of some joined rows, for each column."""
        out: list[RowNumbers] = [np.empty(len(joined), np.int64) for _ in self.side.columns]
        sides = [self._branch(branch) for branch in range(len(self.trees))]
        ends = np.cumsum([side.rows for side in sides])
        of_branch = np.searchsorted(ends, joined, side="right")
        for branch, side in enumerate(sides):
            here = np.flatnonzero(of_branch == branch)
            found = side.look_up(joined[here] - (ends[branch] - side.rows))
            for into, column in zip(out, self.side.columns, strict=True):
                rows, becomes = found[column.relations[branch]], column.becomes[branch]
                into[here] = rows if becomes is None else becomes[rows]
        return out
