"""Logs of the processes: one line an event, as text for people or as JSON for machines; never a row's value."""

from __future__ import annotations

import json
import logging
from typing import Literal

from tablepuppet.escaping import printable

Style = Literal["text", "json"]


class TextLines(logging.Formatter):
    """One line an event: what a peer sent cannot begin another, nor move a cursor. Tracebacks follow as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = printable(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


def configure(level: str, style: Style) -> None:
    """Sends tablepuppet's log to standard error."""
    handler = logging.StreamHandler()
    text = TextLines("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    handler.setFormatter(JsonLines() if style == "json" else text)
    root = logging.getLogger("tablepuppet")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
