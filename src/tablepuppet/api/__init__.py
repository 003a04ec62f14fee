"""The room where users come in: tables and their owners, in this process (`Federation`) or in others."""

from tablepuppet.api.federation import Federation

__all__ = ["Federation"]
