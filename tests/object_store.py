"""Stores on this machine, over HTTP: a folder as a web server and as S3 would show it."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


def web_address(
    folder: Path,
    *,
    password: str = "",
    methods: Sequence[str] = ("GET", "HEAD"),
    lost: int = 0,
    certificate: Path | None = None,
) -> str:
    """The URL of a folder's files; the server ends with the process.

    `password`: `user:password` that it wants; `methods`: those that it answers; `lost`: so many bytes at the end of a
    file never come; `certificate`: with its key beside it, for HTTPS.
    """
    wanted = f"Basic {base64.b64encode(password.encode()).decode()}" if password else None
    handler = type("Handler", (_Web,), {"wanted": wanted, "methods": methods, "lost": lost})
    scheme = "http" if certificate is None else "https"
    return f"{scheme}://127.0.0.1:{_served(partial(handler, directory=str(folder)), certificate)}"


def s3_address(folder: Path) -> str:
    """`s3://…{}…`, where {} stands for a bucket's path: folders of the folder are the buckets."""
    port = _served(partial(_S3, folder))
    return f"s3://ann:secret@{{}}?scheme=http&region=us-east-1&endpoint_override=127.0.0.1%3A{port}"


def _served(handler: Any, certificate: Path | None = None) -> int:
    server = _Server(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A client that does not trust the certificate goes away; there is nothing to print."""


class _Web(SimpleHTTPRequestHandler):
    wanted: str | None = None
    methods: Sequence[str] = ()
    lost = 0

    def log_message(self, *_: Any) -> None:
        pass

    def send_head(self) -> Any:
        if self.command not in self.methods:
            self.send_error(405)
        elif self.wanted is not None and self.headers.get("Authorization") != self.wanted:
            self.send_error(401)
        else:
            return super().send_head()
        return None

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        outputfile.write(content[: len(content) - self.lost])


class _S3(BaseHTTPRequestHandler):
    """HEAD, GET and ListObjectsV2, for whoever asks."""

    def __init__(self, folder: Path, *given: Any) -> None:
        self._folder = folder
        super().__init__(*given)

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._object(is_head=True)

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "list-type" in asked:
            self._list(asked.get("prefix", [""])[0])
        else:
            self._object(is_head=False)

    def _object(self, *, is_head: bool) -> None:
        file = self._folder / unquote(urlsplit(self.path).path).strip("/")
        if not file.is_file():
            self.send_response(200 if is_head and file.is_dir() and file.parent == self._folder else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = file.read_bytes()
        wanted = self.headers.get("Range")
        part = content
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last or len(content)) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Last-Modified", self.date_time_string(file.stat().st_mtime))
        self.end_headers()
        if not is_head:
            self.wfile.write(part)

    def _list(self, prefix: str) -> None:
        bucket = self._folder / unquote(urlsplit(self.path).path).strip("/")
        found = [f for f in sorted(bucket.rglob("*")) if f.is_file() and str(f.relative_to(bucket)).startswith(prefix)]
        entries = "".join(
            f"<Contents><Key>{escape(str(f.relative_to(bucket)))}</Key><Size>{f.stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for f in found
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
