"""A resolved expression as text, for an owner's database (`render`) and for people (`shown`).

And `refuse`: an error that points at the query's text.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp
from sqlglot.expressions import SAFE_IDENTIFIER_RE

from tablepuppet.errors import CatalogError, QueryError
from tablepuppet.query.position import At, refusal
from tablepuppet.query.ucq import Ucq


def render(expression: exp.Expr, spelling: Mapping[str, str]) -> str:
    """The SQL of an expression over its table's own columns, each spelt as one client spells it."""

    def bare(part: exp.Expr) -> exp.Expr:
        return exp.column(spelling[part.name], quoted=True) if isinstance(part, exp.Column) else part

    return expression.transform(bare).sql("duckdb", comments=False)


def shown(expression: exp.Expr, alias: str | None = None) -> str:
    """The expression for a reader: quotes only where they are needed, and `alias` before each column."""

    def plain(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column):
            return part
        table = None if alias is None else _identifier(alias)
        return exp.Column(this=_identifier(part.name), table=table)

    return expression.transform(plain).sql("duckdb", comments=False)


def _identifier(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=SAFE_IDENTIFIER_RE.match(name) is None)


def refuse(ucq: Ucq, message: str, at: At) -> QueryError:
    """What is wrong with a name or a type, with a caret below it."""
    return refusal(ucq.text, message, at, CatalogError)
