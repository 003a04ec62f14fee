"""inline: a subquery of FROM that only joins and filters → its tables and conditions in the query around it.

In: a branch of a query, and which of its sources is such a subquery. Out: the branch without the subquery; t.x becomes
the subquery's expression for x. None where a column's table does not follow from the text alone, or where the subquery
does more than join.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace
from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.sql.select import read_select
from tablepuppet.sql.ucq import Conjunctive, Item, Source, Star, is_resolved, matches


def inner_join(text: str, branch: Conjunctive, at: int) -> Conjunctive | None:
    """The subquery as a query of its own, if it can stand in the one around it."""
    source = branch.sources[at]
    if not isinstance(source.derived, exp.Select) or source.join != "inner":
        return None
    # Every outer column names its table, and no bare * would show columns that the subquery leaves out.
    has_bare_star = any(isinstance(item, Star) and item.alias is None for item in branch.items)
    if has_bare_star or not all(map(is_resolved, _expressions(branch))):
        return None
    try:
        inner = read_select(text, source.derived.copy())
    except QueryError:
        return None
    return inner if all(map(is_resolved, _expressions(inner))) else None


def inline_source(branch: Conjunctive, at: int, inner: Conjunctive) -> Conjunctive | None:
    """The branch with the tables of `inner` in the place of its source."""
    taken = [source.alias.name for k, source in enumerate(branch.sources) if k != at]
    return _Inlining(branch, at, _rename_aliases(inner, taken)).run()


class _Inlining(msgspec.Struct, frozen=True):
    """One plain subquery put into the query around it."""

    branch: Conjunctive
    at: int
    inner: Conjunctive

    def run(self) -> Conjunctive | None:
        source = self.branch.sources[self.at]
        try:
            items = tuple(new for item in self.branch.items for new in self._item(item))
            changed = map_expressions(replace(self.branch, items=()), self._substitute)
            later = [self._without_using(s, source) for s in changed.sources[self.at + 1 :]]
            on = (*changed.sources[self.at].on, *self._using(source))
        except _NotThereError:
            return None
        placed = [replace(s, tree=source.tree) for s in self.inner.sources]
        where = (*changed.where, *on, *self.inner.where)
        return Conjunctive(items, (*changed.sources[: self.at], *placed, *later), where)

    def _using(self, source: Source) -> Iterator[exp.Expr]:
        """The subquery's own USING, where one table before it can be meant."""
        before = [s for s in self.branch.sources[: self.at] if s.tree == source.tree]
        if source.using and len(before) != 1:
            raise _NotThereError
        for name in source.using:
            yield exp.EQ(this=exp.column(name, before[0].alias), expression=self._value(name))

    def _without_using(self, later: Source, source: Source) -> Source:
        """USING looks its columns up among the tables before: those of the subquery's SELECT list are meant."""
        if not later.using or later.tree != source.tree:
            return later
        equal = [exp.EQ(this=self._value(n), expression=exp.column(n, later.alias)) for n in later.using]
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
        yield Item(self._substitute(item.expression), item.shown)

    def _substitute(self, expression: exp.Expr) -> exp.Expr:
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
            return exp.column(name, stars[0].alias)
        raise _NotThereError


class _NotThereError(Exception):
    """A column whose table does not follow from the text alone."""


def _name(item: Item) -> str:
    return "" if item.shown is None else item.shown.name


def _expressions(query: Conjunctive) -> Iterator[exp.Expr]:
    yield from (item.expression for item in query.items if isinstance(item, Item))
    yield from (condition for source in query.sources for condition in source.on)
    yield from query.where


def map_expressions(query: Conjunctive, change: Callable[[exp.Expr], exp.Expr]) -> Conjunctive:
    """The query with all its expressions changed; its items keep their names."""
    return Conjunctive(
        tuple(Item(change(i.expression), i.shown) if isinstance(i, Item) else i for i in query.items),
        tuple(replace(source, on=tuple(map(change, source.on))) for source in query.sources),
        tuple(map(change, query.where)),
    )


def _rename_aliases(inner: Conjunctive, taken: Sequence[str]) -> Conjunctive:
    """The inner query with aliases that the outer one does not use, each at its old place in the text."""
    old = [source.alias.name for source in inner.sources]
    new: list[str] = []
    for name in old:
        while name.lower() in {other.lower() for other in (*taken, *new)}:
            name += "_"
        new.append(name)

    def rename(alias: exp.Identifier) -> exp.Identifier:
        renamed = alias.copy()
        renamed.set("this", new[matches(alias, old)[0]])
        return renamed

    def swap(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and matches(node.args["table"], old):
            node.set("table", rename(node.args["table"]))
        return node

    found = map_expressions(inner, lambda expression: expression.copy().transform(swap))
    stars = (replace(i, alias=rename(i.alias)) if isinstance(i, Star) and i.alias else i for i in found.items)
    sources = (replace(source, alias=rename(source.alias)) for source in found.sources)
    return replace(found, items=tuple(stars), sources=tuple(sources))
