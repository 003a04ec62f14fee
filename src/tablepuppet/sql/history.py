"""History: another owner's rows about a key until a moment → a join on key and moment.

In: the syntax tree of a query, and who holds which table. Out: the same tree, in which every history is a derived table
with one row for each key and cutoff. Analysts write a history in four ways, and each means the same:

    (SELECT avg(r.x) FROM r WHERE r.k = t.k AND r.day < t.ts)                       a correlated aggregate
    LEFT JOIN LATERAL (SELECT count(*) AS n FROM r WHERE …) h ON true               several at once
    LEFT JOIN (SELECT t2.k, t2.ts, … FROM t t2 JOIN r ON … GROUP BY 1, 2) h ON …    grouped by key and moment
    ASOF LEFT JOIN r ON r.k = t.k AND r.day <= t.ts                                 the latest row

and JOIN r ON r.k = t.k AND r.day < t.ts asks for the rows themselves. All become

    LEFT JOIN (SELECT r.k, c.at, avg(r.x) FROM r JOIN "tablepuppet cutoffs" c ON r.day < c.at GROUP BY r.k, c.at) h
           ON h.k = t.k AND h.at = t.ts

The owner of r runs that query. Its cutoffs are the distinct values of t.ts. Their owner discloses them to the owner of
r, and to nobody else (exchanges/history.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp, parse_one

from tablepuppet.errors import QueryError
from tablepuppet.sources.grouped_queries import grouped_by, named_items
from tablepuppet.sources.guard import QUERY_NODES
from tablepuppet.sources.history_queries import AT, AT_ONCE, BEGINS, CUTOFFS, KEY, KEYS
from tablepuppet.sources.syntax import conditions_of, conjuncts_of, relations_of, unused_name, without
from tablepuppet.sql import correlation
from tablepuppet.sql.correlation import ORDER, Correlation, correlate, derived_table, name_items
from tablepuppet.sql.grammar import At, check_nodes, refusal
from tablepuppet.sql.groups import find_constant_exists, has_aggregate
from tablepuppet.sql.ucq import Tables

# What is NULL of NULL:
_STRICT = (exp.DateDiff, exp.Column, exp.Identifier, exp.Literal, exp.Var, exp.Cast, exp.DataType, exp.Paren, exp.Sub)
_OF_PLAIN = {"expressions", "distinct", "group", "from_", "where"}  # clauses of a query of plain columns


def join_histories(text: str, select: exp.Select, tables: Tables) -> None:
    """Writes every history of a SELECT as a join, in place."""
    if select.args.get("from_") is not None:
        _Branch(text, select, {name.lower(): clients for name, clients in tables.items()}).rewrite()


@dataclass
class _Scalar:
    """A correlated aggregate of the SELECT list."""

    node: exp.Expr
    correlation: Correlation
    name: str


@dataclass
class _Branch:
    """One SELECT whose histories are written as joins."""

    text: str
    select: exp.Select
    tables: Tables

    def rewrite(self) -> None:
        for join in list(self.select.args.get("joins") or ()):
            if isinstance(join.this, exp.Lateral):
                self._join_lateral(join)
            elif join.method == "ASOF":
                self._join_latest(join)
            elif isinstance(join.this, exp.Subquery) and isinstance(join.this.this, exp.Select):
                self._join_groups(join)
        for join in list(self.select.args.get("joins") or ()):
            if not join.method and not isinstance(join.this, exp.Lateral):
                self._join_rows(join)
        self._join_scalars()
        for join in self.select.args.get("joins") or ():
            if isinstance(join.this, exp.Subquery) and isinstance(join.this.this, exp.Select):
                self._compute_inside(join)

    def _sources(self) -> dict[str, exp.Expr]:
        """The sources of FROM, by alias in lower case."""
        return {node.alias_or_name.lower(): node for node in relations_of(self.select)}

    def _holders(self, node: exp.Expr) -> frozenset[tuple[str, ...]]:
        """The groups of clients that hold the tables below a node."""
        names = (table.name.lower() for table in node.find_all(exp.Table))
        return frozenset(self.tables[name] for name in names if name in self.tables)

    def _refuse(self, message: str, at: At) -> QueryError:
        return refusal(self.text, message, at)

    def _join_lateral(self, join: exp.Join) -> None:
        """JOIN LATERAL (SELECT …) h ON true."""
        lateral, query = join.this, join.this.this.this if isinstance(join.this.this, exp.Subquery) else None
        alias = lateral.args.get("alias")
        on = join.args.get("on")
        if not isinstance(query, exp.Select) or alias is None or alias.args.get("columns"):
            raise self._refuse(
                "LATERAL takes a SELECT with a name, and its columns are named inside: LEFT JOIN LATERAL (SELECT x AS "
                "a …) h ON true",
                lateral,
            )
        if on is not None and on not in (exp.true(), parse_one("1 = 1")):
            raise self._refuse("LATERAL is joined ON true; write its conditions inside", on)
        if join.side not in ("", "LEFT"):
            raise self._refuse("LATERAL is joined by LEFT JOIN or JOIN", lateral)
        before = {name for name in self._sources() if name != lateral.alias_or_name.lower()}
        found = correlate(query, before, self._refuse)
        if found is None:
            join.set("this", exp.Subquery(this=query.copy(), alias=alias.copy()))
            return
        self._check_plain(found.query, lateral)
        name = alias.this
        items = name_items(found.query.expressions)
        if has_aggregate(found.query):
            derived = found.groups([*items, correlation.mark_found()])
            self._fill_missing(
                name, {item.alias_or_name: correlation.value_without_rows(item, self._refuse) for item in items}, found
            )
            side = "LEFT"
        elif found.query.args.get("limit") is not None:
            derived = found.latest(items, found.query.args["limit"].expression, found.query.args.get("order"))
            side = join.side
        else:
            derived, side = found.rows(items), join.side
        self._expand_star(name, [item.alias_or_name for item in items])
        new = exp.Join(this=derived_table(derived, name), on=found.on(name), side=side or None)
        join.replace(new)

    def _join_latest(self, join: exp.Join) -> None:
        """ASOF [LEFT] JOIN s ON s.k = t.k AND s.day <= t.ts."""
        source, own = join.this, join.this.alias_or_name.lower()
        if join.side not in ("", "LEFT") or not isinstance(source, exp.Table | exp.Subquery):
            raise self._refuse("ASOF is written as ASOF JOIN or ASOF LEFT JOIN of a table", source)
        on = list(conjuncts_of(join.args.get("on")))
        probe = exp.select("*").from_(source.copy()).where(*(c.copy() for c in on))
        found = correlate(probe, set(self._sources()) - {own}, self._refuse)
        if found is None or found.moment is None or len(found.bounds) != 1 or not isinstance(found.bounds[0], ORDER):
            raise self._refuse(
                "ASOF JOIN compares one time of each table: ASOF JOIN s ON s.key = t.key AND s.day <= t.ts", source
            )
        name = exp.to_identifier(source.alias_or_name)
        keys = exp.select(*found.columns()[:-1]).distinct().from_(source.copy())
        listed = exp.to_identifier(KEYS, quoted=True)
        equal = [own.copy().eq(exp.column(f"{KEY} {k}", listed, quoted=True)) for k, (own, _) in enumerate(found.keys)]
        star = exp.Column(this=exp.Star(), table=name.copy())
        derived = exp.select(star, *found.columns())
        derived = derived.from_(derived_table(keys, listed) if found.keys else correlation.cutoff_table())
        joins = [exp.Join(this=correlation.cutoff_table(), kind="CROSS")] if found.keys else []
        conditions = exp.and_(*equal, found.bounds[0].copy(), copy=False)
        rows = exp.select(star.copy()).from_(source.copy()).where(*found.local, copy=False)
        latest = derived_table(rows, name) if found.local else source.copy()
        joins.append(exp.Join(this=latest, method="ASOF", on=conditions))
        derived.set("joins", joins)
        join.replace(exp.Join(this=derived_table(derived, name), on=found.on(name), side=join.side or None))

    def _join_groups(self, join: exp.Join) -> None:
        """JOIN (SELECT t2.k, t2.ts, … FROM t t2 JOIN r ON … GROUP BY 1, 2) h ON h.k = t.k AND h.ts = t.ts."""
        query, name = join.this.this, exp.to_identifier(join.this.alias_or_name)
        nodes = relations_of(query)
        if len(self._holders(query)) < 2 or query.args.get("group") is None or len(nodes) < 2:
            return
        guests = [node for node in nodes if self._is_outer(node)]
        if len(guests) != 1:
            return
        guest = guests[0]
        self._write_inner_joins(query, guest)
        inner = query.copy()
        sources = [node.copy() for node in nodes if node is not guest]
        conditions = [c for j in query.args["joins"] for c in conjuncts_of(j.args.get("on"))]
        conditions += conditions_of(query)
        inner.set("from_", exp.From(this=sources[0]))
        inner.set("joins", [exp.Join(this=node) for node in sources[1:]] or None)
        inner.set("where", None)
        items = named_items(inner)
        by = {
            (items.get(e.name.lower(), e) if isinstance(e, exp.Column) and not e.table else e).sql()
            for e in grouped_by(inner, inner.args["group"])
        }
        inner.set("group", None)
        inner = inner.where(*(c.copy() for c in conditions), copy=False)
        found = correlate(inner, {guest.alias_or_name.lower()}, self._refuse)
        if found is None or found.moment is None:
            return
        by = {next((other.sql() for own, other in found.keys if own.sql() == one), one) for one in by}
        if by != {other.sql() for _, other in found.keys} | {found.moment.sql()}:
            wanted = [node.sql("duckdb") for node in (*(other for _, other in found.keys), found.moment)]
            raise self._refuse(
                f"this history is grouped by {guest.alias_or_name}'s key and moment, and by nothing else; write GROUP "
                f"BY {', '.join(wanted)}",
                query,
            )
        self._check_plain(found.query, join.this)
        shown = name_items(found.query.expressions)
        moments = {item.alias_or_name.lower() for item in shown if item.unalias() == correlation.cutoff_column()}
        derived = found.groups(shown)
        at = AT_ONCE if self._is_named_outside(guest) else AT
        derived.set("expressions", [*shown, exp.alias_(correlation.cutoff_column(), at, quoted=True)])
        _write_using(self.select, join, relations_of(self.select)[0].alias_or_name)
        on = join.args.get("on")
        for column in [] if on is None else list(on.find_all(exp.Column)):
            if column.table.lower() == name.name.lower() and column.name.lower() in moments:
                column.replace(exp.column(at, name, quoted=True))
        join.this.replace(derived_table(derived, name))

    def _write_inner_joins(self, query: exp.Select, guest: exp.Expr) -> None:
        """The joins of a grouped history by ON, and none of them a LEFT JOIN."""
        nodes = relations_of(query)
        known = guest.this.named_selects if isinstance(guest, exp.Subquery) else None
        for place, join in enumerate(query.args["joins"], 1):
            if join.side or join.method:
                raise self._refuse(
                    "a history is grouped over an inner join; write JOIN here, LEFT JOIN around the subquery, and "
                    "COALESCE(h.n, 0) for rows without a history",
                    join.this,
                )
            for key in join.args.get("using") or ():
                before = [n for n in nodes[:place] if n is not guest or known is None or key.name in known]
                if len(before) > 1:
                    raise self._refuse(f"several tables may have {key.name}; write ON instead of USING", key)
                _write_using(query, join, before[0].alias_or_name)

    def _is_outer(self, node: exp.Expr) -> bool:
        """Whether the outer FROM names the same table, or this is SELECT DISTINCT of its columns."""
        if not isinstance(node, exp.Subquery) or self._is_named_outside(node):
            return self._is_named_outside(node)
        given = {key for key, value in node.this.args.items() if value}
        is_distinct = given == {"expressions", "distinct", "from_"} or _is_grouped_by_all(node.this, given)
        source = node.this.args["from_"].this if is_distinct else None
        if isinstance(source, exp.Subquery):
            return self._is_named_outside(source) and all(isinstance(i, exp.Column) for i in node.this.expressions)
        table = _plain_table(node.this) if is_distinct else ""
        outer = [n for n in self._sources().values() if isinstance(n, exp.Table | exp.Subquery)]
        named = {n.name.lower() if isinstance(n, exp.Table) else _plain_table(n.this) for n in outer}
        return table != "" and table in named

    def _is_named_outside(self, node: exp.Expr) -> bool:
        """Whether the outer FROM names the same table, or the same query of WITH."""
        if isinstance(node, exp.Table):
            return any(_whole_table(own) == node.name.lower() for own in self._sources().values())
        return any(type(own) is exp.Subquery and _bare(own) == _bare(node) for own in self._sources().values())

    def _join_rows(self, join: exp.Join) -> None:
        """JOIN r ON r.k = t.k AND r.day < t.ts: the rows themselves, once for each cutoff."""
        source, own = join.this, join.this.alias_or_name.lower()
        if join.side not in ("", "LEFT") or not isinstance(source, exp.Table | exp.Subquery):
            return
        on = list(conjuncts_of(join.args.get("on")))
        also = [] if join.side else conditions_of(self.select)
        before = set(list(self._sources())[: list(self._sources()).index(own)])
        bounds = [c for c in (*on, *also) if self._bounds(c, own, before)]
        if not bounds:
            return
        probe = exp.select("*").from_(source.copy()).where(*(c.copy() for c in bounds))
        found = correlate(probe, before, self._refuse)
        assert found is not None
        name = exp.to_identifier(source.alias_or_name)
        derived = found.rows([exp.Column(this=exp.Star(), table=name.copy())])
        kept = [c for c in on if not any(c is bound for bound in bounds)]
        kept_where = [c for c in also if not any(c is bound for bound in bounds)]
        if also and len(kept_where) < len(also):
            self.select.set("where", exp.Where(this=exp.and_(*kept_where, copy=False)) if kept_where else None)
        join.this.replace(derived_table(derived, name))
        join.set("on", exp.and_(*kept, found.on(name), copy=False))
        join.set("kind", None)

    def _bounds(self, condition: exp.Expr, own: str, before: set[str]) -> bool:
        """Whether a condition compares times of two owners."""
        if not isinstance(condition, (*ORDER, exp.Between)) or condition.find(exp.Query):
            return False
        named = {column.table.lower() for column in condition.find_all(exp.Column)}
        sources = self._sources()
        others = named & before
        if own not in named or len(others) != 1 or not named <= {own} | before:
            return False
        return self._holders(sources[own]) != self._holders(sources[others.pop()])

    def _join_scalars(self) -> None:
        """Correlated aggregates of the SELECT list; those over the same history become one join."""
        outer, found_scalars = self._sources(), list[_Scalar]()
        for item in list(self.select.expressions):
            self._count_rows(item)
            for node in list(item.find_all(exp.Subquery)):
                query = node.this
                if not isinstance(query, exp.Select) or node.find_ancestor(exp.In, exp.Exists):
                    continue
                found = correlate(query, set(outer), self._refuse)
                if found is None or self._holders(query) == self._holders(outer[found.alias.name.lower()]):
                    continue
                self._check_plain(found.query, node)
                if len(found.query.expressions) != 1:
                    raise self._refuse("a subquery in the SELECT list gives one value; select one", query)
                found_scalars.append(_Scalar(node, found, item.alias or found.query.expressions[0].alias_or_name))
        shared: dict[tuple[str, ...], list[_Scalar]] = {}
        for scalar in found_scalars:
            query = scalar.correlation.query
            if has_aggregate(query):
                shared.setdefault(scalar.correlation.source, []).append(scalar)
            elif query.args.get("limit") is not None:
                self._join_value(scalar)
            else:
                check_nodes(self.text, query.expressions[0], QUERY_NODES)
                raise self._refuse(
                    "this subquery may give several rows; write an aggregate, as in max(r.x), or ORDER BY r.day DESC "
                    "LIMIT 1 for the latest",
                    scalar.node,
                )
        for scalars in shared.values():
            self._join_values(scalars)

    def _count_rows(self, item: exp.Expr) -> None:
        """EXISTS (SELECT … FROM r WHERE …) as (SELECT count(*) FROM r WHERE …) > 0."""
        outer = self._sources()
        for node in list(item.find_all(exp.Exists)):
            found = correlate(node.this, set(outer), self._refuse) if isinstance(node.this, exp.Select) else None
            if found is None or self._holders(node.this) == self._holders(outer[found.alias.name.lower()]):
                continue
            if constant := find_constant_exists(node.this):
                raise self._refuse(constant, node)
            self._check_plain(found.query, node)
            counted = without(node.this.copy().select("count(*)", append=False), "order", "limit")
            node.replace(exp.paren(exp.Subquery(this=counted) > 0))

    def _join_value(self, scalar: _Scalar) -> None:
        """(SELECT r.x FROM r WHERE … ORDER BY r.day DESC LIMIT 1)."""
        found, name = scalar.correlation, self._free_name(scalar.correlation)
        limit = found.query.args["limit"].expression
        if limit != exp.Literal.number(1):
            raise self._refuse("a subquery in the SELECT list gives one value; write LIMIT 1", scalar.node)
        item = exp.alias_(found.query.expressions[0].unalias().copy(), "value", quoted=True)
        self._add(found.latest([item, correlation.mark_found()], limit, found.query.args.get("order")), found, name)
        self._show(scalar, exp.column("value", name, quoted=True))

    def _join_values(self, scalars: Sequence[_Scalar]) -> None:
        """Aggregates over one history; a condition that not all of them have becomes a FILTER of those that do."""
        first, name = scalars[0].correlation, self._free_name(scalars[0].correlation)
        conditions = [[*s.correlation.bounds, *s.correlation.local] for s in scalars]
        common = set.intersection(*({c.sql() for c in given} for given in conditions))
        items, shown = [], []
        for number, (scalar, given) in enumerate(zip(scalars, conditions, strict=True)):
            own = [c for c in given if c.sql() not in common]
            value = correlation.filter_aggregates(scalar.correlation.query.expressions[0].unalias(), own)
            column = f"value {number}"
            items.append(exp.alias_(value, column, quoted=True))
            missing = correlation.value_without_rows(items[-1], self._refuse)
            shown.append(first.fill(missing, exp.column(column, name, quoted=True), name))
        shared = [c for c in conditions[0] if c.sql() in common]
        self._add(first.groups([*items, correlation.mark_found()], shared), first, name)
        for scalar, value in zip(scalars, shown, strict=True):
            self._show(scalar, value)

    def _add(self, derived: exp.Select, found: Correlation, name: exp.Identifier) -> None:
        self.select.append("joins", exp.Join(this=derived_table(derived, name), on=found.on(name), side="LEFT"))

    def _show(self, scalar: _Scalar, value: exp.Expr) -> None:
        parent = scalar.node.parent
        if isinstance(parent, exp.Select):
            scalar.node.replace(exp.alias_(value, scalar.name or "history", quoted=True))
        else:
            scalar.node.replace(value)

    def _free_name(self, found: Correlation) -> exp.Identifier:
        """The history's own alias, or one like it that the outer FROM does not have."""
        return exp.Identifier(this=unused_name(found.query.args["from_"].this.alias_or_name, self._sources()))

    def _fill_missing(self, name: exp.Identifier, values: Mapping[str, exp.Expr | None], found: Correlation) -> None:
        """Outer uses of an output have the value of no rows where the history has none."""
        known = {output.lower(): value for output, value in values.items() if value is not None}
        if known and any(isinstance(item, exp.Star) for item in self.select.expressions):
            raise self._refuse("write the columns of a history instead of *", self.select.expressions[0])
        self._expand_star(name, list(values))
        for column in list(self.select.find_all(exp.Column)):
            value = known.get(column.name.lower()) if column.table.lower() in ("", name.name.lower()) else None
            if value is not None and column.find_ancestor(exp.Select) is self.select:
                filled = found.fill(value, column.copy(), name)
                is_item = isinstance(column.parent, exp.Select)
                column.replace(exp.alias_(filled, column.name, quoted=True) if is_item else filled)

    def _compute_inside(self, join: exp.Join) -> None:
        """Items over a history and its moment, as date_diff('day', h.last, t.ts), become outputs of the history."""
        derived, name = join.this.this, join.this.alias_or_name
        moments = [
            other
            for e in (c for c in conjuncts_of(join.args.get("on")) if isinstance(c, exp.EQ))
            for own, other in ((e.left, e.right), (e.right, e.left))
            if isinstance(own, exp.Column) and own.name in (AT, AT_ONCE)
        ]
        for number, item in enumerate(self.select.expressions if moments else ()):
            value = item.unalias().transform(lambda node: correlation.cutoff_column() if node == moments[0] else node)
            tables = {column.table.lower() for column in value.find_all(exp.Column)}
            if tables == {name.lower(), CUTOFFS} and all(isinstance(node, _STRICT) for node in value.walk()):
                derived.append("expressions", exp.alias_(_inside(value, derived), f"item {number}", quoted=True))
                item.replace(exp.alias_(exp.column(f"item {number}", name, quoted=True), item.alias or "history"))

    def _expand_star(self, name: exp.Identifier, outputs: Sequence[str]) -> None:
        items: list[exp.Expr] = []
        for item in self.select.expressions:
            is_star = isinstance(item, exp.Column) and isinstance(item.this, exp.Star)
            if not is_star or item.table.lower() != name.name.lower():
                items.append(item)
                continue
            if any(value for key, value in item.this.args.items() if key != "except_"):
                raise self._refuse("write the columns of a history instead of *, or leave some out by EXCLUDE", item)
            gone = {column.name.lower() for column in item.this.args.get("except_") or ()}
            items += [exp.column(output, name, quoted=True) for output in outputs if output.lower() not in gone]
        self.select.set("expressions", items)

    def _check_plain(self, query: exp.Select, at: exp.Expr) -> None:
        """A history is rows, groups of all of them, or the first few."""
        for clause in ("group", "having", "qualify", "distinct", "offset", "windows"):
            if query.args.get(clause):
                word = {"group": "GROUP BY", "windows": "WINDOW"}.get(clause, clause.upper())
                raise self._refuse(f"a history cannot have {word}; aggregate its rows, or take the latest", at)
        if query.args.get("order") is not None and has_aggregate(query):
            query.set("order", None)


def _inside(value: exp.Expr, derived: exp.Select) -> exp.Expr:
    """An expression over outputs of a subquery, written inside it."""
    outputs = {item.alias_or_name.lower(): item.unalias() for item in derived.expressions if not item.is_star}
    star = next((item for item in derived.expressions if item.is_star), None)

    def change(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or node.table == CUTOFFS:
            return node
        known = outputs.get(node.name.lower())
        table = star.args.get("table") if isinstance(star, exp.Column) else None
        return exp.paren(known.copy()) if known is not None else exp.Column(this=node.this.copy(), table=table)

    return value.transform(change)


def _write_using(select: exp.Select, join: exp.Join, left: str) -> None:
    """USING (k) of a join as ON left.k = right.k; k alone is the left one's."""
    names = join.args.get("using") or ()
    for column in list(select.find_all(exp.Column)):
        is_bare = not column.table and column.find_ancestor(exp.Select) is select
        if is_bare and any(column.name.lower() == name.name.lower() for name in names):
            column.set("table", exp.to_identifier(left))
    if names:
        equal = [exp.column(n.copy(), left).eq(exp.column(n.copy(), join.this.alias_or_name)) for n in names]
        join.set("on", exp.and_(*equal, copy=False))
        join.set("using", None)


def _whole_table(node: exp.Expr) -> str:
    """The table of which a source of FROM has all rows, in lower case; split="time" reads it in a subquery."""
    if isinstance(node, exp.Table):
        return node.name.lower()
    is_split = isinstance(node, exp.Subquery) and BEGINS in node.this.named_selects
    return _plain_table(node.this) if is_split and node.this.args.get("where") is None else ""


def _bare(source: exp.Expr) -> exp.Expr:
    """The query of a subquery, without its only table before columns."""
    query: exp.Expr = source.this.copy()
    for column in query.find_all(exp.Column) if len(relations_of(query)) == 1 else ():
        column.set("table", None)
    return query


def _is_grouped_by_all(query: exp.Select, given: set[str]) -> bool:
    """Whether a SELECT is GROUP BY of all of its columns, which is SELECT DISTINCT."""
    if given != {"expressions", "group", "from_"}:
        return False
    items = {item.unalias().sql() for item in query.expressions}
    return items == {node.sql() for node in grouped_by(query, query.args["group"])}


def _plain_table(query: exp.Expr) -> str:
    """The table of a SELECT of plain columns, in lower case; "": it is another query."""
    source = query.args["from_"].this if query.args.get("from_") is not None else None
    clauses = {key for key, value in query.args.items() if value} - _OF_PLAIN
    items = [item for item in query.expressions if item.alias_or_name != BEGINS]
    is_plain = all(isinstance(item, exp.Column | exp.Star) for item in items) and not clauses
    return source.name.lower() if is_plain and isinstance(source, exp.Table) else ""
