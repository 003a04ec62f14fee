"""The room where users come in: tables and their owners, in this process (`Federation`) or in others."""

from tablepuppet.federation.connected import ConnectedFederation
from tablepuppet.federation.federation import Federation

__all__ = ["ConnectedFederation", "Federation"]
