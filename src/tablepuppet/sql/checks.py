"""Checks of a bound query: as many columns in every branch, usable features, keys that fit, and a label.

find_label: which item of the SELECT list is the label. A job may also read a sample weight and predicates of the split
from the rows that hold it. In: SQL over the label's table, as a user writes it (`weight="w"`,
`test_where="day >= DATE '2024-01-01'"`). Out: for every branch, the number of the expression in the label's scan; −1
where nothing was asked for.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import asdict
from sqlglot import exp

from tablepuppet.errors import CatalogError, QueryError, did_you_mean
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.history_queries import BEGINS
from tablepuppet.sql import bound
from tablepuppet.sql.bound import Branch, LabelPlace, Scan, format_expression, key_type, type_name
from tablepuppet.sql.grammar import start_of
from tablepuppet.sql.joins import KeyEquality
from tablepuppet.sql.names import ResolvedBranch, resolve
from tablepuppet.sql.parsing import parse
from tablepuppet.sql.scans import PlacedBranch, Scans
from tablepuppet.sql.ucq import Ucq


def check_arity(ucq: Ucq, branches: Sequence[ResolvedBranch]) -> None:
    """Every branch of a UNION ALL has as many columns as the first."""
    expected = len(branches[0].outputs)
    for number, branch in enumerate(branches[1:], start=2):
        if len(branch.outputs) != expected:
            raise ucq.refuse(
                f"the first SELECT has {expected} columns and SELECT number {number} has {len(branch.outputs)}; "
                "all branches of UNION ALL need the same columns in the same order",
                branch.outputs[0].at,
            )


def check_features(ucq: Ucq, branch: ResolvedBranch, features: Sequence[int]) -> None:
    if not features:
        raise ucq.refuse("the SELECT list holds the label only; add at least one feature column", branch.outputs[0].at)
    seen: set[tuple[int, str]] = set()
    for output in (branch.outputs[p] for p in features):
        if (output.relation, output.name) in seen:
            raise ucq.refuse(
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
    """Requires that a subquery with groups at several clients is joined on a column that its groups share."""
    witnessed = {number for scan in scans for number, _ in scan.witness_of}
    for branch in branches:
        for relation, number in enumerate(branch.scans):
            scan = scans[number]
            if scan.groups is None or scan.merges or number in witnessed:
                continue
            why = f". Or let groups be merged: {scan.unmerged}" if scan.unmerged else ""
            raise ucq.refuse(
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
    target = bound.common_key_cast(left, right)
    if target is None:
        advice = "Join on columns that hold integers, strings, dates or UUIDs"
    else:
        kind, name = target
        casts = [text if key_type(column) == kind else f"CAST({text} AS {name})" for text, column in sides]
        # Both sides of USING are the same word of the text.
        on = "ON " if start_of(key.left_key) == start_of(key.right_key) else ""
        advice = f"Write {on}{' = '.join(casts)}"
    return ucq.refuse(f"{what}: {found}. {advice}", key.node)


def check_label(ucq: Ucq, branches: Sequence[PlacedBranch], scans: Sequence[Scan], label: int) -> None:
    """The label can be predicted, and is of one kind in all branches."""
    for branch in branches:
        column = branch.output(label, scans)
        if column.kind in ("other", "vector"):
            raise ucq.refuse(
                f"the label {branch.output_name(label)} is {type_name(column)}, which cannot be predicted; "
                "a label is a number, a boolean or a string",
                branch.resolved.outputs[label].at,
            )
    whole = union_of(ucq, branches, scans, label)
    odd = [b for b in branches if (b.output(label, scans).kind == "boolean") != (whole.kind == "boolean")]
    if odd:
        raise ucq.refuse(
            f"the label {whole.name} is {whole.detail} in the branches of UNION ALL: is it true or false, or a number? "
            f"Write CAST({odd[0].output_name(label)} AS DOUBLE) for a number, or a condition such as y > 0 in each",
            odd[0].resolved.outputs[label].at,
        )


def union_of(ucq: Ucq, branches: Sequence[PlacedBranch], scans: Sequence[Scan], position: int) -> ColumnInfo:
    """The name and the type of a column of the result, over all branches."""
    columns = [branch.output(position, scans) for branch in branches]
    for branch, column in zip(branches, columns, strict=True):
        if column.kind == "other":
            if type_name(column).strip('"') == "NULL":
                what = "is NULL in every row, so that its type is not known; leave it out"
                raise ucq.refuse(f"{branch.output_name(position)} {what}", branch.resolved.outputs[position].at)
            raise ucq.refuse(
                f"{branch.output_name(position)} is {type_name(column)}, which cannot be a feature; "
                + (
                    "write date_diff('day', from, to) for the time between two moments"
                    if type_name(column).upper().startswith("INTERVAL")
                    else "cast it to a number, a string or a date, or leave it out"
                ),
                branch.resolved.outputs[position].at,
            )
        merged = bound.union_column(branches[0].output_name(position), [columns[0], column])
        if merged is None:
            raise ucq.refuse(
                f"column {position + 1} of the result is {type_name(columns[0])} in the first SELECT "
                f"({branches[0].output_name(position)}) and {type_name(column)} in another "
                f"({branch.output_name(position)}); UNION ALL needs one type for both, so cast one or select another",
                branch.resolved.outputs[position].at,
            )
    whole = bound.union_column(branches[0].output_name(position), columns)
    assert whole is not None  # every pair with the first fits, and fitting is an equivalence
    return whole


def find_label(ucq: Ucq, branches: Sequence[ResolvedBranch], label: str) -> int:
    """The position of the label in the SELECT list, the same in every branch."""
    first = branches[0]
    position = _position(ucq, first, label)
    for branch in branches:
        output = branch.outputs[position]
        alias = branch.aliases[output.relation]
        if output.relation in branch.tree.nullable:
            raise ucq.refuse(
                f"the label {label} comes from {alias}, which is joined by LEFT JOIN, so that some rows would have no "
                f"label. Write JOIN {alias}, or begin FROM with {alias} and join the others to it by LEFT JOIN",
                output.at,
            )
        for other, feature in enumerate(branch.outputs):
            same = feature.relation == output.relation and feature.expression == output.expression
            if other != position and same:
                raise ucq.refuse(
                    f"the label {alias}.{output.name} is also selected as a feature, so that the model would only "
                    "copy it; select it once",
                    feature.at if feature.at is not output.at else output.at,
                )
    return position


def _position(ucq: Ucq, branch: ResolvedBranch, label: str) -> int:
    """The one output of the first branch with that name, or with that alias.name."""
    short = [output.name for output in branch.outputs]
    full = [f"{branch.aliases[o.relation]}.{o.name}" for o in branch.outputs]
    for change in (str, str.lower):
        wanted = change(label)
        found = [k for k in range(len(short)) if wanted in (change(short[k]), change(full[k]))]
        if len(found) == 1:
            return found[0]
        if found:
            choices = " or ".join(dict.fromkeys(full[k] for k in found))
            raise ucq.refuse(
                f"{len(found)} items of the SELECT list are called {label}; name the label as {choices}, "
                "or give it a name of its own with AS",
                branch.outputs[found[1]].at,
            )
    raise ucq.refuse(f"the label {label} is not in the SELECT list. {_advice(branch, label, short, full)}", None)


def _advice(branch: ResolvedBranch, label: str, short: list[str], full: list[str]) -> str:
    """How to select the label, if a table has it; otherwise the nearest name."""
    for output, name in zip(branch.outputs, full, strict=True):
        column = f"{branch.aliases[output.relation]}.{output.expression.name}"
        if isinstance(output.expression, exp.Column) and label.lower() in (
            output.expression.name.lower(),
            column.lower(),
        ):
            return f"{column} is selected AS {output.name}: name the label {output.name}, or {name}."
    for alias, shape in zip(branch.aliases, branch.shapes, strict=True):
        for column in shape.columns:
            if label.lower() in (column.lower(), f"{alias}.{column}".lower()):
                return f"Add {alias}.{column} to it."
    return did_you_mean(label, full if "." in label else short)


class LabelColumns(msgspec.Struct, frozen=True):
    """The columns that a job asks for besides the label; None: nothing."""

    weight: str | None = None
    test_where: str | None = None
    validation_where: str | None = None
    folds: str | None = None  # groups that stay together in cross-validation, or a time


NOTHING = LabelColumns()


def weight_position(branch: ResolvedBranch, label: int, weight: str | None) -> int | None:
    """The item of the SELECT list that is the weight, and therefore no feature; None: it is a column of the table."""
    if weight is None:
        return None
    relation = branch.outputs[label].relation
    alias = branch.aliases[relation]
    for position, output in enumerate(branch.outputs):
        names = (output.name.lower(), f"{alias}.{output.name}".lower())
        if position != label and output.relation == relation and weight.lower() in names:
            return position
    return None


def place_beside(
    places: Iterable[tuple[PlacedBranch, int]],
    beside: LabelColumns,
    scans: Scans,
    at: exp.Expr,
    selected: int | None = None,
) -> list[LabelPlace]:
    """Asks the label's scans for the expressions; by branch, their numbers.

    `places`: each branch with the relation that holds its label; `selected`: the item of it that is the weight.
    """
    found = []
    for branch, relation in places:
        columns, scan = dict.fromkeys(asdict(beside), -1), branch.scans[relation]
        for name, text in asdict(beside).items():
            if name == "weight" and selected is not None:
                columns[name] = branch.output_columns[selected]
            elif text is not None:
                columns[name] = scans.column(scan, _expression(branch.resolved, relation, name, text), at)
        found.append(LabelPlace(scan, -1, *columns.values()))
    return found


def check_beside(branches: Sequence[Branch], scans: Sequence[Scan]) -> None:
    """A weight is a number, and a predicate is true or false."""
    for place in (branch.label_place for branch in branches):
        columns = scans[place.scan].columns
        if place.weight >= 0 and columns[place.weight].kind not in ("integer", "float", "decimal", "boolean"):
            raise CatalogError(f"weight is {type_name(columns[place.weight])}; a weight is a number. CAST it")
        for name, number in (("test_where", place.test), ("validation_where", place.validation)):
            if number >= 0 and columns[number].kind != "boolean":
                raise CatalogError(
                    f"{name} is {type_name(columns[number])}; it must be a condition, true or false for each row of "
                    "the label's table"
                )


def _expression(branch: ResolvedBranch, relation: int, name: str, text: str) -> exp.Expr:
    """The expression over the label's table, read and checked as an item of a SELECT over that table alone."""
    shape, alias = branch.shapes[relation], branch.aliases[relation]
    table, called = (exp.Identifier(this=n, quoted=True).sql("duckdb") for n in (shape.name, alias))
    try:
        query = parse(f"SELECT {text} FROM {table} AS {called}")
        one = query.branches[0]
        if len(query.branches) > 1 or len(one.items) > 1 or len(one.sources) > 1 or one.where or one.sources[0].derived:
            raise QueryError("it is more than one expression")
        outputs = resolve(query, one, {one.sources[0].origin: shape}).outputs
        if len(outputs) > 1:
            raise QueryError("it is more than one expression")
        return outputs[0].expression
    except QueryError as error:
        if BEGINS in text:
            raise CatalogError(
                "the model was tested on the latest rows, and only its own query knows from which moment on; leave the "
                'query out, or measure all rows of this one (rows="all")'
            ) from None
        raise CatalogError(
            f"{name} is an expression over the columns of {alias}, the table that holds the label: {error}"
        ) from None
