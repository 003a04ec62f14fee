"""catalog: Ucq → BoundQuery. Asks the owners for their schemas, resolves names, checks types, groups blocks."""

from tablepuppet.catalog.beside import Beside
from tablepuppet.catalog.binding import bind
from tablepuppet.catalog.bound import BoundQuery

__all__ = ["Beside", "BoundQuery", "bind"]
