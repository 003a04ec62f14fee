"""Conditions: the comparisons that an expression or query is made of, and the rows that they tell apart.

In: SQL that the guard wrote. Out: each comparison by itself, over the columns of one table; then, from the rows that
each of them holds for, the size of the smallest group that they tell apart. Whatever WHERE, CASE or split is put
together from comparisons picks whole groups: no way of putting them together picks fewer rows than the smallest has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlglot import exp, parse_one

from tablepuppet.owner.singling_out import drop_qualifiers, find_shadowed_names, unclear

_SPLITTERS = (exp.And, exp.Or, exp.Not, exp.Paren)
_TRUTHS = (exp.Predicate, exp.StartsWith, exp.EndsWith, exp.Contains, exp.IsNan, exp.IsInf)
_MOST = 60  # bits of a group's number before groups are numbered anew


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison: its text, the columns that it looks at, and whether it is of one column or of two as they are."""

    text: str
    columns: frozenset[str]
    is_plain: bool


def conditions_of(sql: str, *, is_predicate: bool) -> list[Condition]:
    """The comparisons in an expression; `x IS NULL` is none, for it looks at no value.

    >>> [c.text for c in conditions_of('"a" > 3 AND NOT ("b" = 1 OR "c" IS NULL)', is_predicate=True)]
    ['"a" > 3', '"b" = 1']
    >>> [c.text for c in conditions_of('CASE "id" WHEN 7 THEN "pay" END', is_predicate=False)]
    ['"id" = 7']
    """
    tree = parse_one(sql, dialect="duckdb")
    found = [*(_leaves(tree) if is_predicate else ()), *_inside(tree)]
    return list(dict.fromkeys(_condition(node) for node in found if not _is_null_test(node)))


def conditions_of_query(sql: str, tables: Mapping[str, Sequence[str]]) -> dict[str, list[Condition]]:
    """The comparisons in a query over an owner's tables, by the table whose columns they look at."""
    tree = parse_one(sql, dialect="duckdb")
    has = {table: {column.lower() for column in columns} for table, columns in tables.items()}
    given = find_shadowed_names(tree)
    found: dict[str, list[Condition]] = {table: [] for table in tables}
    for node in _inside(tree):
        columns = list(node.find_all(exp.Column))
        if not columns or _is_null_test(node) or _compares_tables(node):
            continue
        if node.find(exp.AggFunc, exp.Window, exp.Query) is not None:
            if all(isinstance(c.find_ancestor(exp.AggFunc), exp.Count) for c in columns):
                continue  # how many rows a group has
            raise unclear("a comparison of an aggregate or of another query's rows")
        names, aliases = {column.name.lower() for column in columns}, {column.table.lower() for column in columns}
        places = [table for table in tables if names <= has[table]]
        if not places or names & given or len(aliases) > 1:
            raise unclear("a comparison that is not of the columns of one table by their own names")
        condition = _condition(drop_qualifiers(node))
        for table in places:  # several may have a column of that name
            found[table] += [condition] if condition not in found[table] else []
    return found


def smallest_group(holds: Sequence[NDArray[np.bool_]]) -> int:
    """How many rows the smallest group has that some conditions tell apart; no rows: 0.

    >>> smallest_group([np.array([True, True, False, True]), np.array([True, True, False, False])])
    1
    """
    if not holds:
        return 0
    numbers = np.zeros(len(holds[0]), np.int64)
    for place, held in enumerate(holds):
        if place % _MOST == _MOST - 1:
            numbers = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
        numbers = 2 * numbers + held
    return int(np.unique(numbers, return_counts=True)[1].min(initial=len(numbers)))


def _leaves(node: exp.Expr) -> Iterator[exp.Expr]:
    """What AND, OR and NOT connect."""
    if isinstance(node, _SPLITTERS):
        for child in node.iter_expressions():
            yield from _leaves(child)
    elif not isinstance(node, exp.Boolean):
        yield node


def _inside(tree: exp.Expr) -> Iterator[exp.Expr]:
    """Every comparison, also those in CASE and in arguments of functions."""
    for node in tree.walk():
        if isinstance(node, exp.Where | exp.Having | exp.Qualify):
            yield from _leaves(node.this)
        elif isinstance(node, exp.Case):
            for branch in node.args.get("ifs", ()):
                value = node.args.get("this")
                yield from [exp.EQ(this=value.copy(), expression=branch.this.copy())] if value else _leaves(branch.this)
        elif isinstance(node, exp.If) and not isinstance(node.parent, exp.Case):
            yield from _leaves(node.this)
        elif isinstance(node, exp.Nullif):
            yield exp.EQ(this=node.this.copy(), expression=node.expression.copy())
        elif isinstance(node, _TRUTHS) and not isinstance(node, exp.SubqueryPredicate):
            yield node


def _condition(node: exp.Expr) -> Condition:
    columns = frozenset(column.name for column in node.find_all(exp.Column))
    two = isinstance(node, exp.Binary) and all(isinstance(side, exp.Column) for side in (node.this, node.expression))
    return Condition(node.sql("duckdb", identify=True), columns, two or len(columns) < 2)


def _is_null_test(node: exp.Expr) -> bool:
    return isinstance(node, exp.Is) and isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Null)


def _compares_tables(node: exp.Expr) -> bool:
    """Whether it is the `a.x = b.y` of a join."""
    sides = [node.args.get("this"), node.args.get("expression")]
    if not isinstance(node, exp.EQ) or not all(isinstance(side, exp.Column) for side in sides):
        return False
    return len({side.table for side in sides if isinstance(side, exp.Column)}) == 2
