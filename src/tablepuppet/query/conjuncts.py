"""conjuncts_of: a predicate → the conditions that AND joins."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp


def conjuncts_of(predicate: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions from left to right, without their outer parentheses."""
    waiting = [predicate]
    while waiting:
        node = waiting.pop().unnest()
        if isinstance(node, exp.And):
            waiting += [node.right, node.left]
        else:
            yield node
