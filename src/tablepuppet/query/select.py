"""read_select: one SELECT of the syntax tree → Conjunctive, or a refusal that says what to write instead."""

from __future__ import annotations

from sqlglot import exp

from tablepuppet.query.conditions import conjuncts_of
from tablepuppet.query.derived import Ctes, has_subquery, narrowed, widened
from tablepuppet.query.from_clause import read_from
from tablepuppet.query.grammar import check_clauses
from tablepuppet.query.joins import join_tree
from tablepuppet.query.position import refusal
from tablepuppet.query.scalar import check_scalar
from tablepuppet.query.ucq import Conjunctive, Item, Scope, Star, is_resolved

_READ = frozenset({"expressions", "from_", "joins", "where", "with_"})


def read_select(text: str, select: exp.Select, ctes: Ctes | None = None) -> Conjunctive:
    """A SELECT as a conjunctive query; all that can be checked without a schema is checked."""
    check_clauses(text, select, _READ)
    if select.args.get("from_") is None:
        raise refusal(text, "this SELECT has no FROM clause; name the tables that hold the columns", select)
    if not select.expressions:
        raise refusal(text, "the SELECT list is empty; name the feature columns and the label", select)
    ctes = ctes or {}
    items = [_item(node, text) for node in select.expressions]
    sources = tuple(read_from(text, select, ctes))
    where = select.args.get("where")
    kept = []
    for conjunct in conjuncts_of(where.this) if where is not None else ():
        if has_subquery(conjunct):
            sources = narrowed(text, sources, conjunct, ctes)
        else:
            check_scalar(text, conjunct)
            kept.append(conjunct)
    for k, item in enumerate(items):
        if isinstance(item, Item):
            if has_subquery(item.expression):
                sources, items[k] = widened(text, sources, item, k + 1, ctes)
            else:
                check_scalar(text, item.expression)
    query = Conjunctive(tuple(items), sources, tuple(kept))
    _check_tables(text, query)
    return query


def one_table(scope: Scope, expression: exp.Expr) -> int:
    """The table that a SELECT item is over; there must be exactly one."""
    relations = scope.relations(expression)
    if not relations:
        raise refusal(
            scope.text,
            "this item names no column. A constant teaches a model nothing, an intercept is there anyway: remove it",
            expression,
        )
    if len(relations) > 1:
        raise refusal(
            scope.text,
            f"this item mixes columns of {scope.names(relations)}, which lie with different owners. Select the columns "
            "of each table as items of their own: a model weighs and adds them up, which makes every sum and "
            "difference. A product or a ratio is not a sum: an owner that has both columns can compute it "
            "beforehand, and with items ln(x) and ln(y) a model can learn its logarithm",
            expression,
        )
    return relations[0]


def _item(node: exp.Expr, text: str) -> Item | Star:
    """One item of the SELECT list."""
    star = node.this if isinstance(node, exp.Column) else node
    if isinstance(star, exp.Star):
        excluded = star.args.get("except_") or ()
        if any(value for key, value in star.args.items() if key != "except_"):
            raise refusal(text, "REPLACE and RENAME are not supported after *; list the columns", node)
        return Star(node.args.get("table"), node, tuple(c.this if isinstance(c, exp.Column) else c for c in excluded))
    expression = node.this if isinstance(node, exp.Alias) else node
    name = node.args["alias"] if isinstance(node, exp.Alias) else None
    return Item(expression.unnest(), name)


def _check_tables(text: str, query: Conjunctive) -> None:
    """Checks who owns what as far as the text alone tells: only for columns that name their table."""
    scope = Scope(text, query.sources)
    for item in query.items:
        if isinstance(item, Star):
            if item.alias is not None:
                scope.relation(item.alias)
        elif is_resolved(item.expression):
            one_table(scope, item.expression)
    conditions = [*(c for source in query.sources for c in source.on), *query.where]
    if all(map(is_resolved, conditions)) and not any(source.using for source in query.sources):
        join_tree(scope, query.sources, query.where)
