"""Models that are fetched: limits hold whatever a server says."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from capsedge.runtime.zoo import default_model

from .package import Package, Refused

MODEL = default_model().read_bytes()


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves a model honestly, or with a size that is wrong, missing or endless."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/missing.onnx":
            self.send_error(404)
            return
        self.send_response(200)
        sizes = {"/digits%1b.onnx": len(MODEL), "/huge.onnx": 2**40, "/short.onnx": len(MODEL) + 9}
        if path in sizes:
            self.send_header("Content-Length", str(sizes[path]))
        self.end_headers()
        try:
            self.wfile.write(MODEL)
            while path == "/endless.onnx":
                self.wfile.write(bytes(1 << 20))
        except OSError:  # the other side has seen enough
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_model_is_fetched(web: Package, address: str) -> None:
    answer, _ = web.ask("load", id=0, url=f"{address}/digits%1b.onnx?a=1")
    assert answer["description"]["bytes"] == len(MODEL)
    assert answer["description"]["file"] == "digits\\x1b.onnx"
    answer, _ = web.ask("load", id=0, url=f"{address}/unsized.onnx")
    assert answer["description"]["bytes"] == len(MODEL)


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("missing", "runtime", "responded with 404"),
        ("huge", "limit", "1,099,511,627,776 bytes or more"),
        ("endless", "limit", "the limit is 8,000,000"),
        ("short", "runtime", "was cut off"),
    ],
)
def test_what_is_refused(web: Package, address: str, name: str, code: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as error:
        web.ask("load", id=0, url=f"{address}/{name}.onnx", limits={"fileBytes": 8_000_000})
    assert error.value.code == code


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/x.onnx", "digits.onnx", "file:///etc/hostname"]
)
def test_what_cannot_be_fetched(web: Package, url: str) -> None:
    with pytest.raises(Refused, match="cannot be fetched") as error:
        web.ask("load", id=0, url=url)
    assert error.value.code == "runtime"
    assert "readFile" in error.value.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads is 0"),
        ({"limits": {"fileBytes": 2**40}}, "fileBytes"),
        ({"limits": {"files": 1}}, "files"),
        ({"limits": {"nodes": 0.5}}, "nodes"),
    ],
)
def test_wrong_options(web: Package, options: dict[str, object], message: str) -> None:
    with pytest.raises(Refused, match=message) as error:
        web.load(MODEL, **options)
    assert error.value.code == "input"
