"""The servers that `benchmarks.serving` compares, each in its own process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from benchmarks.libcapsedge import compiled
from benchmarks.serving_page import OTHER
from capsedge.runtime.backends.native_library import find_embedding
from tests.native.libcapsedge import onnxruntime_library

STARTS = 120.0  # seconds to wait for the start, enough for a slow machine
_FIELDS = {"VmRSS": "now", "VmHWM": "most"}


class Server(ABC):
    """A running server.

    Attributes:
        name: name in the table's rows.
        protocol: ``http`` or ``pixels``.
        port: port on the loopback address.
    """

    protocol = "http"
    port: int
    _process: subprocess.Popen[bytes]

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self._command = name, command
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Start the server and wait until it answers."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        """The processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> dict[str, float]:
        """The resident memory in MiB: ``now``, and the ``most`` so far."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", text, re.M)
        return {_FIELDS[name]: int(size) / 1024 for name, size in found}

    def end(self) -> None:
        """Stop the server."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


class WebServer(Server):
    """A server whose port is given as ``{port}`` in its command."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = int(taken.getsockname()[1])
        super().__init__(name, [word.format(port=self.port) for word in command])

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + STARTS
        while self._process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        raise SystemExit(f"error: {self.name} does not start: {' '.join(self._command)}")


class Example(Server):
    """The C++ example of libcapsedge, which chooses its port and runs until its standard input ends."""

    protocol = "pixels"
    _input: IO[bytes]

    def start(self) -> None:
        """Start the example and read its port."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "CAPSEDGE_ONNXRUNTIME": str(onnxruntime_library())},
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        line = self._process.stdout.readline()
        if not line.startswith(b"port "):
            raise SystemExit(f"error: {self.name} does not start: {' '.join(self._command)}")
        self.port = int(line.split()[1])

    def end(self) -> None:
        """Close the example's standard input."""
        self._input.close()
        self._process.wait(60)


def build_example(folder: Path) -> Path:
    """Compile the C++ example."""
    return compiled(find_embedding().examples / "server.cpp", folder, "-pthread")


@contextlib.contextmanager
def running(
    model: Path, threads: int, example: Path | None, connections: int, beside: Path | None = None
) -> Iterator[list[Server]]:
    """Run all servers for one model.

    Args:
        model: the model file.
        threads: number of threads per inference.
        example: the compiled C++ example; None to leave it out.
        connections: number of connections for which the example has threads.
        beside: command of another capsedge whose server is also compared.
    """
    serve = [
        sys.executable, "-m", "capsedge", "serve", f"model={model}", "--port", "{port}",
        "--grpc-port", "0", "--metrics-port", "0", "--threads", str(threads),
    ]  # fmt: skip
    plain = [sys.executable, "-m", "benchmarks.serving_peer", str(model), "{port}", str(threads)]
    servers: list[Server] = []
    try:
        servers.append(WebServer("capsedge", serve))
        if beside is not None:
            servers.append(WebServer(OTHER, [str(beside), *serve[3:]]))
        servers.append(WebServer("capsedge --batch 1", [*serve, "--batch", "1"]))
        servers.append(WebServer("FastAPI", plain))
        if example is not None:
            words = [str(example), str(model), str(connections)]
            servers.append(Example("C++ example", words))
        yield servers
    finally:
        for server in servers:
            server.end()
