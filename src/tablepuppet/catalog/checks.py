"""What must hold of a bound query: as many columns in every branch, usable features, keys and a label that fit."""

from __future__ import annotations

from collections.abc import Sequence

from tablepuppet.catalog.bound import Scan, format_expression, refuse
from tablepuppet.catalog.names import ResolvedBranch
from tablepuppet.catalog.scans import PlacedBranch
from tablepuppet.catalog.types import common_key_cast, is_feature, is_label, key_type, type_name, union_column
from tablepuppet.errors import QueryError
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.query.conditions import KeyEquality
from tablepuppet.query.grammar import start_of
from tablepuppet.query.ucq import Ucq


def check_arity(ucq: Ucq, branches: Sequence[ResolvedBranch]) -> None:
    """Every branch of a UNION ALL has as many columns as the first."""
    expected = len(branches[0].outputs)
    for number, branch in enumerate(branches[1:], start=2):
        if len(branch.outputs) != expected:
            raise refuse(
                ucq,
                f"the first SELECT has {expected} columns and SELECT number {number} has {len(branch.outputs)}; "
                "all branches of UNION ALL need the same columns in the same order",
                branch.outputs[0].at,
            )


def check_features(ucq: Ucq, branch: ResolvedBranch, features: Sequence[int]) -> None:
    """There is a feature, and no two have the same name."""
    if not features:
        raise refuse(ucq, "the SELECT list holds the label only; add at least one feature column", branch.outputs[0].at)
    seen: set[tuple[int, str]] = set()
    for output in (branch.outputs[p] for p in features):
        if (output.relation, output.name) in seen:
            raise refuse(
                ucq,
                f"{branch.aliases[output.relation]}.{output.name} is selected twice; remove one of the two, "
                "or name them apart with AS",
                output.at,
            )
        seen.add((output.relation, output.name))


def check_keys(ucq: Ucq, branches: Sequence[PlacedBranch], scans: Sequence[Scan]) -> None:
    """The two sides of every key equality can be equal."""
    for branch in branches:
        for join, columns in zip(branch.resolved.tree.joins, branch.key_columns, strict=True):
            for key, (left_column, right_column) in zip(join.on, columns, strict=True):
                left = scans[branch.scans[key.left]].columns[left_column]
                right = scans[branch.scans[key.right]].columns[right_column]
                if key_type(left) is None or key_type(left) != key_type(right):
                    raise _keys_differ(ucq, branch.resolved, key, left, right)
    check_groups(ucq, branches, scans)


def check_groups(ucq: Ucq, branches: Sequence[PlacedBranch], scans: Sequence[Scan]) -> None:
    """A subquery that several clients compute in groups is joined on what its groups have in common."""
    witnessed = {number for scan in scans for number, _ in scan.witness_of}
    for branch in branches:
        for relation, number in enumerate(branch.scans):
            scan = scans[number]
            if scan.groups is None or scan.merges or number in witnessed:
                continue
            why = f". Or let groups be merged: {scan.unmerged}" if scan.unmerged else ""
            raise refuse(
                ucq,
                f"the rows of {scan.table} lie with {len(scan.clients)} clients, and each computes "
                f"{branch.resolved.aliases[relation]} over its own rows only. Join it on {' or '.join(scan.groups)}: "
                f"then it can be seen whether each group lies with one client{why}",
                None,
            )


def _keys_differ(ucq: Ucq, branch: ResolvedBranch, key: KeyEquality, left: ColumnInfo, right: ColumnInfo) -> QueryError:
    """Which cast makes the two sides fit."""
    sides = (
        (format_expression(key.left_key, branch.aliases[key.left]), left),
        (format_expression(key.right_key, branch.aliases[key.right]), right),
    )
    found = " and ".join(f"{text} is {type_name(column)}" for text, column in sides)
    unusable = [text for text, column in sides if key_type(column) is None]
    what = f"{' and '.join(unusable)} cannot be a key" if unusable else "these keys are not of the same type"
    target = common_key_cast(left, right)
    if target is None:
        advice = "Join on columns that hold integers, strings, dates or UUIDs"
    else:
        kind, name = target
        casts = [text if key_type(column) == kind else f"CAST({text} AS {name})" for text, column in sides]
        # Both sides of USING are the same word of the text.
        on = "ON " if start_of(key.left_key) == start_of(key.right_key) else ""
        advice = f"Write {on}{' = '.join(casts)}"
    return refuse(ucq, f"{what}: {found}. {advice}", key.node)


def check_label(ucq: Ucq, branches: Sequence[PlacedBranch], scans: Sequence[Scan], label: int) -> None:
    """The label can be predicted, and is of one kind in all branches."""
    for branch in branches:
        column = branch.output(label, scans)
        if not is_label(column):
            raise refuse(
                ucq,
                f"the label {branch.output_name(label)} is {type_name(column)}, which cannot be predicted; "
                "a label is a number, a boolean or a string",
                branch.resolved.outputs[label].at,
            )
    whole = union_of(ucq, branches, scans, label)
    odd = [b for b in branches if (b.output(label, scans).kind == "boolean") != (whole.kind == "boolean")]
    if odd:
        raise refuse(
            ucq,
            f"the label {whole.name} is {whole.detail} in the branches of UNION ALL: is it true or false, or a number? "
            f"Write CAST({odd[0].output_name(label)} AS DOUBLE) for a number, or a condition such as y > 0 in each",
            odd[0].resolved.outputs[label].at,
        )


def union_of(ucq: Ucq, branches: Sequence[PlacedBranch], scans: Sequence[Scan], position: int) -> ColumnInfo:
    """The name and the type of a column of the result, over all branches."""
    columns = [branch.output(position, scans) for branch in branches]
    for branch, column in zip(branches, columns, strict=True):
        if not is_feature(column):
            if type_name(column).strip('"') == "NULL":
                what = "is NULL in every row, so that its type is not known; leave it out"
                raise refuse(ucq, f"{branch.output_name(position)} {what}", branch.resolved.outputs[position].at)
            raise refuse(
                ucq,
                f"{branch.output_name(position)} is {type_name(column)}, which cannot be a feature; "
                + (
                    "write date_diff('day', from, to) for the time between two moments"
                    if type_name(column).upper().startswith("INTERVAL")
                    else "cast it to a number, a string or a date, or leave it out"
                ),
                branch.resolved.outputs[position].at,
            )
        merged = union_column(branches[0].output_name(position), [columns[0], column])
        if merged is None:
            raise refuse(
                ucq,
                f"column {position + 1} of the result is {type_name(columns[0])} in the first SELECT "
                f"({branches[0].output_name(position)}) and {type_name(column)} in another "
                f"({branch.output_name(position)}); UNION ALL needs one type for both, so cast one or select another",
                branch.resolved.outputs[position].at,
            )
    whole = union_column(branches[0].output_name(position), columns)
    assert whole is not None  # every pair with the first fits, and fitting is an equivalence
    return whole
