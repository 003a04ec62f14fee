"""The version, for whoever must not import all of tablepuppet to know it."""

__version__ = "0.1.0"
