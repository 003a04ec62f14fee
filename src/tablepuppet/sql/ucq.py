"""Ucq: a union of conjunctive queries, as written. `parse` returns it, and `bind` takes it.

Each branch is one SELECT: its items, the tables of its FROM clause in the order of the text, and the conjuncts of
its WHERE clause. Every expression has passed the list of grammar.py. Its identifiers carry their place in the text
(`meta["start"]`), so that later stages can still point at it. No schema is known yet: a column without an alias may
still belong to any table.

Scope: which table of the FROM clause an alias names, and which tables an expression touches.

derive: subqueries in FROM, WITH, and subqueries inside conditions and items, each a query for one owner. Their rows
stand in for a table of FROM. Their tables must lie with one owner, which runs the query as a whole. schemas.py looks up
the owners; owner/query_guard.py is the owner's own check. A condition or an item that holds a subquery moves into the
table that it is about:

    FROM orders o … WHERE o.id IN (SELECT id FROM returns)     →     FROM (SELECT * FROM orders o WHERE o.id IN (…)) o
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace
from sqlglot import TokenType, exp

from tablepuppet.errors import CatalogError, QueryError, did_you_mean
from tablepuppet.sources.guard import QUERY_NODES
from tablepuppet.sources.history_queries import is_cutoffs
from tablepuppet.sql.grammar import At, check_nodes, refusal, word_before

Tables = Mapping[str, tuple[str, ...]]  # of a federation: the clients of each


class Item(msgspec.Struct, frozen=True):
    """One expression of a SELECT list, with the name that AS gives it."""

    expression: exp.Expr
    name: exp.Identifier | None

    @property
    def shown(self) -> exp.Identifier | None:
        """Its name in the result: the name of AS, or the column's own; None: it has neither."""
        own: exp.Identifier | None = self.expression.this if isinstance(self.expression, exp.Column) else None
        return self.name or (None if own is None else own.copy())


class Star(msgspec.Struct, frozen=True):
    """`alias.*`, or `*` when the alias is None; EXCLUDE names columns that it does not stand for."""

    alias: exp.Identifier | None
    node: exp.Expr
    excluded: tuple[exp.Identifier, ...] = ()


# How a table meets those before it. "semi": rows that have a match there are kept, once (EXISTS); "anti": they are left
# out (NOT EXISTS); "not in": likewise, with NULLs treated as NOT IN treats them.
JoinKind = Literal["inner", "left", "semi", "anti", "not in"]


class Source(msgspec.Struct, frozen=True):
    """One table of the FROM clause and how it is joined to the tables before it.

    The first table, a comma and CROSS JOIN are inner joins without `on`. Tables between two commas have the same
    `tree`: USING looks for its columns there only.
    """

    table: exp.Identifier  # of a query, the first table that it reads
    alias: exp.Identifier
    derived: exp.Query | None = None  # the query over one owner's tables whose rows are read in the table's place
    join: JoinKind = "inner"
    on: tuple[exp.Expr, ...] = ()
    using: tuple[exp.Identifier, ...] = ()
    tree: int = 0

    @property
    def origin(self) -> tuple[exp.Identifier, exp.Query | None]:
        """The table or query that is read; two uses of the same one have the same origin."""
        return self.table, self.derived


class Conjunctive(msgspec.Struct, frozen=True):
    """One conjunctive query: SELECT items FROM sources WHERE all of these hold."""

    items: tuple[Item | Star, ...]
    sources: tuple[Source, ...]
    where: tuple[exp.Expr, ...]


class Ucq(msgspec.Struct, frozen=True):
    """A union (ALL) of conjunctive queries, and the text that it was read from."""

    text: str
    branches: tuple[Conjunctive, ...]

    def refuse(self, message: str, at: At) -> QueryError:
        """An error about a name or a type, with a caret below it."""
        return refusal(self.text, message, at, CatalogError)


def matches(identifier: exp.Identifier, names: Sequence[str]) -> list[int]:
    """The positions of the names that an identifier means: exactly when quoted, else in any case.

    An exact spelling wins, so that "Id" and "id" of one table stay distinct.
    """
    wanted = identifier.name
    exact = [k for k, name in enumerate(names) if name == wanted]
    if exact or identifier.quoted:
        return exact
    return [k for k, name in enumerate(names) if name.lower() == wanted.lower()]


class Scope:
    """The aliases of one FROM clause."""

    def __init__(self, text: str, sources: Sequence[Source]) -> None:
        self.text = text
        self.aliases = [s.alias.name for s in sources]
        self._tables = [s.table.name for s in sources]
        seen: set[str] = set()
        for source in sources:
            if source.alias.name.lower() in seen:
                raise refusal(
                    text,
                    f"two tables are called {source.alias.name}; give each use of a table an alias of its own, "
                    f"for example {source.table.name} AS {source.alias.name}2",
                    source.alias,
                )
            seen.add(source.alias.name.lower())

    def refuse(self, message: str, at: At) -> QueryError:
        """An error about the query, with a caret below it."""
        return refusal(self.text, message, at)

    def relation(self, alias: exp.Identifier) -> int:
        """The position in the FROM clause of the table that an alias names."""
        found = matches(alias, self.aliases)
        if found:
            return found[0]
        hidden = matches(alias, self._tables)
        if hidden:
            hint = f"The table {alias.name} is called {self.aliases[hidden[0]]} here: write that instead."
        else:
            hint = did_you_mean(alias.name, self.aliases)
        raise self.refuse(f"no table in the FROM clause is called {alias.name}. {hint}", alias)

    def relations(self, expression: exp.Expr) -> list[int]:
        return sorted({self.relation(c.args["table"]) for c in expression.find_all(exp.Column)})

    def names(self, relations: Sequence[int]) -> str:
        """`o`, `o and i`, `o, i and c`: for messages."""
        shown = [self.aliases[r] for r in relations]
        return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def is_resolved(expression: exp.Expr) -> bool:
    return all(c.args.get("table") for c in expression.find_all(exp.Column))


def derive(text: str, query: exp.Expr) -> exp.Query:
    """A query for one owner: checked."""
    assert isinstance(query, exp.Query)
    for node in query.find_all(exp.Star):  # COLUMNS(*) and the like are refused by the list of nodes
        if node.args.get("replace") or node.args.get("rename"):
            raise refusal(text, "REPLACE and RENAME are not supported after *; list the columns", query)
    check_nodes(text, query, QUERY_NODES)
    if not base_tables(query):
        raise refusal(text, "this subquery reads no table; name one of the federation's in its FROM", query)
    return query.copy()


def base_tables(query: exp.Expr) -> list[exp.Table]:
    return [table for table in query.find_all(exp.Table) if not is_cutoffs(table)]


def has_subquery(node: exp.Expr) -> bool:
    return node.find(exp.Query, exp.Exists) is not None


def add_condition(text: str, sources: Sequence[Source], condition: exp.Expr) -> tuple[Source, ...]:
    """The tables of FROM, the one that a condition with a subquery is about read under that condition."""
    at = _subject(text, sources, condition)
    if sources[at].join == "left":
        raise refusal(
            text,
            "a condition with a subquery cannot be on a table of a LEFT JOIN, whose missing rows it would see too. "
            f"Write LEFT JOIN (SELECT * FROM {sources[at].table.name} WHERE …) {sources[at].alias.name} ON … instead",
            condition,
        )
    query = exp.select("*").from_(as_table(sources[at])).where(condition.copy())
    return _replace_query(text, sources, at, query)


def add_item(text: str, sources: Sequence[Source], item: Item, number: int) -> tuple[tuple[Source, ...], Item]:
    """The tables of FROM, the one that an item with a subquery is about with that item as a further column."""
    at = _subject(text, sources, item.expression)
    column = exp.Identifier(this=f"tablepuppet item {number}", quoted=True)
    value = item.expression.copy()
    if isinstance(value, exp.Query):
        value = exp.Subquery(this=value)
    query = exp.select("*", exp.Alias(this=value, alias=column)).from_(as_table(sources[at]))
    shown = item.name or exp.to_identifier(f"subquery {number}", quoted=True)
    return _replace_query(text, sources, at, query), Item(exp.column(column, sources[at].alias), shown)


def _replace_query(text: str, sources: Sequence[Source], at: int, query: exp.Query) -> tuple[Source, ...]:
    return (*sources[:at], replace(sources[at], derived=derive(text, query)), *sources[at + 1 :])


def as_table(source: Source) -> exp.Expr:
    alias = exp.TableAlias(this=source.alias.copy())
    if source.derived is not None:
        return exp.Subquery(this=source.derived.copy(), alias=alias)
    return exp.Table(this=source.table.copy(), alias=alias)


def _subject(text: str, sources: Sequence[Source], node: exp.Expr) -> int:
    """The one table of the outer FROM that an expression with a subquery is about."""
    aliases = [source.alias.name for source in sources]
    found: set[int] = set()
    for column in node.find_all(exp.Column):
        query = column.find_ancestor(exp.Query)
        is_inside = any(query is inner for inner in node.find_all(exp.Query))
        qualifier = column.args.get("table")
        if qualifier is not None:
            inner = list(query.find_all(exp.Table, exp.Subquery)) if is_inside and query else []
            local = {source.alias_or_name.lower() for source in inner}
            if qualifier.name.lower() not in local:
                found.update(matches(qualifier, aliases))
        elif not is_inside:
            if len(sources) > 1:
                raise refusal(text, f"write which table {column.name} belongs to, as in alias.{column.name}", column)
            found.add(0)
    if not found and len(sources) == 1:
        return 0
    if len(found) != 1:
        raise refusal(
            text,
            "a subquery in a condition or an item must be about one table of the outer FROM. To keep rows that have a "
            "match for several tables at once, join the keys: JOIN (SELECT DISTINCT x, y FROM …) t ON t.x = a.x AND "
            "t.y = b.y; to keep those without: LEFT JOIN (SELECT DISTINCT x, y FROM …) t ON t.x = a.x AND t.y = b.y "
            "WHERE t.x IS NULL",
            word_before(text, node, TokenType.SELECT),
        )
    return found.pop()
