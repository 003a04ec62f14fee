"""Logs of the processes: one line an event, as text for people or as JSON for machines; never a row's value."""

from __future__ import annotations

import json
import logging
from typing import Literal

Style = Literal["text", "json"]


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
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    handler.setFormatter(JsonLines() if style == "json" else text)
    root = logging.getLogger("tablepuppet")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
