"""qualify: columns beside and inside a subquery of a condition or an item → the same with the alias of their table.

In: a syntax tree and the columns of the federation's tables. Such a column may belong to the subquery or to the query
around it, which decides where the condition can run and what it is matched with; TPC's o_custkey = c_custkey does not
say. It is looked up as SQL does: in the FROM clause around it, then in the one around that. What two tables have, or
may have, stays as it was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp

from tablepuppet.query.conditions import conjuncts_of
from tablepuppet.query.derived import has_subquery

Columns = Mapping[str, Sequence[str]]  # by the name of a table in lower case


def unqualified(tree: exp.Expr) -> list[exp.Column]:
    """The columns that do not say which of two queries they belong to."""
    found: dict[int, exp.Column] = {}
    for select in tree.find_all(exp.Select):
        where = select.args.get("where")
        for node in [*(conjuncts_of(where.this) if where is not None else ()), *select.expressions]:
            if has_subquery(node):
                columns = (c for c in node.find_all(exp.Column) if not c.args.get("table"))
                found.update((id(c), c) for c in columns if not isinstance(c.this, exp.Star))
    return list(found.values())


def qualify(tree: exp.Expr, columns: Columns) -> None:
    """Names the table of each such column, in place."""
    ctes = {cte.alias.lower(): cte for cte in tree.find_all(exp.CTE)}
    for column in unqualified(tree):
        scope = column.find_ancestor(exp.Select)
        while scope is not None:
            sources = [(alias, _names(source, columns, ctes)) for alias, source in _sources(scope)]
            holders = [alias for alias, names in sources if names is not None and column.name.lower() in names]
            if len(holders) == 1:
                column.set("table", holders[0].copy())
            if holders or any(names is None for _, names in sources):
                break
            scope = scope.find_ancestor(exp.Select)


def _sources(select: exp.Select) -> Iterator[tuple[exp.Identifier, exp.Expr]]:
    """What a FROM clause names, by alias."""
    first = select.args.get("from_")
    for node in [*([first.this] if first is not None else []), *(j.this for j in select.args.get("joins") or ())]:
        alias = node.args.get("alias")
        named = alias.this if alias is not None else node.this
        yield named if isinstance(named, exp.Identifier) else exp.to_identifier(""), node


def _names(source: exp.Expr, columns: Columns, ctes: Mapping[str, exp.CTE]) -> set[str] | None:
    """The columns of a source in lower case; None: they cannot be told."""
    if isinstance(source, exp.Table) and not source.args.get("joins"):
        cte = ctes.get(source.name.lower())
        if cte is None:
            known = columns.get(source.name.lower())
            return None if known is None else {name.lower() for name in known}
        renamed = cte.args["alias"].columns
        return {c.name.lower() for c in renamed} if renamed else _selected(cte.this)
    return _selected(source.this) if isinstance(source, exp.Subquery) else None


def _selected(query: exp.Expr) -> set[str] | None:
    if not isinstance(query, exp.Query):
        return None
    names = query.named_selects
    return None if "*" in names else {name.lower() for name in names}
