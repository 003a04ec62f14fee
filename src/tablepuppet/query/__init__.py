"""query: SQL text → Ucq, a union of conjunctive queries. No table is known yet; `catalog` binds it to the owners."""

from tablepuppet.query.parsing import parse
from tablepuppet.query.ucq import Ucq

__all__ = ["Ucq", "parse"]
