"""The report: runs as plain data, and one HTML page."""

from tablepuppet.report.page import model_card, render, write_report
from tablepuppet.report.predictions import draw_curves
from tablepuppet.report.record import DependenceRecord, RunRecord, read_dependence, read_record, to_json
from tablepuppet.report.recording import dependence_of, history_frame, record_of, write_history

__all__ = [
    "DependenceRecord",
    "RunRecord",
    "dependence_of",
    "draw_curves",
    "history_frame",
    "model_card",
    "read_dependence",
    "read_record",
    "record_of",
    "render",
    "to_json",
    "write_history",
    "write_report",
]
