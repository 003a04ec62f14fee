"""find_label: which item of the SELECT list is the label; and what is read beside it, of the rows that hold it.

Beside it: a sample weight and predicates of the split. In: SQL over the label's table, as a user writes it
(`weight="w"`, `test_where="day >= DATE '2024-01-01'"`). Out: for every branch, the number of the expression in the
label's scan; −1 where nothing was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tablepuppet.catalog.bound import Branch, Scan, refuse
from tablepuppet.catalog.names import ResolvedBranch, resolve
from tablepuppet.catalog.scans import PlacedBranch, Scans
from tablepuppet.catalog.types import type_name
from tablepuppet.errors import CatalogError, QueryError, did_you_mean
from tablepuppet.query.parsing import parse
from tablepuppet.query.ucq import Ucq


def find_label(ucq: Ucq, branches: Sequence[ResolvedBranch], label: str) -> int:
    """The position of the label in the SELECT list, the same in every branch."""
    first = branches[0]
    position = _position(ucq, first, label)
    for branch in branches:
        output = branch.outputs[position]
        alias = branch.aliases[output.relation]
        if output.relation in branch.tree.nullable:
            raise refuse(
                ucq,
                f"the label {label} comes from {alias}, which is joined by LEFT JOIN, so that some rows would have no "
                f"label. Write JOIN {alias}, or begin FROM with {alias} and join the others to it by LEFT JOIN",
                output.at,
            )
        for other, feature in enumerate(branch.outputs):
            same = feature.relation == output.relation and feature.expression == output.expression
            if other != position and same:
                raise refuse(
                    ucq,
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
            raise refuse(
                ucq,
                f"{len(found)} items of the SELECT list are called {label}; name the label as {choices}, "
                "or give it a name of its own with AS",
                branch.outputs[found[1]].at,
            )
    raise refuse(ucq, f"the label {label} is not in the SELECT list. {_advice(branch, label, short, full)}", None)


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


_WEIGHTS = ("integer", "float", "decimal", "boolean")


@dataclass(frozen=True, slots=True)
class LabelColumns:
    """What a job asks for beside the label; None: nothing."""

    weight: str | None = None
    test_where: str | None = None
    validation_where: str | None = None
    folds: str | None = None  # groups that stay together in cross-validation, or a time

    def items(self) -> Iterator[tuple[str, str | None]]:
        yield "weight", self.weight
        yield "test_where", self.test_where
        yield "validation_where", self.validation_where
        yield "folds", self.folds


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
    placed: Sequence[PlacedBranch],
    relations: Sequence[int],
    selected: int | None,
    beside: LabelColumns,
    scans: Scans,
    at: exp.Expr,
) -> list[dict[str, int]]:
    """Asks the label's scans, of these relations, for the expressions; by branch and name, their numbers."""
    found: list[dict[str, int]] = []
    for branch, relation in zip(placed, relations, strict=True):
        scan = branch.scans[relation]
        columns = {}
        for name, text in beside.items():
            if name == "weight" and selected is not None:
                columns[name] = branch.output_columns[selected]
            elif text is not None:
                columns[name] = scans.column(scan, _expression(branch.resolved, relation, name, text), at)
        found.append(columns)
    return found


def check_beside(branches: Sequence[Branch], scans: Sequence[Scan]) -> None:
    """A weight is a number, and a predicate is true or false."""
    for branch in branches:
        columns = scans[branch.relations[branch.label_relation].scan].columns
        if branch.weight_column >= 0 and columns[branch.weight_column].kind not in _WEIGHTS:
            raise CatalogError(f"weight is {type_name(columns[branch.weight_column])}; a weight is a number. CAST it")
        for name, number in (("test_where", branch.test_column), ("validation_where", branch.validation_column)):
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
        raise CatalogError(
            f"{name} is an expression over the columns of {alias}, the table that holds the label: {error}"
        ) from None
