"""Ucq: a union of conjunctive queries, as written. What `parse` returns and what `catalog.bind` takes.

Each branch is one SELECT: its items, the tables of its FROM clause in the order of the text, and the conjuncts of
its WHERE clause. Every expression has passed the list of scalar.py; its identifiers carry their place in the text
(`meta["start"]`), so that later stages can still point at it. No schema is known yet, so that a column without an
alias may still belong to any table.

Scope: which table of the FROM clause an alias names, and which tables an expression touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from tablepuppet.errors import did_you_mean
from tablepuppet.sql.grammar import refusal


@dataclass(frozen=True, slots=True)
class Item:
    """One expression of a SELECT list, with the name that AS gives it."""

    expression: exp.Expr
    name: exp.Identifier | None


@dataclass(frozen=True, slots=True)
class Star:
    """`alias.*`, or `*` when the alias is None; EXCLUDE names columns that it does not stand for."""

    alias: exp.Identifier | None
    node: exp.Expr
    excluded: tuple[exp.Identifier, ...] = ()


# How a table meets those before it. "semi": rows that have a match there are kept, once (EXISTS); "anti": they are left
# out (NOT EXISTS); "not in": likewise, and NULL is what SQL makes of it in NOT IN.
JoinKind = Literal["inner", "left", "semi", "anti", "not in"]


@dataclass(frozen=True, slots=True)
class Source:
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
        """What is read: two uses of the same table, or of the same query, have the same."""
        return self.table, self.derived


@dataclass(frozen=True, slots=True)
class Conjunctive:
    """One conjunctive query: SELECT items FROM sources WHERE all of these hold."""

    items: tuple[Item | Star, ...]
    sources: tuple[Source, ...]
    where: tuple[exp.Expr, ...]


@dataclass(frozen=True, slots=True)
class Ucq:
    """A union (ALL) of conjunctive queries, and the text that it was read from."""

    text: str
    branches: tuple[Conjunctive, ...]


def matches(identifier: exp.Identifier, names: Sequence[str]) -> list[int]:
    """The positions of the names that an identifier means: exactly when quoted, else in any case.

    An exact spelling wins, so that "Id" and "id" of one table can still be told apart.
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
        raise refusal(self.text, f"no table in the FROM clause is called {alias.name}. {hint}", alias)

    def relations(self, expression: exp.Expr) -> list[int]:
        """The tables that an expression touches, in the order of the FROM clause."""
        return sorted({self.relation(c.args["table"]) for c in expression.find_all(exp.Column)})

    def names(self, relations: Sequence[int]) -> str:
        """`o`, `o and i`, `o, i and c`: for messages."""
        shown = [self.aliases[r] for r in relations]
        return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def is_resolved(expression: exp.Expr) -> bool:
    """Every column says which table it comes from."""
    return all(c.args.get("table") for c in expression.find_all(exp.Column))
