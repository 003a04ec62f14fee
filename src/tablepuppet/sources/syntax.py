"""Helpers for sqlglot's trees: conditions that AND joins, relations of FROM, free names."""

from collections.abc import Iterable, Iterator
from itertools import count

from sqlglot import exp


def conjuncts_of(predicate: exp.Expr | None) -> Iterator[exp.Expr]:
    """The conditions that AND joins, from left to right, without their outer parentheses; of None, none."""
    waiting = [] if predicate is None else [predicate]
    while waiting:
        node = waiting.pop().unnest()
        if isinstance(node, exp.And):
            waiting += [node.right, node.left]
        else:
            yield node


def conditions_of(select: exp.Expr) -> list[exp.Expr]:
    where = select.args.get("where")
    return [] if where is None else list(conjuncts_of(where.this))


def relations_of(select: exp.Expr) -> list[exp.Expr]:
    """The tables and subqueries of FROM and its joins, in the order of the text."""
    first = select.args.get("from_")
    return [*([] if first is None else [first.this]), *(join.this for join in select.args.get("joins") or ())]


def without(select: exp.Select, *clauses: str) -> exp.Select:
    """The SELECT, from which these clauses are taken away."""
    for clause in clauses:
        select.set(clause, None)
    return select


def unused_name(name: str, taken: Iterable[str], between: str = "_") -> str:
    """The name, or the name with a number, that is not taken in upper or lower case."""
    known = {other.lower() for other in taken}
    candidates = (name if number == 1 else f"{name}{between}{number}" for number in count(1))
    return next(candidate for candidate in candidates if candidate.lower() not in known)
