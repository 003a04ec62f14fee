"""SQL text becomes a bound query: it is parsed, resolved against the owners' schemas and cut into blocks."""

from tablepuppet.sql.binding import bind
from tablepuppet.sql.bound import BoundQuery
from tablepuppet.sql.checks import LabelColumns
from tablepuppet.sql.parsing import parse
from tablepuppet.sql.ucq import Ucq

__all__ = ["BoundQuery", "LabelColumns", "Ucq", "bind", "parse"]
