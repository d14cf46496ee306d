"""Serve one deployed folder on this machine's loopback address, for trying it out.

Only the folder's own files are served: no listings, and no path that was not given at the start. Requests
with a foreign ``Host`` are refused, so that no other site can read the files by DNS rebinding.
"""

from __future__ import annotations

import mimetypes
import sys
from collections.abc import Collection, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from capsedge.errors import EnvironmentProblem

ADDRESS = "127.0.0.1"
SECONDS = 30  # allowed for a client's request
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # Both headers isolate the page, without which WebAssembly has no threads.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".mjs": "text/javascript",
    ".css": "text/css", ".wasm": "application/wasm", ".json": "application/json",
    ".txt": "text/plain; charset=utf-8", ".svg": "image/svg+xml", ".onnx": "application/octet-stream",
}  # fmt: skip


class FolderServer(ThreadingHTTPServer):
    """The server; ``serve_forever`` runs it, ``server_close`` ends it.

    Args:
        folder: the folder to serve.
        files: the paths of its files, ``/`` between names.
        port: 0 takes a free one.

    Raises:
        EnvironmentProblem: the port is taken, or may not be used.
    """

    daemon_threads = True

    def __init__(self, folder: Path, files: Collection[str], port: int = 0) -> None:
        self.files = {f"/{name}": folder / name for name in files}
        self.files["/"] = self.files["/index.html"]
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise EnvironmentProblem(
                f"Cannot serve on port {port}.",
                f"{error.strerror}.",
                "Choose another port with --port.",
            ) from error
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle of an answer is no error."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: FolderServer
    protocol_version = "HTTP/1.1"
    timeout = SECONDS

    def do_GET(self) -> None:
        data = self._respond()
        if data is not None:
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        self._respond()

    def _respond(self) -> bytes | None:
        """Send the header; return the body, or None after an error."""
        if self.headers.get_all("Host") not in [[host] for host in self.server.hosts]:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        try:
            asked = unquote(urlsplit(self.path).path)
        except ValueError:  # such as http://[/
            self.send_error(HTTPStatus.BAD_REQUEST)
            return None
        path = self.server.files.get(asked)
        if path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        try:
            data = path.read_bytes()
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _type_of(path))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        return data

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "capsedge"

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests, which would drown the command's own output."""


def _type_of(path: Path) -> str:
    known = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    return known or "application/octet-stream"
