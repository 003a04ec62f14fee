"""bind: Ucq → BoundQuery. Who owns what, what everything is called, and whether the types fit.

Two rounds: one asks the owners for the columns of their tables, one opens the scans and learns the type of every
expression. Nothing is read from a table.

Features that come from the same alias in every branch are one block (docs/notation.md, T_i). With one SELECT there is a
block for each alias that has features. With UNION ALL the blocks are the common refinement of the branches' aliases, so
that no combination of branches has to be refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tablepuppet.catalog.across_owners import join_owners
from tablepuppet.catalog.bound import Block, BoundQuery, Scan
from tablepuppet.catalog.checks import check_arity, check_features, check_keys, check_label, union_of
from tablepuppet.catalog.labels import NOTHING, LabelColumns, check_beside, find_label, place_beside, weight_position
from tablepuppet.catalog.names import resolve
from tablepuppet.catalog.scans import PlacedBranch, Scans, place
from tablepuppet.catalog.schemas import describe
from tablepuppet.errors import QueryError
from tablepuppet.query.grammar import TOO_DEEP
from tablepuppet.query.ucq import Ucq
from tablepuppet.transport.link import Link


@dataclass(frozen=True, slots=True)
class Group:
    """The feature positions of one block, and the relation that they come from in each branch."""

    relations: tuple[int, ...]
    positions: tuple[int, ...]


def group_features(relations: Sequence[Sequence[int]]) -> list[Group]:
    """Groups positions that share their relation in every branch, in the order of the first FROM clause.

    `relations[b][p]` is the relation of feature position p in branch b.

    >>> [group.positions for group in group_features([[0, 0, 1, 1], [0, 1, 1, 1]])]
    [(0,), (1,), (2, 3)]
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, signature in enumerate(zip(*relations, strict=True)):
        groups.setdefault(signature, []).append(position)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], group[1][0]))
    return [Group(signature, tuple(positions)) for signature, positions in ordered]


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with a number after each that was there before.

    >>> unique_names(["o", "i", "o"])
    ['o', 'i', 'o_2']
    """
    given: list[str] = []
    for name in names:
        number, unique = 2, name
        while unique in given:
            unique, number = f"{name}_{number}", number + 1
        given.append(unique)
    return given


def bind(
    ucq: Ucq, *, label: str, tables: Mapping[str, tuple[str, ...]], link: Link, job: str, beside: LabelColumns = NOTHING
) -> BoundQuery:
    """What the query means for a federation, whose `tables` map a name to the clients that hold its rows."""
    ucq = join_owners(ucq, tables)
    shapes = describe(ucq, tables, link)
    try:
        resolved = [resolve(ucq, branch, shapes) for branch in ucq.branches]
        check_arity(ucq, resolved)
        label_position = find_label(ucq, resolved, label)
        weight = weight_position(resolved[0], label_position, beside.weight)
        features = [p for p in range(len(resolved[0].outputs)) if p not in (label_position, weight)]
        check_features(ucq, resolved[0], features)
        scans = Scans()
        placed = [place(branch, scans) for branch in resolved]
        read = place_beside(placed, label_position, weight, beside, scans)
        requests = scans.requests(job)
    except RecursionError:
        raise QueryError(TOO_DEEP) from None
    opened = scans.typed(ucq, link.ask(requests))
    check_keys(ucq, placed, opened)
    check_label(ucq, placed, opened, label_position)
    branches = tuple(
        replace(
            branch.branch(label_position),
            weight_column=columns.get("weight", -1),
            test_column=columns.get("test_where", -1),
            validation_column=columns.get("validation_where", -1),
            fold_column=columns.get("folds", -1),
        )
        for branch, columns in zip(placed, read, strict=True)
    )
    check_beside(branches, opened)
    return BoundQuery(
        text=ucq.text,
        label=resolved[0].outputs[label_position].name,
        scans=opened,
        branches=branches,
        blocks=_blocks(ucq, placed, opened, features),
    )


def _blocks(
    ucq: Ucq, placed: Sequence[PlacedBranch], scans: Sequence[Scan], features: Sequence[int]
) -> tuple[Block, ...]:
    """The blocks of the query, named after the first branch."""
    first = placed[0].resolved
    groups = group_features([[b.resolved.outputs[p].relation for p in features] for b in placed])
    names = unique_names([first.aliases[g.relations[0]] for g in groups])
    blocks = []
    for group, name in zip(groups, names, strict=True):
        positions = [features[k] for k in group.positions]
        columns = tuple(union_of(ucq, placed, scans, p) for p in positions)
        members = tuple(b.member(r, positions) for b, r in zip(placed, group.relations, strict=True))
        table = first.shapes[group.relations[0]].name
        blocks.append(Block(name, table, tuple(c.name for c in columns), columns, members))
    return tuple(blocks)
