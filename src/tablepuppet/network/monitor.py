"""Health, status and metrics over HTTP, for machines that watch the coordinator."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tablepuppet.errors import TransportError


class Monitor:
    """A small HTTP server: /health, /status (JSON) and /metrics (Prometheus)."""

    def __init__(self, address: str, status: Callable[[], dict[str, Any]], health: Callable[[], str]) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise TransportError(f"health must be host:port, not {address!r}")
        try:
            self._server = ThreadingHTTPServer((host, int(port)), _handler(status, health))
        except OSError as error:
            raise TransportError(f"cannot listen on {address} for health checks: {error.strerror}") from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def metrics(status: dict[str, Any]) -> str:
    """The status as Prometheus reads it.

    >>> print(metrics({"steps": 2, "bytes_up": 10, "bytes_down": 5, "connected": {"a": ""}, "away": {},
    ...                "waited": {"a": 0.5}, "runs": [{"state": "finished"}]}), end="")
    # TYPE tablepuppet_rounds_total counter
    tablepuppet_rounds_total 2
    # TYPE tablepuppet_bytes_total counter
    tablepuppet_bytes_total{direction="up"} 10
    tablepuppet_bytes_total{direction="down"} 5
    # TYPE tablepuppet_client_connected gauge
    tablepuppet_client_connected{client="a"} 1
    # TYPE tablepuppet_client_wait_seconds_total counter
    tablepuppet_client_wait_seconds_total{client="a"} 0.5
    # TYPE tablepuppet_runs gauge
    tablepuppet_runs{state="finished"} 1
    """
    states = [run["state"] for run in status["runs"]]
    families: list[tuple[str, str, list[tuple[str, Any]]]] = [
        ("rounds_total", "counter", [("", status["steps"])]),
        (
            "bytes_total",
            "counter",
            [('{direction="up"}', status["bytes_up"]), ('{direction="down"}', status["bytes_down"])],
        ),
        (
            "client_connected",
            "gauge",
            [(f'{{client="{c}"}}', 1) for c in status["connected"]]
            + [(f'{{client="{c}"}}', 0) for c in status["away"]],
        ),
        ("client_wait_seconds_total", "counter", [(f'{{client="{c}"}}', s) for c, s in status["waited"].items()]),
        ("runs", "gauge", [(f'{{state="{s}"}}', states.count(s)) for s in sorted(set(states))]),
    ]
    lines = []
    for name, kind, samples in families:
        lines.append(f"# TYPE tablepuppet_{name} {kind}")
        lines += [f"tablepuppet_{name}{labels} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _handler(status: Callable[[], dict[str, Any]], health: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            pages: dict[str, tuple[str, Callable[[], str]]] = {
                "/health": ("application/json", lambda: json.dumps({"status": health()})),
                "/status": ("application/json", lambda: json.dumps(status())),
                "/metrics": ("text/plain; version=0.0.4", lambda: metrics(status())),
            }
            if self.path not in pages:
                self.send_error(404)
                return
            kind, page = pages[self.path]
            body = page().encode()
            self.send_response(503 if self.path == "/health" and health() != "ok" else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Health checks are not worth a line each."""

    return Handler
