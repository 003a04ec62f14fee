"""Logs of the processes: one line an event, as text for people or as JSON for machines; never a row's value.

Failed TLS handshakes are events too. Who shows no certificate, or one of another authority, is refused by gRPC before
any code of ours hears of it; all that is left is a line of gRPC's own on the standard error of the process. In: such
lines. Out: warnings in our log, in its format and at its level. Whatever else is written there passes unchanged.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import IO, Literal

from tablepuppet.formatting import printable

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


log = logging.getLogger(__name__)
_STANDARD_ERROR = 2
_FAILED = re.compile(rb"ssl_transport_security\S*\] Handshake failed with error (?:.*SSL routines:\w*:)?(.*)")


@contextmanager
def logged_handshakes() -> Iterator[None]:
    """While inside, lines about failed handshakes become warnings."""
    try:
        original = os.dup(_STANDARD_ERROR)
    except OSError:  # it was closed before we came
        yield
        return
    reading, writing = os.pipe()
    lines, target = os.fdopen(reading, "rb"), os.fdopen(original, "w", buffering=1, errors="backslashreplace")
    reader = threading.Thread(target=_pass_on, args=(lines, target), name="stderr", daemon=True)
    with redirect_stderr(target), _logging_to(target):  # Python's own words take no part: a full pipe must not stop it
        os.dup2(writing, _STANDARD_ERROR)
        os.close(writing)
        reader.start()
        try:
            yield
        finally:
            os.dup2(original, _STANDARD_ERROR)  # the pipe has no writer any more, and the reader comes to its end
            reader.join(timeout=5)
    if not reader.is_alive():  # unless a child of ours still writes to it
        target.close()


@contextmanager
def _logging_to(target: IO[str]) -> Iterator[None]:
    """Our log goes to this file instead of standard error."""
    handlers = [h for h in logging.getLogger("tablepuppet").handlers if isinstance(h, logging.StreamHandler)]
    before = [(handler, handler.setStream(target)) for handler in handlers if handler.stream is sys.__stderr__]
    try:
        yield
    finally:
        for handler, stream in before:
            handler.setStream(stream)


def reason(line: bytes) -> str | None:
    """Why a handshake failed, if that is what a line says.

    >>> reason(b"I0000 ssl_transport_security.cc:2158] Handshake failed with error SSL_ERROR_SSL: error:0A0000C7:SSL "
    ...        b"routines::peer did not return a certificate\\n")
    'peer did not return a certificate'
    """
    found = _FAILED.search(line)
    return None if found is None else found[1].decode("ascii", "replace").strip()


def _pass_on(lines: IO[bytes], target: IO[str]) -> None:
    with lines:
        for line in lines:
            why = reason(line)
            if why is None:
                target.write(line.decode("utf-8", "replace"))
            else:
                log.warning("refused somebody: the TLS handshake failed (%s)", why)
