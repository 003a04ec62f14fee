"""The report: runs as plain data, and one HTML page."""

from tablepuppet.report.record import read_record

__all__ = ["read_record"]
