"""group_columns: a subquery over a table that several clients share → columns whose values must not be shared.

In: the subquery. Out: the names of output columns such that, if rows of equal value in one of them all lie with one
client, the subquery over all rows is what its clients compute, put together: the columns by which every GROUP BY,
window and DISTINCT divides. The query must join on such a column; the mapping then sees whether a value lies with two
clients (mapping/keys). None: the subquery looks at one row at a time, and nothing must hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from tablepuppet.tables.guard import AGGREGATES

Names = frozenset[str]  # in lower case
_NOTHING: Names = frozenset()


def group_columns(query: exp.Query) -> Names | None:
    """The columns; none at all if the subquery needs rows of several clients whatever they hold."""
    clause = query.args.get("with_")
    ctes = {cte.alias.lower(): cte.this for cte in clause.expressions} if clause is not None else {}
    return _of_query(query, ctes)


def _of_query(query: exp.Expr, ctes: Mapping[str, exp.Expr]) -> Names | None:
    if not isinstance(query, exp.Select) or query.args.get("joins") or query.args.get("from_") is None:
        return _NOTHING
    where = query.args.get("where")
    if where is not None and where.find(exp.Query):
        return _NOTHING
    below = _of_source(query.args["from_"].this, ctes)
    for divided in _divisions(query):
        below = divided if below is None else below & divided
    return below if below is None else _shown(query, below)


def _of_source(source: exp.Expr, ctes: Mapping[str, exp.Expr]) -> Names | None:
    """What must hold below; None for a table, of which any column may be asked."""
    if isinstance(source, exp.Subquery):
        return _of_query(source.this, ctes)
    if isinstance(source, exp.Table) and source.name.lower() in ctes:
        return _of_query(ctes[source.name.lower()], ctes)
    return None if isinstance(source, exp.Table) else _NOTHING


def _divisions(select: exp.Select) -> list[Names]:
    """The columns by which each clause of a SELECT divides its rows."""
    found = []
    if select.args.get("limit") or select.args.get("offset"):
        found.append(_NOTHING)
    group = select.args.get("group")
    if group is not None:
        found.append(_plain_columns(_grouped(select, group)))
    own = [node for node in select.find_all(*AGGREGATES, exp.Window) if node.find_ancestor(exp.Select) is select]
    windows = [node for node in own if isinstance(node, exp.Window)]
    named = {w.name.lower(): w for w in select.args.get("windows") or ()}
    for window in windows:
        meant = named.get(window.alias.lower(), window) if window.alias else window
        found.append(_plain_columns(meant.args.get("partition_by") or []))
    if group is None and any(not _is_windowed(node) for node in own):
        found.append(_NOTHING)  # one group of all rows
    distinct = select.args.get("distinct")
    if distinct is not None:
        on = distinct.args.get("on")
        found.append(_plain_columns(on.expressions if on is not None else select.expressions))
    return found


def _is_windowed(node: exp.Expr) -> bool:
    return isinstance(node, exp.Window) or node.find_ancestor(exp.Window) is not None


def _grouped(select: exp.Select, group: exp.Group) -> list[exp.Expr]:
    """What GROUP BY names: expressions, positions in the SELECT list, or ALL of it that is no aggregate."""
    if group.args.get("all"):
        return [item for item in select.expressions if not item.find(*AGGREGATES)]
    by_number = {str(k + 1): item for k, item in enumerate(select.expressions)}
    return [by_number.get(e.name, e) if isinstance(e, exp.Literal) else e for e in group.expressions]


def _plain_columns(expressions: list[exp.Expr]) -> Names:
    return frozenset(e.unalias().name.lower() for e in expressions if isinstance(e.unalias(), exp.Column))


def _shown(select: exp.Select, below: Names) -> Names:
    """The names that columns below have in the SELECT list."""
    shown: set[str] = set()
    for item in select.expressions:
        value = item.unalias()
        if isinstance(value, exp.Star) or (isinstance(value, exp.Column) and isinstance(value.this, exp.Star)):
            shown |= below
        elif isinstance(value, exp.Column) and value.name.lower() in below:
            shown.add(item.alias_or_name.lower())
    return frozenset(shown)
