"""Lineage: the base columns behind a query over an owner's tables, and how far one base row reaches in its rows.

In: a checked query and the columns of its tables. Out: for each output, the base columns behind its values; the base
columns that decide which rows there are, by conditions or otherwise; for each base table, the query's *stability*.
Stability bounds the rows in which the results differ when one base row is present or absent (McSherry, PINQ, SIGMOD
2009; Johnson et al., FLEX, VLDB 2018). Differing rows count on both sides: a group whose mean changes is one row gone
and another one come.

    columns, expressions, WHERE     1 row
    UNION ALL, a table read twice   the sum of both
    GROUP BY                        2 of each row: a group before and after; without keys 2 in all
    a JOIN b                        as many as the other side has with one key: 1 where that side is grouped by the key
    everything else                 no bound: windows, LIMIT, DISTINCT ON, subqueries in expressions, other joins

Nothing is read: the answer holds for every content of the tables. Anything that cannot be resolved has no bound.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec
from msgspec.structs import replace
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tablepuppet.sources.guard import AGGREGATES
from tablepuppet.sources.syntax import conjuncts_of

BaseColumns = frozenset[tuple[str, str]]  # table and column
Counts = Mapping[str, int | None]  # by table; None: no bound
Name = tuple[str, str]  # alias and column, in lower case
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
    stability = {table: found.stability.get(table, 0) for table in tables}
    return Lineage(found.outputs, found.conditions, found.grouping, stability, every)


class _UnclearError(Exception):
    """A part of a query that is not followed."""


class _Rows(msgspec.Struct):
    """The rows of a part of a query."""

    outputs: dict[str, BaseColumns]
    conditions: BaseColumns = _NONE
    grouping: BaseColumns = _NONE
    stability: dict[str, int | None] = {}
    keys: list[frozenset[str]] = []  # outputs no two rows agree in


class _Joined(msgspec.Struct):
    """The rows of a FROM clause with its joins."""

    members: dict[str, _Rows]
    stability: dict[str, int | None]
    keys: list[frozenset[Name]]

    @classmethod
    def of(cls, alias: str, rows: _Rows) -> Self:
        keys = [frozenset((alias, column) for column in key) for key in rows.keys]
        return cls({alias: rows}, dict(rows.stability), keys)


def _add(counts: Iterable[Counts]) -> dict[str, int | None]:
    total: dict[str, int | None] = {}
    for some in counts:
        for table, count in some.items():
            before = total.get(table, 0)
            total[table] = None if before is None or count is None else before + count
    return total


def _times(counts: Counts, factor: int | None) -> dict[str, int | None]:
    return {t: None if c is None or factor is None else c * factor for t, c in counts.items()}


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
        if not isinstance(node, exp.Select):
            raise _UnclearError
        return self._cut(self._select(node, named), node)

    def _cut(self, rows: _Rows, node: exp.Expr) -> _Rows:
        """LIMIT and OFFSET: which rows are left depends on all of them."""
        if any(node.args.get(clause) is not None for clause in ("limit", "offset")):
            return replace(rows, grouping=rows.grouping.union(*rows.outputs.values()), stability=_without_bound(rows))
        return rows

    def _union(self, node: exp.SetOperation, named: Mapping[str, _Rows]) -> _Rows:
        left, right = self.query(node.this, named), self.query(node.expression, named)
        if node.args.get("by_name") or len(left.outputs) != len(right.outputs):
            raise _UnclearError
        pairs = zip(left.outputs.items(), right.outputs.values(), strict=True)
        outputs = {name: ours | theirs for (name, ours), theirs in pairs}
        grouping, keys = left.grouping | right.grouping, list[frozenset[str]]()
        if node.args.get("distinct") or not isinstance(node, exp.Union):
            grouping = grouping.union(*outputs.values())
            keys = [frozenset(outputs)] if node.args.get("distinct") else []
        stability = _add([left.stability, right.stability])
        return _Rows(outputs, left.conditions | right.conditions, grouping, stability, keys)

    def _select(self, node: exp.Select, named: Mapping[str, _Rows]) -> _Rows:
        source = node.args.get("from_") or node.args.get("from")
        if source is None:
            raise _UnclearError
        joined, grouping = self._relation(source.this, named), _NONE
        for join in node.args.get("joins") or ():
            joined, on = self._join(joined, join, named)
            grouping |= on
        outputs: dict[str, BaseColumns] = {}
        for selected in node.selects:
            if selected.is_star or selected.alias_or_name.lower() in outputs:
                raise _UnclearError
            outputs[selected.alias_or_name.lower()] = self._columns(selected, joined, named)
        inner = joined.members.values()
        conditions = [node.args[clause] for clause in _CONDITIONS if node.args.get(clause) is not None]
        rows = _Rows(
            outputs,
            _NONE.union(*(r.conditions for r in inner), *(self._columns(c, joined, named) for c in conditions)),
            grouping.union(*(r.grouping for r in inner)),
            self._add_nested(node, dict(joined.stability), named),
            [key for names in joined.keys if (key := _names_of_key(node, names)) is not None],
        )
        return self._distinct(node, self._group(node, rows, joined, named))

    def _group(self, node: exp.Select, rows: _Rows, joined: _Joined, named: Mapping[str, _Rows]) -> _Rows:
        group = node.args.get("group")
        if group is not None:
            others = {name for name, value in group.args.items() if value and name != "expressions"}
            by = group.expressions or [s.unalias() for s in node.selects if not _aggregates(s)]
            if others - {"all"} or not by:
                raise _UnclearError
            key = _names_of_key(node, frozenset(_name(c) for c in by if isinstance(c, exp.Column)))
            rows = replace(
                rows,
                grouping=rows.grouping.union(*(self._columns(c, joined, named) for c in by)),
                stability=_times(rows.stability, 2),
                keys=[key] if key is not None and all(isinstance(c, exp.Column) for c in by) else [],
            )
        elif node.args.get("having") is not None or any(_aggregates(selected) for selected in node.selects):
            rows = replace(rows, stability=dict.fromkeys(rows.stability, 2), keys=[frozenset()])
        parts = [part for value in _parts(node) for part in _outside_queries(value)]
        return replace(rows, stability=_without_bound(rows)) if any(isinstance(p, exp.Window) for p in parts) else rows

    @staticmethod
    def _distinct(node: exp.Select, rows: _Rows) -> _Rows:
        distinct = node.args.get("distinct")
        if distinct is None:
            return rows
        is_chosen = distinct.args.get("on") is not None
        return replace(
            rows,
            grouping=rows.grouping.union(*rows.outputs.values()),
            stability=_without_bound(rows) if is_chosen else rows.stability,
            keys=[] if is_chosen else [frozenset(rows.outputs)],
        )

    def _relation(self, node: exp.Expr, named: Mapping[str, _Rows]) -> _Joined:
        """A table, a name that WITH gave, or a subquery."""
        if node.args.get("joins") or node.args.get("pivots") or node.args.get("laterals"):
            raise _UnclearError
        alias = node.alias_or_name.lower()
        if isinstance(node, exp.Table) and node.name.lower() in named:
            return _Joined.of(alias, _rename(named[node.name.lower()], node))
        if isinstance(node, exp.Table):
            table, columns = self._tables[node.name.lower()]
            outputs = {name: frozenset([(table, column)]) for name, column in columns.items()}
            return _Joined.of(alias, _Rows(outputs, stability={table: 1}))
        if isinstance(node, exp.Subquery):
            return _Joined.of(alias, _rename(self.query(node, named), node))
        raise _UnclearError

    def _join(self, left: _Joined, join: exp.Join, named: Mapping[str, _Rows]) -> tuple[_Joined, BaseColumns]:
        right = self._relation(join.this, named)
        both = _Joined({**left.members, **right.members}, {}, [])
        on = join.args.get("on")
        grouping = _NONE if on is None else self._columns(on, both, named)
        pairs = [(c.this, c.expression) for c in conjuncts_of(on) if isinstance(c, exp.EQ)]
        columns = [pair for pair in pairs if all(isinstance(side, exp.Column) for side in pair)]
        equal = frozenset(_name(side) for pair in columns for side in pair)
        most_left, most_right = _most_matches(left, equal), _most_matches(right, equal)
        side, kind, method = ((join.args.get(part) or "").upper() for part in ("side", "kind", "method"))
        if method or join.args.get("using") or kind not in ("", "INNER", "OUTER", "CROSS"):
            most_left = most_right = None
        # An outer join that finds a row, or loses its last, swaps the row without it for the one with it.
        ours, theirs = (2 if side in ("LEFT", "FULL") else 1), (2 if side in ("RIGHT", "FULL") else 1)
        counts = _add(
            [_times(_times(left.stability, most_right), theirs), _times(_times(right.stability, most_left), ours)]
        )
        both.keys = [*(left.keys if most_right else ()), *(right.keys if most_left else ())]
        both.stability = self._add_nested(join, counts, named)
        return both, grouping

    def _columns(self, node: exp.Expr, joined: _Joined, named: Mapping[str, _Rows]) -> BaseColumns:
        """The base columns behind an expression, those of its subqueries among them."""
        found = _NONE
        for part in _outside_queries(node):
            if isinstance(part, exp.Query):
                outside, self._outside = self._outside, {**self._outside, **joined.members}
                inner = self.query(part, named)
                self._outside = outside
                found = found.union(inner.conditions, inner.grouping, *inner.outputs.values())
            elif isinstance(part, exp.Column):
                rows = joined.members.get(part.table.lower()) or self._outside[part.table.lower()]
                found |= rows.outputs[part.name.lower()]
        return found

    def _add_nested(
        self, node: exp.Expr, counts: dict[str, int | None], named: Mapping[str, _Rows]
    ) -> dict[str, int | None]:
        """Rows that a subquery in an expression reads may change every row outside."""
        for value in _parts(node):
            for part in _outside_queries(value):
                for table in part.find_all(exp.Table) if isinstance(part, exp.Query) else ():
                    name = table.name.lower()
                    counts |= dict.fromkeys(named[name].stability if name in named else [self._tables[name][0]])
        return counts


_CONDITIONS = ("where", "having", "qualify")


def _parts(node: exp.Expr) -> list[exp.Expr]:
    """The expressions of a SELECT or of a join: all but its sources."""
    children = (c for c in node.iter_expressions() if not (isinstance(node, exp.Join) and c.arg_key == "this"))
    return [c for c in children if not isinstance(c, exp.From | exp.With | exp.Join)]


def _without_bound(rows: _Rows) -> dict[str, int | None]:
    return dict.fromkeys(rows.stability)


def _name(column: exp.Expr) -> Name:
    assert isinstance(column, exp.Column)
    return column.table.lower(), column.name.lower()


def _aggregates(node: exp.Expr) -> bool:
    """Whether a selected value is made of many rows, other than through a window."""
    found = [part for part in _outside_queries(node) if isinstance(part, (exp.AggFunc, *AGGREGATES))]
    return any(not isinstance(part.find_ancestor(exp.Window, exp.Select), exp.Window) for part in found)


def _most_matches(side: _Joined, equal: frozenset[Name]) -> int | None:
    """How many rows of one side match one row of the other, at most."""
    return 1 if any(key <= equal for key in side.keys) else None


def _names_of_key(node: exp.Select, key: frozenset[Name]) -> frozenset[str] | None:
    """A key by the names that its columns have in the result; None: some of them are not shown."""
    shown = [(s.unalias(), s.alias_or_name.lower()) for s in node.selects]
    names = {_name(value): name for value, name in shown if isinstance(value, exp.Column)}
    return frozenset(names[part] for part in key) if all(part in names for part in key) else None


def _rename(rows: _Rows, node: exp.Expr) -> _Rows:
    """Rows under the names that `AS t(a, b)` gives their columns."""
    columns = [name.lower() for name in node.alias_column_names]
    if not columns:
        return rows
    if len(columns) != len(rows.outputs):
        raise _UnclearError
    names = dict(zip(rows.outputs, columns, strict=True))
    keys = [frozenset(names[column] for column in key) for key in rows.keys]
    return replace(rows, outputs={names[n]: c for n, c in rows.outputs.items()}, keys=keys)


def _outside_queries(node: exp.Expr) -> Iterable[exp.Expr]:
    """Every part of an expression; a query inside it counts as one part."""
    return node.walk(prune=lambda part: isinstance(part, exp.Query))
