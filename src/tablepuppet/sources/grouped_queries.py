"""Groups with rows at several clients: each client's query over its own rows, and the query over all answers.

In: a query whose rows are groups. Out: two queries that, one after the other, mean the same; or why there are none.

    SELECT k, avg(x) AS mean FROM t WHERE … GROUP BY k HAVING count(*) > 2

    partial   SELECT k AS g0, count(*) AS s0, count(x) AS s1, sum(x) AS s2 FROM t WHERE … GROUP BY k
    final     SELECT g0 AS k, s2 / s1 AS mean FROM groups WHERE s0 > 2

The first runs over one client's rows. Its *states* s are merged group by group over all clients (group_sums.py); the
second runs over the merged groups.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec
from sqlglot import exp, parse_one

from tablepuppet.sources.guard import AGGREGATES
from tablepuppet.sources.syntax import without

GROUPS = "tablepuppet groups"  # the table of the final query
_KINDS = tuple(AGGREGATES)
_NOT_BY_ROW = {
    "joins": "a join after the groups",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "qualify": "QUALIFY",
    "windows": "a window",
    "with_": "WITH",
}


class UnmergeableError(ValueError):
    """Why groups of a query cannot be merged over clients: the part that prevents it."""


class State(NamedTuple):
    """A number about a group that each client computes for itself.

    number: they are added up. spread: Σ (x − x̄)², merged by means (`of`: the states Σ 1 and Σ x). least, greatest.
    """

    text: str
    kind: Literal["number", "spread", "least", "greatest"] = "number"
    of: tuple[int, ...] = ()


class GroupedQuery(msgspec.Struct, frozen=True):
    """A query over groups, in two."""

    partial: str
    final: str  # reads GROUPS
    groups: int  # columns that identify a group: g0, g1, …
    states: tuple[State, ...]  # s0, s1, …; the first is how many rows there are

    @property
    def has_extremes(self) -> bool:
        return any(state.kind in ("least", "greatest") for state in self.states)


def grouped_select(query: exp.Expr) -> tuple[exp.Select, list[exp.Select]]:
    """The SELECT that groups, and the SELECTs around it, which go row by row."""
    around: list[exp.Select] = []
    node = query
    while True:
        if not isinstance(node, exp.Select) or node.args.get("from_") is None:
            raise UnmergeableError("a UNION, or what has no FROM")
        node = _as_groups(node)
        for name, shown in _NOT_BY_ROW.items():
            if node.args.get(name) and (name != "joins" or node.args.get("group") is None):
                raise UnmergeableError(shown)
        own = [item for item in (*node.expressions, node.args.get("where"), node.args.get("having")) if item]
        if any(item.find(exp.Query, exp.Window) for item in own):
            raise UnmergeableError("a window or a further query")
        if node.args.get("group") is not None or any(item.find(*_KINDS) for item in node.expressions):
            return node, around
        around.append(node)
        source = node.args["from_"].this
        if not isinstance(source, exp.Subquery):
            raise UnmergeableError("a query without groups")
        node = source.this


def _as_groups(select: exp.Select) -> exp.Select:
    """SELECT DISTINCT a, b is a group for each pair, unless its rows are groups already."""
    distinct, group = select.args.get("distinct"), select.args.get("group")
    if distinct is None:
        return select
    if distinct.args.get("on") is not None or group is not None:
        raise UnmergeableError("DISTINCT over groups")
    source = select.args["from_"].this
    below = source.this if isinstance(source, exp.Subquery) else None
    if below is not None and below.find(exp.Group, exp.Distinct):
        return select  # it goes row by row if it leaves all groups apart
    if any(item.find(exp.Star) or item.find(*_KINDS) for item in select.expressions):
        raise UnmergeableError("DISTINCT")
    grouped = without(select.copy(), "distinct")
    grouped.set("group", exp.Group(expressions=[item.unalias().copy() for item in select.expressions]))
    return grouped


def _passed_on(layer: exp.Select, names: Mapping[str, int]) -> dict[str, int]:
    """The items that identify a group, by name, that a SELECT around the groups shows."""
    found: dict[str, int] = {}
    for item in layer.expressions:
        value = item.unalias()
        if isinstance(value, exp.Star) or (isinstance(value, exp.Column) and isinstance(value.this, exp.Star)):
            found |= names
        elif isinstance(value, exp.Column) and value.name.lower() in names:
            found[item.alias_or_name.lower()] = names[value.name.lower()]
    return found


def source_of(query: str) -> str:
    select, _ = grouped_select(parse_one(query, dialect="duckdb"))
    rows = exp.select("*")
    for name in ("from_", "joins"):
        rows.set(name, select.args.get(name))
    return rows.sql("duckdb")


def split_groups(query: str | exp.Expr, columns: Callable[[], Collection[str]] = tuple) -> GroupedQuery:
    """A query in two. `columns`: of the rows that are grouped, in lower case; they go before items of that name.

    >>> split_groups("SELECT k, sum(x) / count(*) AS m FROM t GROUP BY 1").final
    'SELECT g0 AS k, (CASE WHEN s1 > 0 THEN s2 END) / (s0) AS m FROM "tablepuppet groups"'
    """
    tree = parse_one(query, dialect="duckdb") if isinstance(query, str) else query
    select, around = grouped_select(tree)
    group = select.args.get("group")
    if group is None:
        raise UnmergeableError("one group of all rows")
    if group.find(exp.Rollup, exp.Cube, exp.GroupingSets) or group.args.get("totals"):
        raise UnmergeableError("several groupings at once")
    if any(item.find(exp.Star) and not item.find(*_KINDS) for item in select.expressions):
        raise UnmergeableError("a * beside groups")
    items = named_items(select)
    by = []
    for e in grouped_by(select, group):  # which may name an item of the SELECT list; a column of that name goes first
        is_name = isinstance(e, exp.Column) and not e.table and e.name.lower() in items
        by.append(items[e.name.lower()] if is_name and e.name.lower() not in columns() else e)
    merging = _Merging(by, items)
    shown = []
    for item in select.expressions:
        value, quoted = merging.final(item.unalias()), item.args["alias"].quoted if item.args.get("alias") else None
        shown.append(exp.alias_(value, item.alias_or_name, quoted=quoted) if item.alias_or_name else value)
    final = exp.select(*shown).from_(exp.to_identifier(GROUPS, quoted=True))
    having = select.args.get("having")
    if having is not None:
        final = final.where(merging.final(having.this))
    named = [(item.alias_or_name.lower(), item.unalias()) for item in select.expressions]
    names = {name: number for name, value in named for number, g in enumerate(by) if _is_same(value, g)}
    for layer in reversed(around):
        names = _passed_on(layer, names)
        if layer.args.get("distinct") is not None and len(set(names.values())) < len(by):
            raise UnmergeableError("DISTINCT over less than the groups")
        name = exp.to_identifier(layer.args["from_"].this.alias_or_name or "t", quoted=True)
        inner, outer = exp.Subquery(this=final, alias=exp.TableAlias(this=name)), layer.copy()
        outer.set("from_", exp.From(this=inner))
        final = without(outer, "order", "distinct")
    partial = without(select.copy(), "order", "having")
    own = [exp.alias_(g.copy(), f"g{i}") for i, g in enumerate(by)]
    own += [exp.alias_(parse_one(s.text, dialect="duckdb"), f"s{i}") for i, s in enumerate(merging.states)]
    partial.set("expressions", own)
    partial.set("group", exp.Group(expressions=[g.copy() for g in by]))
    return GroupedQuery(partial.sql("duckdb"), final.sql("duckdb"), len(by), tuple(merging.states))


@dataclass
class _Merging:
    """The states that a query's aggregates need, under construction."""

    by: Sequence[exp.Expr]
    items: Mapping[str, exp.Expr]
    states: list[State] = field(default_factory=lambda: [State("count(*)")])

    def final(self, node: exp.Expr) -> exp.Expr:
        """An expression over groups' columns and aggregates → the same over states."""
        return node.copy().transform(self._replace_aggregate)

    def _replace_aggregate(self, node: exp.Expr) -> exp.Expr:
        for number, group in enumerate(self.by):
            if _is_same(node, group):
                return exp.column(f"g{number}")
        if isinstance(node, exp.Filter):
            return self._merge_aggregate(node.this, node.expression.this.sql("duckdb"))
        if isinstance(node, _KINDS):
            return self._merge_aggregate(node, None)
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in self.items:
            others = {name: item for name, item in self.items.items() if name != node.name.lower()}
            inner = _Merging(self.by, others, self.states)
            return exp.Paren(this=inner.final(self.items[node.name.lower()]))
        return node

    def _state(self, text: str, kind: Literal["number", "spread", "least", "greatest"] = "number", *of: int) -> int:
        state = State(text, kind, of)
        if state not in self.states:
            self.states.append(state)
        return self.states.index(state)

    def _merge_aggregate(self, node: exp.Expr, where: str | None) -> exp.Expr:
        name = node.sql_name().lower() if isinstance(node, exp.Func) else "an aggregate"
        if not isinstance(node, _MERGEABLE) or node.expression:
            raise UnmergeableError(name)
        if node.find(exp.Distinct, exp.Order):
            raise UnmergeableError(f"{name}(DISTINCT …)")
        value = "*" if node.this is None else node.this.sql("duckdb")
        among = "" if where is None else f" FILTER (WHERE {where})"
        if isinstance(node, exp.CountIf | exp.LogicalOr | exp.LogicalAnd):
            both = value if where is None else f"({value}) AND ({where})"
            true = self._state(f"count(*) FILTER (WHERE {both})")
            count = self._state(f"count({value}){among}")
            if isinstance(node, exp.CountIf):
                return _parse(f"CASE WHEN s{count} > 0 THEN CAST(s{true} AS HUGEINT) END")
            holds = f"s{true} > 0" if isinstance(node, exp.LogicalOr) else f"s{true} = s{count}"
            return _parse(f"CASE WHEN s{count} > 0 THEN {holds} END")
        if isinstance(node, exp.Min | exp.Max):
            kind: Literal["least", "greatest"] = "least" if isinstance(node, exp.Min) else "greatest"
            return _parse(f"s{self._state(f'{node.key}({value}){among}', kind)}")
        count = self._state(f"count({value}){among}")
        if isinstance(node, exp.Count):
            return _parse(f"s{count}")
        if isinstance(node, exp.Sum | exp.Avg):
            total = self._state(f"sum({value}){among}")
            if isinstance(node, exp.Sum):
                return _parse(f"CASE WHEN s{count} > 0 THEN s{total} END")
            return _parse(f"CAST(s{total} AS DOUBLE) / NULLIF(s{count}, 0)")
        total = self._state(f"sum(CAST({value} AS DOUBLE)){among}")
        spread = self._state(f"var_pop({value}){among} * count({value}){among}", "spread", count, total)
        freedom = 0 if isinstance(node, exp.StddevPop | exp.VariancePop) else 1
        variance = f"s{spread} / (s{count} - {freedom})"
        is_root = isinstance(node, exp.Stddev | exp.StddevPop | exp.StddevSamp)
        return _parse(f"CASE WHEN s{count} > {freedom} THEN {f'sqrt({variance})' if is_root else variance} END")


_MERGEABLE = (
    *(exp.Count, exp.CountIf, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.LogicalOr, exp.LogicalAnd),
    *(exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop),
)


def _parse(text: str) -> exp.Expr:
    return exp.Paren(this=parse_one(text, dialect="duckdb"))


def grouped_by(select: exp.Select, group: exp.Group) -> list[exp.Expr]:
    """The items of GROUP BY: expressions, positions in the SELECT list, or ALL of it that is no aggregate."""
    if group.args.get("all"):
        items = named_items(select)
        return [item.unalias() for item in select.expressions if not _has_aggregate(item.unalias(), items)]
    by_number = {str(k + 1): item.unalias() for k, item in enumerate(select.expressions)}
    return [
        by_number.get(e.name, e) if isinstance(e, exp.Literal) and not e.is_string else e for e in group.expressions
    ]


def named_items(select: exp.Select) -> dict[str, exp.Expr]:
    return {item.alias.lower(): item.this for item in select.expressions if isinstance(item, exp.Alias)}


def _has_aggregate(node: exp.Expr, items: Mapping[str, exp.Expr]) -> bool:
    if node.find(*_KINDS):
        return True
    named = {column.name.lower() for column in node.find_all(exp.Column) if not column.table} & items.keys()
    others = {name: item for name, item in items.items() if name not in named}
    return any(_has_aggregate(items[name], others) for name in named if items[name] is not node)


def _is_same(node: exp.Expr, group: exp.Expr) -> bool:
    if isinstance(node, exp.Column) and isinstance(group, exp.Column):
        tables = {part.table.lower() for part in (node, group) if part.table}
        return node.name.lower() == group.name.lower() and len(tables) < 2
    return type(node) is type(group) and _plain(node) == _plain(group)


def _plain(node: exp.Expr) -> str:
    """An expression's text, the same however its columns are written."""

    def bare(part: exp.Expr) -> exp.Expr:
        return exp.column(part.name.lower(), quoted=True) if isinstance(part, exp.Column) else part

    return node.copy().transform(bare).sql("duckdb")
