"""place: a resolved branch → where each of its expressions lies among the scans, and the bound branch.

A resolved branch numbers its relations in the order of the FROM clause; a bound branch in the order of joining, so
that every join meets a relation that is already there. This file is where one turns into the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tablepuppet.catalog.bound import Branch, Join, KeyPair, Member, Relation, Scan
from tablepuppet.catalog.names import ResolvedBranch
from tablepuppet.catalog.scans import Scans
from tablepuppet.protocol import ColumnInfo


@dataclass(frozen=True, slots=True)
class PlacedBranch:
    """A branch and the places of its expressions. Relations and outputs are numbered as in the text."""

    resolved: ResolvedBranch
    scans: tuple[int, ...]  # of each relation
    output_columns: tuple[int, ...]  # of each output, in its relation's scan
    key_columns: tuple[tuple[tuple[int, int], ...], ...]  # left and right, of each equality of each join

    def output(self, position: int, scans: Sequence[Scan]) -> ColumnInfo:
        """The type of an output."""
        relation = self.resolved.outputs[position].relation
        return scans[self.scans[relation]].columns[self.output_columns[position]]

    def output_name(self, position: int) -> str:
        """alias.column, or alias.name for AS."""
        output = self.resolved.outputs[position]
        return f"{self.resolved.aliases[output.relation]}.{output.name}"

    def branch(self, label: int) -> Branch:
        """The bound branch with the label at an output, its relations in the order of joining."""
        return self.around(self.resolved.outputs[label].relation, self.output_columns[label])

    def around(self, base: int, label_column: int = -1) -> Branch:
        """The bound branch whose joined rows are ordered by relation `base`; −1: there is no label in it."""
        order, number = self._order(), self._numbers()
        joins = []
        for join, columns in zip(self.resolved.tree.joins, self.key_columns, strict=True):
            pairs = (
                KeyPair(number[key.left], left, number[key.right], right)
                for key, (left, right) in zip(join.on, columns, strict=True)
            )
            joins.append(Join(join.kind, number[join.relation], tuple(dict.fromkeys(pairs))))
        relations = tuple(Relation(self.resolved.aliases[r], self.scans[r]) for r in order)
        return Branch(relations, tuple(joins), number[base], label_column)

    def member(self, relation: int, positions: Sequence[int]) -> Member:
        """A block's place in this branch: these outputs of one relation."""
        return Member(self._numbers()[relation], tuple(self.output_columns[p] for p in positions))

    def _order(self) -> list[int]:
        return [0, *(join.relation for join in self.resolved.tree.joins)]

    def _numbers(self) -> dict[int, int]:
        return {relation: number for number, relation in enumerate(self._order())}


def place(resolved: ResolvedBranch, scans: Scans) -> PlacedBranch:
    """Asks the scans for every expression that a branch needs."""
    tables = zip(resolved.shapes, resolved.tree.filters, strict=True)
    own = tuple(scans.scan(shape, filters) for shape, filters in tables)
    keys = tuple(
        tuple(
            (
                scans.column(own[key.left], key.left_key, key.node),
                scans.column(own[key.right], key.right_key, key.node),
            )
            for key in join.on
        )
        for join in resolved.tree.joins
    )
    outputs = tuple(scans.column(own[o.relation], o.expression, o.at) for o in resolved.outputs)
    return PlacedBranch(resolved, own, outputs, keys)
