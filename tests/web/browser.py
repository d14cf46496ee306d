"""The package in headless Chromium: a page on loopback, and calls of its functions."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import package

NAMES = ("chromium", "chromium-browser", "google-chrome")
HERE = Path(__file__).parent
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; img-src 'self'; "
    "worker-src 'self'"
)
_PAGE = '<!doctype html><title>capsedge</title><script type="module" src="/suite.js"></script>'


def chromium() -> str | None:
    """The browser: ``CAPSEDGE_CHROMIUM``, or the first that is installed."""
    named = os.environ.get("CAPSEDGE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def missing() -> str:
    """What the tests lack, and the command that installs it; empty if they can run."""
    if chromium() is None:
        return "needs Chromium: apt-get install chromium, or set CAPSEDGE_CHROMIUM"
    if not (package.WEB / "node_modules" / "puppeteer-core").is_dir():
        return "needs the npm packages of capsedge/runtime/web: make web"
    return ""


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Static files under a Content-Security-Policy, isolated, so that WebAssembly has threads."""

    extensions_map = {  # noqa: RUF012 - as the base class has it
        "": "application/octet-stream", ".html": "text/html", ".js": "text/javascript", ".png": "image/png",
        ".mjs": "text/javascript", ".wasm": "application/wasm", ".jpg": "image/jpeg",
    }  # fmt: skip

    def __init__(self, *args: Any, policy: str, directory: str) -> None:
        self.policy = policy
        super().__init__(*args, directory=directory)

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", self.policy)
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path, policy: str = _POLICY) -> Iterator[str]:
    """The address of a folder, served on loopback."""
    handler = functools.partial(_Handler, policy=policy, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def calls(folder: Path, *named: tuple[Any, ...]) -> list[Any]:
    """What functions of ``suite.js`` return in a page of the compiled package, called one after another.

    The page must not complain, and must ask no other server for anything.
    """
    shutil.copy(HERE / "suite.js", folder)
    (folder / "index.html").write_text(_PAGE)
    with served(folder) as address:
        return _opened(folder, url=f"{address}/index.html", calls=named)


def text_of(folder: Path, page: str, element: str) -> str:
    """The text of an element in a page of the folder, which may have scripts of its own."""
    policy = f"{_POLICY}; script-src-elem 'self' 'unsafe-inline'"
    with served(folder, policy) as address:
        (found,) = _opened(folder, url=f"{address}/{page}", calls=[], text=element)
    return str(found)


def _opened(folder: Path, **asked: Any) -> list[Any]:
    shutil.copy(HERE / "browser.mjs", folder)
    (folder / "favicon.ico").touch()  # browsers ask for it
    done = subprocess.run(
        ["node", "browser.mjs"], cwd=folder, input=json.dumps({"chromium": chromium(), **asked}),
        text=True, timeout=570, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer["complaints"] == []
    assert answer["outside"] == []
    results: list[Any] = answer["results"]
    return results
