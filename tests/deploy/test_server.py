"""The server of a deployed folder: its own files, its own address, and nothing else."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from capsedge.deploy.preview_server import ADDRESS, CONTENT_SECURITY_POLICY, FolderServer
from capsedge.errors import EnvironmentProblem
from tests.conftest import ROOT


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FolderServer]:
    folder = tmp_path / "folder"
    (folder / "models").mkdir(parents=True)
    (folder / "index.html").write_text("the page")
    (folder / "models" / "a.onnx").write_bytes(b"model")
    (folder / "later.txt").write_text("was not listed")
    (tmp_path / "secret.txt").write_text("secret")
    with FolderServer(folder, ["index.html", "models/a.onnx", "gone.js"]) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(
    server: FolderServer, path: str, host: str | None = "own", method: str = "GET"
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(ADDRESS, server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    if host is not None:
        connection.putheader("Host", f"{ADDRESS}:{server.server_port}" if host == "own" else host)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers
    connection.close()
    return found


def test_its_files(server: FolderServer) -> None:
    for path, data, kind in (
        ("/", b"the page", "text/html; charset=utf-8"),
        ("/index.html?x=1#y", b"the page", "text/html; charset=utf-8"),
        ("/models/a.onnx", b"model", "application/octet-stream"),
        ("/%6dodels/a.onnx", b"model", "application/octet-stream"),
    ):
        status, body, headers = ask(server, path)
        assert (status, body, headers["Content-Type"]) == (200, data, kind)
        assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
        assert "Python" not in headers["Server"]


def test_a_head_without_its_body(server: FolderServer) -> None:
    status, body, headers = ask(server, "/models/a.onnx", method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "5")


@pytest.mark.parametrize(
    "path",
    [
        "/later.txt", "/models/", "/models", "/..", "/../secret.txt", "/%2e%2e/secret.txt", "//secret.txt",
        "/models/../../secret.txt", "/models/..%2f..%2fsecret.txt", "/index.html/", "/etc/passwd", "/gone.js",
        "/index.html%00",
    ],
)  # fmt: skip
def test_nothing_else(path: str, server: FolderServer) -> None:
    status, body, _ = ask(server, path)
    assert status == 404
    assert b"secret" not in body


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET http://[/ HTTP/1.1", b"400"),
        (b"GET http://a@[/ HTTP/1.1", b"400"),
        (b"GET //[ HTTP/1.1", b"404"),  # a path of two slashes
        (b"HEAD http://] HTTP/1.1", b"400"),
        (b"GET /%ff%zz%00%1b HTTP/1.1", b"404"),
        (b"GET /\x00\x1b\xff HTTP/1.1", b"404"),
        (b"GET / HTTP/9.9", b"505"),
        (b"GET / HTTP/1.\xb2", b"400"),
        (b"GET / / HTTP/1.1", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1", b"414"),
    ],
)
def test_requests_that_are_none(
    line: bytes, status: bytes, server: FolderServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection((ADDRESS, server.server_port), 10) as client:
        head = f"Host: {ADDRESS}:{server.server_port}\r\nConnection: close\r\n\r\n".encode()
        client.sendall(line + b"\r\n" + head)
        received = client.recv(4096)
    # Where the version is wrong, http.server answers as in HTTP 0.9: with a page alone.
    assert status in received.split(b"</p>")[0], received
    assert ask(server, "/")[0] == 200
    assert "Traceback" not in capsys.readouterr().err


def test_a_client_that_leaves_is_no_error(
    server: FolderServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _: b"x" * 2**26)
        with socket.create_connection((ADDRESS, server.server_port), 10) as client:
            client.sendall(
                f"GET / HTTP/1.1\r\nHost: {ADDRESS}:{server.server_port}\r\n\r\n".encode()
            )
            client.recv(100)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.server_close()  # joins nothing: the threads are daemons
        for thread in threading.enumerate():
            if thread.daemon and thread is not threading.current_thread():
                thread.join(1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("host", [None, "", "evil.example", "localhost", "127.0.0.1:1", "[::1]"])
def test_foreign_hosts(host: str | None, server: FolderServer) -> None:
    """A page elsewhere whose name was rebound to this machine sends its own name."""
    status, body, _ = ask(server, "/models/a.onnx", host)
    assert status in (400, 421)
    assert b"model" not in body


def test_localhost_is_its_own_name(server: FolderServer) -> None:
    assert ask(server, "/", f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods(method: str, server: FolderServer) -> None:
    assert ask(server, "/", method=method)[0] == 501


def test_a_port_that_is_taken(server: FolderServer, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=f"port {server.server_port}"):
        FolderServer(tmp_path / "folder", ["index.html"], server.server_port)


def test_the_page_states_the_same_policy() -> None:
    """All but `frame-ancestors`, which counts in headers only."""
    page = (ROOT / "capsedge/runtime/web/page/index.html").read_text()
    declared = CONTENT_SECURITY_POLICY.rpartition("; ")[0]
    assert f'content="{declared}"' in page
    assert "unsafe-inline" not in declared
