"""A server of `capsedge serve` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 120  # for what takes one or two on an idle machine


class Server:
    """A process that runs; `end` sends a signal and returns the exit code."""

    def __init__(
        self, words: list[str], folder: Path | None, environment: Mapping[str, str]
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "capsedge", "serve", *words, "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=folder, env={**os.environ, **environment},
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._said.extend, args=[self._process.stderr])
        self._reader.start()
        text = ""
        for line in self._process.stdout:
            text += line
            if line == "}\n":
                break
        self.document: dict[str, Any] = json.loads(text) if text else {}
        self.rest = self.document.get("rest", "")
        self.grpc = self.document.get("grpc", "")
        self.metrics = self.document.get("metrics", "")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """What it wrote on its standard error so far."""
        return "".join(self._said)

    def wait(self) -> int:
        code = self._process.wait(SECONDS)
        self._reader.join()
        return code

    def end(self, number: int = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def served(
    *words: object, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server for models, on free ports; killed at the end if it still runs."""
    given = [str(word) for word in words]
    ports = [] if "--port" in given else ["--port", "0"]
    server = Server([*given, *ports], folder, environment or {})
    try:
        yield server
    finally:
        server.kill()


def get(address: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The status and the body of a page."""
    return _open(urllib.request.Request(address, headers=dict(headers or {})))


def post(
    address: str, document: object, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """The status of a request, and the document of its answer."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    kind = {"Content-Type": "application/json", **(headers or {})}
    status, body = _open(urllib.request.Request(address, data, kind))
    return status, json.loads(body)


def _open(request: urllib.request.Request) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
