"""find_label: which item of the SELECT list is the label."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tablepuppet.catalog.names import ResolvedBranch
from tablepuppet.catalog.refusals import refuse
from tablepuppet.query.ucq import Ucq
from tablepuppet.suggest import did_you_mean


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
