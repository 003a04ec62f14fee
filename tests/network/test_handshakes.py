"""What gRPC says of failed handshakes becomes events; all else that is written to standard error stays."""

from __future__ import annotations

import subprocess
import sys

_SPEAK = """
import os, sys
from tablepuppet.network.processes import logged_handshakes
from tablepuppet.network.processes import configure
configure("info", "json")
with logged_handshakes():
    for _ in range(int(sys.argv[1])):
        os.write(2, b"I0000 00:00:1.2  7 ssl_transport_security.cc:2158] Handshake failed with error SSL_ERROR_SSL: "
                    b"error:0A00009C:SSL routines::http request\\n")
    os.write(2, b"another line of a library\\n")
    print("a line of Python", file=sys.stderr)
os.write(2, b"after\\n")
"""


def speak(failures: int) -> str:
    command = [sys.executable, "-c", _SPEAK, str(failures)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stderr


def test_a_failed_handshake_is_a_warning_and_other_lines_pass() -> None:
    said = speak(1)
    lines = said.splitlines()
    assert "another line of a library" in lines
    assert "a line of Python" in lines
    assert lines[-1] == "after"
    (event,) = [line for line in lines if line.startswith("{")]
    assert '"level": "warning"' in event
    assert "the TLS handshake failed (http request)" in event
    assert "ssl_transport_security" not in said


def test_a_flood_of_failed_handshakes_stops_nobody() -> None:
    """Warnings are not written to where the lines come from, which is full; the first of a minute tell enough."""
    said = speak(5000)
    assert 1 <= said.count("the TLS handshake failed") < 200
    assert "ssl_transport_security" not in said
    assert said.endswith("after\n")


def test_a_process_without_standard_error_does_without() -> None:
    code = """
import os
from tablepuppet.network.processes import logged_handshakes
os.close(2)
with logged_handshakes():
    pass
"""
    subprocess.run([sys.executable, "-c", code], check=True)
