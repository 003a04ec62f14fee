"""catalog: Ucq → BoundQuery. Asks the owners for their schemas, resolves names, checks types, groups blocks."""

from tablepuppet.catalog.binding import bind
from tablepuppet.catalog.bound import BoundQuery
from tablepuppet.catalog.checks import LabelColumns

__all__ = ["BoundQuery", "LabelColumns", "bind"]
