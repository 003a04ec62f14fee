"""join_owners: subqueries that read several owners' tables → joins of the main query that mean the same.

In: a Ucq and who holds which table. Out: the same query, in which every subquery reads one owner's tables, or a refusal
that says what to write. Two rewritings, each exact:

    FROM (SELECT a.x, b.y AS z FROM a JOIN b ON … WHERE …) t …    →    FROM a JOIN b ON … …      t.x is a.x, t.z is b.y
    … WHERE a.k IN (SELECT k FROM b WHERE …)                      →    … JOIN (SELECT DISTINCT k FROM b WHERE …) s
    … WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND …)              ON s.k = a.k

Groups, windows and the like over several owners' rows cannot be had this way; neither can rows without a match
(NOT IN, NOT EXISTS).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from sqlglot import exp

from tablepuppet.catalog.schemas import find_table
from tablepuppet.catalog.texts import refuse
from tablepuppet.errors import QueryError
from tablepuppet.query.conditions import conjuncts_of
from tablepuppet.query.derived import base_tables, derive, has_subquery, narrowed, needed
from tablepuppet.query.select import read_select
from tablepuppet.query.ucq import Conjunctive, Item, Source, Star, Ucq, is_resolved, matches

Tables = Mapping[str, tuple[str, ...]]


def join_owners(ucq: Ucq, tables: Tables) -> Ucq:
    """The query with every subquery at one owner, as far as joins can say the same."""
    return replace(ucq, branches=tuple(_Branch(ucq, tables).rewritten(branch) for branch in ucq.branches))


@dataclass(frozen=True, slots=True)
class _Branch:
    ucq: Ucq
    tables: Tables

    def rewritten(self, branch: Conjunctive) -> Conjunctive:
        """One rewriting after the other, until no subquery spans owners or nothing can be done about it."""
        while True:
            for at, source in enumerate(branch.sources):
                if source.derived is not None and self._spans(source.derived):
                    changed = self._with_keys(branch, at) or self._inlined(branch, at)
                    if changed is not None:
                        branch = changed
                        break
                    self._check_items(source)
            else:
                return branch

    def _spans(self, query: exp.Expr) -> bool:
        return len({self._owners(base) for base in base_tables(query)}) > 1

    def _owners(self, table: exp.Table) -> tuple[str, ...]:
        return self.tables[find_table(self.ucq, table.this, self.tables)]

    def _with_keys(self, branch: Conjunctive, at: int) -> Conjunctive | None:
        """A table read under conditions on other owners' keys, joined to those keys instead."""
        table, conditions, ctes = _read_under(branch.sources[at])
        own = self._owners(exp.Table(this=table.table))
        abroad = [c for c in conditions if any(self._owners(base) != own for base in base_tables(_whole(c, ctes)))]
        if not abroad:
            return None
        kept = [table]
        for condition in conditions:
            if condition not in abroad:
                kept = [*narrowed(self.ucq.text, kept, condition, ctes)]
        sources = [*branch.sources[:at], *kept, *branch.sources[at + 1 :]]
        where = list(branch.where)
        for condition in abroad:
            outer, keys = self._keys(table, condition, own)
            derived = derive(self.ucq.text, keys, ctes)
            name = _unused(f"keys of {base_tables(derived)[0].name}", sources)
            tree = max(source.tree for source in sources) + 1
            sources.append(Source(base_tables(derived)[0].this, name, derived, tree=tree))
            for k, value in enumerate(outer):
                key = exp.Column(this=exp.to_identifier(f"key{k}"), table=name.copy())
                where.append(exp.EQ(this=value.copy(), expression=key))
        return replace(branch, sources=tuple(sources), where=tuple(where))

    def _keys(self, table: Source, condition: exp.Expr, own: tuple[str, ...]) -> tuple[list[exp.Expr], exp.Select]:
        """What of a table must match, and the query for the keys that it must match."""
        if isinstance(condition, exp.In) and isinstance(condition.args.get("query"), exp.Expr):
            query = condition.args["query"].unnest()
            subject = condition.this.unnest()
            outer = list(subject.expressions) if isinstance(subject, exp.Tuple) else [subject]
            is_plain = isinstance(query, exp.Select) and not _outer_columns(query)
            if is_plain and len(query.expressions) == len(outer):
                rows = exp.Subquery(this=_aliased(query, "c"), alias=exp.TableAlias(this=exp.to_identifier("q")))
                wanted = [exp.column(f"c{k}", "q") for k in range(len(outer))]
                return outer, _aliased(exp.select(*wanted).from_(rows), "key").distinct()
        elif isinstance(condition, exp.Exists) and isinstance(condition.this, exp.Select):
            found = _correlated(condition.this)
            if found is not None:
                return found
        raise self._refusal(table, condition, own)

    def _refusal(self, table: Source, condition: exp.Expr, own: tuple[str, ...]) -> QueryError:
        inner = next(base for base in base_tables(condition) if self._owners(base) != own)
        begin = f"this condition on {table.alias.name} looks rows up in {inner.name}, which lies with another owner"
        keys = f"JOIN (SELECT DISTINCT key FROM {inner.name} WHERE …) t ON t.key = {table.alias.name}.key"
        if isinstance(condition, exp.Not):
            return refuse(
                self.ucq,
                f"{begin}, and rows without a match cannot be chosen. Join the keys of the wanted rows instead: {keys}",
                inner,
            )
        return refuse(self.ucq, f"{begin}. Join its keys instead: {keys}", inner)

    def _check_items(self, source: Source) -> None:
        """An item that looks another owner's rows up is refused with the join that says the same."""
        own = self._owners(exp.Table(this=source.table))
        assert source.derived is not None
        for item in source.derived.selects:
            scalar = item.find(exp.Subquery)
            abroad = [] if scalar is None else [base for base in base_tables(scalar) if self._owners(base) != own]
            if abroad and isinstance(scalar, exp.Subquery):
                raise refuse(
                    self.ucq,
                    f"this item looks rows up in {abroad[0].name}, which lies with another owner. "
                    f"Join them instead: {_as_join(scalar.this)}",
                    abroad[0],
                )

    def _inlined(self, branch: Conjunctive, at: int) -> Conjunctive | None:
        """The tables and conditions of a plain join in the place of the subquery that joins them."""
        source = branch.sources[at]
        select, ctes = _plain(source)
        if select is None or source.join == "left" or not _names_all(branch, source):
            return None
        try:
            inner = read_select(self.ucq.text, select, ctes)
        except QueryError:
            return None
        if not all(map(is_resolved, _expressions(inner))):
            return None
        if len(inner.sources) == 1 and inner.sources[0].derived is not None and self._spans(inner.sources[0].derived):
            return None  # a single table under a condition that no join can say
        inner = _apart(inner, [s.alias.name for k, s in enumerate(branch.sources) if k != at])
        return _Inlining(branch, at, inner).done()


@dataclass(frozen=True, slots=True)
class _Inlining:
    """One plain subquery put into the query around it."""

    branch: Conjunctive
    at: int
    inner: Conjunctive

    def done(self) -> Conjunctive | None:
        source = self.branch.sources[self.at]
        try:
            items = tuple(new for item in self.branch.items for new in self._item(item))
            where = tuple(map(self._moved, self.branch.where))
            others = [replace(s, on=tuple(map(self._moved, s.on))) for s in self.branch.sources]
            others = [*others[: self.at + 1], *(self._without_using(s, source) for s in others[self.at + 1 :])]
            on = (*map(self._moved, source.on), *self._using(source))
        except _NotThereError:
            return None
        first, *rest = self.inner.sources
        placed = [replace(s, tree=source.tree) for s in (first, *rest)]
        sources = (*others[: self.at], *placed, *others[self.at + 1 :])
        return Conjunctive(items, sources, (*where, *on, *self.inner.where))

    def _using(self, source: Source) -> Iterator[exp.Expr]:
        """The subquery's own USING, where one table before it can be meant."""
        before = [s for s in self.branch.sources[: self.at] if s.tree == source.tree]
        if source.using and len(before) != 1:
            raise _NotThereError
        for name in source.using:
            theirs = exp.Column(this=name.copy(), table=before[0].alias.copy())
            yield exp.EQ(this=theirs, expression=self._value(name))

    def _without_using(self, later: Source, source: Source) -> Source:
        """USING looks its columns up among the tables before: those of the subquery's SELECT list are meant."""
        if not later.using or later.tree != source.tree:
            return later
        equal = []
        for name in later.using:
            mine = self._value(name)
            equal.append(exp.EQ(this=mine, expression=exp.Column(this=name.copy(), table=later.alias.copy())))
        return replace(later, on=(*later.on, *equal), using=())

    def _item(self, item: Item | Star) -> Iterator[Item | Star]:
        alias = self.branch.sources[self.at].alias
        if isinstance(item, Star):
            if item.alias is None or not matches(item.alias, [alias.name]):
                yield item
                return
            for mine in self.inner.items:
                if isinstance(mine, Star):
                    yield replace(mine, excluded=(*mine.excluded, *item.excluded))
                elif not any(matches(gone, [_name(mine)]) for gone in item.excluded):
                    yield Item(mine.expression, exp.Identifier(this=_name(mine), quoted=True))
            return
        name = item.name
        if name is None and isinstance(item.expression, exp.Column):
            name = item.expression.this.copy()
        yield Item(self._moved(item.expression), name)

    def _moved(self, expression: exp.Expr) -> exp.Expr:
        """An expression with the subquery's columns as the subquery computes them."""
        alias = self.branch.sources[self.at].alias

        def swap(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Column) and matches(node.args["table"], [alias.name]):
                value = self._value(node.this)
                return value if isinstance(value, exp.Column) else exp.Paren(this=value)
            return node

        return expression.copy().transform(swap)

    def _value(self, name: exp.Identifier) -> exp.Expr:
        named = [item for item in self.inner.items if isinstance(item, Item)]
        found = matches(name, [_name(item) for item in named])
        if found:
            return named[found[0]].expression.copy()
        stars = [item for item in self.inner.items if isinstance(item, Star)]
        if len(stars) == 1 and stars[0].alias is not None and not matches(name, [x.name for x in stars[0].excluded]):
            return exp.Column(this=name.copy(), table=stars[0].alias.copy())
        raise _NotThereError


class _NotThereError(Exception):
    """A column of which the text alone does not tell where it comes from."""


def _name(item: Item) -> str:
    if item.name is not None:
        return item.name.name
    return item.expression.name if isinstance(item.expression, exp.Column) else ""


def _plain(source: Source) -> tuple[exp.Select | None, dict[str, exp.CTE]]:
    """The SELECT behind a subquery or a name of WITH, and what WITH names for it."""
    query = source.derived
    if not isinstance(query, exp.Select):
        return None, {}
    clause = query.args.get("with_")
    ctes = {cte.alias.lower(): cte for cte in clause.expressions} if clause is not None else {}
    select = query.copy()
    select.set("with_", None)
    while _is_star_of(select, ctes):
        behind = ctes[select.args["from_"].this.name.lower()].this
        if not isinstance(behind, exp.Select):
            return None, {}
        select = behind.copy()
    return select, ctes


def _is_star_of(select: exp.Select, ctes: Mapping[str, exp.CTE]) -> bool:
    """SELECT * FROM name, and nothing else."""
    only = [key for key, value in select.args.items() if value and key not in ("expressions", "from_", "kind")]
    source = select.args["from_"].this
    star = len(select.expressions) == 1 and type(select.expressions[0]) is exp.Star
    return not only and star and isinstance(source, exp.Table) and source.name.lower() in ctes


def _names_all(branch: Conjunctive, source: Source) -> bool:
    """Every column of the outer query says its table, and no bare * would show what the subquery leaves out."""
    bare = any(isinstance(item, Star) and item.alias is None for item in branch.items)
    return not bare and all(map(is_resolved, _expressions(branch)))


def _expressions(query: Conjunctive) -> Iterator[exp.Expr]:
    yield from (item.expression for item in query.items if isinstance(item, Item))
    yield from (condition for source in query.sources for condition in source.on)
    yield from query.where


def _apart(inner: Conjunctive, taken: Sequence[str]) -> Conjunctive:
    """The inner query with aliases that the outer one does not use."""
    used = {name.lower() for name in taken}
    renamed: dict[str, str] = {}
    for source in inner.sources:
        name = source.alias.name
        while name.lower() in used:
            name += "_"
        used.add(name.lower())
        renamed[source.alias.name] = name

    def swap(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column):
            found = matches(node.args["table"], list(renamed))
            if found:
                node.set("table", _called(node.args["table"], list(renamed.values())[found[0]]))
        return node

    def moved(expression: exp.Expr) -> exp.Expr:
        return expression.copy().transform(swap)

    items = tuple(
        Item(moved(item.expression), item.name or _own_name(item))
        if isinstance(item, Item)
        else replace(item, alias=None if item.alias is None else _called(item.alias, renamed[item.alias.name]))
        for item in inner.items
    )
    sources = tuple(
        replace(s, alias=_called(s.alias, renamed[s.alias.name]), on=tuple(map(moved, s.on))) for s in inner.sources
    )
    return Conjunctive(items, sources, tuple(map(moved, inner.where)))


def _own_name(item: Item) -> exp.Identifier | None:
    return item.expression.this.copy() if isinstance(item.expression, exp.Column) else None


def _called(old: exp.Identifier, name: str) -> exp.Identifier:
    """A new name at the old one's place in the text."""
    new = old.copy()
    new.set("this", name)
    return new


def _read_under(source: Source) -> tuple[Source, list[exp.Expr], dict[str, exp.CTE]]:
    """The table below SELECT * FROM table WHERE condition, as query/derived.py nests them; and all the conditions."""
    conditions: list[exp.Expr] = []
    ctes: dict[str, exp.CTE] = {}
    while isinstance(source.derived, exp.Select) and _is_narrowing(source.derived):
        query = source.derived
        clause = query.args.get("with_")
        ctes |= {cte.alias.lower(): cte for cte in clause.expressions} if clause is not None else {}
        below = query.args["from_"].this
        inner = below.this if isinstance(below, exp.Subquery) else None
        table = base_tables(inner)[0].this if inner is not None else below.this
        conditions.insert(0, query.args["where"].this)
        source = replace(source, table=table, derived=inner)
    return source, conditions, ctes


def _is_narrowing(query: exp.Select) -> bool:
    given = {key for key, value in query.args.items() if value}
    is_star = len(query.expressions) == 1 and type(query.expressions[0]) is exp.Star
    return is_star and given <= {"kind", "expressions", "from_", "where", "with_"} and _looks_up(query)


def _looks_up(query: exp.Select) -> bool:
    """Whether WHERE looks rows up in a subquery."""
    where = query.args.get("where")
    return where is not None and has_subquery(where.this)


def _whole(condition: exp.Expr, ctes: Mapping[str, exp.CTE]) -> exp.Expr:
    """A condition with the queries of WITH that it uses, so that base_tables sees through them."""
    query = exp.select("1").where(condition.copy())
    used = [ctes[name].copy() for name in needed(query, ctes)]
    if used:
        query.set("with_", exp.With(expressions=used))
    return query


def _unused(name: str, sources: Sequence[Source]) -> exp.Identifier:
    """A quoted alias that no table of FROM has."""
    taken = {source.alias.name for source in sources}
    return exp.Identifier(
        this=next(n for k in count(1) if (n := name if k == 1 else f"{name} {k}") not in taken), quoted=True
    )


def _correlated(query: exp.Select) -> tuple[list[exp.Expr], exp.Select] | None:
    """What an EXISTS compares with columns of its own, and the query for those; None if it does more than compare."""
    outer, inner, rest = [], [], []
    where = query.args.get("where")
    for conjunct in conjuncts_of(where.this) if where is not None else ():
        sides = [conjunct.left, conjunct.right] if isinstance(conjunct, exp.EQ) else []
        abroad = [side for side in sides if _outer_columns(query, side)]
        if len(abroad) == 1 and len(_outer_columns(query, abroad[0])) == len(list(abroad[0].find_all(exp.Column))):
            outer.append(abroad[0])
            inner.append(sides[1 - sides.index(abroad[0])])
        elif _outer_columns(query, conjunct):
            return None
        else:
            rest.append(conjunct)
    if not outer or any(query.args.get(clause) for clause in ("group", "having", "limit", "qualify")):
        return None
    kept = query.copy()
    kept.set("expressions", [side.copy() for side in inner])
    kept.set("where", exp.Where(this=exp.and_(*(r.copy() for r in rest))) if rest else None)
    return outer, _aliased(kept, "key").distinct()


def _as_join(query: exp.Expr) -> str:
    """The LEFT JOIN that gives what a scalar subquery looks up, as text."""
    found = _correlated(query) if isinstance(query, exp.Select) else None
    if found is None or len(query.expressions) != 1:
        return "LEFT JOIN (SELECT key, avg(x) AS x FROM … GROUP BY key) t ON t.key = …, and select t.x"
    outer, keys = found
    inner = [key.unalias() for key in keys.expressions]
    rows = keys.copy()
    rows.set("distinct", None)
    rows.set("expressions", [*(key.copy() for key in inner), exp.alias_(query.expressions[0].unalias().copy(), "x")])
    grouped = rows.group_by(*(key.copy() for key in inner))
    names = [key.name if isinstance(key, exp.Column) else "…" for key in inner]
    on = " AND ".join(f"t.{name} = {side.sql('duckdb')}" for name, side in zip(names, outer, strict=True))
    return f"LEFT JOIN ({grouped.sql('duckdb')}) t ON {on}, and select t.x"


def _outer_columns(query: exp.Expr, expression: exp.Expr | None = None) -> list[exp.Column]:
    """The columns that name a table outside of the query."""
    local = [t.alias_or_name for t in query.find_all(exp.Table)]
    return [
        column
        for column in (expression or query).find_all(exp.Column)
        if column.args.get("table") is not None and not matches(column.args["table"], local)
    ]


def _aliased(select: exp.Select, prefix: str) -> exp.Select:
    """The query with its items called prefix0, prefix1, …"""
    named = select.copy()
    items = [item.unalias().copy() for item in named.expressions]
    named.set("expressions", [exp.alias_(item, f"{prefix}{k}") for k, item in enumerate(items)])
    return named
