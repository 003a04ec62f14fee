"""refuse: a CatalogError that points at the query's text."""

from __future__ import annotations

from tablepuppet.errors import CatalogError, QueryError
from tablepuppet.query.position import At, refusal
from tablepuppet.query.ucq import Ucq


def refuse(ucq: Ucq, message: str, at: At) -> QueryError:
    """What is wrong with a name or a type, with a caret below it."""
    return refusal(ucq.text, message, at, CatalogError)
