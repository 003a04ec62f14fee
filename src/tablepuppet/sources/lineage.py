"""Lineage: the base columns behind a query over an owner's tables, and how far one base row reaches in its rows.

In: a checked query and the columns of its tables. Out: for each output, the base columns behind its values; the base
columns that decide which rows there are, by conditions or otherwise; for each base table, the query's *stability*.
Stability bounds the rows in which the results differ when one base row is present or absent (McSherry, PINQ, SIGMOD
2009; Johnson et al., FLEX, VLDB 2018). Differing rows count on both sides: a group whose mean changes is one row gone
and another one come.

    columns, expressions, WHERE     1 row
    UNION ALL, a table read twice   the sum of both
    GROUP BY                        2 of each row: a group before and after; without keys 2 in all
    everything else                 no bound: windows, LIMIT, DISTINCT ON, subqueries in expressions, joins

Nothing is read: the answer holds for every content of the tables. Anything that cannot be resolved has no bound.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tablepuppet.protocol.base import MOST_CHANGED
from tablepuppet.sources.guard import AGGREGATES

BaseColumns = frozenset[tuple[str, str]]  # table and column
Counts = Mapping[str, int | None]  # by table; None: no bound
_NONE: BaseColumns = frozenset()


class Lineage(msgspec.Struct, frozen=True):
    """The base columns and tables that the rows of a query come from."""

    outputs: Mapping[str, BaseColumns]  # by name, in lower case
    conditions: BaseColumns  # columns that WHERE, HAVING and QUALIFY read
    grouping: BaseColumns  # columns that decide otherwise which rows there are: GROUP BY, ON, DISTINCT
    stability: Counts
    everything: BaseColumns

    def behind(self, output: str) -> BaseColumns:
        """The columns that an output's values are made of; of one that is not known, all."""
        return self.outputs.get(output.lower(), self.everything)


def trace(text: str, tables: Mapping[str, Sequence[str]]) -> Lineage:
    """The lineage of a query over these columns of tables.

    >>> found = trace('SELECT "k", AVG("x") AS "m" FROM "t" WHERE "z" > 0 GROUP BY "k"', {"t": ["k", "x", "z"]})
    >>> sorted(found.behind("m")), sorted(found.conditions), sorted(found.grouping), found.stability
    ([('t', 'x')], [('t', 'z')], [('t', 'k')], {'t': 2})
    """
    from sqlglot.optimizer.qualify import qualify  # here: few jobs have a subquery

    every = frozenset((table, column) for table, columns in tables.items() for column in columns)
    schema: dict[str, object] = {
        table.lower(): {column.lower(): "unknown" for column in columns} for table, columns in tables.items()
    }
    try:
        tree = qualify(
            parse_one(text, dialect="duckdb"), schema=schema, dialect="duckdb", validate_qualify_columns=True
        )
        found = _Tracer(tables).query(tree, {})
    except (SqlglotError, _UnclearError, KeyError, ValueError, RecursionError):
        return Lineage({}, every, every, dict.fromkeys(tables), every)
    counts = {table: found.stability.get(table, 0) for table in tables}
    stability = {table: None if rows is None or rows > MOST_CHANGED else rows for table, rows in counts.items()}
    return Lineage(found.outputs, found.conditions, found.grouping, stability, every)


class _UnclearError(Exception):
    """A part of a query that is not followed."""


class _Rows(msgspec.Struct):
    """The rows of a part of a query."""

    outputs: dict[str, BaseColumns]
    conditions: BaseColumns = _NONE
    grouping: BaseColumns = _NONE
    stability: dict[str, int | None] = {}


_Members = dict[str, _Rows]  # of a FROM clause with its joins, by alias


def _add(ours: Counts, theirs: Counts) -> dict[str, int | None]:
    both = {table: (ours.get(table, 0), theirs.get(table, 0)) for table in (*ours, *theirs)}
    return {table: None if a is None or b is None else a + b for table, (a, b) in both.items()}


class _Tracer:
    def __init__(self, tables: Mapping[str, Sequence[str]]) -> None:
        self._tables = {table.lower(): (table, {c.lower(): c for c in columns}) for table, columns in tables.items()}
        self._outside: dict[str, _Rows] = {}  # relations that a subquery in an expression may read

    def query(self, node: exp.Expr, known: Mapping[str, _Rows]) -> _Rows:
        """The rows of a SELECT, or of a union of some; `known`: the queries of WITH."""
        named = dict(known)
        with_ = node.args.get("with_") or node.args.get("with")
        for cte in with_.expressions if with_ is not None else ():
            named[cte.alias.lower()] = _rename(self.query(cte.this, named), cte)
        if isinstance(node, exp.Subquery):
            return self._cut(self.query(node.this, named), node)
        if isinstance(node, exp.SetOperation):
            return self._cut(self._union(node, named), node)
        if not isinstance(node, exp.Select) or node.args.get("windows"):
            raise _UnclearError
        return self._cut(self._select(node, named), node)

    def _cut(self, rows: _Rows, node: exp.Expr) -> _Rows:
        """DISTINCT, LIMIT and OFFSET: which rows are left depends on all of them."""
        distinct = node.args.get("distinct")
        is_chosen = isinstance(distinct, exp.Distinct) and distinct.args.get("on") is not None
        if is_chosen or any(node.args.get(clause) is not None for clause in ("limit", "offset")):
            rows = replace(rows, stability=_without_bound(rows))
        elif not distinct and (isinstance(node, exp.Select) or node.args.get("order") is None):
            return rows
        return replace(rows, grouping=rows.grouping.union(*rows.outputs.values()))

    def _union(self, node: exp.SetOperation, named: Mapping[str, _Rows]) -> _Rows:
        left, right = self.query(node.this, named), self.query(node.expression, named)
        if node.args.get("by_name") or len(left.outputs) != len(right.outputs):
            raise _UnclearError
        pairs = zip(left.outputs.items(), right.outputs.values(), strict=True)
        outputs = {name: ours | theirs for (name, ours), theirs in pairs}
        grouping = left.grouping | right.grouping
        if not isinstance(node, exp.Union):
            grouping = grouping.union(*outputs.values())
        stability = _add(left.stability, right.stability)
        return _Rows(outputs, left.conditions | right.conditions, grouping, stability)

    def _select(self, node: exp.Select, named: Mapping[str, _Rows]) -> _Rows:
        source = node.args.get("from_") or node.args.get("from")
        if source is None:
            raise _UnclearError
        joined, grouping = self._relation(source.this, named), _NONE
        joins = node.args.get("joins") or ()
        for join in joins:
            if join.method == "NATURAL":
                raise _UnclearError
            joined |= self._relation(join.this, named)
            grouping = grouping.union(*(self._columns(on, joined, named) for on in _parts(join)))
        counts: dict[str, int | None] = {t: n for rows in joined.values() for t, n in rows.stability.items()}
        counts = dict.fromkeys(counts) if joins else counts
        outputs: dict[str, BaseColumns] = {}
        for selected in node.selects:
            if selected.is_star or selected.alias_or_name.lower() in outputs:
                raise _UnclearError
            outputs[selected.alias_or_name.lower()] = self._columns(selected, joined, named)
        for part in _parts(node):  # which rows are left, and in which order
            if isinstance(part, exp.Order | exp.Distinct | exp.Limit | exp.Offset | exp.Fetch):
                grouping |= self._columns(part, {**joined, "": _Rows(outputs)}, named)
        inner = joined.values()
        clauses = map(node.args.get, ("where", "having", "qualify"))
        conditions = [condition.copy() for condition in clauses if condition is not None]
        for window in (window for condition in conditions for window in condition.find_all(exp.Window)):
            is_row = isinstance(window.this, exp.RowNumber)  # the latest row of a group: its values choose none
            by = (window.args.pop("partition_by", None) if is_row else None) or ()
            grouping = grouping.union(*(self._columns(key, joined, named) for key in by))
        rows = _Rows(
            outputs,
            _NONE.union(*(r.conditions for r in inner), *(self._columns(c, joined, named) for c in conditions)),
            grouping.union(*(r.grouping for r in inner)),
            self._add_nested([node, *joins], counts, named),
        )
        return self._group(node, rows, joined, named)

    def _group(self, node: exp.Select, rows: _Rows, joined: _Members, named: Mapping[str, _Rows]) -> _Rows:
        group = node.args.get("group")
        if group is not None:
            others = {name for name, value in group.args.items() if value and name != "expressions"}
            by = group.expressions or [s.unalias() for s in node.selects if not _aggregates(s)]
            if others - {"all"} or not by:
                raise _UnclearError
            rows = replace(
                rows,
                grouping=rows.grouping.union(*(self._columns(c, joined, named) for c in by)),
                stability=_add(rows.stability, rows.stability),
            )
        elif node.args.get("having") is not None or any(_aggregates(selected) for selected in node.selects):
            rows = replace(rows, stability=dict.fromkeys(rows.stability, 2))
        parts = [part for value in _parts(node) for part in _outside_queries(value)]
        return replace(rows, stability=_without_bound(rows)) if any(isinstance(p, exp.Window) for p in parts) else rows

    def _relation(self, node: exp.Expr, named: Mapping[str, _Rows]) -> _Members:
        """A table, a name that WITH gave, or a subquery."""
        if node.args.get("joins") or node.args.get("pivots") or node.args.get("laterals"):
            raise _UnclearError
        alias = node.alias_or_name.lower()
        if isinstance(node, exp.Table) and node.name.lower() in named:
            return {alias: _rename(named[node.name.lower()], node)}
        if isinstance(node, exp.Table):
            table, columns = self._tables[node.name.lower()]
            outputs = {name: frozenset([(table, column)]) for name, column in columns.items()}
            return {alias: _Rows(outputs, stability={table: 1})}
        if isinstance(node, exp.Subquery):
            return {alias: _rename(self.query(node, named), node)}
        raise _UnclearError

    def _columns(self, node: exp.Expr, joined: _Members, named: Mapping[str, _Rows]) -> BaseColumns:
        """The base columns behind an expression, those of its subqueries among them."""
        found = _NONE
        for part in _outside_queries(node):
            if isinstance(part, exp.Query):
                outside, self._outside = self._outside, {**self._outside, **joined}
                inner = self.query(part, named)
                self._outside = outside
                found = found.union(inner.conditions, inner.grouping, *inner.outputs.values())
            elif isinstance(part, exp.Column):
                rows = joined.get(part.table.lower()) or self._outside[part.table.lower()]
                found |= rows.outputs[part.name.lower()]
            elif isinstance(part, exp.TableColumn):  # a whole row, by the name of its table
                raise _UnclearError
        return found

    def _add_nested(
        self, nodes: Sequence[exp.Expr], counts: dict[str, int | None], named: Mapping[str, _Rows]
    ) -> dict[str, int | None]:
        """Rows that a subquery in an expression reads may change every row outside."""
        for value in (part for node in nodes for part in _parts(node)):
            for part in _outside_queries(value):
                for table in part.find_all(exp.Table) if isinstance(part, exp.Query) else ():
                    name = table.name.lower()
                    counts |= dict.fromkeys(named[name].stability if name in named else [self._tables[name][0]])
        return counts


def _parts(node: exp.Expr) -> list[exp.Expr]:
    """The expressions of a SELECT or of a join: all but its sources."""
    children = (c for c in node.iter_expressions() if not (isinstance(node, exp.Join) and c.arg_key == "this"))
    return [c for c in children if not isinstance(c, exp.From | exp.With | exp.Join)]


def _without_bound(rows: _Rows) -> dict[str, int | None]:
    return dict.fromkeys(rows.stability)


def _aggregates(node: exp.Expr) -> bool:
    """Whether a selected value is made of many rows, other than through a window."""
    found = [part for part in _outside_queries(node) if isinstance(part, (exp.AggFunc, *AGGREGATES))]
    return any(not isinstance(part.find_ancestor(exp.Window, exp.Select), exp.Window) for part in found)


def _rename(rows: _Rows, node: exp.Expr) -> _Rows:
    """Rows under the names that `AS t(a, b)` gives their columns."""
    columns = [name.lower() for name in node.alias_column_names]
    if not columns:
        return rows
    if len(columns) != len(rows.outputs):
        raise _UnclearError
    return replace(rows, outputs=dict(zip(columns, rows.outputs.values(), strict=True)))


def _outside_queries(node: exp.Expr) -> Iterable[exp.Expr]:
    """Every part of an expression; a query inside it counts as one part."""
    return node.walk(prune=lambda part: isinstance(part, exp.Query))
