"""Correlation: how a query over one owner's table depends on a row of another table.

In: a SELECT that names columns of an outer table. Out: its equal keys, the one moment that its times are compared with,
and its other conditions. Then the queries for its rows, groups or latest rows per key and cutoff (sql/history.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.sources.guard import AGGREGATES
from tablepuppet.sources.history_queries import AT, CUTOFF, CUTOFFS, FOUND, KEY, has_cutoff
from tablepuppet.sources.syntax import conditions_of
from tablepuppet.sql.grammar import At

ORDER = (exp.LT, exp.LTE, exp.GT, exp.GTE)
_ROUNDED = (exp.Cast, exp.TryCast, exp.TimestampTrunc, exp.DateTrunc, exp.Date, exp.TsOrDsToDate, exp.Paren)
Refuse = Callable[[str, At], QueryError]
_COUNTS = (exp.Count, exp.ApproxDistinct, exp.RegrCount)  # 0 over no rows; count_if is NULL
_SEES_NULL = (exp.Coalesce, exp.Case, exp.If, exp.Is, exp.Nullif)
_Pairs = Sequence[tuple[exp.Expr, exp.Expr]]
_Foreign = Callable[[exp.Expr], list[exp.Column]]  # the columns of a node that belong to the other table


@dataclass
class Correlation:
    """How a query over a history depends on a row of another table."""

    query: exp.Select  # in which the moment is the cutoff, and the other table's keys are the history's own
    alias: exp.Identifier  # of the other table
    keys: list[tuple[exp.Expr, exp.Expr]]  # expressions over the history, and over the other table, that are equal
    moment: exp.Expr | None  # over the other table
    bounds: list[exp.Expr]  # conditions on history and cutoff
    local: list[exp.Expr]  # conditions on the history alone

    @property
    def source(self) -> tuple[str, ...]:
        """The parts that two histories must share to be computed as one."""
        sources = [self.query.args["from_"], *(self.query.args.get("joins") or ())]
        keys = sorted(f"{own.sql()} = {other.sql()}" for own, other in self.keys)
        return (*(node.sql() for node in sources), *keys, self.moment.sql() if self.moment is not None else "")

    def on(self, name: exp.Identifier) -> exp.Expr:
        """The condition that joins the history's rows, called `name`."""
        equal = [other.copy().eq(exp.column(f"{KEY} {k}", name, quoted=True)) for k, (_, other) in enumerate(self.keys)]
        if self.moment is not None:
            equal.append(self.moment.copy().eq(exp.column(AT, name, quoted=True)))
        return exp.and_(*equal, copy=False)

    def columns(self) -> list[exp.Expr]:
        """The key and the cutoff, as the history's rows carry them."""
        found: list[exp.Expr] = [
            exp.alias_(own.copy(), f"{KEY} {k}", quoted=True) for k, (own, _) in enumerate(self.keys)
        ]
        return found if self.moment is None else [*found, exp.alias_(cutoff_column(), AT, quoted=True)]

    def rows(self, items: Sequence[exp.Expr], conditions: Sequence[exp.Expr] | None = None) -> exp.Select:
        """The history's rows with each cutoff before which they lie."""
        select = exp.Select(expressions=[*self.columns(), *(item.copy() for item in items)])
        select.set("from_", self.query.args["from_"].copy())
        joins = [join.copy() for join in self.query.args.get("joins") or ()]
        given = [*self.bounds, *self.local] if conditions is None else conditions
        bounds = [c for c in given if has_cutoff(c)]
        local = [c.copy() for c in given if not has_cutoff(c)]
        if self.moment is not None:
            on = exp.and_(*(c.copy() for c in bounds), copy=False) if bounds else None
            joins.append(exp.Join(this=cutoff_table(), on=on, kind=None if bounds else "CROSS"))
        select.set("joins", joins or None)
        return select.where(*local, copy=False) if local else select

    def groups(self, items: Sequence[exp.Expr], conditions: Sequence[exp.Expr] | None = None) -> exp.Select:
        """One row for each key and cutoff that has any."""
        return self.rows(items, conditions).group_by(*self._by(), copy=False)

    def latest(self, items: Sequence[exp.Expr], rows: exp.Expr, order: exp.Order | None) -> exp.Select:
        """The first `rows` rows of each key and cutoff in an order."""
        ordered = None if order is None else order.copy()
        number = exp.Window(this=exp.RowNumber(), partition_by=self._by(), order=ordered)
        select = self.rows(items)
        select.set("qualify", exp.Qualify(this=exp.LTE(this=number, expression=rows.copy())))
        return select

    def _by(self) -> list[exp.Expr]:
        """Key and cutoff."""
        return [*(own.copy() for own, _ in self.keys), *([] if self.moment is None else [cutoff_column()])]

    def fill(self, value: exp.Expr | None, column: exp.Expr, name: exp.Identifier) -> exp.Expr:
        """An output of the history, called `name`, and another value where the history has no row."""
        if value is None:
            return column
        if isinstance(value, exp.Literal):
            return exp.Coalesce(this=column, expressions=[value.copy()])
        mark = exp.column(AT if self.moment is not None else f"{KEY} 0", name, quoted=True)
        missing = exp.Is(this=mark, expression=exp.Null())
        return exp.Case(ifs=[exp.If(this=missing, true=value.copy())], default=column)


def correlate(query: exp.Select, outer: set[str], refuse: Refuse) -> Correlation | None:
    """How a query depends on a row of one of the `outer` tables; None: on none of them."""
    own = {node.alias_or_name.lower() for node in query.find_all(exp.Table, exp.Subquery)}

    def foreign(node: exp.Expr) -> list[exp.Column]:
        columns = (c for c in node.find_all(exp.Column) if c.table)
        return [c for c in columns if c.table.lower() in outer and c.table.lower() not in own]

    found = foreign(query)
    if not found:
        return None
    names = {column.table.lower(): column for column in found}
    if len(names) > 1:
        raise refuse(
            f"a history is about one table of the outer FROM, and this one is about {' and '.join(sorted(names))}; "
            "take its keys and its moment from one of them",
            list(names.values())[-1],
        )
    deeper = next((column for column in found if column.find_ancestor(exp.Select) is not query), None)
    if deeper is not None:
        raise refuse(
            f"a history cannot name {deeper.sql('duckdb')} in a subquery of its own; write the condition in the WHERE "
            "of the history itself",
            deeper,
        )
    query = query.copy()
    query.set("expressions", name_items(query.expressions))
    keys: list[tuple[exp.Expr, exp.Expr]] = []
    rest: list[exp.Expr] = []
    for condition in conditions_of(query):
        pair = _key_pair(condition, foreign)
        keys += [] if pair is None else [pair]
        rest += [condition] if pair is None else []
    query.set("where", None)
    moment = _find_moment([*rest, query], foreign, keys, refuse)
    bounds = [_with_cutoff(condition, moment, foreign, keys) for condition in rest if foreign(condition)]
    local = [condition for condition in rest if not foreign(condition)]
    query = cast(exp.Select, _with_cutoff(query, moment, foreign, keys))
    left = [column for node in (query, *bounds) for column in foreign(node)]
    if left:
        raise refuse(
            f"a history depends on another table by equal keys and by one moment, and {left[0].sql('duckdb')} is "
            "neither; compare the history's time with one column, as in r.day < t.ts",
            left[0],
        )
    return Correlation(query, found[0].args["table"], keys, moment, bounds, local)


def _find_moment(nodes: Sequence[exp.Expr], foreign: _Foreign, keys: _Pairs, refuse: Refuse) -> exp.Expr | None:
    """The one expression over the other table, besides keys, that a history is compared with."""
    equal = {other.sql() for _, other in keys}
    columns = [c for node in nodes for c in foreign(node)]
    ordered = (*ORDER, exp.Between)  # comparisons of order, rather than of equality
    compared = [
        c for c in columns if c.sql() not in equal or isinstance(c.find_ancestor(*ordered, exp.Select), ordered)
    ]
    if not compared:
        return None
    if len({column.sql() for column in compared}) > 1:
        shown = " and ".join(sorted({column.sql("duckdb") for column in compared}))
        raise refuse(
            f"a history has one moment, and this one is compared with {shown}; besides equal keys, write one of them",
            compared[-1],
        )
    rounded = [_widest(column, foreign) for column in compared]
    same = len({node.sql() for node in rounded}) == 1
    return (rounded[0] if same else compared[0]).copy()


def _key_pair(condition: exp.Expr, foreign: _Foreign) -> tuple[exp.Expr, exp.Expr] | None:
    """own = other, each side over one of the two tables."""
    if not isinstance(condition, exp.EQ) or condition.find(exp.Query):
        return None
    for own, other in ((condition.this, condition.expression), (condition.expression, condition.this)):
        columns = list(other.find_all(exp.Column))
        if columns and len(foreign(other)) == len(columns) and not foreign(own) and own.find(exp.Column):
            return own, other
    return None


def _widest(column: exp.Column, foreign: _Foreign) -> exp.Expr:
    """The expression around a column that only rounds or casts it."""
    found: exp.Expr = column
    while isinstance(found.parent, _ROUNDED) and len(foreign(found.parent)) == len(
        list(found.parent.find_all(exp.Column))
    ):
        found = found.parent
    return found


def _with_cutoff(node: exp.Expr, moment: exp.Expr | None, foreign: _Foreign, keys: _Pairs) -> exp.Expr:
    """The moment as the cutoff, and keys of the other table as the history's own."""
    equal = {other.sql(): own for own, other in keys}
    wanted = None if moment is None else moment.sql()

    def change(part: exp.Expr) -> exp.Expr:
        text = part.sql() if foreign(part) else ""
        if text and text == wanted:
            return cutoff_column()
        return equal[text].copy() if text in equal else part

    return node.transform(change)


def cutoff_column() -> exp.Column:
    return exp.column(CUTOFF, CUTOFFS, quoted=True)


def cutoff_table() -> exp.Table:
    return exp.Table(this=exp.to_identifier(CUTOFFS, quoted=True))


def mark_found() -> exp.Expr:
    return exp.alias_(exp.true(), FOUND, quoted=True)


def derived_table(query: exp.Select, name: exp.Identifier) -> exp.Subquery:
    return exp.Subquery(this=query, alias=exp.TableAlias(this=name.copy()))


def name_items(items: Sequence[exp.Expr]) -> list[exp.Expr]:
    return [
        item.copy()
        if item.is_star or isinstance(item, exp.Alias)
        else exp.alias_(item.copy(), item.alias_or_name or item.sql("duckdb"), quoted=True)
        for item in items
    ]


def filter_aggregates(value: exp.Expr, conditions: Sequence[exp.Expr]) -> exp.Expr:
    """The value with every aggregate over the rows that meet some conditions."""
    whole = exp.Paren(this=value.copy())
    for node in list(whole.find_all(*AGGREGATES)) if conditions else ():
        where = exp.and_(*(c.copy() for c in conditions), copy=False)
        own = node.parent if isinstance(node.parent, exp.WithinGroup) else node
        if isinstance(own.parent, exp.Filter):  # FILTER of FILTER is one FILTER
            given = own.parent.expression
            given.set("this", exp.and_(given.this, where, copy=False))
        else:
            own.replace(filtered := exp.Filter(expression=exp.Where(this=where)))
            filtered.set("this", own)
    return whole.unnest()


def value_without_rows(item: exp.Expr, refuse: Refuse) -> exp.Expr | None:
    """The value of an aggregate's item over no rows; None: NULL."""
    value = item.unalias()
    bare = value.this if isinstance(value, exp.Filter) else value
    if isinstance(bare, tuple(AGGREGATES)):
        return exp.Literal.number(0) if isinstance(bare, _COUNTS) else None
    if not value.find(*_COUNTS, *_SEES_NULL):
        return None

    whole: tuple[type[exp.Expr], ...] = (exp.Filter, exp.WithinGroup, *AGGREGATES)

    def empty(node: exp.Expr) -> exp.Expr:
        if isinstance(node, whole):
            inside = node.this if isinstance(node, exp.Filter) else node
            return exp.Literal.number(0) if isinstance(inside, _COUNTS) else exp.Null()
        return exp.Null() if isinstance(node, exp.Column) else node

    found = value.copy().transform(empty)
    outside = value.copy().transform(lambda n: exp.Null() if isinstance(n, whole) else n)
    if has_cutoff(outside) and outside.find(*_SEES_NULL):
        raise refuse(
            "where there is no history, this item would need the moment itself; leave the moment out of COALESCE and "
            "CASE",
            None,
        )
    return found
