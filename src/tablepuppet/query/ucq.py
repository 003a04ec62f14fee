"""Ucq: a union of conjunctive queries, as written. What `parse` returns and what `catalog.bind` takes.

Each branch is one SELECT: its items, the tables of its FROM clause in the order of the text, and the conjuncts of
its WHERE clause. Every expression has passed the list of scalar.py; its identifiers carry their place in the text
(`meta["start"]`), so that later stages can still point at it. No schema is known yet, so that a column without an
alias may still belong to any table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlglot import exp


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


@dataclass(frozen=True, slots=True)
class Source:
    """One table of the FROM clause and how it is joined to the tables before it.

    The first table, a comma and CROSS JOIN are inner joins without `on`. Tables between two commas have the same
    `tree`: USING looks for its columns there only.
    """

    table: exp.Identifier  # of a query, the first table that it reads
    alias: exp.Identifier
    derived: exp.Query | None = None  # the query over one owner's tables whose rows are read in the table's place
    join: Literal["inner", "left"] = "inner"
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
