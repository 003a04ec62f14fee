"""The version, for code that must not import all of tablepuppet."""

__version__ = "0.1.0"
